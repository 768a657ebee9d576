// The cache panel: the engine's tiers and conversations, live.
"use strict";

const tiers = [["gpu", "GPU"], ["host", "Host memory"], ["disk", "Disk"]];

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return (i ? n.toFixed(1) : n) + " " + units[i];
}

function element(name, cls, text) {
  const e = document.createElement(name);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text;
  return e;
}

function tierView([key, name], t) {
  const out = element("section", "tier " + key);
  const head = element("div", "head");
  head.append(element("h3", "", name), element("span", "dim", t.present ? `${bytes(t.bytes)} of ${bytes(t.bytes_max)}` : key === "gpu" ? "Not used" : "Off"));
  out.append(head);
  if (t.present) {
    const meter = element("div", "meter"), fill = document.createElement("span");
    meter.setAttribute("role", "meter");
    meter.setAttribute("aria-label", name);
    meter.setAttribute("aria-valuemin", "0");
    meter.setAttribute("aria-valuemax", String(t.bytes_max));
    meter.setAttribute("aria-valuenow", String(t.bytes));
    meter.setAttribute("aria-valuetext", `${bytes(t.bytes)} of ${bytes(t.bytes_max)}`);
    fill.style.width = (t.bytes_max ? Math.min(100, (100 * t.bytes) / t.bytes_max) : 0) + "%";
    fill.className = t.bytes ? "some" : "";
    meter.append(fill);
    out.append(meter, element("div", "dim", `${t.pages} pages` + (t.pages_shared ? `, ${t.pages_shared} shared` : "")));
  }
  return out;
}

function sessionView(s, mine, nameOf) {
  const out = element("section", "sess" + (s.session_id && s.session_id === mine ? " mine" : ""));
  const head = element("div", "head");
  const name = element("h4", "", nameOf(s));
  name.title = name.textContent;
  head.append(name, element("span", "dim", `${s.tokens} tokens · ${bytes(s.bytes)}`));
  const cells = element("div", "cells");
  cells.setAttribute("role", "img");
  cells.setAttribute("aria-label", `${s.pages} pages, ${s.pages_shared} of them shared; mode ${s.mode}`);
  for (const c of s.cells.slice(0, 1024)) {
    const code = c.charCodeAt(0);
    const [cls, tier] = code >= 97 ? [" shared", code - 97] : code >= 65 ? [" tail", code - 65] : ["", code - 48];
    cells.append(element("span", `cell t${tier}${cls}`));
  }
  out.append(head, cells);
  return out;
}

export function draw(node, picture, mine, nameOf) {
  const out = [];
  for (const t of tiers) out.push(tierView(t, picture.tiers[t[0]]));
  out.push(element("h3", "", "Pages"));
  const legend = element("div", "legend dim");
  for (const [i, name] of [[0, "GPU"], [1, "Host"], [2, "Disk"]]) {
    const l = document.createElement("span");
    l.append(element("span", "cell t" + i), name);
    legend.append(l);
  }
  const shared = document.createElement("span");
  shared.append(element("span", "cell t1 shared"), "Shared");
  legend.append(shared);
  const shown = picture.sessions.filter((s) => s.pages > 0);
  shown.sort((a, b) => (b.session_id === mine && mine ? 1 : 0) - (a.session_id === mine && mine ? 1 : 0) || b.number - a.number);
  for (const s of shown.slice(0, 12)) out.push(sessionView(s, mine, nameOf));
  if (shown.length > 12) out.push(element("p", "dim", `and ${shown.length - 12} more`));
  out.push(legend, element("p", "dim", `1 cell = 1 page of ${picture.page_tokens} tokens`));
  const speed = picture.running ? `${Math.round(picture.decode_tokens_per_s)} tok/s · ${picture.running} running` + (picture.queued ? `, ${picture.queued} waiting` : "") : "Idle";
  out.push(element("p", "dim", speed));
  node.replaceChildren(...out);
}
