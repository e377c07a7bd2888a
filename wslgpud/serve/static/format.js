// Figures as people write them, the same way as in the terminal (wslgpud/units.py): GB are 2^30 bytes.

import { lang, t } from "./i18n.js";

const SIZES = [["TB", 2 ** 40], ["GB", 2 ** 30], ["MB", 2 ** 20], ["kB", 2 ** 10]];
const known = (value) => typeof value === "number" && Number.isFinite(value);

/** `finest` is a difference that must still be seen. */
export function size(bytes, finest = Infinity) {
  if (!known(bytes)) return "–";
  if (bytes < 0) return "−" + size(-bytes, finest);
  if (bytes < 1024) return `${Math.round(bytes)} B`;
  const [unit, scale] = SIZES.find(([, s]) => bytes >= s);
  const value = bytes / scale;
  const least = value < 10 && unit !== "kB" ? 1 : 0;
  const digits = Math.max(least, Math.min(3, Math.ceil(-Math.log10(finest / scale) - 0.01)));
  return `${value.toFixed(digits)} ${unit}`;
}

/** Bandwidth as makers of cards write it: GB are 10^9 bytes. */
export const bandwidth = (rate) => (known(rate) ? `${(rate / 1e9).toFixed(rate < 1e10 ? 1 : 0)} GB/${t("s")}` : "–");

/** A rate so that it has a few digits before the point: +310 MiB/min. */
export function speed(rate) {
  const sign = rate < 0 ? "−" : "+";
  const value = Math.abs(rate);
  return value >= 50 * 2 ** 20 ? `${sign}${size(value)}/${t("s")}` : `${sign}${size(60 * value)}/${t("minute_short")}`;
}

export function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 0) return "−" + duration(-seconds);
  if (seconds < 90) return `${seconds < 10 && seconds % 1 ? seconds.toFixed(1) : Math.round(seconds)} ${t("s")}`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} ${t("min")}`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} ${t("h")}`;
  return `${Math.round(seconds / 86400)} ${t("d")}`;
}

/** A range of times to come in one unit: 4–9 min. */
export function span(early, late) {
  const unit = late < 90 ? 1 : late < 90 * 60 ? 60 : 3600;
  const [low, high] = [early, late].map((s) => Math.max(1, Math.round(s / unit)));
  const name = t({ 1: "s", 60: "min", 3600: "h" }[unit]);
  return low < high ? `${low}–${high} ${name}` : `${high} ${name}`;
}

export function percent(ratio, digits = 0) {
  return known(ratio) ? `${(100 * ratio).toFixed(digits)} %` : "–";
}

export function count(value) {
  if (!known(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString(lang);
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString(lang, { maximumFractionDigits: digits });
}

/** A value of a metric in the unit of its declaration; `rate` is one a second of a counter. */
export function amount(value, unit, rate = false) {
  if (!known(value)) return "–";
  const per = rate ? `/${t("s")}` : "";
  if (unit === "bytes") return size(value) + per;
  if (unit === "bytes_per_second") return `${size(value)}/${t("s")}`;
  if (unit === "seconds") return rate ? percent(value, value < 0.1 ? 1 : 0) : duration(value);
  if (unit === "ratio") return percent(value, value > 0 && value < 0.1 ? 1 : 0);
  if (unit === "celsius") return `${count(value)} °C`;
  if (unit === "watts") return `${count(value)} W`;
  if (unit === "joules") return rate ? `${count(value)} W` : `${count(value)} J`;
  if (unit === "hertz") return value >= 1e9 ? `${(value / 1e9).toFixed(2)} GHz` : `${Math.round(value / 1e6)} MHz`;
  return count(value) + per;
}

const two = (number) => String(number).padStart(2, "0");

export function clock(wall) {
  const d = new Date(1000 * wall);
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

export function day(wall) {
  const d = new Date(1000 * wall);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
}

/** Date and time; of today the time alone. */
export function moment(wall, now = Date.now() / 1000) {
  return day(wall) === day(now) ? clock(wall) : `${day(wall)} ${clock(wall).slice(0, 5)}`;
}

export const wallOf = (iso) => Date.parse(iso) / 1000;

export function resourceName(resource) {
  if (resource === "ram") return t("ram");
  if (/^gpu\d+$/.test(resource)) return `GPU ${resource.slice(3)}`;
  if (!resource.startsWith("cgroup:")) return resource;
  const path = resource.slice(7);
  return `cgroup ${path.length <= 24 ? path : "…" + path.slice(-23)}`;
}
