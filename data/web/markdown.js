// Markdown into DOM nodes. Text of the model only ever becomes text nodes: nothing here parses HTML, so nothing has to be
// cleaned. Links keep http, https and mailto; all else is text. A view re-renders only the blocks whose source changed.
"use strict";

const fence = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const item = /^( {0,8})([-*+]|\d{1,9}[.)])\s+(.*)$/;

// The source's top-level blocks, as arrays of lines.
function blocks(text) {
  const out = [];
  let lines = null, close = null, kind = null;
  const end = () => { if (lines) out.push(lines); lines = null; kind = null; };
  for (const line of text.split("\n")) {
    if (close) {
      lines.push(line);
      if (close.test(line)) { close = null; end(); }
      continue;
    }
    const f = fence.exec(line);
    const next = /^\s*$/.test(line) ? "blank" : f ? "fence" : /^ {0,3}#{1,6}(\s|$)/.test(line) ? "heading"
      : /^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line) ? "rule" : item.test(line) ? "list" : /^ {0,3}>/.test(line) ? "quote" : "text";
    if (next === "blank" && kind === "list") { lines.push(line); continue; }
    if (next === "blank") { end(); continue; }
    if (f) {
      end();
      lines = [line];
      kind = "fence";
      close = new RegExp("^ {0,3}" + (f[1][0] === "`" ? "`" : "~") + "{" + f[1].length + ",}\\s*$");
      continue;
    }
    const mark = next === "list" && kind === "list" && item.exec(line), begun = mark && item.exec(lines[0]);
    const other = mark && mark[1].length <= begun[1].length + 1 && /\d/.test(mark[2]) !== /\d/.test(begun[2]);
    const goes_on = other ? false : kind === "list" ? next === "list" || /^\s+\S/.test(line) : kind === next && next !== "heading" && next !== "rule"
      || kind === "quote" && next === "text";
    if (!goes_on) end();
    if (!lines) { lines = []; kind = next; }
    lines.push(line);
    if (next === "heading" || next === "rule") end();
  }
  end();
  return out;
}

const letter = /[\p{L}\p{N}]/u;

function element(name, ...children) {
  const e = document.createElement(name);
  e.append(...children);
  return e;
}

function link(label, target) {
  let url;
  try { url = new URL(target); } catch { return null; }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  const a = element("a", ...inline(label, true));
  a.href = url.href;
  a.rel = "noopener noreferrer nofollow";
  a.target = "_blank";
  a.title = url.href;
  return a;
}

const marks = [
  [/^(`+)(.+?)\1(?!`)/s, (m) => element("code", m[2].replace(/^ (.*) $/s, "$1"))],
  [/^\\([!-/:-@[-`{-~])/, (m) => document.createTextNode(m[1])],
  [/^\*\*(?=\S)(.+?\S|\S)\*\*(?!\*)/s, (m) => element("strong", ...inline(m[1]))],
  [/^__(?=\S)(.+?\S|\S)__(?!\w)/s, (m) => element("strong", ...inline(m[1]))],
  [/^\*(?=[^\s*])(.+?[^\s*]|[^\s*])\*(?!\*)/s, (m) => element("em", ...inline(m[1]))],
  [/^_(?=[^\s_])(.+?[^\s_]|[^\s_])_(?!\w)/s, (m) => element("em", ...inline(m[1]))],
  [/^~~(?=\S)(.+?\S|\S)~~/s, (m) => element("del", ...inline(m[1]))],
  [/^\[([^\[\]]{1,1000})\]\(\s*<?([^\s()<>]{1,2000})>?(?:\s+"[^"]*")?\s*\)/, (m, inLink) => inLink ? null : link(m[1], m[2])],
  [/^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/, (m, inLink) => inLink ? null : link(m[1], m[1])],
];

// Nodes of a run of text.
function inline(text, inLink = false, depth = 0) {
  const out = [];
  let plain = "", at = 0;
  const flush = () => { if (plain) out.push(document.createTextNode(plain)); plain = ""; };
  while (at < text.length) {
    const c = text[at];
    if ("`\\*_~[<".includes(c) && !(c === "_" && at > 0 && /\w/.test(text[at - 1]))) {
      // Bounded: a mark's other end is looked for nearby, so that no text takes quadratic time.
      const rest = text.slice(at, at + 4000);
      let hit = null;
      for (const [pattern, make] of marks) {
        const m = pattern.exec(rest);
        const node = m && make(m, inLink);
        if (node) { hit = [m[0].length, node]; break; }
      }
      if (hit) {
        flush();
        out.push(hit[1]);
        at += hit[0];
        continue;
      }
    }
    if (c === "\n") {
      flush();
      out.push(/ {2}$/.test(text.slice(0, at)) ? element("br") : document.createTextNode("\n"));
    } else plain += c;
    at++;
  }
  flush();
  return out;
}

function cells(line) {
  return line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).map((s) => s.trim().replace(/\\\|/g, "|"));
}

function table(lines) {
  const row = (line, name) => element("tr", ...cells(line).map((c) => element(name, ...inline(c))));
  return element("table", element("thead", row(lines[0], "th")), element("tbody", ...lines.slice(2).map((l) => row(l, "td"))));
}

function list(lines, depth) {
  const first = item.exec(lines[0]);
  const ordered = /\d/.test(first[2]);
  const out = document.createElement(ordered ? "ol" : "ul");
  if (ordered && parseInt(first[2], 10) !== 1) out.start = Math.min(parseInt(first[2], 10), 1e9);
  const indent = first[1].length;
  let current = null;
  const finish = () => {
    if (!current) return;
    const body = current.slice(1).map((l) => l.replace(/^ {1,6}/, ""));
    const head = [current[0]];
    while (body.length && body[0].trim() && !item.test(body[0]) && !fence.test(body[0])) head.push(body.shift());
    const li = element("li", ...inline(head.join("\n")));
    if (depth < 6) for (const b of blocks(body.join("\n"))) li.append(block(b, depth + 1));
    out.append(li);
  };
  for (const line of lines) {
    const m = item.exec(line);
    if (m && m[1].length <= indent + 1) {
      finish();
      current = [m[3]];
    } else current.push(line);
  }
  finish();
  return out;
}

function block(lines, depth = 0) {
  const first = lines[0];
  const f = fence.exec(first);
  if (f) {
    const closed = lines.length > 1 && /^ {0,3}(`{3,}|~{3,})\s*$/.test(lines[lines.length - 1]);
    const code = element("code", lines.slice(1, closed ? -1 : undefined).join("\n"));
    const pre = element("pre", code);
    pre.tabIndex = 0;
    pre.setAttribute("role", "region");
    pre.setAttribute("aria-label", (f[2] ? f[2] + " code" : "Code") + `, ${lines.length - (closed ? 2 : 1)} lines`);
    return pre;
  }
  const heading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/.exec(first);
  if (heading) return element("h" + Math.min(heading[1].length + 2, 6), ...inline(heading[2]));
  if (/^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(first)) return element("hr");
  if (item.test(first)) return list(lines, depth);
  if (/^ {0,3}>/.test(first) && depth < 6) {
    const quote = document.createElement("blockquote");
    for (const b of blocks(lines.map((l) => l.replace(/^ {0,3}> ?/, "")).join("\n"))) quote.append(block(b, depth + 1));
    return quote;
  }
  if (lines.length > 1 && first.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[1]) && lines[1].includes("-"))
    return table(lines);
  return element("p", ...inline(lines.join("\n")));
}

export class MarkdownView {
  constructor(node) {
    this.node = node;
    this.sources = [];
  }

  // Shows @text. Returns the plain text of the sentences that are complete now and were not before.
  set(text) {
    const now = blocks(text);
    now.forEach((lines, i) => {
      const source = lines.join("\n");
      if (this.sources[i] === source) return;
      const made = block(lines);
      if (i < this.node.children.length) this.node.children[i].replaceWith(made);
      else this.node.append(made);
      this.sources[i] = source;
    });
    while (this.node.children.length > now.length) this.node.lastChild.remove();
    this.sources.length = now.length;
    return this.tell(false);
  }

  // What set() has not returned yet.
  rest() { return this.tell(true); }

  // What was told is counted in letters and digits: a mark that closes takes none of those from the text.
  tell(all) {
    const plain = [...this.node.children].map((n) => n.textContent).join("\n");
    let from = 0;
    for (let n = this.told || 0; n > 0 && from < plain.length; from++) n -= letter.test(plain[from]) ? 1 : 0;
    const fresh = plain.slice(from), ends = all ? null : [...fresh.matchAll(/[.!?\u2026]["'\u201d\u2019)\]]*\s|\n/g)].pop();
    const part = all ? fresh : ends ? fresh.slice(0, ends.index + ends[0].length) : "";
    for (const c of part) this.told = (this.told || 0) + (letter.test(c) ? 1 : 0);
    return letter.test(part) ? part.replace(/^[^\p{L}\p{N}]*\s/u, "").replace(/^[^\p{L}\p{N}"'\u201c(]+/u, "").trim() : "";
  }
}
