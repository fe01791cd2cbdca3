// The playground: a chat over the streaming API, and what the engine tells about itself.
// All text goes into the page as textContent: nothing that a model writes is read as HTML.
"use strict";

const KEY = "flare-key";
const POLL_MS = 1000;
const HISTORY = 60;
const KINDS = ["prefill", "decode", "verify", "draft", "mixed"];

const at = (id) => document.getElementById(id);
const conversation = [];
let running = null; // the AbortController of the answer that is under way
let model = null;

function headers() {
  const key = at("key").value.trim();
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Fetch `path`; an answer that is an error becomes an Error with the server's own message. */
async function ask(path, options = {}) {
  const answer = await fetch(path, {
    ...options,
    headers: { ...headers(), ...options.headers },
  });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  const error = new Error(body.error?.message ?? `${answer.status} ${answer.statusText}`);
  error.status = answer.status;
  throw error;
}

function element(name, text, className) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

function showError(error) {
  at("error").hidden = !error;
  at("error").textContent = error ? error.message : "";
  if (error?.status === 401) askForKey();
}

function askForKey() {
  at("access").open = true;
  at("state").textContent = "needs an API key";
}

// Chat

function addMessage(role, text) {
  at("empty").hidden = true;
  const article = element("article", undefined, role);
  const body = element("p", text);
  const note = element("small");
  article.append(element("h2", role), body, note);
  at("log").append(article);
  at("log").scrollTop = at("log").scrollHeight;
  return { article, body, note };
}

/** The number in a field, or undefined (which leaves it out of the request) when it is empty. */
function numberIn(id) {
  const text = at(id).value.trim();
  return text === "" ? undefined : Number(text);
}

function requestBody() {
  const system = at("system").value.trim();
  const before = system ? [{ role: "system", content: system }] : [];
  const parameters = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
  return {
    model,
    messages: [...before, ...conversation],
    stream: true,
    stream_options: { include_usage: true },
    ...Object.fromEntries(parameters.map((name) => [name, numberIn(name)])),
  };
}

/** The JSON objects of an event stream. Comments and the closing [DONE] are left out. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (held + value).split("\n\n");
    held = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: ") && block !== "data: [DONE]") yield JSON.parse(block.slice(6));
    }
  }
}

/** Write the answer into `shown` as it comes. */
async function stream(shown, signal) {
  const started = performance.now();
  let first = null;
  const answer = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(requestBody()),
    signal,
  });
  for await (const chunk of events(answer)) {
    if (chunk.error) throw new Error(chunk.error.message);
    const delta = chunk.choices[0]?.delta ?? {};
    const text = (delta.reasoning_content ?? "") + (delta.content ?? "");
    if (text) {
      first ??= performance.now();
      follow(() => shown.body.append(text));
    }
    if (chunk.usage) shown.note.textContent = summary(chunk.usage, started, first);
  }
}

/** Keep the end of the log in view, unless the reader has scrolled away from it. */
function follow(change) {
  const log = at("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function summary(usage, started, first) {
  const tokens = usage.completion_tokens;
  const wait = (first ?? performance.now()) - started;
  const rate = tokens > 1 && first ? (tokens - 1) / ((performance.now() - first) / 1000) : 0;
  const parts = [`${usage.prompt_tokens} + ${tokens} tokens`, `first after ${wait.toFixed(0)} ms`];
  if (rate) parts.push(`${rate.toFixed(1)} tokens/s`);
  return parts.join(", ");
}

async function send(text) {
  showError(null);
  running = new AbortController();
  setRunning(true);
  conversation.push({ role: "user", content: text });
  const own = addMessage("user", text);
  const shown = addMessage("assistant", "");
  try {
    if (model === null) await refresh();
    await stream(shown, running.signal);
  } catch (error) {
    if (error.name === "AbortError") shown.note.textContent = "stopped";
    else showError(error);
  }
  if (shown.body.textContent) {
    conversation.push({ role: "assistant", content: shown.body.textContent });
  } else if (!at("error").hidden) { // nothing came: give the question back
    conversation.pop();
    own.article.remove();
    shown.article.remove();
    at("input").value = text;
  }
  running = null;
  setRunning(false);
}

function setRunning(is) {
  at("send").disabled = is;
  at("stop").disabled = !is;
  at("log").setAttribute("aria-busy", String(is));
}

// Engine

function define(list, pairs) {
  list.replaceChildren(
    ...pairs.flatMap(([term, value]) => [element("dt", term), element("dd", String(value))]),
  );
}

function byKind(counts) {
  return KINDS.filter((kind) => counts[kind]).map((kind) => `${counts[kind]} ${kind}`).join(", ");
}

async function refresh() {
  const config = await (await ask("v1/config")).json();
  const models = await (await ask("v1/models")).json();
  model = models.data[0].id;
  at("model").textContent = model;
  const { graphs, core, scheduler } = config;
  define(at("engine"), [
    ["family", graphs.family],
    ["asked for", graphs.requested === null ? "as exported" : graphs.requested ? "mixed" : "separate"],
    ["retained", byKind(graphs.retained) || "none"],
    ["pruned", byKind(graphs.pruned) || "none"],
    ["core", `${core.digest.slice(0, 19)} (${core.device}, ${core.tuning})`],
    ["path", core.path],
    ["context", `${scheduler.max_model_len} tokens`],
    ["batch", `${scheduler.max_num_seqs} sequences, ${scheduler.max_step_tokens} tokens a step`],
    ["version", config.version],
  ]);
  at("state").textContent = "ready";
  at("access").open = false;
}

// Live metrics

class Chart {
  constructor(title, unit) {
    this.values = [];
    this.unit = unit;
    const row = element("div", undefined, "chart");
    const head = element("div");
    this.output = element("output", "-");
    head.append(element("span", title), this.output);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${HISTORY - 1} 28`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    this.line = document.createElementNS(svg.namespaceURI, "polyline");
    svg.append(this.line);
    row.append(head, svg);
    at("charts").append(row);
  }

  push(value, digits = 0) {
    this.values.push(value);
    if (this.values.length > HISTORY) this.values.shift();
    this.output.textContent = value.toFixed(digits) + this.unit;
    const top = Math.max(...this.values, 1e-9);
    const from = HISTORY - this.values.length;
    const points = this.values.map((v, i) => `${from + i},${(26 - (v / top) * 24).toFixed(1)}`);
    this.line.setAttribute("points", points.join(" "));
  }
}

/** Prometheus text: name -> the sum of its series, and for launches one sum by kind, too. */
function parseMetrics(text) {
  const sums = new Map();
  for (const line of text.split("\n")) {
    const match = /^(flare_\w+)(?:\{([^}]*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const kind = /kind="(\w+)"/.exec(match[2] ?? "")?.[1];
    for (const name of kind ? [match[1], `${match[1]}:${kind}`] : [match[1]]) {
      sums.set(name, (sums.get(name) ?? 0) + Number(match[3]));
    }
  }
  return sums;
}

class Live {
  constructor() {
    this.charts = new Map();
    this.before = null;
    this.time = 0;
  }

  show(sums) {
    const now = performance.now();
    const seconds = (now - this.time) / 1000;
    if (this.before) this.rates(sums, seconds);
    const used = sums.get("flare_kv_blocks_used") ?? 0;
    const all = used + (sums.get("flare_kv_blocks_free") ?? 0);
    if (all) this.chart("KV blocks in use", "%").push((100 * used) / all, 1);
    const waiting = sums.get("flare_requests_waiting") ?? 0;
    const active = sums.get("flare_requests_running") ?? 0;
    this.chart("Requests running and waiting", "").push(active + waiting);
    this.before = sums;
    this.time = now;
  }

  rates(sums, seconds) {
    const rate = (name) => ((sums.get(name) ?? 0) - (this.before.get(name) ?? 0)) / seconds;
    this.chart("Tokens generated", "/s").push(rate("flare_generation_tokens_total"), 1);
    for (const kind of KINDS) {
      const name = `flare_graph_launches_total:${kind}`;
      if (sums.has(name)) this.chart(`Graph launches: ${kind}`, "/s").push(rate(name), 1);
    }
  }

  chart(title, unit) {
    if (!this.charts.has(title)) this.charts.set(title, new Chart(title, unit));
    return this.charts.get(title);
  }
}

async function poll(live) {
  try {
    if (!document.hidden) {
      const text = await (await ask("metrics")).text();
      if (model === null) await refresh();
      live.show(parseMetrics(text));
    }
  } catch (error) {
    if (error.status === 401) askForKey();
    else at("state").textContent = error.status ? error.message : "the server does not answer";
    model = null; // it may come back with another core
  }
  setTimeout(poll, POLL_MS, live);
}

function start() {
  at("key").value = sessionStorage.getItem(KEY) ?? "";
  at("key").addEventListener("change", () => {
    sessionStorage.setItem(KEY, at("key").value.trim());
    showError(null);
    refresh().catch(showError);
  });
  at("access-form").addEventListener("submit", (event) => {
    event.preventDefault();
    at("input").focus(); // which leaves the field: its change is taken
  });
  at("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = at("input").value.trim();
    if (!text || running) return;
    at("input").value = "";
    send(text);
  });
  at("input").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    at("ask").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  at("stop").addEventListener("click", () => running?.abort());
  at("clear").addEventListener("click", () => {
    running?.abort();
    conversation.length = 0;
    at("log").replaceChildren(at("empty"));
    at("empty").hidden = false;
    showError(null);
    at("input").focus();
  });
  poll(new Live());
  at("input").focus();
}

start();
