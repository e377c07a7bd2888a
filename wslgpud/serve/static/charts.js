// Curves. uPlot draws on a canvas; each chart also has a text for those who cannot see it.
/* global uPlot */

import { h } from "./dom.js";
import { amount, bandwidth, clock, count, day, inUnits, size } from "./format.js";
import { t } from "./i18n.js";
import { gapOf } from "./sample.js";

const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans SC", sans-serif';
const POWERS = Array.from({ length: 50 }, (_, n) => 2 ** n);
const TIMES = [0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
  86400, 172800, 604800, 1209600, 2592000, 7776000, 15552000, 31536000];
const RATIOS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10];

export const LINES = 8;
/** Top, right, bottom, left: half of the last time label overhangs on the right. */
export const PADDING = [8, 26, 0, 0];

/** The theme's colours, from the stylesheet. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const named = Object.fromEntries(["ink", "dim", "grid", "headroom", "eta", "card", "warning", "critical", "emergency", "info"]
    .map((name) => [name, of(name)]));
  return { ...named, lines: Array.from({ length: LINES }, (_, n) => of(`line-${n + 1}`)) };
}

/** `#rrggbb` with an opacity. */
export const faint = (colour, alpha) => colour + Math.round(255 * alpha).toString(16).padStart(2, "0");

function timeLabels(_, splits, __, ___, increment) {
  // For today the time alone is enough.
  let last = day(Date.now() / 1000);
  return splits.map((wall) => {
    const date = day(wall);
    const time = clock(wall);
    if (increment >= 28 * 86400) return date.slice(0, 7);
    if (increment >= 86400) return date.slice(5) + (date.slice(0, 4) === last.slice(0, 4) ? "" : `\n${(last = date).slice(0, 4)}`);
    const text = increment >= 60 ? time.slice(0, 5) : time;
    return date === last ? text : `${text}\n${(last = date).slice(5)}`;
  });
}

/** `whole`: the values are parts of a capacity, at which their axis ends. */
export function axes(colour, unit, rate, width, whole = false) {
  const line = { stroke: colour.dim, font: FONT, ticks: { show: false }, grid: { stroke: colour.grid, width: 1 } };
  const bytes = unit === "bytes" || unit === "bytes_per_second";
  return [
    { ...line, values: timeLabels, incrs: TIMES, space: width < 500 ? 64 : 84, size: (_, labels) => (labels?.some((text) => text.includes("\n")) ? 36 : 24), gap: 7, grid: { show: false } },
    {
      ...line, size: width < 500 ? 54 : 64, space: 34,
      ...(whole ? { splits: (_, __, ___, all) => [0, all / 2, all] } : bytes ? { incrs: POWERS } : unit === "ratio" ? { incrs: RATIOS } : unit === "seconds" && !rate ? { incrs: TIMES } : {}),
      values: (_, splits, __, ___, finest) => splits.map((value) => (value === null ? "" : value === 0 && bytes ? "0" : label(value, unit, rate, whole ? splits[1] : finest))),
    },
  ];
}

function label(value, unit, rate, finest) {
  if (unit === "bandwidth") return bandwidth(value);
  if (unit === "seconds" && !rate) {
    // All in the unit of the steps: rounded separately, two could read the same.
    const unit = [86400, 3600, 60].find((one) => finest >= one) ?? 1;
    return inUnits(count(value / unit), unit);
  }
  return unit === "bytes" ? (rate ? t("{amount}/s", { amount: size(value, finest) }) : size(value, finest)) : amount(value, unit, rate);
}

/** Keeps charts beside the elements that `show` keeps: by key, rebuilt when their shape changes. */
export class Charts {
  constructor() {
    this.known = new Map();
    this.observer = new ResizeObserver((entries) => {
      for (const { target } of entries) this.resized(target);
    });
  }

  /** `build(width)` gives uPlot's options; `shape` says when they must be asked for again. */
  draw(key, shape, build, data) {
    const element = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (!element) return null;
    let chart = this.known.get(key);
    if (!chart || chart.element !== element || chart.shape !== shape) {
      this.drop(key);
      const width = Math.max(160, element.clientWidth);
      const plot = new uPlot({ width, height: element.clientHeight || 160, legend: { show: false }, ...build(width) }, data, element);
      chart = { element, shape, plot };
      this.known.set(key, chart);
      this.observer.observe(element);
      return plot;
    }
    chart.plot.setData(data);
    return chart.plot;
  }

  resized(element) {
    for (const { element: mine, plot } of this.known.values()) {
      const width = Math.max(160, element.clientWidth);
      if (mine === element && width !== plot.width) plot.setSize({ width, height: element.clientHeight || 160 });
    }
  }

  drop(key) {
    const chart = this.known.get(key);
    if (!chart) return;
    this.observer.unobserve(chart.element);
    chart.plot.destroy();
    this.known.delete(key);
  }

  clear() {
    for (const key of [...this.known.keys()]) this.drop(key);
  }
}

/** Use in the last minutes and, if exhaustion is in sight, the fan of the forecast. */
export function fan(charts, key, { points, wall, forecast, past, kills }) {
  const eta = forecast.eta_seconds;
  const now = wall;
  const [left, all] = [forecast.headroom_bytes, forecast.capacity_bytes];
  const late = eta ? Math.max(eta.late ?? eta.middle, eta.middle) : 0;
  const future = eta ? Math.min(Math.max(1.3 * late, 15), 2 * past) : 0;
  const gap = gapOf(points.map(([at]) => at));
  const data = [[], [], [], [], []];
  const put = (at, ...rooms) => [at, ...rooms.map((room) => (room === null ? null : all - room))].forEach((value, n) => data[n].push(value));
  let before = null;
  for (const [at, value] of points) {
    if (at >= now - (forecast.age_seconds ?? 0)) break;
    if (before !== null && at - before > gap) put(before + gap / 2, null, null, null, null);
    put((before = at), value, null, null, null);
  }
  // Values last seen a while ago are not current.
  put(now - (forecast.age_seconds ?? 0), left, ...(eta ? [left, left, left] : [null, null, null]));
  if (eta) {
    const ends = [eta.early ?? eta.middle, eta.middle, eta.late ?? eta.middle];
    const stops = [...new Set([...ends, future])].filter((s) => s > 0 && s <= future).sort((a, b) => a - b);
    for (const stop of stops) put(now + stop, null, ...ends.map((end) => Math.max(0, left * (1 - stop / end))));
  }
  const shape = `${!!eta} ${document.documentElement.dataset.theme}`;
  const frame = { from: now - past, to: now + future, top: all, kills };
  const plot = charts.draw(key, shape, (width) => {
    const c = colours();
    return {
      padding: PADDING,
      cursor: { show: false },
      frame,
      scales: { x: { range: (u) => [u.frame.from, u.frame.to] }, y: { range: (u) => [0, u.frame.top] } },
      axes: axes(c, "bytes", false, width, true),
      series: [
        {},
        { stroke: c.headroom, width: 1.8, fill: faint(c.headroom, 0.1), points: { show: false } },
        { stroke: faint(c.eta, 0.6), width: 1, dash: [3, 3], points: { show: false } },
        { stroke: c.eta, width: 1.8, dash: [6, 4], points: { show: false } },
        { stroke: faint(c.eta, 0.6), width: 1, dash: [3, 3], points: { show: false } },
      ],
      bands: [{ series: [2, 4], fill: faint(c.eta, 0.16) }],
      hooks: { init: [(u) => (u.frame = frame)], draw: [(u) => {
        upright(u, u.frame.to > u.frame.now + 1 ? u.frame.now : null, c.dim);
        for (const [n, at] of u.frame.kills.entries()) if (at >= u.frame.from) mark(u, at, t("Killed"), c, n, n > 0);
      }] },
    };
  }, data);
  if (plot) {
    plot.frame = { ...frame, now };
    plot.setData(data);
  }
}

/** A dashed line from top to bottom. */
export function upright(u, at, colour) {
  if (at === null || at < u.scales.x.min || at > u.scales.x.max) return;
  const x = Math.round(u.valToPos(at, "x", true));
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.setLineDash([4, 4]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

/** Points of thinned steps, headed to the nearer extreme first: neither a peak nor a drop is lost between them. */
export function extremes({ time, value, min = value, max = value }) {
  let before = null;
  const width = 0.8 * (time[1] - time[0]) || 0; // the last of five samples
  return time.flatMap((wall, n) => {
    const pair = before !== null && Math.abs(min[n] - before) < Math.abs(max[n] - before) ? [min[n], max[n]] : [max[n], min[n]];
    before = pair[1];
    return pair[0] === pair[1] ? [[wall, pair[0]]] : [[wall, pair[0]], [wall + width, pair[1]]];
  });
}

/** The same with its name beside it: right of the last one, else on the left if there is room. */
export function mark(u, at, name, c, row, last) {
  upright(u, at, c.ink);
  const x = u.valToPos(at, "x", true);
  const { ctx, bbox } = u;
  const text = `${name} ${clock(at)}`;
  ctx.save();
  ctx.font = FONT.replace(/^\d+/, (pixels) => Math.round(pixels * devicePixelRatio));
  ctx.textBaseline = "top";
  const wide = ctx.measureText(text).width + 6 * devicePixelRatio;
  const [before, after] = [x - wide > bbox.left, x + wide < bbox.left + bbox.width];
  const right = after && (last || !before);
  ctx.textAlign = right ? "left" : "right";
  const place = [x + (right ? 5 : -5) * devicePixelRatio, bbox.top + (5 + 14 * row) * devicePixelRatio];
  // Legible over a level or the line of another mark.
  ctx.strokeStyle = faint(c.card, 0.8);
  ctx.lineWidth = 4 * devicePixelRatio;
  ctx.lineJoin = "round";
  ctx.strokeText(text, ...place);
  ctx.fillStyle = c.ink;
  ctx.fillText(text, ...place);
  ctx.restore();
}

/** The forecast made at a moment, until `all` is used: the median as a line, earliest to latest as a fan. */
export function foretold(u, wall, { headroom_bytes: left, eta_seconds: eta }, all, c) {
  if (!eta) return;
  const { ctx, bbox } = u;
  const point = (at, room) => [u.valToPos(at, "x", true), u.valToPos(all - room, "y", true)];
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.beginPath();
  ctx.moveTo(...point(wall, left));
  ctx.lineTo(...point(wall + (eta.early ?? eta.middle), 0));
  ctx.lineTo(...point(wall + (eta.late ?? eta.middle), 0));
  ctx.fillStyle = faint(c.eta, 0.16);
  ctx.fill();
  ctx.beginPath();
  ctx.moveTo(...point(wall, left));
  ctx.lineTo(...point(wall + eta.middle, 0));
  ctx.strokeStyle = c.eta;
  ctx.lineWidth = 1.8 * devicePixelRatio;
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.stroke();
  ctx.restore();
}

/** A small curve without axes; a gap in time stays a gap. */
export function sparkline(points, { from, to, top, label }) {
  const [width, height] = [120, 28];
  const highest = Math.max(top ?? 0, ...points.map(([, v]) => v ?? 0)) || 1;
  const gap = gapOf(points.map(([at]) => at));
  let path = "";
  let last = null;
  for (const [at, value] of points) {
    if (value === null || at < from) { last = null; continue; }
    const x = ((at - from) / (to - from)) * width;
    const y = height - 1 - (Math.min(value, highest) / highest) * (height - 3);
    path += `${last !== null && at - last <= gap ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    last = at;
  }
  return h("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("path", { d: path || "M0 0", "vector-effect": "non-scaling-stroke" }));
}

/** Several series in one chart, as `range` answered them, joined on time with gaps as gaps. */
export function joined(tables) {
  return uPlot.join(tables.map(([times, ...values]) => withGaps(times, values)));
}

function withGaps(times, values) {
  const gap = gapOf(times);
  const found = [[], ...values.map(() => [])];
  times.forEach((at, n) => {
    if (n && at - times[n - 1] > gap) {
      found[0].push(times[n - 1] + gap / 3);
      values.forEach((_, i) => found[i + 1].push(null));
    }
    found[0].push(at);
    values.forEach((column, i) => found[i + 1].push(column[n]));
  });
  return found;
}

/** Shades the time spent at each level, as the pictures of `wslgpud replay` do. */
export function shadeLevels(u, times, levels, c) {
  const { ctx, bbox } = u;
  const shades = [null, c.info, c.warning, c.critical, c.emergency];
  // On black the palest would stand out most.
  const alphas = document.documentElement.dataset.theme === "dark" ? [0, 0.14, 0.26, 0.34, 0.5] : [0, 0.55, 0.55, 0.55, 0.55];
  ctx.save();
  for (let first = 0, next; first < times.length; first = next) {
    for (next = first + 1; next < times.length && levels[next] === levels[first];) next++;
    const shade = shades[levels[first]];
    if (!shade) continue;
    const [x, end] = [times[first], times[next] ?? times[next - 1]].map((at) => u.valToPos(at, "x", true));
    ctx.fillStyle = faint(shade, alphas[levels[first]]);
    ctx.fillRect(Math.max(x, bbox.left), bbox.top, Math.max(1, Math.min(end, bbox.left + bbox.width) - Math.max(x, bbox.left)), bbox.height);
  }
  ctx.restore();
}

/** Cursor readout: time and values, as text in an element below the chart. */
export function readout(u, unit, rate, names) {
  const at = u.cursor.idx;
  if (at === null || at === undefined) return "";
  const wall = u.data[0][at];
  const values = names.map(({ name, index }) => {
    const value = u.data[index][at];
    return value === null || value === undefined ? null : `${name} ${amount(value, unit, rate)}`;
  });
  return [`${day(wall)} ${clock(wall)}`, ...values.filter(Boolean)].join(" · ");
}
