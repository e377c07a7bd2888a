// The largest processes: now, and over the last day.

import { get } from "./api.js";
import { h } from "./dom.js";
import { moment, signed, size } from "./format.js";
import { label, t, template } from "./i18n.js";
import { card, chip, column, empty, named, pending, table } from "./parts.js";

const state = { sort: "total", down: true, filter: "", growth: new Map(), past: null, asked: 0 };
const COLUMNS = [["name", template("Name")], ["pid", template("PID"), "num"], ["memory", template("RAM"), "num wide"], ["swap", template("Swap"), "num wide"],
  ["vram", template("VRAM"), "num"], ["total", template("RAM + swap"), "num"], ["growth", template("Last 10 min"), "num"]];
const BRIEF = COLUMNS.filter(([name]) => ["name", "pid", "vram", "total"].includes(name));
const REFRESH_MS = 20_000;

export const processes = {
  key: "processes",

  enter(ctx) {
    state.asked = 0;
    this.sampled(ctx);
  },

  sampled(ctx) {
    if (Date.now() - state.asked < REFRESH_MS) return;
    state.asked = Date.now();
    growth(ctx);
    const end = ctx.sample?.wall;
    get("processes", end ? { start: end - 86400, end, limit: 25 } : { limit: 25 }).then(
      ({ document }) => { state.past = document.processes; ctx.render(); },
      (error) => { state.past ??= { error: error.message }; ctx.render(); });
  },

  render(ctx) {
    return [h("div", { class: "stack" },
      h("h1", { class: "unseen" }, t("Processes")),
      h("section", { class: "card fades" },
        h("div", { class: "head" }, h("h2", {}, t("Processes worth watching, now")),
          h("input", { type: "search", "aria-label": t("Filter"), placeholder: t("Filter"), value: state.filter, id: "process-filter",
            oninput: (event) => { state.filter = event.target.value; ctx.render(); } })),
        processTable(ctx, { sortable: true })),
      Array.isArray(state.past) ? card(t("The largest of the last 24 hours"), null, pastTable(state.past)) : pending(state.past, () => this.enter(ctx)))];
  },
};

/** Growth within ten minutes, by pid. */
function growth(ctx) {
  const end = ctx.sample?.wall;
  if (!end) return;
  get("processes", { start: end - 600, end, limit: 200 }).then(({ document }) => {
    state.growth = new Map(document.processes.map((p) => [p.pid, p.grown_bytes]));
    ctx.render();
  }, () => {});
}

/** Held on all cards, by pid; null where it is not known on one of them. */
function vramByPid(status) {
  const found = new Map();
  for (const gpu of status.gpus ?? []) {
    for (const { pid, used_bytes: used } of gpu.processes ?? []) {
      const before = found.get(pid);
      found.set(pid, used === undefined || before === null ? null : (before ?? 0) + used);
    }
  }
  return found;
}

/** A table of the sample's processes, at most `most`. */
export function processTable(ctx, { most = 200, sortable = false }) {
  const { sample } = ctx;
  if (!sample || sample.waiting) return empty(t("no data yet"));
  const vram = vramByPid(sample.status);
  const { pid: culprit, level } = sample.status.verdict ?? {};
  let rows = (sample.status.processes ?? []).map((p) => ({ ...p, memory: p.rss_bytes, swap: p.swap_bytes, total: p.rss_bytes + p.swap_bytes,
    vram: vram.get(p.pid), growth: state.growth.get(p.pid) }));
  if (!rows.length) return empty(t("No processes are known."));
  if (sortable) {
    const needle = state.filter.trim().toLowerCase();
    rows = rows.filter((p) => `${p.name} ${p.command} ${p.pid} ${p.roles.join(" ")}`.toLowerCase().includes(needle));
    const sign = state.down ? -1 : 1;
    const of = (p) => p[state.sort] ?? -Infinity;
    rows.sort((a, b) => sign * (state.sort === "name" ? a.name.localeCompare(b.name) : of(a) - of(b)) || a.pid - b.pid);
    if (!rows.length) return empty(t("No match."));
  } else {
    rows.sort((a, b) => (b.pid === culprit) - (a.pid === culprit) || (b.vram !== undefined) - (a.vram !== undefined) || b.total - a.total);
  }
  const columns = sortable ? COLUMNS : BRIEF;
  const cells = {
    name: (p) => h("th", { scope: "row" }, named(p.name), " ", p.pid === culprit ? [chip(level, t("culprit")), " "] : null, p.roles.map((role) => [h("span", { class: "chip role" }, label("role", role)), " "])),
    pid: (p) => h("td", { class: "num dim" }, p.pid),
    memory: (p) => h("td", { class: "num wide" }, size(p.memory)),
    swap: (p) => h("td", { class: "num wide" }, p.swap ? size(p.swap) : h("span", { class: "dim" }, "0")),
    vram: (p) => h("td", { class: "num" }, vramCell(p.vram)),
    total: (p) => h("td", { class: "num" }, size(p.total)),
    growth: (p) => h("td", { class: "num" }, grownCell(p.growth)),
  };
  const head = [...columns.map(([name, text, kind]) => (sortable ? sorter(ctx, name, t(text), kind) : column(t(text), kind))),
    h("th", { scope: "col", class: "wide" }, t("Command"))];
  return table(t("Processes worth watching, now"), head, rows.slice(0, most).map((p) => h("tr", { "data-key": `p${p.pid}`, class: p.pid === culprit && "culprit" },
    columns.map(([name]) => cells[name](p)), h("td", { class: "cut wide", title: p.command, translate: "no" }, p.command))));
}

function vramCell(used) {
  if (used === undefined) return h("span", { class: "dim" }, "–");
  return used === null ? h("span", { class: "dim", title: t("this driver does not report it") }, t("N/A")) : size(used);
}

function grownCell(grown) {
  return grown === undefined ? h("span", { class: "dim" }, "–") : signed(grown);
}

function sorter(ctx, name, text, kind) {
  const mine = state.sort === name;
  return h("th", { scope: "col", class: kind, "aria-sort": mine ? (state.down ? "descending" : "ascending") : null },
    h("button", { type: "button", title: t("Sort by {what}", { what: text }),
      onclick: () => { state.down = mine ? !state.down : name !== "name"; state.sort = name; ctx.render(); } }, text));
}

function pastTable(past) {
  if (!past.length) return empty(t("Nothing was recorded in this period."));
  return table(t("The largest of the last 24 hours"), [column(t("Name")), column(t("PID"), "num wide"), column(t("Peak"), "num"), column(t("Growth"), "num"), column(t("Last seen"), "num")],
    past.map((p) => h("tr", { "data-key": `q${p.pid}-${p.first_seen}` }, h("th", { scope: "row" }, named(p.name)), h("td", { class: "num dim wide" }, p.pid),
      h("td", { class: "num" }, size(p.peak_bytes)), h("td", { class: "num" }, grownCell(p.grown_bytes)), h("td", { class: "num dim" }, moment(p.last_seen)))));
}
