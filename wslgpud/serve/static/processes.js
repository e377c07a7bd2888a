// The processes that matter: now, and over the last day.

import { get } from "./api.js";
import { h } from "./dom.js";
import { moment, size } from "./format.js";
import { t } from "./i18n.js";
import { name as named } from "./told.js";
import { card, column, empty, pending, table } from "./parts.js";

const state = { sort: "total", down: true, filter: "", growth: new Map(), past: null, asked: 0 };
const COLUMNS = [["name"], ["pid", "num"], ["memory", "num wide"], ["swap", "num wide"], ["vram", "num"], ["total", "num"], ["growth", "num"]];
const REFRESH_MS = 20_000, LEAST_GROWTH = 2 ** 20;

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
      h("h1", { class: "unseen" }, t("processes")),
      h("section", { class: "card fades" },
        h("div", { class: "head" }, h("h2", {}, t("processes_now")),
          h("input", { type: "search", "aria-label": t("filter"), placeholder: t("filter"), value: state.filter, id: "process-filter",
            oninput: (event) => { state.filter = event.target.value; ctx.render(); } })),
        processTable(ctx, { sortable: true })),
      Array.isArray(state.past) ? card(t("processes_past"), null, pastTable(state.past)) : pending(state.past, () => this.enter(ctx)))];
  },
};

/** Who has grown by how much within ten minutes, by pid. */
function growth(ctx) {
  const end = ctx.sample?.wall;
  if (!end) return;
  get("processes", { start: end - 600, end, limit: 200 }).then(({ document }) => {
    state.growth = new Map(document.processes.map((p) => [p.pid, p.grown_bytes]));
    ctx.render();
  }, () => {});
}

function vramByPid(status) {
  const found = new Map();
  for (const gpu of status.gpus ?? []) {
    for (const { pid, used_bytes: used } of gpu.processes ?? []) {
      const before = found.get(pid);
      found.set(pid, used === undefined ? before ?? null : (before ?? 0) + used);
    }
  }
  return found;
}

/** A table of the sample's processes; `most` cuts it short. */
export function processTable(ctx, { most = 200, sortable = false }) {
  const { sample } = ctx;
  if (!sample || sample.waiting) return empty(t("absent_yet"));
  const vram = vramByPid(sample.status);
  let rows = (sample.status.processes ?? []).map((p) => ({ ...p, memory: p.rss_bytes, swap: p.swap_bytes, total: p.rss_bytes + p.swap_bytes,
    vram: vram.get(p.pid), growth: state.growth.get(p.pid) }));
  if (!rows.length) return empty(t("no_processes"));
  if (sortable) {
    const needle = state.filter.trim().toLowerCase();
    rows = rows.filter((p) => `${p.name} ${p.command} ${p.pid} ${p.roles.join(" ")}`.toLowerCase().includes(needle));
    const sign = state.down ? -1 : 1;
    const of = (p) => p[state.sort] ?? -Infinity;
    rows.sort((a, b) => sign * (state.sort === "name" ? a.name.localeCompare(b.name) : of(a) - of(b)) || a.pid - b.pid);
    if (!rows.length) return empty(t("none_match"));
  } else {
    rows.sort((a, b) => (b.vram !== undefined) - (a.vram !== undefined) || b.total - a.total);
  }
  const columns = sortable ? COLUMNS : COLUMNS.filter(([name]) => ["name", "pid", "vram", "total"].includes(name));
  const cells = {
    name: (p) => h("th", { scope: "row" }, named(p.name), " ", p.roles.map((role) => [h("span", { class: "chip role" }, t(`role_${role}`)), " "])),
    pid: (p) => h("td", { class: "num dim" }, p.pid),
    memory: (p) => h("td", { class: "num wide" }, size(p.memory)),
    swap: (p) => h("td", { class: "num wide" }, p.swap ? size(p.swap) : h("span", { class: "dim" }, "0")),
    vram: (p) => h("td", { class: "num" }, vramCell(p.vram)),
    total: (p) => h("td", { class: "num" }, size(p.total)),
    growth: (p) => h("td", { class: "num" }, grownCell(p.growth)),
  };
  const head = [...columns.map(([name, kind]) => sortable ? sorter(ctx, name, kind) : column(t(sortable || name !== "total" ? name : "memory"), kind)),
    h("th", { scope: "col", class: "wide" }, t("command"))];
  return table(t("processes_now"), head, rows.slice(0, most).map((p) => h("tr", { "data-key": `p${p.pid}` },
    columns.map(([name]) => cells[name](p)), h("td", { class: "cut wide", title: p.command, translate: "no" }, p.command))));
}

function vramCell(used) {
  if (used === undefined) return h("span", { class: "dim" }, "–");
  return used === null ? h("span", { class: "dim", title: t("not_told_why") }, t("not_told")) : size(used);
}

function grownCell(grown) {
  if (grown === undefined) return h("span", { class: "dim" }, "–");
  return Math.abs(grown) < LEAST_GROWTH ? h("span", { class: "dim" }, t("steady")) : (grown > 0 ? "+" : "") + size(grown);
}

function sorter(ctx, name, kind) {
  const mine = state.sort === name;
  return h("th", { scope: "col", class: kind, "aria-sort": mine ? (state.down ? "descending" : "ascending") : null },
    h("button", { type: "button", title: t("sort_by", { what: t(name) }),
      onclick: () => { state.down = mine ? !state.down : name !== "name"; state.sort = name; ctx.render(); } }, t(name)));
}

function pastTable(past) {
  if (!past.length) return empty(t("nothing_then"));
  return table(t("processes_past"), [column(t("name")), column(t("pid"), "num"), column(t("peak"), "num"), column(t("grown"), "num"), column(t("last_seen"), "num")],
    past.map((p) => h("tr", { "data-key": `q${p.pid}-${p.first_seen}` }, h("th", { scope: "row" }, named(p.name)), h("td", { class: "num dim" }, p.pid),
      h("td", { class: "num" }, size(p.peak_bytes)), h("td", { class: "num" }, grownCell(p.grown_bytes)), h("td", { class: "num dim" }, moment(p.last_seen)))));
}
