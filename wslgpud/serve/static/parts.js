// Components shared by several views.

import { h } from "./dom.js";
import { moment, wallOf } from "./format.js";
import { label, t } from "./i18n.js";

/** A name (of a program, a card, a series): not to be translated. */
export const named = (text, props = {}) => h("span", { translate: "no", ...props }, text);

const SIGNS = {
  ok: ["M7 16.5l6 6L25 10"],
  info: ["M16 14v9", "M16 8.6v.4"],
  warning: ["M16 4.5L29 27H3z", "M16 13v6", "M16 23v.3"],
  critical: ["M16 4.5L29 27H3z", "M16 13v6", "M16 23v.3"],
  killed: ["M10.5 3.5h11l7 7v11l-7 7h-11l-7-7v-11z", "M11 11l10 10", "M21 11L11 21"],
  emergency: ["M10.5 3.5h11l7 7v11l-7 7h-11l-7-7v-11z", "M16 9.5v8", "M16 22v.4"],
  unknown: ["M12 12a4 4 0 1 1 5.5 3.7c-1 .5-1.5 1.2-1.5 2.3", "M16 22.6v.4"],
};

/** A level as a shape, so that it can be told without colours. */
export function sign(level) {
  const round = level === "info" || level === "unknown" || level === "ok";
  return h("svg", { class: "sign", viewBox: "0 0 32 32", "aria-hidden": "true" },
    round ? h("circle", { cx: 16, cy: 16, r: 13.5 }) : null, (SIGNS[level] ?? SIGNS.unknown).map((d) => h("path", { d })));
}

export const chip = (level, text) => h("span", { class: ["chip", level] }, text ?? label("level", level));

/** The same for a past one: nothing is filled with red while all is well. */
export const pastChip = (level, text) => h("span", { class: ["chip past", level] }, text ?? label("level", level));

/** A bar of layers; `parts` are [class, share]. */
export function layers(parts, level, words) {
  let x = 0;
  return h("svg", { class: ["layers", level], viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": words },
    parts.map(([name, share]) => {
      const width = 1000 * Math.min(1, Math.max(0, share || 0));
      const rect = h("rect", { class: name, x: x.toFixed(1), y: 0, height: 10, width: Math.max(0, Math.min(width, 1000 - x)).toFixed(1) });
      x += width;
      return rect;
    }));
}

export const keys = (entries, level) => h("ul", { class: ["keys", level] },
  entries.filter(Boolean).map(([name, text]) => h("li", { class: name }, h("i"), text)));

/** A figure with its name; an absent one with its reason. */
export const fact = (name, value, why) => h("div", {}, h("dt", {}, name),
  h("dd", {}, value ?? h("span", { class: "dim", title: why?.more }, why?.text ?? t("not known"))));

export const card = (title, side, ...content) => h("section", { class: "card" },
  h("div", { class: "head" }, h("h2", {}, title), side), content);

/** A card of current values: it pales when they are outdated. */
export const liveCard = (...given) => {
  const made = card(...given);
  made.classList.add("fades");
  return made;
};

/** The command that was copied last: the next sample draws its button anew, which is to say so still. */
let copied = null;

/** A command, and a button that copies it. */
export const command = (text) => [h("code", {}, text), " ", h("button", { type: "button", class: "small", onclick: (event) => copy(text, event.currentTarget) }, text === copied ? t("Copied") : t("Copy"))];

async function copy(text, button) {
  try { await navigator.clipboard.writeText(text); } catch {
    // Over plain HTTP from another machine browsers offer no clipboard; selected text can still be copied.
    const chosen = document.createRange();
    chosen.selectNodeContents(button.previousElementSibling);
    getSelection().removeAllRanges();
    getSelection().addRange(chosen);
    document.execCommand("copy");
  }
  copied = text;
  button.textContent = t("Copied");
}

export const empty = (...text) => h("p", { class: "empty" }, text);

/** Placeholder for an answer that is pending or failed. */
export function pending(loaded, again) {
  if (loaded?.error) {
    return h("div", { class: "card empty" }, h("p", {}, t("Could not be loaded: {why}", { why: loaded.error })), h("button", { type: "button", onclick: again }, t("Try again")));
  }
  return h("p", { class: "card empty" }, t("Loading …"));
}

export const at = (iso) => h("time", { datetime: iso }, moment(wallOf(iso)));

export const table = (caption, head, rows) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
  h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));

export const column = (name, kind) => h("th", { scope: "col", class: kind }, name);

/** Runs in progress: a stress run, a guarded command. `kind` selects one of them. */
export function work(status, kind) {
  const found = (status?.running ?? []).filter((one) => !kind || one.kind === kind);
  if (!found.length) return null;
  return liveCard(t("Running now"), null, h("ul", { class: "plain-list" }, found.map((one) => {
    const { done_ratio: done, left_seconds: left, elapsed_seconds: elapsed } = one;
    const share = done ?? (left === undefined ? null : elapsed / Math.max(1e-9, elapsed + left));
    return h("li", { "data-key": `w${one.pid}` }, one.headline,
      share === null ? null : h("progress", { max: 1, value: share.toFixed(3), "aria-label": one.headline }));
  })));
}
