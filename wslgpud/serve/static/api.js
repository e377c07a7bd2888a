// Queries the daemon. Live values are polled: one small answer per sample, none while the page is hidden.

import { t } from "./i18n.js";

/** A failed request; `status` is 0 if nothing answered. */
class ApiError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export async function get(path, params = {}, options = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of [value].flat()) if (one !== undefined && one !== null) query.append(name, one);
  }
  const url = `/api/v1/${path}${query.size ? "?" + query : ""}`;
  let answer;
  try {
    answer = await fetch(url, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, t("the daemon does not answer"));
  }
  if (answer.status === 304) return { answer, document: null };
  let document = null;
  try { document = await answer.json(); } catch { /* cut off, or not ours */ }
  if (!answer.ok || !document) throw new ApiError(answer.status, document?.detail ?? answer.statusText);
  return { answer, document };
}

/** Tell the daemon that somebody has seen a lost job. */
export const markSeen = (incident) => get(`seen/${incident}`, {}, { method: "POST" });

const MIN_MS = 1000, MAX_MS = 10_000, PATIENCE_MS = 15_000;

/**
 * Calls `onSample({document, age})` with each new sample and `onTrouble(error)` when there is none. `document`
 * is null when there is no newer sample; `query()` gives the parameters. Stops while the page is hidden.
 */
export class Live {
  constructor(onSample, onTrouble, query) {
    this.query = query;
    this.onSample = onSample;
    this.onTrouble = onTrouble;
    this.tag = null;
    this.failures = 0;
    this.timer = 0;
    this.interval = 1;
    /** While all is well, every second sample is enough. */
    this.every = 1;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.poll()));
  }

  stop() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
  }

  async poll() {
    this.stop();
    if (document.hidden) return;
    const abort = (this.abort = new AbortController());
    const late = setTimeout(() => abort.abort("late"), PATIENCE_MS);
    let wait;
    try {
      const headers = this.tag ? { "If-None-Match": this.tag } : {};
      const { answer, document: found } = await get("live", this.query(), { headers, signal: abort.signal });
      const age = Number(answer.headers.get("Wslgpud-Age") ?? 0);
      this.tag = answer.headers.get("ETag");
      this.failures = 0;
      if (found?.interval_seconds) this.interval = found.interval_seconds;
      this.onSample({ document: found, age });
      // Ask a moment after the next sample is due, so that the values shown are never older than necessary.
      wait = Math.max(MIN_MS, 1000 * (this.every * this.interval - (age % this.interval)) + 60);
    } catch (error) {
      if (abort.signal.aborted && abort.signal.reason !== "late") return;
      this.failures += 1;
      this.onTrouble(error instanceof ApiError ? error : new ApiError(0, ""));
      wait = MIN_MS * 2 ** Math.min(4, this.failures - 1);
    } finally {
      clearTimeout(late);
    }
    this.timer = setTimeout(() => this.poll(), Math.min(wait, MAX_MS));
  }
}
