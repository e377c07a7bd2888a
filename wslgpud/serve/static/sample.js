// The last sample as the views need it, and the minutes before it for the small curves.

export const LEVELS = ["ok", "info", "warning", "critical", "emergency"];

const LABEL = /([a-z_][a-z0-9_]*)="((?:[^"\\]|\\.)*)"/g;
const unescaped = (text) => text.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));

/** Take `metric{label="value"}` apart. */
export function parsed(name) {
  const [metric] = name.split("{", 1);
  const found = name.slice(metric.length).matchAll(LABEL);
  return { metric, labels: Object.fromEntries([...found].map(([, label, value]) => [label, unescaped(value)])) };
}

/** One sample: the document of /api/v1/live with its values by metric. */
export class Sample {
  byMetric = {};

  constructor(document) {
    const { status, wall } = document;
    Object.assign(this, { document, status, wall, waiting: wall === undefined });
    for (const [name, value] of Object.entries(document.values ?? {})) {
      const { metric, labels } = parsed(name);
      (this.byMetric[metric] ??= []).push({ name, labels, value });
    }
  }

  all(metric) {
    return this.byMetric[`wslgpud_${metric}`] ?? [];
  }

  /** The value whose labels include these; undefined if unknown. */
  value(metric, labels = {}) {
    const wanted = Object.entries(labels);
    return this.all(metric).find((one) => wanted.every(([k, v]) => one.labels[k] === v))?.value;
  }

  source(name) {
    return this.status.sources?.find((source) => source.name === name);
  }
}

const KEPT = 900;

/** Remembers figures of the last minutes by name; a gap in the samples stays a gap. */
export class Recent {
  curves = new Map();

  add(name, wall, value) {
    if (value === undefined || value === null) return;
    if (!this.curves.has(name)) this.curves.set(name, []);
    const points = this.curves.get(name);
    const last = points.at(-1);
    if (last && wall <= last[0]) {
      if (wall > last[0] - 60) return;
      points.length = 0; // the clock was set back
    }
    points.push([wall, value]);
    if (points.length > KEPT) points.splice(0, points.length - KEPT);
  }

  /** Put older points before the live ones. */
  seed(name, points) {
    const live = this.curves.get(name) ?? [];
    const before = live.length ? points.filter(([wall]) => wall < live[0][0]) : points;
    this.curves.set(name, [...before, ...live].slice(-2 * KEPT));
  }

  points(name, since = 0) {
    return (this.curves.get(name) ?? []).filter(([wall]) => wall >= since);
  }
}

/**
 * A counter's increase per second between samples; null over a gap or a reset.
 * Of a step that is not over at `until` the time so far counts, once that is half of it.
 */
export function rates(times, values, most = Infinity, step = 0, until = Infinity) {
  return times.slice(1).map((wall, i) => {
    const passed = Math.min(step, until - wall);
    const [seconds, grown] = [wall - times[i] - step + passed, values[i + 1] - values[i]];
    return [wall, seconds > 0 && seconds <= most && passed >= step / 2 && grown >= 0 ? grown / seconds : null];
  });
}

/** Samples further apart than this many intervals are a gap. */
export function gapOf(times) {
  if (times.length < 3) return Infinity;
  const steps = times.slice(1).map((wall, i) => wall - times[i]).sort((a, b) => a - b);
  return 3 * steps[steps.length >> 1] + 0.5;
}
