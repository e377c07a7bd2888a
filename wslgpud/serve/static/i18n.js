// The page's language. Texts stand in the code as English templates; their translations come from the daemon.

import { get } from "./api.js";

const PATIENCE_MS = 5000;

/** The language that is spoken now, and whether its words are here; see `speak`. */
export let lang = "en", ready = false;
let words = {};

/** Mark a text that stands in a table, for translators' tools: `t` words it later. */
export const template = (text) => text;

const GAP = /(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])/;
/** One text after another: Chinese has no space beside Chinese, though templates have one beside a blank. */
const joined = (before, after) => before.slice(0, -2) + (before.slice(-2) + after.slice(0, 2)).replace(GAP, "") + after.slice(2);

/** Word an English template in the page's language; `{name}` is filled in. */
export const t = (text, facts = {}) => (words[text] ?? text).split(/\{(\w+)\}/)
  .reduce((whole, piece, number) => joined(whole, number % 2 ? String(facts[piece] ?? `{${piece}}`) : piece), "");

/** Whether there are words for a name: those of levels, states, figures and metrics stand in words/templates.toml. */
export const known = (kind, name) => Object.hasOwn(words, `${kind}.${name}`);
/** The words for a name; one that the daemon does not know stays as it is called. */
export const label = (kind, name) => words[`${kind}.${name}`] ?? String(name).replaceAll("_", " ");

/** "en" or "zh": the first of what was asked for, chosen before, and what the browser prefers. */
export function preferred() {
  const asked = new URLSearchParams(location.search).get("lang");
  let kept = null;
  try { kept = localStorage.getItem("wslgpud.lang"); } catch { /* a browser that keeps nothing */ }
  const tags = [asked, kept, ...(navigator.languages ?? [navigator.language])].filter(Boolean);
  return tags.map((tag) => tag.slice(0, 2).toLowerCase()).find((tag) => tag === "en" || tag === "zh") ?? "en";
}

/** Change the language; it stays as it is where the daemon does not answer. */
export async function speak(code) {
  words = (await get("words", { lang: code }, { cache: "no-cache", signal: AbortSignal.timeout(PATIENCE_MS) })).document;
  [lang, ready] = [code, true];
  document.documentElement.lang = code === "zh" ? "zh-CN" : "en";
}
