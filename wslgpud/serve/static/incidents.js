// Incidents: the list, and each with its story: its subject over time, the processes that grew, how it ended.

import { get } from "./api.js";
import { axes, colours, faint, foretold, mark, PADDING, shadeLevels, upright } from "./charts.js";
import { h } from "./dom.js";
import { duration, moment, size, wallOf } from "./format.js";
import { label, lang, t } from "./i18n.js";
import { at, card, chip, column, empty, keys, named, pastChip, pending, table } from "./parts.js";
import { gapOf, LEVELS } from "./sample.js";

const REFRESH_MS = 15_000;
/** As many as the API gives at a time. */
const MOST = 500;

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
      ? get("incidents", { limit: before ? 50 : Math.min(MOST, Math.max(50, this.found?.list?.length ?? 0)), before, least: this.least, lang: ctx.lang })
      : get(`incidents/${number}`, { lang: ctx.lang });
    question.then(({ document }) => {
      if (this.number !== number) return;
      this.found = number === null
        ? { list: before ? [...this.found.list, ...document.incidents] : document.incidents, next: document.next } : { document };
      ctx.render();
    }, (error) => {
      if (this.number !== number) return;
      this.found ??= { error: error.status === 404 ? t("There is no such incident.") : error.message };
      ctx.render();
    });
  },

  render(ctx) {
    const title = h("h1", { class: this.number === null ? "unseen" : null }, this.number === null ? t("Incidents") : t("Incident {id}", { id: this.number }));
    const back = this.number === null ? null : h("p", {}, h("a", { href: "#/incidents" }, "← ", t("Back to the list")));
    if (!this.found || this.found.error) return [title, h("div", { class: "stack" }, back, pending(this.found, () => this.load(ctx)))];
    return this.number === null ? [title, this.list(ctx)] : h("div", { class: "stack" }, back, report(this.found.document, this.found.document.killed ? null : now(ctx, this.number)));
  },

  list(ctx) {
    const { list, next } = this.found;
    const choice = h("label", { class: "dim" }, t("At least"), " ", h("select", { value: this.least, id: "least",
      onchange: (event) => { this.least = event.target.value; this.found = null; ctx.render(); this.load(ctx); } },
      LEVELS.slice(1).map((level) => h("option", { value: level, selected: level === this.least }, label("level", level)))));
    const markOf = (i) => (i.closed || now(ctx, i.id)?.level === "ok" ? pastChip : chip)(i.worst_level);
    const rows = list.map((i) => ({ ...i, headline: now(ctx, i.id)?.headline ?? i.headline })).map((i) => h("tr", { "data-key": `i${i.id}` },
      h("td", { class: "when" }, at(i.opened)),
      h("td", { class: "wide" }, markOf(i)),
      h("td", { class: "wide" }, named(i.name)),
      h("th", { scope: "row", class: "long" }, h("span", { class: "narrow dim" }, markOf(i), " ", named(i.name)),
        h("a", { href: `#/incidents/${i.id}` }, i.headline), i.outcome ? h("p", { class: "outcome" }, i.outcome) : null)));
    return card(t("Incidents"), choice, rows.length
      ? table(t("Incidents"), [column(t("When")), column(t("Level"), "wide"), column(t("Subject"), "wide"), column(t("Story"))], rows) : empty(t("No incidents recorded.")),
      next === undefined ? null : h("p", { class: "empty" }, h("button", { type: "button", onclick: () => this.load(ctx, next) }, t("Older"))));
  },

  drawn(ctx) {
    const found = this.found?.document;
    if (!found) return;
    curvesOf(found).forEach((curve, n) => draw(ctx.charts, found, curve, n === 0));
  },
};

/** The current state of an open one: its rows give the state when they were written. */
const now = (ctx, id) => (ctx.state === "live" ? (ctx.sample?.status?.incidents ?? []).find((one) => one.id === id) : null);

const curvesOf = (found) => (found.headroom ?? []).filter((c) => c.points.length > 1 && (c.resource === found.resource || !c.resource.startsWith("cgroup:"))).slice(0, 6);

/** Marks on the curves: [moment, name]. */
function marksOf(d) {
  const end = d.killed ? [d.killed, t("Killed")] : d.closed && d.rule === "memory_exhaustion" ? [d.closed, t("Over")]
    : d.rule === "memory_exhaustion" ? null : [d.moment, t("Here")];
  return [d.rule === "memory_exhaustion" && d.warned && [d.warned, t("Warned")], end].filter(Boolean).map(([iso, name]) => [wallOf(iso), name])
    .filter(([wall]) => wall >= wallOf(d.start) && wall <= wallOf(d.end));
}

function report(d, open) {
  const [own, ...others] = curvesOf(d);
  const told = [
    // For an open one they are from its last change: the current figures are in the headline.
    d.trouble ? [t("Probable cause"), ": ", d.trouble] : d.evidence && [open && d.levels?.length ? [h("span", { class: "dim" }, at(d.levels[d.levels.length - 1].at)), " "] : null, d.evidence],
    d.false_alarm ? t("Looks like a false alarm: nothing was killed and memory was never short.") : null,
  ].filter(Boolean);
  return [
    h("section", { class: "card" },
      h("div", { class: "head" }, open ? chip(open.level) : pastChip(d.worst_level, t("at worst {level}", { level: label("level", d.worst_level) })), h("span", { class: "dim small" }, named(d.name), " · ", h("a", { href: `/runbook?lang=${lang}#${d.rule}` }, d.title ?? d.rule), " · ", when(d))),
      h("h1", {}, open?.headline ?? d.headline), d.outcome ? h("p", { class: "outcome" }, d.outcome) : null, told.map((line) => h("p", {}, line)),
      d.advice ? [h("h3", {}, t("What to do")), h("p", {}, d.advice)] : null),
    own ? card(usedOf(own), null, chart(own, "large"), legend(d, own)) : card(t("Curves"), null, empty(t("No curves were recorded around it."))),
    others.length ? h("details", { class: "card", "data-key": "others" }, h("summary", {}, t("Other resources meanwhile")),
      h("div", { class: "stack" }, others.map((c) => h("figure", {}, h("h3", {}, usedOf(c)), chart(c))))) : null,
    h("div", { class: "halves" },
      h("div", { class: "stack" },
        part(t("Who grew"), d.growing, (g) => [h("strong", { translate: "no" }, g.who), " ", t("+{grown_bytes} in {over_seconds}", { grown_bytes: size(g.grown_bytes), over_seconds: duration(g.seconds) })]),
        part(t("Levels"), d.levels, (l) => [h("span", { class: "dim" }, at(l.at)), " ", chip(l.level), " ", l.headline])),
      h("div", { class: "stack" },
        part(t("Events"), d.events, (e) => [h("span", { class: "dim" }, at(e.at)), " ", e.text]),
        part(t("Messages"), d.messages, (m) => [h("span", { class: "dim" }, at(m.at)), " ", named(m.channel), " ", h("span", { class: "dim" }, fate(m))]),
        d.kernel?.length ? card(t("Kernel, previous boot"), null, h("pre", { translate: "no" }, d.kernel.join("\n"))) : null,
        part(t("Crash dumps of Windows"), d.crash_dumps, (line) => h("code", {}, line)))),
  ];
}

/** Since when, or from when to when; an instantaneous event has no outcome. */
function when(d) {
  const end = d.killed ?? d.closed;
  if (!d.outcome) return at(d.opened);
  return end ? [at(d.opened), " – ", at(end)] : t("since {time}", { time: moment(wallOf(d.opened)) });
}

const usedOf = (curve) => t("{resource}: used of {capacity_bytes}", { resource: curve.name, capacity_bytes: size(curve.capacity_bytes) });

const chart = (curve, kind) => h("div", { class: ["chart", kind], "data-key": `bb-${curve.resource}`, "data-keep": true, role: "img",
  "aria-label": `${usedOf(curve)}: ${size(curve.capacity_bytes - curve.points[0][1])} → ${size(curve.capacity_bytes - Math.min(...curve.points.map((p) => p[1])))}` });

const legend = (d, own) => keys([
  ...[...new Set(own.levels ?? [])].filter(Boolean).sort().map((level) => [LEVELS[level], label("level", LEVELS[level])]),
  d.forecast?.eta_seconds ? ["eta", t("forecast at the time of the warning")] : null,
]);

const part = (title, entries, line) => entries?.length
  ? card(title, null, h("ul", { class: "plain-list" }, entries.map((entry) => h("li", {}, line(entry))))) : null;

function fate(message) {
  const waited = message.sent ? wallOf(message.sent) - wallOf(message.at) : 0;
  if (message.sent) return waited < 1.5 ? t("sent at once") : t("sent after {waited_seconds}", { waited_seconds: duration(waited) });
  return message.error ? t("not sent: {error}", { error: message.error }) : t("not sent yet");
}

/** Use, on the time axis all curves share; with levels and forecast if it is the subject. */
function draw(charts, d, curve, own) {
  const times = curve.points.map(([wall]) => wall);
  const gap = gapOf(times);
  const data = [[], []];
  curve.points.forEach(([wall, left], n) => {
    if (n && wall - times[n - 1] > gap) { data[0].push(times[n - 1] + gap / 2); data[1].push(null); }
    data[0].push(wall);
    data[1].push(curve.capacity_bytes - left);
  });
  const marks = marksOf(d);
  charts.draw(`bb-${curve.resource}`, `${times.length} ${d.end} ${d.outcome} ${document.documentElement.lang} ${document.documentElement.dataset.theme}`, (width) => {
    const c = colours();
    return {
      padding: PADDING,
      cursor: { show: false },
      scales: { x: { range: [wallOf(d.start), wallOf(d.end)] }, y: { range: [0, curve.capacity_bytes] } },
      axes: axes(c, "bytes", false, width, true),
      series: [{}, { stroke: c.headroom, width: 1.8, fill: faint(c.headroom, 0.1), points: { show: false } }],
      hooks: {
        drawClear: [(u) => own && shadeLevels(u, times, curve.levels ?? [], c)],
        draw: [(u) => {
          if (own && d.forecast) foretold(u, wallOf(d.forecast.at), d.forecast, curve.capacity_bytes, c);
          marks.forEach(([wall, name], n) => (own ? mark(u, wall, name, c, n, n > 0 && n === marks.length - 1) : upright(u, wall, c.ink)));
        }],
      },
    };
  }, data);
}
