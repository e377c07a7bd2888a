// The last sample as the views ask for it, and the minutes before it for the small curves.

import { duration, percent, resourceName, size, span, speed } from "./format.js";
import { t } from "./i18n.js";

export const LEVELS = ["ok", "info", "warning", "critical", "emergency"];
const FULL_SHARE = 0.03;

const LABEL = /([a-z_][a-z0-9_]*)="((?:[^"\\]|\\.)*)"/g;
const unescaped = (text) => text.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));

/** Take `metric{label="value"}` apart. */
export function parsed(name) {
  const at = name.indexOf("{");
  if (at < 0) return { metric: name, labels: {} };
  const labels = {};
  for (const [, label, value] of name.slice(at).matchAll(LABEL)) labels[label] = unescaped(value);
  return { metric: name.slice(0, at), labels };
}

/** One sample: the document of /api/v1/live with its values by metric. */
export class Sample {
  constructor(document) {
    this.document = document;
    this.status = document.status;
    this.wall = document.wall;
    this.waiting = !("wall" in document);
    this.byMetric = new Map();
    for (const [name, value] of Object.entries(document.values ?? {})) {
      const { metric, labels } = parsed(name);
      if (!this.byMetric.has(metric)) this.byMetric.set(metric, []);
      this.byMetric.get(metric).push({ name, labels, value });
    }
  }

  all(metric) {
    return this.byMetric.get(`wslgpud_${metric}`) ?? [];
  }

  /** The value whose labels include these; undefined where it is not known. */
  value(metric, labels = {}) {
    const wanted = Object.entries(labels);
    return this.all(metric).find((one) => wanted.every(([k, v]) => one.labels[k] === v))?.value;
  }

  source(name) {
    return this.status.sources?.find((source) => source.name === name);
  }
}

/** What the whole looks like: the worst of the forecasts, and of incidents of any other kind. */
export function verdict(status) {
  const rank = (level) => LEVELS.indexOf(level);
  const forecasts = status.forecasts ?? [];
  const worst = [...forecasts].sort((a, b) => rank(b.level) - rank(a.level) || eta(a) - eta(b))[0];
  const others = (status.incidents ?? [])
    .filter((incident) => incident.rule !== "memory_exhaustion" && rank(incident.level) > 0)
    .sort((a, b) => rank(b.level) - rank(a.level));
  if (!worst && !others.length) {
    return { level: "unknown", headline: t("verdict_blind"), details: [status.sources?.find((s) => s.name === "memory")?.error] };
  }
  const own = worst && rank(worst.level) > 0 ? worst : null;
  if (others.length && (!own || rank(others[0].level) > rank(own.level))) {
    return { level: others[0].level, headline: others[0].headline, incident: others[0],
      details: [own && sentence(own), ...others.slice(1, 3).map((o) => t("also", { what: o.headline }))] };
  }
  if (own) {
    return { level: own.level, headline: sentence(own), resource: own.resource,
      details: [details(own), ...others.slice(0, 2).map((o) => t("also", { what: o.headline }))] };
  }
  const full = forecasts.filter(isFull);
  const more = full.length ? t("full_more", { what: full.map((f) => resourceName(f.resource)).join(", ") }) : t("calm_more");
  return { level: "ok", headline: t("calm"), details: [more] };
}

/** Full is no alarm while nothing grows: a program may have taken all that it will ever need. */
export const isFull = (forecast) => forecast.headroom_bytes < FULL_SHARE * forecast.capacity_bytes;

const eta = (forecast) => forecast.eta_seconds?.middle ?? Infinity;

function sentence(forecast) {
  const what = resourceName(forecast.resource);
  const who = forecast.who;
  const left = size(forecast.headroom_bytes);
  if (forecast.eta_seconds) return t(who ? "verdict_eta_who" : "verdict_eta", { what, who, time: timeLeft(forecast) });
  return t(who ? "verdict_low_who" : "verdict_low", { what, who, left });
}

function details(forecast) {
  const rate = forecast.rate_bytes_per_second;
  return [
    t("left_of", { left: size(forecast.headroom_bytes), all: size(forecast.capacity_bytes) }),
    rate > 0 ? t("grows", { rate: speed(rate).slice(1) }) : null,
    chance(forecast),
  ].filter(Boolean).join(" · ");
}

export function timeLeft(forecast) {
  const { early, middle, late } = forecast.eta_seconds ?? {};
  if (middle === undefined) return null;
  return early !== undefined && late !== undefined ? span(early, late) : `≈ ${duration(middle)}`;
}

/** The nearest horizon within which it is more likely than not, else the likeliest. */
export function chance(forecast) {
  const known = Object.entries(forecast.probability_within_seconds ?? {}).filter(([, p]) => p >= 0.05);
  if (!known.length) return null;
  const [within, p] = known.find(([, likely]) => likely >= 0.5) ?? known[known.length - 1];
  return t("chance", { chance: percent(p), time: duration(Number(within)) });
}

const KEPT = 900;

/** Remembers figures of the last minutes by name; a gap in the samples stays one. */
export class Recent {
  constructor() {
    this.curves = new Map();
  }

  add(name, wall, value) {
    if (value === undefined || value === null) return;
    if (!this.curves.has(name)) this.curves.set(name, []);
    const points = this.curves.get(name);
    const last = points[points.length - 1];
    if (last && wall <= last[0]) {
      if (wall > last[0] - 60) return;
      points.length = 0; // the clock was set back
    }
    points.push([wall, value]);
    if (points.length > KEPT) points.splice(0, points.length - KEPT);
  }

  /** Put older points before what has been seen live. */
  seed(name, points) {
    const live = this.curves.get(name) ?? [];
    const before = live.length ? points.filter(([wall]) => wall < live[0][0]) : points;
    this.curves.set(name, [...before, ...live].slice(-2 * KEPT));
  }

  points(name, since = 0) {
    return (this.curves.get(name) ?? []).filter(([wall]) => wall >= since);
  }
}

/** Increase a second between the samples of a counter; null over a gap, and where it began anew. */
export function rates(times, values, most = Infinity) {
  const found = [];
  for (let i = 1; i < times.length; i++) {
    const seconds = times[i] - times[i - 1];
    const grown = values[i] - values[i - 1];
    found.push([times[i], seconds > 0 && seconds <= most && grown >= 0 ? grown / seconds : null]);
  }
  return found;
}

/** A distance of so many usual ones is a gap. */
export function gapOf(times) {
  if (times.length < 3) return Infinity;
  const steps = [];
  for (let i = 1; i < times.length; i++) steps.push(times[i] - times[i - 1]);
  steps.sort((a, b) => a - b);
  return 3 * steps[steps.length >> 1] + 0.5;
}
