// Headless Chromium: the page to chat in, /docs, a page of another origin. 
// Usage: browser.mjs URI CHROMIUM FOLDER-FOR-SCREENSHOTS-OR-EMPTY URI-OF-A-SERVER-WITH-A-TOKEN TOKEN ITS-PROCESS
import assert from "node:assert/strict";
import http from "node:http";
import puppeteer from "puppeteer-core";

const [uri, executablePath, shots] = process.argv.slice(2);
const browser = await puppeteer.launch({
  executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP rebound.example 127.0.0.1", "--disable-background-networking"],
});
const faults = [];

async function newPage(width, height, dark) {
  const page = await browser.newPage();
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }]);
  page.on("console", (m) => ["error", "warn"].includes(m.type()) && faults.push(`${m.text()} ${m.location()?.url ?? ""}`));
  page.on("pageerror", (e) => faults.push(String(e)));
  page.on("request", (r) => { if (!r.url().startsWith(uri) && !/^(data|blob|about):/.test(r.url())) faults.push("request to " + r.url()); });
  return page;
}
const shot = async (page, name) => { if (shots) await page.screenshot({ path: `${shots}/${name}.png` }); };
const textOf = (page, selector) => page.$eval(selector, (e) => e.innerText);
const replies = (page) => page.$$eval("#transcript .assistant .text, #transcript li[aria-label=Model] .text", (es) => es.map((e) => e.innerText));
const idle = (page) => page.waitForFunction(() => document.querySelector("#stop").hidden && document.querySelector("#transcript").getAttribute("aria-busy") !== "true");

// ---- A conversation, by keyboard ----
const page = await newPage(1200, 800, false);
page.setDefaultTimeout(60000);
await page.goto(uri);
await page.waitForFunction(() => document.querySelector("#subtitle").textContent.includes("CPU"));
await shot(page, "empty");
assert.equal(await page.evaluate(() => document.activeElement.id), "input");
await page.keyboard.type("My name is Oda and I live in Bergen.");
await page.keyboard.press("Enter");
await page.waitForFunction(() => /reused/.test(document.querySelector("#transcript li:last-child .foot")?.textContent ?? ""));
await page.keyboard.type("Where do I live?");
await page.keyboard.press("Enter");
await page.waitForFunction(() => document.querySelectorAll("#transcript li").length === 4 && /reused/.test(document.querySelector("#transcript li:last-child .foot")?.textContent ?? ""));
assert.match((await replies(page))[1], /Bergen/);
const foot = await textOf(page, "#transcript li:last-child .foot");
assert.ok(parseInt(foot.match(/(\d+) reused/)[1], 10) > 16, foot);
await page.waitForFunction(() => document.querySelectorAll("#cache .sess.mine .cell").length > 0);
assert.match(await textOf(page, "#cache"), /Host memory/);
await shot(page, "chat-light");
await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
await shot(page, "chat-dark");

// What is told a screen reader: whole sentences, each once; a mark that closes late shifts nothing.
const told = await page.evaluate(async () => {
  const { MarkdownView } = await import("/web/markdown.js");
  const view = new MarkdownView(document.createElement("div")), out = [];
  const source = "**Note this. It is** one 3.5 thing.\n\n- an item\n- \"Another!\" she said. And more";
  for (let i = 1; i <= source.length; i++) out.push(view.set(source.slice(0, i)));
  out.push(view.rest(), view.rest());
  return out.filter(Boolean);
});
assert.deepEqual(told, ["Note this.", "It is one 3.5 thing.", "an item", '"Another!"', "she said.", "And more"]);

// Every control has a name; what is announced is not the stream itself.
const nameless = await page.evaluate(() => [...document.querySelectorAll("button, a, select, input, textarea")].filter((e) =>
  !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length || e.title)).map((e) => e.outerHTML));
assert.deepEqual(nameless, []);
assert.equal(await page.$eval("#transcript", (e) => e.getAttribute("aria-live")), "off");

// Stop, then regenerate.
await page.evaluate(() => { window.saved = window.fetch; window.fetch = (u, o) => window.saved(u, o?.body ? { ...o, body: JSON.stringify({ ...JSON.parse(o.body), temperature: 1.9, seed: 5, top_p: 1, n: 1 }) } : o); });
await page.focus("#input");
await page.keyboard.type("Tell me a long story, please.");
await page.keyboard.press("Enter");
await page.waitForFunction(() => !document.querySelector("#stop").hidden);
await page.keyboard.press("Escape");
await idle(page);
await page.evaluate(() => { window.fetch = window.saved; });
await page.evaluate(() => [...document.querySelectorAll("#transcript li:last-child button")].find((b) => b.title === "Regenerate")?.click());
await idle(page);

// Fork, pin, another chat, delete.
await page.click("#fork");
await page.waitForFunction(() => document.querySelectorAll("#chats li").length === 2);
await page.click("#pin");
await page.waitForFunction(() => document.querySelector("#pin").getAttribute("aria-pressed") === "true");
const sessions = await page.evaluate(async () => (await (await fetch("/v1/sessions")).json()).data);
assert.equal(sessions.length, 2);
assert.equal(sessions.filter((s) => s.pinned).length, 1);
await page.evaluate(() => document.querySelector("#chats .delete").click());
await page.waitForFunction(() => document.querySelectorAll("#chats li").length === 1);
// A deletion can be undone; the server's session goes with the last chance to.
await page.click("#toast-undo");
await page.waitForFunction(() => document.querySelectorAll("#chats li").length === 2 && document.querySelector("#toast").hidden);
assert.equal(await page.evaluate(async () => (await (await fetch("/v1/sessions")).json()).data.length), 2);
await page.evaluate(() => document.querySelector("#chats .delete").click());
await page.evaluate(() => document.querySelector("#pin").click()); // another message takes its place
await page.waitForFunction(async () => (await (await fetch("/v1/sessions")).json()).data.length === 1);

// ---- Markdown of a hostile model ----
const marked = await page.evaluate(async () => {
  const { MarkdownView } = await import("/web/markdown.js");
  const node = document.createElement("div");
  document.body.append(node);
  const source = "# Head\n\n**bold** *em* `co<b>de` ~~del~~ [ok](https://example.org/) [bad](javascript:alert(1)) [d](data:text/html,x)\n" +
    "<img src=x onerror=window.hit=1><script>window.hit=1</script>\n\n- a\n- b\n  - c\n\n1. one\n2. two\n\n> quote\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n```c\nint <b>x</b>;\n```\n\n---\nend";
  const view = new MarkdownView(node);
  for (let i = 0; i <= source.length; i += 3) view.set(source.slice(0, i)); // as it streams
  view.set(source);
  const whole = document.createElement("div");
  new MarkdownView(whole).set(source);
  const out = { same: node.innerHTML === whole.innerHTML, hit: window.hit ?? 0, bad: node.querySelectorAll("img, script, iframe, [onerror]").length,
    links: [...node.querySelectorAll("a")].map((a) => a.href), tags: ["h3", "strong", "em", "code", "del", "ul ul", "ol", "blockquote", "table td", "pre code", "hr"].filter((t) => !node.querySelector(t)), code: node.querySelector("pre code")?.textContent };
  const t = performance.now();
  for (const c of ["*", "_", "[", "`", "<", "**a", "> ", "- ", "|", "~~"]) new MarkdownView(document.createElement("div")).set(c.repeat(20000));
  out.ms = performance.now() - t;
  node.remove();
  return out;
});
assert.deepEqual({ ...marked, ms: 0 }, { same: true, hit: 0, bad: 0, links: ["https://example.org/"], tags: [], code: "int <b>x</b>;", ms: 0 });
console.log(`# hostile Markdown: ${Math.round(marked.ms)} ms`);

// ---- Two modes ----
await page.click("#compare");
await page.type("#compare-input", "What is a KV cache?");
await page.click("#compare-run");
await page.waitForFunction(() => !/^(Working.*)?$/.test(document.querySelector("#verdict").textContent));
assert.match(await textOf(page, "#verdict"), /Both say the same/);
assert.match(await textOf(page, "#out-b"), /Again: .* [1-9]\d* reused/);
await shot(page, "compare");
assert.equal(await page.$eval("#out-a", (e) => e.closest("[aria-live]")), null); // what streams is not announced
// Closing it ends what it asked for; a server that takes its time is played by a fetch that waits to be aborted.
await page.evaluate(() => { window.fetch = (u, o) => o?.signal ? new Promise((_, no) => o.signal.addEventListener("abort", () => no(o.signal.reason))) : window.saved(u, o); });
await page.click("#compare-run");
await page.waitForFunction(() => document.activeElement.id === "compare-stop");
await page.click("#compare-close");
await page.waitForFunction(() => document.querySelector("#verdict").textContent === "Stopped" && !document.querySelector("#compare-run").hidden);
await page.evaluate(() => { window.fetch = window.saved; });

// ---- Contrast: text and what is written on the accent, in both styles ----
const weak = async (p) => p.evaluate(() => {
  const parse = (c) => { const n = c.match(/[\d.]+/g).map(Number); return [...n.slice(0, 3), n[3] ?? 1]; };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
  const light = (c) => { const [r, g, b] = c.map((x) => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { const chain = []; for (; e; e = e.parentElement) chain.unshift(parse(getComputedStyle(e).backgroundColor)); return chain.reduce((below, c) => over(c, below), [255, 255, 255]); };
  const out = [];
  for (const e of document.querySelectorAll("body *")) {
    if (!e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || e.closest(":disabled") || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || e.closest("noscript, script, option")) continue;
    const b = behind(e), [x, y] = [light(over(parse(getComputedStyle(e).color), b)), light(b)].sort((p, q) => q - p);
    if ((x + 0.05) / (y + 0.05) < 4.5) out.push(`${e.tagName} ${e.className} ${e.textContent.slice(0, 30)} ${((x + 0.05) / (y + 0.05)).toFixed(2)}`);
  }
  return out;
});
for (const dark of ["light", "dark"]) {
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: dark }]);
  assert.deepEqual(await weak(page), []);
  await page.evaluate(() => document.querySelector("#compare-dialog").showModal());
  assert.deepEqual(await weak(page), []);
  await page.evaluate(() => document.querySelector("#compare-dialog").close());
}

// ---- A phone ----
const phone = await newPage(360, 640, false);
await phone.goto(uri);
await phone.waitForFunction(() => document.querySelector("#subtitle").textContent.includes("CPU"));
assert.ok(await phone.evaluate(() => document.documentElement.scrollWidth <= 360), "wider than 360 pixels");
await phone.click("#toggle-chats");
await phone.waitForFunction(() => !document.querySelector("#sidebar").hidden);
await phone.click("#chats .open");
await phone.waitForFunction(() => document.querySelectorAll("#transcript li").length > 0);
assert.ok(await phone.evaluate(() => document.documentElement.scrollWidth <= 360), "wider than 360 pixels");
await shot(phone, "phone");
// What lies over the chat closes by Escape, by a touch beside it, and by what it is for.
await phone.click("#toggle-chats");
assert.equal(await phone.evaluate(() => document.activeElement.id), "new-chat");
await phone.keyboard.press("Escape");
assert.deepEqual(await phone.evaluate(() => [document.querySelector("#sidebar").hidden, document.activeElement.id]), [true, "toggle-chats"]);
await phone.click("#toggle-chats");
await phone.mouse.click(350, 300);
assert.ok(await phone.$eval("#sidebar", (e) => e.hidden));
await phone.click("#toggle-chats");
await phone.click("#new-chat");
assert.deepEqual(await phone.evaluate(() => [document.querySelector("#sidebar").hidden, document.activeElement.id]), [true, "input"]);

// ---- /docs ----
const docs = await newPage(1200, 900, false);
await docs.goto(uri + "docs");
await docs.waitForSelector(".opblock");
assert.ok((await docs.$$(".opblock")).length >= 20);
assert.equal((await docs.$$(".errors-wrapper")).length, 0);
await docs.click("#operations-Model-listModels .opblock-summary-control");
await docs.waitForSelector("#operations-Model-listModels .execute");
await docs.click("#operations-Model-listModels .execute");
await docs.waitForFunction(() => document.querySelector("#operations-Model-listModels .live-responses-table")?.innerText.includes("max_model_len"));
await shot(docs, "docs");
// A chat's example is sent as it stands there.
await docs.click("#operations-Answers-createChatCompletion .opblock-summary-control");
await docs.waitForSelector("#operations-Answers-createChatCompletion .execute");
await docs.click("#operations-Answers-createChatCompletion .execute");
await docs.waitForFunction(() => /"cached_tokens"/.test(document.querySelector("#operations-Answers-createChatCompletion .live-responses-table")?.innerText));
await docs.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
await docs.waitForFunction(() => document.documentElement.classList.contains("dark-mode"));
await shot(docs, "docs-dark");

// ---- Pages of others: the same address under another name, and another origin ----
assert.deepEqual(faults, []);
const port = new URL(uri).port;
const evil = await browser.newPage();
const rebound = await evil.goto(`http://rebound.example:${port}/v1/models`);
assert.equal(rebound.status(), 421);
const other = http.createServer((_, r) => { r.setHeader("Content-Type", "text/html"); r.end("<title>other</title>"); }).listen(0, "127.0.0.1");
await new Promise((done) => other.once("listening", done));
await evil.goto(`http://127.0.0.1:${other.address().port}/`);
const tried = await evil.evaluate(async (target) => {
  const out = [];
  const requests = [["v1/models", {}], ["v1/chat/completions", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" }],
    ["v1/chat/completions", { method: "POST", headers: { "Content-Type": "text/plain" }, body: "{}" }], ["v1/cache", { mode: "no-cors" }]];
  for (const [path, options] of requests) {
    try { const r = await fetch(target + path, options); out.push(r.type === "opaque" ? "opaque" : "read " + r.status); } catch { out.push("refused"); }
  }
  return out;
}, uri);
assert.deepEqual(tried.filter((t) => t.startsWith("read")), [], tried.join());
other.close();

// ---- A server that wants a token, and one that went ----
const [guarded, token, pid] = process.argv.slice(5);
const secret = await newPage(800, 700, true);
secret.removeAllListeners("console"); // the browser tells each 401
await secret.goto(guarded);
await secret.waitForSelector("#token-dialog[open]");
await secret.type("#token", "wrong");
await secret.keyboard.press("Enter");
await secret.waitForFunction(() => /refused/.test(document.querySelector("#token-wrong").textContent) && document.querySelector("#token-dialog").open);
await shot(secret, "token");
await secret.type("#token", token); // what was there is selected
await secret.keyboard.press("Enter");
await secret.waitForFunction(() => document.querySelector("#subtitle").textContent.includes("CPU"));
await secret.waitForFunction(() => document.querySelector("#cache .tier"));
process.kill(Number(pid));
await secret.waitForFunction(() => !document.querySelector("#cache-lost").hidden);
await secret.type("#input", "Are you there?");
await secret.keyboard.press("Enter");
await secret.waitForFunction(() => /does not answer/.test(document.querySelector("#transcript .error")?.textContent));
assert.deepEqual(await secret.$$eval("#transcript li:last-child button", (bs) => bs.map((b) => b.title)), ["Try again"]);
await shot(secret, "gone");
await browser.close();
console.log("done");
