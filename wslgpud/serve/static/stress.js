// The nightly stress runs of the GPUs' memory.

import { get } from "./api.js";
import { axes, colours } from "./charts.js";
import { h } from "./dom.js";
import { bandwidth, count, duration, percent, size } from "./format.js";
import { label, t } from "./i18n.js";
import { at, card, chip, column, empty, named, pending, table, work } from "./parts.js";

export const NIGHT = { passed: "ok", findings: "critical", left: "info", skipped: "info", failed: "warning" };
const SPEEDS = ["write", "read"];
const GPUS = 8;

const kindName = (kind) => (kind === "write" ? t("Write") : t("Read"));

export const stress = {
  key: "stress",

  enter(ctx, path) {
    this.number = /^\d+$/.test(path) ? Number(path) : null;
    this.found = null;
    this.load(ctx);
  },

  sampled(ctx) {
    const latest = (ctx.sample.status.stress ?? []).map((run) => run.at).join();
    const ended = this.latest !== undefined && latest !== this.latest;
    this.latest = latest;
    if (ended && this.number === null) this.load(ctx);
  },

  load(ctx) {
    const number = this.number;
    get(number === null ? "stress" : `stress/${number}`, number === null ? { limit: 400, lang: ctx.lang } : { lang: ctx.lang }).then(
      ({ document }) => { if (this.number === number) { this.found = { document }; ctx.render(); } },
      (error) => { if (this.number === number) { this.found = { error: error.message }; ctx.render(); } });
  },

  render(ctx) {
    const title = h("h1", { class: "unseen" }, t("Nightly tests"));
    const back = this.number === null ? null : h("p", {}, h("a", { href: "#/stress" }, "← ", t("Back to the list")));
    if (!this.found?.document) return [title, h("div", { class: "stack" }, back, pending(this.found, () => this.load(ctx)))];
    if (this.number !== null) return [title, h("div", { class: "stack" }, back, night(this.found.document))];
    const { runs } = this.found.document;
    if (!runs.length) return [title, h("div", { class: "stack" }, work(ctx.sample?.status, "stress"),
      h("section", { class: "card" }, empty(t("No stress run so far.")), h("p", { class: "empty" }, t("It runs at night while the GPU is idle, or now with: wslgpud stress"))))];
    const curves = complete(runs).length > 1;
    return [title, h("div", { class: "stack" }, work(ctx.sample?.status, "stress"),
      curves ? h("div", { class: "grid" }, figure("usable", t("Usable VRAM, night by night")), figure("speed", t("Bandwidth, night by night"))) : null,
      card(t("Nightly tests"), null, table(t("Nightly tests"),
        [column(t("Night")), column("GPU"), column(t("Verdict")), column(t("Usable"), "num"), column(t("Write"), "num"), column(t("Read"), "num"),
          column(t("Errors"), "num"), column(t("Duration"), "num"), column(t("Note"))],
        runs.map(row))))];
  },

  drawn(ctx) {
    const document_ = this.found?.document;
    if (!document_) return;
    if (this.number !== null) return drawChunks(ctx.charts, document_);
    const runs = complete(document_.runs).reverse();
    if (runs.length < 2) return;
    const uuids = [...new Set(runs.map((run) => run.uuid))].slice(0, GPUS);
    const walls = runs.map((run) => Date.parse(run.at) / 1000);
    const of = (uuid, name) => runs.map((run) => (run.uuid === uuid ? run.values[name] ?? null : undefined));
    nights(ctx.charts, "stress-usable", "bytes", [walls, ...uuids.map((uuid) => of(uuid, "usable_bytes"))], uuids.map(() => false));
    nights(ctx.charts, "stress-speed", "bandwidth",
      [walls, ...uuids.flatMap((uuid) => SPEEDS.map((kind) => of(uuid, `${kind}_median`)))], uuids.flatMap(() => [false, true]));
  },
};

const complete = (runs) => runs.filter((run) => run.verdict === "passed" || run.verdict === "findings");

const figure = (key, title) => card(title, null, h("div", { class: "chart tall", "data-key": `stress-${key}`, "data-keep": true, role: "img", "aria-label": title }),
  key === "speed" ? h("p", { class: "keys" }, h("span", {}, h("span", { class: "swatch line" }), t("Write")), h("span", {}, h("span", { class: "swatch line dashed" }), t("Read"))) : null);

function row(run) {
  const v = run.values;
  return h("tr", { "data-key": `s${run.id}` },
    h("td", { class: "when" }, h("a", { href: `#/stress/${run.id}` }, at(run.at))), h("th", { scope: "row" }, `GPU ${run.gpu}`),
    h("td", {}, chip(NIGHT[run.verdict], label("verdict", run.verdict))),
    h("td", { class: "num" }, size(v.usable_bytes, 2 ** 24)), h("td", { class: "num" }, bandwidth(v.write_median)),
    h("td", { class: "num" }, bandwidth(v.read_median)), h("td", { class: "num" }, v.errors ? h("strong", { class: "bad" }, count(v.errors)) : count(v.errors)),
    h("td", { class: "num" }, duration(v.seconds ?? v.duration_seconds)),
    h("td", { class: "dim long" }, run.findings.length ? run.findings.map((f) => f.text).join(" · ") : run.reason));
}

function nights(charts, key, unit, data, dashed) {
  charts.draw(key, `${data.length} ${document.documentElement.dataset.theme}`, (width) => {
    const c = colours();
    return {
      padding: [10, 10, 0, 0],
      cursor: { show: false },
      scales: { y: { range: (_, low, high) => [Math.max(0, low - Math.max(0.15 * low, high - low)), high + Math.max(0.02 * high, 0.2 * (high - low))] } },
      axes: axes(c, unit, false, width),
      series: [{}, ...dashed.map((dash, n) => ({ stroke: c.lines[(dashed.includes(true) ? n >> 1 : n) % c.lines.length], width: 1.6, dash: dash ? [5, 4] : [], spanGaps: true, points: { show: true, size: 5 } }))],
    };
  }, data);
}

function night(run) {
  const figures = Object.entries(run.values).map(([name, value]) => h("div", {}, h("dt", {}, label("figure", name)), h("dd", {}, written(name, value))));
  return [
    h("section", { class: "card" },
      h("div", { class: "head" }, chip(NIGHT[run.verdict], label("verdict", run.verdict)), h("span", { class: "dim small" }, at(run.at), " · ", named(Object.entries(run.key).filter(([, value]) => value).map(([what, value]) => `${what} ${value}`).join(" · ")))),
      h("h2", {}, `GPU ${run.gpu} `, named(run.name)), run.reason ? h("p", {}, run.reason) : null,
      run.findings.length ? [h("h3", {}, t("Findings")), h("ul", { class: "plain-list" }, run.findings.map((f) => h("li", {}, f.text)))] : null),
    chunksOf(run).length > 1 ? card(t("Bandwidth of each chunk of memory"), null, h("div", { class: "chart tall", "data-key": "chunks", "data-keep": true, role: "img", "aria-label": t("Bandwidth of each chunk of memory") }),
      h("p", { class: "keys" }, SPEEDS.map((kind, n) => h("span", {}, h("span", { class: `swatch l${n + 1}` }), kindName(kind))))) : null,
    figures.length ? card(t("Figures"), null, h("dl", { class: "facts" }, figures)) : null,
  ];
}

function written(name, value) {
  if (name.endsWith("_bytes")) return size(value, 2 ** 24);
  if (name.endsWith("_seconds") || name === "seconds") return duration(value);
  if (name.endsWith("_ratio")) return percent(value, 1);
  return /_(median|min|max)$/.test(name) ? bandwidth(value) : count(value);
}

export function chunksOf(run) {
  // A chunk has seconds; bytes per second are of interest.
  return (Array.isArray(run.detail?.chunks) ? run.detail.chunks : [])
    .map(({ bytes, write, read }) => ({ write: bytes / write, read: bytes / read }))
    .filter((chunk) => Number.isFinite(chunk.write) || Number.isFinite(chunk.read));
}

function drawChunks(charts, run) {
  const chunks = chunksOf(run);
  if (chunks.length < 2) return;
  const data = [chunks.map((_, n) => n), ...SPEEDS.map((kind) => chunks.map((chunk) => (Number.isFinite(chunk[kind]) ? chunk[kind] : null)))];
  charts.draw("chunks", document.documentElement.dataset.theme, (width) => {
    const c = colours();
    const [x, y] = axes(c, "bandwidth", false, width);
    return {
      padding: [10, 10, 0, 0],
      cursor: { show: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, 1.1 * high] } },
      axes: [{ ...x, values: (_, splits) => splits.map(String), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500] }, y],
      series: [{}, ...SPEEDS.map((_, n) => ({ stroke: c.lines[n], width: 1.4, points: { show: false } }))],
    };
  }, data);
}
