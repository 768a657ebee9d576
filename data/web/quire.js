// The page: chats of this browser, answered by this server. Texts live in localStorage, caches in the server's sessions.
"use strict";
import { MarkdownView } from "/web/markdown.js";
import { draw } from "/web/cache.js";

const $ = (id) => document.getElementById(id);
const MODES = [["auto", "Automatic"], ["rebuild", "Rebuild"], ["paged", "Paged"], ["session", "Session"], ["tiered", "Tiered"], ["tiered-int8", "Tiered, 8 bits"], ["selective", "Selective, approximate"]];
const SUGGESTIONS = ["What is a KV cache?", "Tell me a story.", "What is 27 plus 15?"];

// ---- The server ----

let token = sessionStorage.getItem("token") || "";

async function call(path, options = {}, refused = false) {
  const headers = options.body ? { "Content-Type": "application/json" } : {};
  if (token) headers.Authorization = "Bearer " + token;
  let r;
  try { r = await fetch(path, { ...options, headers }); } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Error("The server does not answer. Is it still running?");
  }
  if (r.status === 401) {
    await askToken(refused);
    return call(path, options, true);
  }
  if (!r.ok) {
    let message = `The server answered ${r.status}.`;
    try { message = (await r.json()).error.message; } catch { /* no JSON: the status says it */ }
    throw new Error(message);
  }
  return r;
}

const post = (path, body, signal) => call(path, { method: "POST", body: JSON.stringify(body), signal });

// Whether the server has that session: it may have been started anew since.
const has = async (id) => (await (await call("/v1/sessions")).json()).data.some((s) => s.id === id);

// Ends the server's session. Who is @leaving has no time to ask whether there is one.
function forget(id, leaving) {
  const end = () => call("/v1/sessions/" + id, { method: "DELETE", keepalive: leaving });
  (leaving ? end() : has(id).then((there) => there && end())).catch(() => { /* it ends with the server */ });
}

// One dialog, whoever asks. Who closes it without a token is asked again when they next want something.
let asking = null, declined = false;
function askToken(refused) {
  if (declined) return Promise.reject(new Error("This server needs its token."));
  asking ||= new Promise((done, failed) => {
    const dialog = $("token-dialog");
    $("token-wrong").textContent = refused ? "The server refused that token." : "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asking = null;
      declined = dialog.returnValue !== "use";
      if (declined) return failed(new Error("This server needs its token."));
      token = $("token").value.trim();
      sessionStorage.setItem("token", token);
      done();
    }, { once: true });
    dialog.showModal();
    $("token").select();
  });
  return asking;
}

// The data of a stream's events, one by one.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let value, done;
    try { ({ value, done } = await reader.read()); } catch (e) {
      if (e.name === "AbortError") throw e;
      throw new Error("The connection to the server broke off.");
    }
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts)
      for (const line of part.split("\n"))
        if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
  }
}

// ---- Chats ----

let chats = [], current = null, running = null, model = null;

function save() {
  try { localStorage.setItem("chats", JSON.stringify(chats)); } catch { toast("This browser keeps no more chats."); }
}

function load() {
  try { chats = JSON.parse(localStorage.getItem("chats")) || []; } catch { chats = []; }
  chats = chats.filter((c) => c && typeof c.id === "string" && Array.isArray(c.messages));
}

function newChat() {
  const id = "web-" + Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, "0")).join("");
  return { id, title: "New chat", messages: [], mode: "auto", think: "", pinned: false };
}

function open(chat) {
  if (running && running.chat !== chat) running.stop();
  current = chat;
  drawChats();
  drawTranscript();
  $("mode").value = chat.mode;
  $("think").value = chat.think;
  $("pin").setAttribute("aria-pressed", String(chat.pinned));
  $("input").focus();
}

function drawChats() {
  $("chats").replaceChildren(...chats.map((chat) => {
    const li = document.createElement("li"), b = document.createElement("button"), del = document.createElement("button");
    if (chat === current) li.setAttribute("aria-current", "true");
    b.className = "open";
    b.textContent = b.title = chat.title;
    b.addEventListener("click", () => { open(chat); hideSidebar(); });
    del.className = "flat icon delete";
    del.setAttribute("aria-label", "Delete " + chat.title);
    del.title = "Delete";
    del.append(icon("m4 4 8 8M12 4l-8 8"));
    del.addEventListener("click", () => remove(chat));
    li.append(b, del);
    return li;
  }));
}

function icon(path) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), p = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  p.setAttribute("d", path);
  svg.append(p);
  return svg;
}

// The server's session goes when the deletion cannot be undone any more.
function remove(chat) {
  if (running && running.chat === chat) running.stop();
  const at = chats.indexOf(chat), shown = chat === current;
  chats = chats.filter((c) => c !== chat);
  save();
  if (shown) open(chats[0] || newChat());
  else drawChats();
  if (shown && !$("sidebar").hidden) ($("chats").querySelector(".open") || $("new-chat")).focus();
  toast("Deleted " + chat.title, () => { chats.splice(at, 0, chat); save(); if (shown) open(chat); else drawChats(); },
    (leaving) => forget(chat.id, leaving));
}

// ---- The conversation ----

function drawTranscript() {
  $("transcript").replaceChildren(...current.messages.map(messageView));
  $("empty").hidden = current.messages.length > 0;
  $("title").textContent = $("title").title = current.title;
  document.title = current.messages.length ? current.title + " - Quire" : "Quire";
  $("fork").disabled = current.messages.length === 0;
  drawContext();
  toEnd(true);
}

function drawContext() {
  const last = current.messages.filter((m) => m.receipt).pop();
  $("context").textContent = last && model ? `${last.receipt.total} / ${(model.max_model_len / 1024).toFixed(1)}K` : "";
}

function messageView(m) {
  const li = document.createElement("li");
  if (m.role === "user") {
    li.className = "user";
    li.setAttribute("aria-label", "You");
    const bubble = document.createElement("div");
    bubble.className = "bubble";
    bubble.dir = "auto";
    bubble.textContent = m.content;
    li.append(bubble);
    return li;
  }
  li.className = "assistant";
  li.setAttribute("aria-label", "Model");
  const view = new ReplyView(li);
  view.show(m.reasoning || "", m.content, false);
  view.finish(m);
  return li;
}

// One reply: thought, text, foot.
class ReplyView {
  constructor(li) {
    this.li = li;
    this.body = document.createElement("div");
    this.body.className = "text";
    this.body.dir = "auto";
    this.foot = document.createElement("div");
    this.foot.className = "foot dim";
    li.append(this.body, this.foot);
    this.markdown = new MarkdownView(this.body);
  }

  show(reasoning, content, live) {
    if (reasoning && !this.thought) {
      const d = document.createElement("details"), s = document.createElement("summary");
      d.className = "thinking";
      s.textContent = "Thinking";
      this.thought = document.createElement("div");
      d.append(s, this.thought);
      this.li.prepend(d);
    }
    if (this.thought) this.thought.textContent = reasoning;
    const fresh = this.markdown.set(content);
    if (live && fresh) status(fresh);
    this.body.classList.toggle("caret", live && !content);
  }

  progress(text) { this.foot.textContent = text; }

  finish(m) {
    const children = [];
    if (m.error) {
      const e = document.createElement("div");
      e.className = "error";
      e.setAttribute("role", "alert");
      e.textContent = m.error;
      this.li.insertBefore(e, this.foot);
    }
    const r = m.receipt;
    if (r) {
      const parts = [`${Math.round(r.first)} ms`, `${Math.round(r.speed)} tok/s`, `${r.fresh} new`, `${r.reused} reused`];
      if (r.finish === "length") parts.push("cut at the limit");
      const figures = document.createElement("span");
      figures.textContent = parts.join(" · ");
      figures.title = "Time to the first token, speed, tokens computed, tokens from the cache";
      children.push(figures);
    } else if (m.stopped) children.push(document.createTextNode("Stopped"));
    const grow = document.createElement("span");
    grow.className = "grow";
    children.push(grow);
    if (m.content && navigator.clipboard)
      children.push(this.button("Copy", "M5 5h8v9H5zM3 11V2h8", () => navigator.clipboard.writeText(m.content).then(() => toast("Copied"), () => toast("The browser did not let it be copied"))));
    if (current.messages[current.messages.length - 1] === m)
      children.push(this.button(m.error ? "Try again" : "Regenerate", "M13 8a5 5 0 1 1-1.5-3.5M13 1v4H9", regenerate));
    this.foot.replaceChildren(...children);
  }

  button(label, path, action) {
    const b = document.createElement("button");
    b.type = "button";
    b.className = "flat icon";
    b.title = label;
    b.setAttribute("aria-label", label);
    b.append(icon(path));
    b.addEventListener("click", action);
    return b;
  }
}

function toEnd(force) {
  const s = $("scroll");
  if (force || s.scrollHeight - s.scrollTop - s.clientHeight < 120) s.scrollTop = s.scrollHeight;
}

// For a screen reader alone.
let statusTimer = 0;
function status(text) {
  $("status").textContent = text;
  clearTimeout(statusTimer);
  statusTimer = setTimeout(() => { $("status").textContent = ""; }, 10000);
}

// For all. With @undo it has a button; @after is done when that has gone unused.
let toastTimer = 0, toastEnd = null;
function toast(text, undo = null, after = null) {
  toastEnd?.();
  const end = () => { clearTimeout(toastTimer); $("toast").hidden = true; toastEnd = null; };
  toastEnd = (leaving = false) => { end(); after?.(leaving); };
  $("toast-text").textContent = text;
  $("toast-undo").hidden = !undo;
  $("toast-undo").onclick = () => { end(); undo(); $("input").focus(); };
  $("toast").hidden = false;
  status(undo ? text + ". It can be undone." : text);
  toastTimer = setTimeout(() => toastEnd?.(), undo ? 10000 : 4000);
}

// ---- Asking ----

function receiptOf(c) {
  return { first: c.timings.first_token_ms, speed: c.timings.decode_tokens_per_s, fresh: c.cache.new, reused: c.cache.reused, total: c.cache.prompt,
    mode: c.cache.mode, finish: c.choices[0].finish_reason };
}

function toSend(messages) {
  return messages.filter((m) => !m.error || m.content).map(({ role, content }) => ({ role, content }));
}

async function ask(chat) {
  declined = false;
  const reply = { role: "assistant", content: "", reasoning: "" };
  const body = { messages: toSend(chat.messages), session_id: chat.id, cache_mode: chat.mode, stream: true, return_progress: true, stream_options: { include_usage: true } };
  if (model?.has_thinking && chat.think) body.enable_thinking = chat.think === "on";
  chat.messages.push(reply);
  const li = document.createElement("li");
  li.setAttribute("aria-label", "Model");
  $("transcript").append(li);
  const view = new ReplyView(li), abort = new AbortController();
  let frame = 0;
  const paint = () => { frame = 0; view.show(reply.reasoning, reply.content, true); toEnd(false); };
  running = { chat, stop: () => abort.abort() };
  setBusy(true);
  view.show("", "", true);
  toEnd(true);
  try {
    for await (const c of events(await post("/v1/chat/completions", body, abort.signal))) {
      if (c.error) throw new Error(c.error.message);
      const p = c.prompt_progress, choice = c.choices[0];
      if (p) view.progress(p.queued_before ? `${p.queued_before} ahead` : `Reading ${p.processed} of ${p.total} tokens`);
      if (c.usage && reply.receipt) reply.receipt.total = c.usage.total_tokens;
      if (!choice) continue;
      reply.content += choice.delta.content || "";
      reply.reasoning += choice.delta.reasoning_content || "";
      if (choice.finish_reason) reply.receipt = receiptOf(c);
      frame ||= requestAnimationFrame(paint);
    }
  } catch (e) {
    if (abort.signal.aborted) reply.stopped = true;
    else reply.error = e.message;
  }
  cancelAnimationFrame(frame);
  view.show(reply.reasoning, reply.content, false);
  status(reply.stopped ? "Stopped" : reply.error ? "" : view.markdown.rest()); // an error is an alert already
  if (!reply.content && !reply.error && reply.stopped) { chat.messages.pop(); li.remove(); }
  else view.finish(reply);
  running = null;
  setBusy(false);
  save();
  if (chat === current) { drawContext(); toEnd(false); }
}

function setBusy(busy) {
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("transcript").setAttribute("aria-busy", String(busy));
}

function send(text) {
  text = text.trim();
  if (!text || running) return;
  if (!chats.includes(current)) chats.unshift(current);
  if (!current.messages.length) current.title = text.slice(0, 60);
  current.messages.push({ role: "user", content: text });
  $("input").value = "";
  grow();
  drawChats();
  drawTranscript();
  ask(current);
}

function regenerate() {
  if (running || !current.messages.length) return;
  if (current.messages[current.messages.length - 1].role === "assistant") current.messages.pop();
  drawTranscript();
  ask(current);
}

async function fork() {
  const copy = { ...newChat(), title: current.title, messages: structuredClone(current.messages), mode: current.mode, think: current.think };
  try {
    if (await has(current.id)) await post(`/v1/sessions/${current.id}/fork`, { session_id: copy.id });
  } catch { /* without the fork its first turn computes all */ }
  chats.unshift(copy);
  save();
  open(copy);
  toast("This is the fork");
}

async function pin() {
  declined = false;
  const pinned = !current.pinned;
  try {
    if (!(await has(current.id))) await post("/v1/sessions", { session_id: current.id });
    await post(`/v1/sessions/${current.id}/pin`, { pinned });
    current.pinned = pinned;
    $("pin").setAttribute("aria-pressed", String(pinned));
    toast(pinned ? "The server keeps this chat's cache" : "The server may drop this chat's cache");
    save();
  } catch (e) { toast(e.message); }
}

// ---- Two modes compared ----

async function runMode(mode, out, prompt, signal) {
  const id = "compare-" + crypto.getRandomValues(new Uint32Array(1))[0].toString(16);
  const lines = [];
  let text = "";
  out.replaceChildren();
  const body = document.createElement("div"), foot = document.createElement("div");
  body.className = "text";
  foot.className = "dim";
  out.append(body, foot);
  const view = new MarkdownView(body);
  try {
    for (const what of ["Cold", "Again"]) {
      text = "";
      const request = { messages: [{ role: "user", content: prompt }], session_id: id, cache_mode: mode, temperature: 0, stream: true };
      for await (const c of events(await post("/v1/chat/completions", request, signal))) {
        if (c.error) throw new Error(c.error.message);
        text += c.choices[0].delta.content || "";
        view.set(text);
        if (c.choices[0].finish_reason) {
          const r = receiptOf(c);
          lines.push(`${what}: ${r.first.toFixed(1)} ms · ${Math.round(r.speed)} tok/s · ${r.fresh} new · ${r.reused} reused (${r.mode})`);
          foot.replaceChildren(...lines.map((l) => Object.assign(document.createElement("div"), { textContent: l })));
        }
      }
    }
  } finally { forget(id, false); }
  return text;
}

let comparing = null;
async function compare(event) {
  event.preventDefault();
  const prompt = $("compare-input").value.trim();
  if (!prompt) return $("compare-input").focus();
  declined = false;
  comparing = new AbortController();
  const signal = comparing.signal;
  $("compare-run").hidden = true;
  $("compare-stop").hidden = false;
  $("compare-stop").focus();
  $("out-b").replaceChildren();
  $("verdict").textContent = "Working\u2026";
  try {
    const a = await runMode($("mode-a").value, $("out-a"), prompt, signal), b = await runMode($("mode-b").value, $("out-b"), prompt, signal);
    let i = 0;
    while (i < a.length && a[i] === b[i]) i++;
    $("verdict").textContent = a === b ? "Both say the same, to the last character." : `They differ from character ${i + 1} on.`;
  } catch (e) { $("verdict").textContent = signal.aborted ? "Stopped" : e.message; }
  const focused = document.activeElement === $("compare-stop");
  $("compare-run").hidden = false;
  $("compare-stop").hidden = true;
  if (focused) $("compare-run").focus();
  comparing = null;
}

// ---- The frame ----

function show(id, visible) {
  $(id).hidden = !visible;
  $(id === "panel" ? "toggle-cache" : "toggle-chats").setAttribute("aria-expanded", String(visible));
  if (id === "sidebar") $("scrim").hidden = !visible;
}

const isNarrow = () => matchMedia("(max-width: 640px)").matches;

// Where the list lies over the chat: gone once it has been used.
function hideSidebar() {
  if (isNarrow() && !$("sidebar").hidden) show("sidebar", false);
}

function toggleSidebar() {
  show("sidebar", $("sidebar").hidden);
  if (isNarrow() && !$("sidebar").hidden) $("new-chat").focus();
}

// Stops the reply; else closes what lies over the chat.
function escape() {
  if (document.querySelector("dialog[open]")) return;
  if (running) running.stop();
  else if (isNarrow() && !$("sidebar").hidden) { show("sidebar", false); $("toggle-chats").focus(); }
  else if (matchMedia("(max-width: 900px)").matches && !$("panel").hidden) { show("panel", false); $("toggle-cache").focus(); }
}

function grow() {
  const t = $("input");
  t.style.height = "auto";
  t.style.height = t.scrollHeight + "px";
  $("send").disabled = !t.value.trim();
}

async function watchCache() {
  for (;;) {
    try {
      for await (const picture of events(await call("/v1/cache/events"))) {
        $("cache-lost").hidden = true;
        draw($("cache"), picture, current.id, (s) => chats.find((c) => c.id === s.session_id)?.title || s.session_id || "Chat " + s.number);
      }
    } catch { /* the server went; it may come back */ }
    $("cache-lost").textContent = declined ? "This server needs its token." : "The server does not answer." + ($("cache").children.length ? " What is below was so when it last did." : "");
    $("cache-lost").hidden = false;
    await new Promise((done) => setTimeout(done, 2000));
  }
}

function fillModes(...ids) {
  for (const id of ids) $(id).append(...MODES.map(([value, name]) => new Option(name, value)));
}

async function start() {
  load();
  fillModes("mode", "mode-a", "mode-b");
  $("mode-a").value = "rebuild";
  $("mode-b").value = "session";
  if (matchMedia("(max-width: 900px)").matches) show("panel", false);
  if (isNarrow()) show("sidebar", false);
  else $("scrim").hidden = true;
  $("suggestions").append(...SUGGESTIONS.map((text) => {
    const b = document.createElement("button");
    b.textContent = text;
    b.addEventListener("click", () => send(text));
    return b;
  }));
  $("composer").addEventListener("submit", (e) => { e.preventDefault(); send($("input").value); });
  $("input").addEventListener("input", grow);
  $("input").addEventListener("keydown", (e) => {
    // While an input method composes, Enter is its own.
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing && e.keyCode !== 229) { e.preventDefault(); send($("input").value); }
  });
  document.addEventListener("keydown", (e) => { if (e.key === "Escape" && !e.isComposing) escape(); });
  $("stop").addEventListener("click", () => running?.stop());
  $("new-chat").addEventListener("click", () => { hideSidebar(); open(newChat()); });
  $("mode").addEventListener("change", () => { current.mode = $("mode").value; save(); });
  $("think").addEventListener("change", () => { current.think = $("think").value; save(); });
  $("fork").addEventListener("click", fork);
  $("pin").addEventListener("click", pin);
  $("toggle-chats").addEventListener("click", toggleSidebar);
  $("scrim").addEventListener("click", hideSidebar);
  $("toggle-cache").addEventListener("click", () => show("panel", $("panel").hidden));
  $("close-cache").addEventListener("click", () => { show("panel", false); $("toggle-cache").focus(); });
  $("compare").addEventListener("click", () => $("compare-dialog").showModal());
  $("compare-close").addEventListener("click", () => $("compare-dialog").close());
  $("compare-form").addEventListener("submit", compare);
  $("compare-stop").addEventListener("click", () => comparing?.abort());
  $("compare-dialog").addEventListener("close", () => comparing?.abort());
  $("token-cancel").addEventListener("click", () => $("token-dialog").close(""));
  addEventListener("pagehide", () => toastEnd?.(true));
  open(chats[0] || newChat());
  grow();
  try {
    model = (await (await call("/v1/models")).json()).data[0] || null;
    $("subtitle").textContent = model ? `${model.name} · ${model.backend.toUpperCase()}` : "No model is loaded";
    $("think-label").hidden = !model?.has_thinking;
    drawContext();
  } catch (e) { $("subtitle").textContent = e.message; }
  watchCache();
}

start();
