// The page's language. The code holds English templates; their translations come from the daemon.

import { get } from "./api.js";

const PATIENCE_MS = 5000;

/** The current language, and whether its texts are loaded; see `speak`. */
export let lang = "en", ready = false;
let words = {};

/** Mark a text in a table for the translators' tools: `t` translates it later. */
export const template = (text) => text;

const GAP = /(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])/;
/** Join texts: Chinese has no space beside Chinese, though templates have one beside a placeholder. */
const joined = (before, after) => before.slice(0, -2) + (before.slice(-2) + after.slice(0, 2)).replace(GAP, "") + after.slice(2);

/** Translate an English template into the page's language; `{name}` is filled in. */
export const t = (text, facts = {}) => (words[text] ?? text).split(/\{(\w+)\}/)
  .reduce((whole, piece, number) => joined(whole, number % 2 ? String(facts[piece] ?? `{${piece}}`) : piece), "");

/** Whether a name has a label: those of levels, states, figures and metrics are in words/templates.toml. */
export const known = (kind, name) => Object.hasOwn(words, `${kind}.${name}`);
/** The label of a name; a name unknown to the daemon is returned unchanged. */
export const label = (kind, name) => words[`${kind}.${name}`] ?? String(name).replaceAll("_", " ");

/** "en" or "zh": from the address, else the earlier choice, else the browser's preference. */
export function preferred() {
  const asked = new URLSearchParams(location.search).get("lang");
  let kept = null;
  try { kept = localStorage.getItem("wslgpud.lang"); } catch { /* a browser that keeps nothing */ }
  const tags = [asked, kept, ...(navigator.languages ?? [navigator.language])].filter(Boolean);
  return tags.map((tag) => tag.slice(0, 2).toLowerCase()).find((tag) => tag === "en" || tag === "zh") ?? "en";
}

/** Change the language; unchanged if the daemon does not answer. */
export async function speak(code) {
  words = (await get("words", { lang: code }, { cache: "no-cache", signal: AbortSignal.timeout(PATIENCE_MS) })).document;
  [lang, ready] = [code, true];
  document.documentElement.lang = code === "zh" ? "zh-CN" : "en";
}
