// Cost of the daemon itself, and the state of its sources.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, duration, percent, size } from "./format.js";
import { label, t, template } from "./i18n.js";
import { card, chip, column, fact, liveCard, named, pending, table } from "./parts.js";

const REFRESH_MS = 5000;
const HEALTH = { ok: "ok", absent: "unknown", failed: "critical", late: "warning" };
const LINKS = [["/metrics", template("metrics for Prometheus")], ["/api/v1/openapi.json", template("description of the API (OpenAPI)")],
  ["/api/v1/status", template("the current state, as JSON")],
  ["/static/uPlot.LICENSE.txt", template("uPlot, which draws the curves (MIT)")]];

export const daemon = {
  key: "daemon",

  enter(ctx) {
    this.found = this.before = null;
    this.load(ctx);
  },

  sampled(ctx) {
    if (Date.now() - this.asked > REFRESH_MS) this.load(ctx);
  },

  load(ctx) {
    this.asked = Date.now();
    get("self").then(({ document }) => {
      this.before = this.found?.document && this.found.document.uptime_seconds < document.uptime_seconds ? this.found.document : null;
      this.found = { document };
      ctx.render();
    }, (error) => { this.found ??= { error: error.message }; ctx.render(); });
  },

  render(ctx) {
    return [h("h1", { class: "unseen" }, t("Daemon")), h("div", { class: "stack" },
      this.found?.document ? cost(this.found.document, this.before) : pending(this.found, () => this.load(ctx)),
      ctx.sample?.status.sources ? liveCard(t("Sources"), null, sources(ctx.sample.status.sources)) : null,
      card(t("For programs"), null, h("ul", { class: "plain-list" }, LINKS.map(([path, text]) => h("li", {}, h("a", { href: path, translate: "no" }, path), h("span", { class: "dim" }, ` – ${t(text)}`))))))];
  },
};

const seconds = (own) => own.processes.reduce((all, one) => all + one.cpu_seconds, 0);
const share = (ratio) => t("{share} of one core", { share: percent(ratio, 2) });

function cost(own, before) {
  const memory = own.processes.map((one) => one.pss_bytes);
  const { store } = own;
  return [
    card(t("Own cost"), h("span", { class: "dim small" }, `wslgpud ${own.version}, Python ${own.python}`),
      h("dl", { class: "facts" },
        fact(t("CPU, now"), before ? share(Math.max(0, seconds(own) - seconds(before)) / (own.uptime_seconds - before.uptime_seconds)) : undefined, { text: "…" }),
        fact(t("CPU, since the start"), share(seconds(own) / own.uptime_seconds)),
        fact(t("memory (PSS)"), memory.every((one) => one !== undefined) ? size(memory.reduce((a, b) => a + b, 0)) : undefined),
        fact(t("running for"), duration(own.uptime_seconds))),
      table(t("Own cost"), [column(t("Name")), column(t("PID"), "num"), column(t("CPU"), "num"), column(t("memory (PSS)"), "num")],
        own.processes.map((one, n) => h("tr", {}, h("th", { scope: "row" }, named(one.name), h("span", { class: "dim" }, ` ${n ? t("child") : t("daemon")}`)), h("td", { class: "num dim" }, one.pid),
          h("td", { class: "num" }, duration(one.cpu_seconds)), h("td", { class: "num" }, size(one.pss_bytes)))))),
    card(t("Database"), store.error ? chip("critical", t("cannot be written")) : null,
      store.error ? h("p", { class: "bad" }, store.error) : null,
      h("dl", { class: "facts" },
        fact(t("file"), store.file_bytes === undefined ? undefined : [size(store.file_bytes), store.wal_bytes ? h("span", { class: "dim" }, ` + ${size(store.wal_bytes)} WAL`) : null]),
        // in the first hour most of it is creating the file, which happens only once
        fact(t("written per day"), store.written_bytes_total === undefined || own.uptime_seconds < 3600 ? undefined : size(86400 * store.written_bytes_total / own.uptime_seconds), { text: "…" }),
        fact(t("waiting to be written"), t("samples: {n}", { n: count(store.queue_ticks) })), fact(t("dropped"), t("samples: {n}", { n: count(store.dropped_ticks_total) })),
        fact(t("last written"), store.last_commit_age_seconds === undefined ? undefined : t("{time} old", { time: duration(store.last_commit_age_seconds) }), { text: t("no data yet") }))),
  ];
}

function sources(list) {
  return table(t("Sources"), [column(t("Source")), column(t("Health")), column(t("Age"), "num"), column(t("Read time"), "num"), column(t("Note"))],
    list.map((s) => h("tr", { "data-key": `src-${s.name}` }, h("th", { scope: "row" }, named(s.name)), h("td", {}, chip(HEALTH[s.health], label("health", s.health))),
      h("td", { class: "num" }, s.age_seconds === undefined ? "–" : duration(s.age_seconds)),
      h("td", { class: "num" }, `${(1000 * s.duration_seconds).toFixed(1)} ms`), h("td", { class: "dim long" }, s.error))));
}
