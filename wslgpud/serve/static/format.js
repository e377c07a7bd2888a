// Formats figures like the rest of the program (wslgpud/words).

import { lang, t, template } from "./i18n.js";

const SIZES = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const known = (value) => typeof value === "number" && Number.isFinite(value);

/** `finest` is the smallest difference that must stay visible. */
export function size(bytes, finest = Infinity) {
  if (!known(bytes)) return "–";
  const [unit, scale] = SIZES.find(([, s]) => bytes >= s) ?? SIZES[3];
  const value = Math.max(0, bytes) / scale;
  const least = value < 10 && scale > 2 ** 20 ? 1 : 0;
  let digits = Math.max(least, Math.min(3, Math.ceil(-Math.log10(finest / scale) - 0.01)));
  // A quarter takes two digits: with one, equal steps would look unequal.
  if (digits === 1 && (10 * finest / scale) % 1 > 0.01) digits = 2;
  return `${value.toFixed(digits)} ${unit}`;
}

/** A change with its sign: + means growing use. */
export const signed = (bytes) => (bytes < 0 ? "−" : "+") + size(Math.abs(bytes));

/** Bandwidth as GPU vendors write it: 1 GB is 10^9 bytes. */
export const bandwidth = (rate) => (known(rate) ? perSecond(`${(rate / 1e9).toFixed(rate < 1e10 ? 1 : 0)} GB`) : "–");

const perSecond = (amount) => t("{amount}/s", { amount });

const SPANS = [[86400, template("{number} d")], [3600, template("{number} h")], [60, template("{number} min")], [0, template("{number} s")]];

/** A span of time in a unit of that many seconds. */
export const inUnits = (number, seconds) => t(SPANS.find(([unit]) => seconds >= unit)[1], { number });

export function duration(seconds) {
  if (!known(seconds)) return "–";
  const unit = [86400, 3600, 60].find((one) => seconds >= 1.5 * one) ?? 1;
  return inUnits(seconds < 10 && seconds % 1 ? seconds.toFixed(1) : Math.round(seconds / unit), unit);
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

/** A value of a metric in its declared unit; `rate` means a counter's increase per second. */
export function amount(value, unit, rate = false) {
  if (!known(value)) return "–";
  const per = rate ? perSecond : (text) => text;
  if (unit === "bytes") return per(size(value));
  if (unit === "bytes_per_second") return perSecond(size(value));
  if (unit === "seconds") return rate ? percent(value, value < 0.1 ? 1 : 0) : duration(value);
  if (unit === "ratio") return percent(value, value > 0 && value < 0.1 ? 1 : 0);
  if (unit === "celsius") return `${count(value)} °C`;
  if (unit === "watts") return `${count(value)} W`;
  if (unit === "joules") return rate ? `${count(value)} W` : `${count(value)} J`;
  if (unit === "hertz") return value >= 1e9 ? `${(value / 1e9).toFixed(2)} GHz` : `${Math.round(value / 1e6)} MHz`;
  return per(count(value));
}

// en-GB gives 14:05:09, sv gives 2026-11-20.
export const clock = (wall) => new Date(1000 * wall).toLocaleTimeString("en-GB");
export const day = (wall) => new Date(1000 * wall).toLocaleDateString("sv-SE");

/** Date and time; for today the time alone. */
export const moment = (wall) => (day(wall) === day(Date.now() / 1000) ? clock(wall) : `${day(wall)} ${clock(wall).slice(0, 5)}`);

export const wallOf = (iso) => Date.parse(iso) / 1000;
