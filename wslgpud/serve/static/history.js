// Any series over any time, from seconds to years: zoom and pan; the fitting tier is chosen automatically.

import { get } from "./api.js";
import { axes, colours, faint, joined, LINES, readout } from "./charts.js";
import { h, show } from "./dom.js";
import { gestures } from "./gestures.js";
import { amount, clock, day, duration, inUnits } from "./format.js";
import { known, label, lang, t } from "./i18n.js";
import { column, empty, named, pending, table } from "./parts.js";
import { gapOf, parsed, rates } from "./sample.js";

const BOARDS = {
  headroom: ["headroom_bytes", "time_to_exhaustion_seconds"],
  memory: ["memory_available_bytes", "memory_anon_bytes", "memory_cached_bytes", "swap_free_bytes"],
  vram: ["gpu_memory_used_bytes", "gpu_memory_free_bytes"],
  gpu: ["gpu_utilization_ratio", "gpu_temperature_celsius", "gpu_power_watts", "gpu_clock_hertz"],
  pressure: ["pressure_stalled_seconds_total", "swap_in_bytes_total", "page_major_faults_total", "memory_alloc_stalls_total"],
  cpu: ["cpu_seconds_total", "load1", "processes_running"],
  disk: ["disk_read_bytes_total", "disk_written_bytes_total", "disk_io_time_seconds_total"],
  network: ["network_receive_bytes_total", "network_transmit_bytes_total"],
  programs: ["program_resident_bytes", "program_swap_bytes"],
};
const SPANS = [[900, 15, 60], [3600, 1, 3600], [21600, 6, 3600], [86400, 24, 3600], [604800, 7, 86400], [2592000, 30, 86400], [31536000, 365, 86400]];
const TEN_YEARS = 3652 * 86400, MIN_SPAN = 5;
const MAX_PER_CHART = LINES, MAX_CHARTS = 8, MAX_FOUND = 60;

const state = { board: "headroom", chosen: [], from: 0, to: 0, last: 3600, series: null, panels: [], needle: "", picking: false, generation: 0, back: [], host: undefined, hosts: [] };
let touched = 0, hurry = 0;

export const history = {
  key: "history",

  enter(ctx) {
    readAddress();
    if (state.series && !state.series.error) return load(ctx);
    const mine = ++state.generation;
    const arrived = (series) => { if (mine === state.generation) { state.series = series; load(ctx); ctx.render(); } };
    everySeries().then(arrived, (error) => arrived({ error: error.message }));
  },

  leave() {
    clearTimeout(hurry);
    state.generation += 1;
    Object.assign(state, { series: null, panels: [] }); // there may be more series by the time of return
  },

  // Follow the present: a new point is due once a step.
  sampled(ctx) {
    if (!state.last || state.picking) return;
    const step = state.panels[0]?.step ?? 0;
    // A daemon that has just started writes its first samples within seconds.
    const least = state.panels.some((panel) => panel.series.some((one) => one.known)) ? 15 : 4;
    if (Date.now() - touched > 1000 * Math.max(least, Math.min(step, 300))) load(ctx, true);
  },

  render(ctx) {
    const title = h("h1", { class: "unseen" }, t("History"));
    if (!Array.isArray(state.series)) return [title, pending(state.series, () => this.enter(ctx))];
    return [title, h("div", { class: "stack", "data-key": "history", onkeydown: (event) => key(ctx, event) },
      h("section", { class: "card" }, machines(ctx), boards(ctx), picker(ctx), times(ctx)),
      state.panels.length
        ? h("div", { class: ["panels", state.panels.length > 1 && "two"] }, state.panels.map((panel) => chartCard(panel)))
        : h("section", { class: "card" }, empty(state.loading ? t("Loading …") : t("Nothing was recorded in this period."))))];
  },

  drawn(ctx) {
    for (const panel of state.panels) draw(ctx, panel);
  },
};

async function everySeries() {
  const found = [];
  let after;
  do {
    const { document } = await get("series", { after, host: state.host });
    state.hosts = document.hosts ?? [];
    found.push(...document.series);
    after = document.next;
  } while (after !== undefined && found.length < 10_000);
  return found;
}

// The view is kept in the address, so that it can be shared.

function readAddress() {
  const query = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const chosen = query.getAll("s");
  const board = query.get("board");
  state.chosen = chosen;
  state.board = chosen.length ? null : board in BOARDS ? board : "headroom";
  const host = query.get("host") ?? undefined;
  if (host !== state.host) Object.assign(state, { host, series: null, panels: [] });
  const [from, to] = [Number(query.get("from")), Number(query.get("to"))];
  if (from > 0 && to > from) Object.assign(state, { from, to, last: 0 });
  else state.last = Number(query.get("last")) || 3600;
}

/** `push`: the browser's way back leads to the range before. */
function writeAddress(push) {
  const query = new URLSearchParams();
  if (state.board) query.set("board", state.board);
  for (const name of state.chosen) query.append("s", name);
  if (state.host) query.set("host", state.host);
  if (state.last) query.set("last", state.last);
  else { query.set("from", state.from.toFixed(0)); query.set("to", state.to.toFixed(0)); }
  window.history[push ? "pushState" : "replaceState"](null, "", `#/history?${query}`);
}

const nowOf = (ctx) => ctx.sample?.wall ?? Date.now() / 1000;

/** The series to draw by metric, in the order asked for. */
function wanted() {
  const metrics = new Map();
  const add = (series) => {
    if (!metrics.has(series.metric)) metrics.set(series.metric, []);
    metrics.get(series.metric).push(series);
  };
  if (state.board) for (const metric of BOARDS[state.board]) state.series.filter((s) => s.metric === `wslgpud_${metric}`).forEach(add);
  else for (const name of state.chosen) state.series.filter((s) => s.name === name).forEach(add);
  return [...metrics.values()].slice(0, MAX_CHARTS);
}

/** Fetch the visible range; the old drawing stays, stretched, until it arrives. */
async function load(ctx, quietly = false, push = false) {
  if (!Array.isArray(state.series)) return;
  touched = Date.now();
  const mine = ++state.generation;
  if (state.last) {
    state.to = nowOf(ctx);
    state.from = state.to - state.last;
  }
  if (!quietly) writeAddress(push);
  const { from, to } = state;
  const groups = wanted();
  state.loading = true;
  ctx.render();
  const points = Math.max(200, Math.min(1200, Math.round(innerWidth / (groups.length > 1 && innerWidth > 1280 ? 2 : 1))));
  const answers = await Promise.all(groups.map(async (group) => {
    const series = group.slice(0, MAX_PER_CHART).map((s) => s.name);
    try {
      const { document } = await get("range", { series, start: from, end: to, points, host: state.host });
      return panelOf(document, group, to);
    } catch (error) {
      return { metric: group[0].metric, error: error.message, series: [], cut: 0 };
    }
  }));
  if (mine !== state.generation) return;
  state.loading = false;
  state.panels = answers;
  ctx.render();
  performance.mark("history-loaded"); // for tests and profiling
}

function panelOf(answer, group, until) {
  const { kind, unit, help, metric } = answer.series[0];
  const rate = kind === "counter";
  const shared = sharedLabels(answer.series);
  const tables = [];
  const series = answer.series.map((one) => {
    const name = Object.entries(one.labels).filter(([label]) => !shared.has(label) || answer.series.length === 1).map(([, value]) => value).join(" ") || metric.slice(8);
    const points = rate ? rates(one.time, one.value, gapOf(one.time), answer.step || 0, until) : null;
    const times = points ? points.map(([wall]) => wall) : one.time;
    const values = points ? points.map(([, value]) => value) : one.value;
    // Min and max of a step are only worth drawing where lines do not hide each other.
    const span = one.min && answer.step > 1 && answer.series.length <= 2;
    tables.push(span ? [times, values, one.min, one.max] : [times, values]);
    const known = values.filter((value) => value !== null);
    return { name, span, known: known.length, last: known[known.length - 1],
      mean: known.reduce((a, b) => a + b, 0) / known.length,
      least: Math.min(...(one.min ?? known)), most: Math.max(...(one.max ?? known)) };
  });
  return { metric, unit, help, rate, step: answer.step, tier: answer.tier, series, data: joined(tables), cut: Math.max(0, group.length - MAX_PER_CHART) };
}

/** Labels equal in all series distinguish nothing; the uuid is dropped where the index is present. */
function sharedLabels(list) {
  const found = new Set(Object.keys(list[0].labels).filter((label) => list.every((s) => s.labels[label] === list[0].labels[label])));
  if (list.every((s) => "gpu" in s.labels)) found.add("uuid");
  return found;
}

/** Meaning of a metric: the page has texts for those on its boards, the daemon for all, in English. */
function help({ metric, help: text }) {
  const name = metric.replace(/^wslgpud_/, "");
  return known("help", name) ? { text: label("help", name) } : { text, lang: lang === "en" ? null : "en" };
}

function chartCard(panel) {
  const id = `h-${panel.metric}`;
  const name = panel.metric.replace(/^wslgpud_/, "");
  const title = known("help", name) ? label("help", name) : named(name);
  if (panel.error) return h("section", { class: "card", "data-key": `${id}-failed` }, h("h2", { class: "title" }, title), empty(panel.error));
  const has = panel.series.some((s) => s.known);
  const words = help(panel);
  return h("section", { class: "card", "data-key": `${id}-card` },
    h("div", { class: "head" }, h("h2", { class: "title" }, title, panel.rate ? h("span", { class: "dim small" }, ` ${t("{amount}/s", { amount: "" })}`) : null),
      h("span", { class: "dim small" }, t("one point every {time}", { time: duration(panel.step || 1) }), " · ", label("tier", panel.tier))),
    h("p", { class: "dim small", lang: words.lang }, known("help", name) ? h("code", {}, name) : words.text),
    has ? h("div", { class: "chart tall", "data-key": id, "data-keep": true, role: "img", "aria-label": words.text, lang: words.lang }) : empty(t("Nothing was recorded in this period.")),
    has ? h("p", { class: "readout", "data-key": `${id}-readout`, "data-keep": true }) : null,
    has ? table(name, [column(t("Series")), [t("Min"), t("Mean"), t("Max"), t("Latest")].map((text) => column(text, "num"))],
      panel.series.map((s, n) => h("tr", {}, h("th", { scope: "row" }, h("span", { class: `swatch l${(n % LINES) + 1}` }), named(s.name)),
        [s.least, s.mean, s.most, s.last].map((value) => h("td", { class: "num" }, s.known ? amount(value, panel.unit, panel.rate) : "–"))))) : null,
    panel.cut ? h("p", { class: "dim small" }, t("Only the first {n} series are drawn.", { n: MAX_PER_CHART })) : null);
}

function draw(ctx, panel) {
  if (panel.error || !panel.series.some((s) => s.known)) return;
  const key_ = `h-${panel.metric}`;
  const shape = [panel.series.map((s) => `${s.name}${s.span}`).join(), document.documentElement.dataset.theme].join();
  ctx.charts.draw(key_, shape, (width) => {
    const c = colours();
    const lines = [{}];
    const bands = [];
    const names = [];
    panel.series.forEach((s, n) => {
      const colour = c.lines[n % LINES];
      names.push({ name: s.name, index: lines.length });
      lines.push({ stroke: colour, width: 1.5, points: { show: false }, fill: panel.series.length === 1 && !s.span ? faint(colour, 0.08) : undefined });
      if (s.span) {
        const at = lines.length;
        lines.push({ stroke: faint(colour, 0.25), width: 0.5, points: { show: false } }, { stroke: faint(colour, 0.25), width: 0.5, points: { show: false } });
        bands.push({ series: [at + 1, at], fill: faint(colour, 0.2) });
      }
    });
    return {
      padding: [8, 8, 0, 0],
      cursor: { sync: { key: "history" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, bind: { dblclick: () => () => unzoom(ctx) } },
      scales: { x: { range: () => [begin(), state.to] }, y: { range: (_, low, high) => extent(low, high, panel.unit) } },
      axes: axes(c, panel.unit, panel.rate, width),
      series: lines,
      bands,
      hooks: {
        setSelect: [(u) => selected(ctx, u)],
        setCursor: [(u) => say(key_, readout(u, panel.unit, panel.rate, names))],
        ready: [(u) => gestures(u, { range: () => state, zoom: (from, to) => zoom(ctx, from, to, false), pan: (share) => pan(ctx, share, false) })],
      },
    };
  }, panel.data);
}

/** A young history begins with its first sample. */
function begin() {
  if (!state.last) return state.from;
  const first = Math.min(...state.panels.map(({ data }) => data?.[0][0] ?? Infinity), state.to - 15);
  return Math.max(state.from, first);
}

function say(id, text) {
  const element = document.querySelector(`[data-key="${CSS.escape(id)}-readout"]`);
  if (element && element.textContent !== text) show(element, text);
}

function extent(low, high, unit) {
  if (low === null || high === null) return [0, 1];
  if (unit === "ratio") return [0, high <= 0.1 ? Math.max(0.01, 1.2 * high) : 1];
  return low >= 0 ? [0, high > 0 ? 1.05 * high : 1] : [1.05 * low, Math.max(0, 1.05 * high)];
}

// Panning and zooming.

function zoom(ctx, from, to, keep = true) {
  const now = nowOf(ctx);
  const span = Math.min(TEN_YEARS, Math.max(MIN_SPAN, to - from));
  const middle = (from + to) / 2;
  if (keep) state.back.push({ from: state.from, to: state.to, last: state.last });
  Object.assign(state, { from: middle - span / 2, to: middle + span / 2, last: 0 });
  if (state.to > now + span / 2) Object.assign(state, { from: now - span / 2, to: now + span / 2 });
  ctx.render();
  // During a gesture only the picture follows; the request waits until it ends.
  clearTimeout(hurry);
  hurry = setTimeout(() => load(ctx, false, keep), 80);
}

function unzoom(ctx) {
  const before = state.back.pop();
  if (!before) return zoomBy(ctx, 2);
  Object.assign(state, before);
  load(ctx);
}

const zoomBy = (ctx, factor) => {
  const half = (factor * (state.to - state.from)) / 2;
  // A range ending now keeps following the present.
  const [from, to] = state.last ? [state.to - 2 * half, state.to] : [(state.from + state.to) / 2 - half, (state.from + state.to) / 2 + half];
  if (state.last) lastSpan(ctx, Math.max(MIN_SPAN, to - from));
  else zoom(ctx, from, to);
};

const pan = (ctx, share, keep = true) => zoom(ctx, state.from + share * (state.to - state.from), state.to + share * (state.to - state.from), keep);

function lastSpan(ctx, seconds) {
  state.back.push({ from: state.from, to: state.to, last: state.last });
  state.last = Math.min(seconds, TEN_YEARS);
  load(ctx, false, true);
}

async function allTime(ctx) {
  const now = nowOf(ctx);
  const names = wanted().flat().slice(0, 4).map((s) => s.name);
  if (!names.length) return;
  const { document } = await get("range", { series: names, start: now - TEN_YEARS, end: now, host: state.host });
  const first = Math.min(...document.series.flatMap((s) => s.time.slice(0, 1)));
  lastSpan(ctx, Number.isFinite(first) ? Math.max(900, now - first) : 3600);
}

function selected(ctx, u) {
  const { left, width } = u.select;
  if (width < 6) return;
  const [from, to] = [left, left + width].map((x) => u.posToVal(x, "x"));
  u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  zoom(ctx, from, to);
}

function key(ctx, event) {
  if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.nodeName) || event.ctrlKey || event.metaKey || event.altKey) return;
  const does = { "+": () => zoomBy(ctx, 0.5), "=": () => zoomBy(ctx, 0.5), "-": () => zoomBy(ctx, 2), ArrowLeft: () => pan(ctx, -0.25),
    ArrowRight: () => pan(ctx, 0.25), 0: () => lastSpan(ctx, state.to - state.from) }[event.key];
  if (!does) return;
  event.preventDefault();
  does();
}

// Choices.

/** The machine whose history is shown, where several write into one database. */
function machines(ctx) {
  if (state.hosts.length < 2) return null;
  const own = ctx.sample?.document.host;
  return h("p", {}, h("label", { class: "dim" }, t("Machine"), " ", h("select", { id: "host", value: state.host ?? own, translate: "no",
    onchange: (event) => { Object.assign(state, { host: event.target.value, series: null, panels: [] }); writeAddress(); history.enter(ctx); } },
    state.hosts.map((host) => h("option", { value: host, selected: host === (state.host ?? own) }, host)))));
}

function boards(ctx) {
  return h("div", { class: "tools", role: "group", "aria-label": t("Boards") }, Object.keys(BOARDS).map((name) => {
    const there = state.series.some((s) => BOARDS[name].includes(s.metric.slice(8)));
    return there ? h("button", { type: "button", "aria-pressed": String(state.board === name), onclick: () => { state.board = name; state.chosen = []; load(ctx); } }, label("board", name)) : null;
  }));
}

function picker(ctx) {
  const needle = state.needle.trim().toLowerCase();
  const all = state.series.filter((s) => `${s.name} ${s.help ?? ""}`.toLowerCase().includes(needle));
  const current = new Set(state.board ? wanted().flat().map((s) => s.name) : state.chosen);
  const toggle = (name) => {
    if (current.has(name)) current.delete(name);
    else current.add(name);
    state.chosen = [...current];
    state.board = state.chosen.length ? null : "headroom";
    load(ctx);
  };
  return h("details", { "data-key": "picker", ontoggle: (event) => { if (state.picking !== event.target.open) { state.picking = event.target.open; ctx.render(); } } },
    h("summary", {}, t("Choose series"), h("span", { class: "dim small" }, ` ${current.size}`)),
    state.picking ? [h("input", { type: "search", id: "series-filter", "aria-label": t("Search all series"), placeholder: t("Search all series"), value: state.needle,
      oninput: (event) => { state.needle = event.target.value; ctx.render(); } }),
    all.length ? h("div", { class: "picker", tabindex: 0, role: "group", "aria-label": t("Series") }, all.slice(0, MAX_FOUND).map((s) => h("label", { "data-key": s.name, title: s.help, translate: "no" },
      h("input", { type: "checkbox", checked: current.has(s.name), onchange: () => toggle(s.name) }), seriesWords(s.name)))) : empty(t("No match."))] : null);
}

function seriesWords(name) {
  const { metric, labels } = parsed(name);
  const values = Object.entries(labels).filter(([label]) => label !== "uuid" || !("gpu" in labels)).map(([label, value]) => `${label}=${value}`);
  return h("span", {}, metric.slice(8), values.length ? h("span", { class: "dim" }, ` ${values.join(" ")}`) : null);
}

function times(ctx) {
  const here = state.to ? `${day(state.from)} ${clock(state.from)} – ${day(state.to)} ${clock(state.to)}` : "";
  const step = (text, sign, does) => h("button", { type: "button", "aria-label": text, title: text, onclick: does }, sign);
  return [h("div", { class: "tools" },
    h("span", { class: "dim", id: "last-range" }, t("Last")),
    h("span", { class: "tools", role: "group", "aria-labelledby": "last-range" }, SPANS.map(([seconds, n, unit]) =>
      h("button", { type: "button", "aria-pressed": String(state.last === seconds), onclick: () => lastSpan(ctx, seconds) }, inUnits(n, unit))),
    h("button", { type: "button", onclick: () => allTime(ctx).catch(() => {}) }, t("all"))),
    h("span", { class: "gap" }),
    h("span", { class: "tools", role: "group", "aria-label": t("History") },
      step(t("Earlier"), "←", () => pan(ctx, -0.5)), step(t("Zoom out"), "−", () => zoomBy(ctx, 2)), step(t("Zoom in"), "+", () => zoomBy(ctx, 0.5)), step(t("Later"), "→", () => pan(ctx, 0.5)),
      h("button", { type: "button", onclick: () => lastSpan(ctx, state.to - state.from) }, t("Now")))),
  h("p", { class: "dim small", id: "range" }, here, h("span", { class: "wide" }, ` · ${t("Drag to zoom, drag with Shift to move, double-click to go back. Keys: + − ← → 0")}`))];
}
