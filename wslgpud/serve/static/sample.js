// The last sample as the views ask for it, and the minutes before it for the small curves.

export const LEVELS = ["ok", "info", "warning", "critical", "emergency"];

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
