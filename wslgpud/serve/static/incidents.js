// What went wrong: the list, and each with the minutes before it.

import { get } from "./api.js";
import { axes, colours, faint, shadeLevels, upright } from "./charts.js";
import { h } from "./dom.js";
import { duration, resourceName, size, wallOf } from "./format.js";
import { t } from "./i18n.js";
import { label } from "./labels.js";
import { at, card, chip, column, empty, named, pending, table } from "./parts.js";
import { gapOf, LEVELS } from "./sample.js";

const REFRESH_MS = 15_000;

export const incidents = {
  key: "incidents",

  enter(ctx, path) {
    this.number = /^\d+$/.test(path) ? Number(path) : null;
    this.found = null;
    this.least ??= "info";
    this.load(ctx);
  },

  sampled(ctx) {
    const open = this.number === null || (this.found?.document && !this.found.document.closed);
    if (open && Date.now() - this.asked > REFRESH_MS) this.load(ctx);
  },

  load(ctx, before) {
    this.asked = Date.now();
    const number = this.number;
    const question = number === null
      ? get("incidents", { limit: before ? 50 : Math.max(50, this.found?.list?.length ?? 0), before, least: this.least, lang: ctx.lang })
      : get(`incidents/${number}`, { lang: ctx.lang });
    question.then(({ document }) => {
      if (this.number !== number) return;
      this.found = number === null
        ? { list: before ? [...this.found.list, ...document.incidents] : document.incidents, next: document.next } : { document };
      ctx.render();
    }, (error) => {
      if (this.number !== number) return;
      this.found ??= { error: error.status === 404 ? t("There is no such incident any more.") : error.message };
      ctx.render();
    });
  },

  render(ctx) {
    const title = h("h1", { class: this.number === null ? "unseen" : null }, this.number === null ? t("Incidents") : t("Incident {id}", { id: this.number }));
    const back = this.number === null ? null : h("p", {}, h("a", { href: "#/incidents" }, "← ", t("Back to the list")));
    if (!this.found || this.found.error) return [title, h("div", { class: "stack" }, back, pending(this.found, () => this.load(ctx)))];
    return this.number === null ? [title, this.list(ctx)] : h("div", { class: "stack" }, back, report(this.found.document));
  },

  list(ctx) {
    const { list, next } = this.found;
    const choice = h("label", { class: "dim" }, t("At least"), " ", h("select", { value: this.least, id: "least",
      onchange: (event) => { this.least = event.target.value; this.found = null; ctx.render(); this.load(ctx); } },
      LEVELS.slice(1).map((level) => h("option", { value: level, selected: level === this.least }, label("level", level)))));
    const rows = list.map((i) => h("tr", { "data-key": `i${i.id}` },
      h("td", { class: "when" }, at(i.opened)),
      h("td", {}, chip(i.worst_level)),
      h("td", { class: "wide" }, named(resourceName(i.resource))),
      h("th", { scope: "row", class: "long" }, h("a", { href: `#/incidents/${i.id}` }, i.headline)),
      h("td", { class: "num wide" }, i.closed ? duration(wallOf(i.closed) - wallOf(i.opened)) : chip(i.level, t("open")))));
    return card(t("Incidents"), choice, rows.length
      ? table(t("Incidents"), [column(t("Began")), column(t("Worst level")), column(t("Resource"), "wide"), column(t("What happened")), column(t("Lasted"), "num wide")], rows) : empty(t("Nothing has gone wrong so far.")),
      next === undefined ? null : h("p", { class: "empty" }, h("button", { type: "button", onclick: () => this.load(ctx, next) }, t("Older"))));
  },

  drawn(ctx) {
    const found = this.found?.document;
    if (!found) return;
    for (const curve of curvesOf(found)) blackBox(ctx.charts, curve, wallOf(found.moment));
  },
};

const curvesOf = (found) => (found.headroom ?? []).filter((c) => c.points.length > 1).slice(0, 6);

function report(d) {
  const curves = curvesOf(d);
  const lasted = d.closed ? `${t("Lasted")} ${duration(wallOf(d.closed) - wallOf(d.opened))}` : t("still open");
  const told = [
    d.trouble ? [t("What it looks like"), ": ", d.trouble] : null,
    d.rule === "oom_kill" ? (d.warned_seconds_before === undefined ? t("Not warned before it.") : t("First warning {time} before it.", { time: duration(d.warned_seconds_before) })) : null,
    d.false_alarm ? t("Looks like a false alarm: nothing was killed and memory was never short.") : null,
  ].filter(Boolean);
  return [
    h("section", { class: "card" },
      h("div", { class: "head" }, chip(d.worst_level), h("span", { class: "dim small" }, named(resourceName(d.resource)), " · ", h("a", { href: `/runbook#${d.rule}` }, named(d.rule)), " · ", at(d.opened), " · ", lasted)),
      h("h1", {}, d.headline), told.map((line) => h("p", {}, line)),
      d.advice ? [h("h3", {}, t("What to do")), h("p", {}, d.advice)] : null),
    card(t("The minutes before it"), null, curves.length ? h("div", { class: "grid" }, curves.map((c) => h("figure", {},
      h("h3", {}, resourceName(c.resource), h("span", { class: "dim small" }, " ", t("left of {all}", { all: size(c.capacity_bytes) }))),
      h("div", { class: "chart tall", "data-key": `bb-${c.resource}`, "data-keep": true, role: "img",
        "aria-label": `${resourceName(c.resource)}: ${size(c.points[0][1])} → ${size(Math.min(...c.points.map((p) => p[1])))}` })))) : empty(t("No samples of that time are kept any more."))),
    h("div", { class: "grid" },
        part(t("Who grew"), d.growing, (g) => [h("strong", { translate: "no" }, g.name), h("span", { class: "dim" }, ` (${g.pid}) `), t("+{size} in {time}", { size: size(g.grown_bytes), time: duration(g.seconds) })]),
        part(t("Levels"), d.levels, (l) => [h("span", { class: "dim" }, at(l.at)), " ", chip(l.level), " ", l.headline]),
        part(t("Events"), d.events, (e) => [h("span", { class: "dim" }, at(e.at)), " ", e.text]),
        part(t("Messages"), d.messages, (m) => [h("span", { class: "dim" }, at(m.at)), " ", named(m.channel), " ", h("span", { class: "dim" }, fate(m))]),
        d.kernel?.length ? card(t("Kernel, the boot before"), null, h("pre", { translate: "no" }, d.kernel.join("\n"))) : null,
        part(t("Crash dumps of Windows"), d.crash_dumps, (line) => h("code", {}, line))),
  ];
}

const part = (title, entries, line) => entries?.length
  ? card(title, null, h("ul", { class: "plain-list" }, entries.map((entry) => h("li", {}, line(entry))))) : null;

function fate(message) {
  if (message.sent) return t("sent after {time}", { time: duration(Math.max(0, wallOf(message.sent) - wallOf(message.at))) });
  return message.error ? t("not sent: {why}", { why: message.error }) : t("not sent yet");
}

/** Headroom before and after the moment, with the time spent at each level shaded. */
function blackBox(charts, curve, moment) {
  const times = curve.points.map(([wall]) => wall);
  const gap = gapOf(times);
  const data = [[], []];
  curve.points.forEach(([wall, left], n) => {
    if (n && wall - times[n - 1] > gap) { data[0].push(times[n - 1] + gap / 2); data[1].push(null); }
    data[0].push(wall);
    data[1].push(left);
  });
  const levels = curve.levels ?? [];
  charts.draw(`bb-${curve.resource}`, `${times.length} ${document.documentElement.dataset.theme}`, (width) => {
    const c = colours();
    return {
      padding: [8, 8, 0, 0],
      cursor: { show: false },
      scales: { y: { range: [0, curve.capacity_bytes] } },
      axes: axes(c, "bytes", false, width),
      series: [{}, { stroke: c.headroom, width: 1.8, fill: faint(c.headroom, 0.1), points: { show: false } }],
      hooks: { drawClear: [(u) => shadeLevels(u, times, levels, c)], draw: [(u) => upright(u, moment, c.ink)] },
    };
  }, data);
}
