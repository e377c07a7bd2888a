// Assembles the page: head, views, the live sample, and the notice when there is none.

import { Live } from "./api.js";
import { Charts } from "./charts.js";
import { daemon } from "./daemon.js";
import { doctor } from "./doctor.js";
import { h, show } from "./dom.js";
import { clock, duration } from "./format.js";
import { gpus, rememberGpus } from "./gpus.js";
import { history } from "./history.js";
import { label, lang, preferred, ready, speak, t, template } from "./i18n.js";
import { incidents } from "./incidents.js";
import { overview, remember } from "./overview.js";
import { processes } from "./processes.js";
import { Recent, Sample } from "./sample.js";
import { stress } from "./stress.js";

const VIEWS = [overview, history, gpus, processes, incidents, stress, doctor, daemon];
const TITLES = { overview: template("Overview"), history: template("History"), gpus: template("GPUs"), processes: template("Processes"),
  incidents: template("Incidents"), stress: template("Nightly tests"), doctor: template("Doctor"), daemon: template("Daemon") };
const STATES = { live: template("live"), stale: template("stale"), lost: template("no connection"), waiting: template("waiting") };
const STALE_SECONDS = 10, BACK_MS = 8000;
/** Levels with an icon of their own, in the tab as well. */
const MARKED = new Set(["warning", "critical", "emergency", "killed", "unknown"]);
const place = (id) => document.getElementById(id);

const ctx = {
  get lang() { return lang; },
  charts: new Charts(),
  recent: new Recent(),
  sample: null,
  state: "waiting",
  render: () => (ctx.pending ||= requestAnimationFrame(render)),
  pending: 0,
};
let view = null;
/** When the last answer arrived (performance.now), and the age of its sample then. */
let answered = null, age = 0, trouble = null, spoken = "", back = 0;
let wanted = preferred(), changing = false;

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
  document.querySelector("nav [aria-current]").scrollIntoView({ block: "nearest", inline: "center" });
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
    if (trouble.status === 401) return t("The daemon asks for a user name and password: reload the page.");
    return ctx.sample ? t("The daemon has not answered since {time}. The data below is from then; retrying.", { time: clock(trouble.since) }) : t("The daemon does not answer; retrying.");
  }
  if (state === "stale") return t("No new sample for {time}: the daemon answers but does not sample. The values below are that old.", { time: duration(Math.floor(currentAge())) });
  return Date.now() < back ? t("The daemon is back: it was restarted.") : null;
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
  const level = state === "lost" || state === "stale" ? "unknown" : status && !waiting ? status.verdict.state ?? status.verdict.level : "ok";
  const word = state === "lost" ? t("no answer") : state === "stale" ? t(STATES.stale) : label("level", level);
  document.title = `${level === "ok" ? "" : `${word} – `}${t(TITLES[view.key])} – wslgpud ${host}`;
  const icon = `/static/icon${MARKED.has(level) ? `-${level}` : ""}.svg`;
  if (place("icon").getAttribute("href") !== icon) place("icon").setAttribute("href", icon);
  announce(state);
}

/** Announce a change of level to screen readers, not each sample. */
function announce(state) {
  if (state !== "live") return;
  const { level: now, state: level = now, headline, lost } = ctx.sample.status.verdict;
  if (spoken && spoken !== level) place("live").textContent = `${label("level", level)}: ${level === "killed" ? lost.headline : headline}`;
  spoken = level;
}

const pace = (seconds) => (seconds === 1 ? t("sampled every second") : t("sampled every {time}", { time: duration(seconds) }));

function top(state) {
  const words = { live: ctx.sample?.document.interval_seconds ? pace(ctx.sample.document.interval_seconds) : "",
    stale: duration(Math.floor(currentAge())), lost: ctx.sample ? t("{time} old", { time: duration(Math.floor(currentAge())) }) : "", waiting: "" }[state];
  return [h("div", { class: "bar" },
    h("a", { class: "brand", href: "#/overview" }, h("img", { src: "/static/icon.svg", width: 24, height: 24, alt: "" }),
      h("span", {}, "wslgpud ", h("span", { class: "dim", translate: "no" }, ctx.sample?.document.host ?? location.hostname))),
    h("span", { class: ["pulse", state] }, h("i"), t(STATES[state]), words ? h("span", { class: ["dim", state === "live" && "wide"] }, words) : null),
    h("span", { class: "switches" },
      h("button", { type: "button", id: "theme", "aria-label": t("Light or dark"), title: t("Light or dark"), onclick: () => dispatchEvent(new Event("theme-wanted")) }, "◐"),
      h("button", { type: "button", id: "language", lang: lang === "zh" ? "en" : "zh", onclick: switchLanguage }, lang === "zh" ? "English" : "中文"))),
  h("nav", { class: "tabs", "aria-label": t("Sections") }, VIEWS.map((one) => h("a", { href: `#/${one.key}`, "aria-current": one === view ? "page" : null }, t(TITLES[one.key]))))];
}

/** Switch to the wanted language once the daemon has delivered its texts; the next sample retries. */
async function change() {
  if ((ready && lang === wanted) || changing) return;
  changing = true;
  await speak(wanted).catch(() => {});
  changing = false;
  place("skip").textContent = t("Skip to the content");
  ctx.charts.clear();
  view?.enter?.(ctx, view.path);
  if (view) live.poll();
}

function switchLanguage() {
  wanted = lang === "zh" ? "en" : "zh";
  try { localStorage.setItem("wslgpud.lang", wanted); } catch { /* the address keeps it */ }
  const address = new URL(location.href);
  address.searchParams.set("lang", wanted);
  window.history.replaceState(null, "", address);
  change();
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
    live.every = ctx.sample.status.verdict?.level === "ok" ? 2 : 1;
    if (!ctx.sample.waiting) {
      const joins = before && !before.waiting && !restarted;
      remember(ctx.recent, ctx.sample, joins ? before : null);
      rememberGpus(ctx.recent, ctx.sample);
      // Samples missed meanwhile are in the database.
      if (restarted || wasLost) view.enter?.(ctx, view.path);
      change();
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

const live = new Live(onSample, onTrouble, () => ({ lang }));
await change();
route();
// Only now: there is no view to draw while the texts load, and a slow machine loads them for seconds.
addEventListener("hashchange", route);
// Its address would lead to another view.
place("skip").onclick = (event) => { event.preventDefault(); place("main").focus(); };
addEventListener("theme", () => { ctx.charts.clear(); ctx.render(); });
// The age keeps counting when samples stop.
setInterval(() => { if (!document.hidden && connection() !== "live") ctx.render(); }, 1000);
live.poll();
