// Puts the page together: head, views, the live sample, and what is said when there is none.

import { Live } from "./api.js";
import { Charts } from "./charts.js";
import { daemon } from "./daemon.js";
import { doctor } from "./doctor.js";
import { h, show } from "./dom.js";
import { clock, duration } from "./format.js";
import { gpus, rememberGpus } from "./gpus.js";
import { history } from "./history.js";
import { lang, t } from "./i18n.js";
import { incidents } from "./incidents.js";
import { overview, remember } from "./overview.js";
import { processes } from "./processes.js";
import { Recent, Sample, verdict } from "./sample.js";
import { stress } from "./stress.js";

const VIEWS = [overview, history, gpus, processes, incidents, stress, doctor, daemon];
const STALE_SECONDS = 10, BACK_MS = 8000;
const place = (id) => document.getElementById(id);

const ctx = {
  lang,
  charts: new Charts(),
  recent: new Recent(),
  sample: null,
  state: "waiting",
  render: () => (ctx.pending ||= requestAnimationFrame(render)),
  pending: 0,
};
let view = null;
/** When the last answer came (performance.now), and how old its sample was then. */
let answered = null, age = 0, trouble = null, spoken = "", back = 0;

function route() {
  const [path] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const wanted = VIEWS.find((one) => one.key === name) ?? overview;
  const moved = wanted !== view || rest.join("/") !== view.path;
  if (moved) {
    ctx.charts.clear();
    view?.leave?.(ctx);
    if (view) show(place("main"));
  }
  const first = !view;
  view = wanted;
  view.path = rest.join("/");
  view.enter?.(ctx, view.path);
  if (ctx.sample && !ctx.sample.waiting) view.sampled?.(ctx);
  render();
  if (moved && !first) {
    place("main").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

const sinceAnswer = () => (answered === null ? 0 : (performance.now() - answered) / 1000);
const currentAge = () => age + sinceAnswer();
ctx.age = currentAge;

function connection() {
  if (trouble) return "lost";
  if (!ctx.sample || ctx.sample.waiting) return "waiting";
  const patience = Math.max(STALE_SECONDS, 5 * ctx.sample.document.interval_seconds);
  return currentAge() > patience ? "stale" : "live";
}

function notice(state) {
  if (state === "lost") {
    if (trouble.status === 401) return t("notice_refused");
    return ctx.sample ? t("notice_lost", { time: clock(trouble.since) }) : t("notice_never");
  }
  if (state === "stale") return t("notice_stale", { time: duration(Math.floor(currentAge())) });
  return Date.now() < back ? t("notice_back") : null;
}

function render() {
  cancelAnimationFrame(ctx.pending);
  ctx.pending = 0;
  const state = (ctx.state = connection());
  const said = notice(state);
  document.body.classList.toggle("old", state === "lost" || state === "stale");
  show(place("top"), top(state));
  show(place("notice"), said ? h("p", { class: state === "live" ? "calm" : null }, said) : null);
  show(place("main"), view.render(ctx));
  view.drawn?.(ctx);
  const { status, waiting } = ctx.sample ?? {};
  const host = ctx.sample?.document.host ?? location.hostname;
  const level = status && !waiting && state !== "lost" ? verdict(status).level : null;
  document.title = `${level && level !== "ok" ? `${t(`level_${level}`)} – ` : ""}${t(view.key)} – wslgpud ${host}`;
  announce(state);
}

/** Tell a screen reader of a change of level; not of each sample. */
function announce(state) {
  if (state !== "live") return;
  const { level, headline } = verdict(ctx.sample.status);
  const text = `${t(`level_${level}`)}: ${headline}`;
  if (spoken && spoken.split(":")[0] !== text.split(":")[0]) place("live").textContent = text;
  spoken = text;
}

function top(state) {
  const words = { live: ctx.sample?.document.interval_seconds ? t("live_every", { time: duration(ctx.sample.document.interval_seconds) }) : "",
    stale: duration(Math.floor(currentAge())), lost: ctx.sample ? t("old", { time: duration(Math.floor(currentAge())) }) : "", waiting: "" }[state];
  return [h("div", { class: "bar" },
    h("a", { class: "brand", href: "#/overview" }, h("img", { src: "/static/icon.svg", width: 24, height: 24, alt: "" }),
      h("span", {}, "wslgpud ", h("span", { class: "dim", translate: "no" }, ctx.sample?.document.host ?? location.hostname))),
    h("span", { class: ["pulse", state] }, h("i"), t(state), words ? h("span", { class: "dim" }, words) : null),
    h("span", { class: "switches" },
      h("button", { type: "button", id: "theme", "aria-label": t("theme"), title: t("theme"), onclick: () => dispatchEvent(new Event("theme-wanted")) }, "◐"),
      h("button", { type: "button", id: "language", lang: lang === "zh" ? "en" : "zh", onclick: switchLanguage }, t("language")))),
  h("nav", { class: "tabs", "aria-label": t("sections") }, VIEWS.map((one) => h("a", { href: `#/${one.key}`, "aria-current": one === view ? "page" : null }, t(one.key))))];
}

function switchLanguage() {
  const other = lang === "zh" ? "en" : "zh";
  try { localStorage.setItem("wslgpud.lang", other); } catch { /* the address keeps it */ }
  const address = new URL(location.href);
  address.searchParams.set("lang", other);
  location.replace(address);
}

function onSample({ document: found, age: seconds }) {
  const wasLost = trouble !== null;
  trouble = null;
  answered = performance.now();
  age = seconds;
  if (found) {
    const before = ctx.sample;
    ctx.sample = new Sample(found);
    const restarted = before && before.document.instance !== found.instance;
    if (restarted) back = Date.now() + BACK_MS;
    live.every = ctx.sample.waiting || verdict(ctx.sample.status).level !== "ok" ? 1 : 2;
    if (!ctx.sample.waiting) {
      const joins = before && !before.waiting && !restarted;
      remember(ctx.recent, ctx.sample, joins ? before : null);
      rememberGpus(ctx.recent, ctx.sample);
      // What was missed meanwhile is in the database.
      if (restarted || wasLost) view.enter?.(ctx, view.path);
      view.sampled?.(ctx);
    }
  }
  ctx.render();
}

function onTrouble(error) {
  trouble ??= { since: Date.now() / 1000 };
  trouble.status = error.status;
  ctx.render();
}

const live = new Live(onSample, onTrouble);
document.documentElement.lang = lang === "zh" ? "zh-CN" : "en";
place("skip").textContent = t("skip");
addEventListener("hashchange", route);
addEventListener("theme", () => { ctx.charts.clear(); ctx.render(); });
// Age goes on when samples do not.
setInterval(() => { if (!document.hidden && connection() !== "live") ctx.render(); }, 1000);
route();
live.poll();

