// The current state at a glance.

import { get, markSeen } from "./api.js";
import { extremes, fan, sparkline } from "./charts.js";
import { h } from "./dom.js";
import { amount, duration, percent, size, wallOf } from "./format.js";
import { label, t, template } from "./i18n.js";
import { at, card, chip, command, empty, fact, keys, layers, liveCard, named, pastChip, sign, work } from "./parts.js";
import { processTable } from "./processes.js";
import { LEVELS, rates } from "./sample.js";
import { NIGHT } from "./stress.js";

const PAST = 900, VITALS = 600;
/** Further cgroups are only in the history: a machine may have hundreds. */
const MAX_RESOURCES = 12;

const seeded = new Set();
/** Incidents whose lost job was seen here: the next sample says it too. */
const seen = new Set();
/** Why the daemon could not note the last one. */
let refusal = null;

export const overview = {
  key: "overview",

  enter(ctx) {
    seeded.clear();
    this.incidents = null;
    this.open = null;
  },

  sampled(ctx) {
    seed(ctx);
    // Closed incidents are fetched again only when the open ones have changed.
    const open = (ctx.sample.status.incidents ?? []).map((i) => `${i.id} ${i.level}`).join();
    if (open !== this.open) {
      this.open = open;
      const { lang } = ctx;
      get("incidents", { limit: 6, least: "warning", lang }).then(({ document }) => {
        if (lang !== ctx.lang) return; // the language has changed meanwhile, and it is fetched again
        this.incidents = document.incidents;
        ctx.render();
      }, () => { this.open = null; });
    }
  },

  render(ctx) {
    const { sample } = ctx;
    if (!sample) return [banner({ level: "unknown", headline: t("No verdict yet"), advice: t("Loading …") })];
    if (sample.waiting) return [banner(sample.status.verdict)];
    const { status } = sample;
    const forecasts = shownForecasts(status);
    const memories = forecasts.map((f) => resource(ctx, f));
    const missing = absent(sample);
    const vitals = tiles(ctx);
    return [h("div", { class: "stack" },
      banner(ctx.state === "live" ? status.verdict : past(ctx), status.tally),
      work(status),
      h("div", { class: "grid" }, memories, windows(status), missing),
      h("div", { class: "halves" },
        h("div", { class: "stack" }, vitals.length ? liveCard(t("Vital signs"), h("span", { class: "dim small" }, t("last ten minutes")), h("div", { class: "tiles" }, vitals)) : null,
          liveCard(t("Processes"), h("a", { href: "#/processes" }, t("All processes")), processTable(ctx, { most: 6 }))),
        h("div", { class: "stack" }, card(t("Incidents"), h("a", { href: "#/incidents" }, t("All incidents")), this.list(status)), nights(status))))];
  },

  list(status) {
    const open = status.incidents ?? [];
    const closed = (this.incidents ?? []).filter((i) => i.closed && !open.some((o) => o.id === i.id));
    const entries = [
      ...open.map((i) => [i.id, chip(i.level), i.headline, i.level === "ok" ? at(i.since) : [t("still open"), " · ", at(i.since)]]),
      ...closed.map((i) => [i.id, pastChip(i.worst_level), i.headline, [at(i.opened), " · ", duration(wallOf(i.closed) - wallOf(i.opened))]]),
    ].slice(0, 6);
    if (!entries.length) return empty(t("Nothing has gone wrong so far."));
    return h("ul", { class: "plain-list" }, entries.map(([id, mark, headline, when]) => h("li", { "data-key": `i${id}` },
      h("div", {}, mark, " ", h("span", { class: "dim small" }, when)),
      h("a", { href: `#/incidents/${id}` }, headline))));
  },

  drawn(ctx) {
    const { sample } = ctx;
    if (!sample || sample.waiting) return;
    for (const forecast of shownForecasts(sample.status)) {
      // The nearer exhaustion, the shorter the span shown.
      const late = forecast.eta_seconds?.late ?? forecast.eta_seconds?.middle;
      const points = ctx.recent.points(`headroom ${forecast.resource}`, sample.wall - PAST);
      // A young history fills its chart.
      const known = Math.max(15, sample.wall - (points[0]?.[0] ?? 0));
      const past = Math.min(known, late === undefined ? PAST : Math.min(PAST, Math.max(120, 3 * late)));
      const kills = (this.incidents ?? []).filter((i) => i.killed && i.resource === forecast.resource).map((i) => wallOf(i.killed));
      fan(ctx.charts, `fan-${forecast.resource}`, { points, wall: sample.wall, forecast, past, kills });
    }
  },
};

/** Outcome of the last memory test of each card. */
function nights({ stress }) {
  if (!stress?.length) return null;
  return card(t("Last stress run"), h("a", { href: "#/stress" }, t("All stress runs")), h("ul", { class: "plain-list" }, stress.map((run) => h("li", { "data-key": `n${run.uuid}` },
    h("div", {}, `GPU ${run.gpu} `, chip(NIGHT[run.verdict], label("verdict", run.verdict)), h("span", { class: "dim small" }, " ", at(run.at),
      run.usable_bytes === undefined ? null : ` · ${t("Usable")} ${size(run.usable_bytes, 2 ** 24)}`)),
    run.note ? h("p", { class: "dim small" }, run.note) : null))));
}

/** Neither the verdict's subject nor the worst are among those left out; in a crisis none changes its place. */
function shownForecasts({ forecasts = [], verdict }) {
  const rank = (f) => (f.resource === verdict?.subject ? LEVELS.length : LEVELS.indexOf(f.level));
  const chosen = new Set([...forecasts].sort((a, b) => rank(b) - rank(a)).slice(0, MAX_RESOURCES));
  return forecasts.filter((f) => chosen.has(f));
}

/** An outdated verdict only says how things stood. */
function past(ctx) {
  const { level, headline } = ctx.sample.status.verdict;
  return { level: "unknown", headline: t("The current state is not known"),
    advice: t("{time} ago: {what}", { time: duration(Math.floor(ctx.age())), what: `${label("level", level)}, ${headline}` }) };
}

/** The daemon's verdict, as worded there; above the calm figures a lost job, until somebody has seen it. */
function banner(verdict, tally) {
  const { lost, state } = verdict;
  if (!lost || seen.has(lost.incident)) return standing(verdict, tally);
  // What it tells of is not told twice.
  const now = standing(verdict.calm ? { ...verdict, headline: verdict.calm, byline: null, incident: null } : verdict, tally);
  const killed = h("section", { class: "card verdict killed", "data-key": "lost", "aria-label": t("Lost job") },
    sign("killed"), h("h1", {}, h("span", { class: "unseen" }, label("level", "killed"), ": "), lost.headline),
    h("p", {}, h("a", { href: `#/incidents/${lost.incident}` }, t("Incident {id}", { id: lost.incident })),
      lost.more ? [" · ", h("a", { href: "#/incidents" }, lost.more)] : null, " ",
      h("button", { type: "button", class: "small", title: lost.seen, onclick: () => acknowledge(lost.incident) }, t("Seen")), refusal ? [" ", refusal] : null));
  return state === "killed" ? [killed, now] : [now, killed];
}

async function acknowledge(incident) {
  seen.add(incident);
  refusal = null;
  await markSeen(incident).catch((error) => { seen.delete(incident); refusal = error.message; }); // the next sample shows it again
}

/** The first sentence of an advice, and the others. */
const SENTENCE = /^(.*?(?:[.](?= )|。))(.+)$/;

/** The daemon's verdict, as worded there: the advice in one line and one command, the rest of it folded. */
function standing({ level, headline, byline, advice = "", command: line, incident, more }, tally) {
  const [, first = advice, rest] = SENTENCE.exec(advice) ?? [];
  const parts = [
    level === "ok" && tally ? h("a", { href: "#/incidents" }, tally) : null,
    byline ? h("strong", { translate: "no" }, byline) : null, first || null, line ? h("span", { class: "command" }, command(line), line.startsWith("kill") ? h("span", { class: "wide" }, " ", t("asks it to stop, as Ctrl-C does")) : null) : null,
    incident ? h("a", { href: `#/incidents/${incident}` }, t("Incident {id}", { id: incident })) : null,
    more ? h("a", { href: "#/incidents" }, more) : null,
  ].filter(Boolean);
  return h("section", { class: ["card verdict fades", level], "aria-label": t("Verdict") },
    sign(level), h("h1", {}, h("span", { class: "unseen" }, label("level", level), ": "), headline),
    h("div", {}, parts.length ? h("p", {}, parts.flatMap((part, n) => (n ? [" · ", part] : [part]))) : null,
      rest ? h("details", { "data-key": "advice" }, h("summary", {}, t("More")), h("p", {}, rest.trim())) : null));
}

/** The nearest horizon within which it is likely; a lower figure would say no more than the words beside it. */
function chance({ eta_seconds: countdown, probability_within_seconds: within = {} }) {
  if (countdown) return null; // beside it a chance would contradict
  const [time, p] = Object.entries(within).find(([, likely]) => likely >= 0.7) ?? [];
  return time ? t("likelihood: {chance} within {time}", { chance: percent(p), time: duration(Number(time)) }) : null;
}

function resource(ctx, f) {
  const { status } = ctx.sample;
  const gpu = (status.gpus ?? []).find((g) => `gpu${g.index}` === f.resource);
  const [used, left, all] = [f.capacity_bytes - f.headroom_bytes, f.headroom_bytes, f.capacity_bytes].map((bytes) => size(bytes));
  const full = status.verdict.subject === f.resource && status.verdict.cause === "full";
  const jobs = (status.held ?? []).filter((job) => job.resource === f.resource).map((job) => job.job);
  return h("section", { class: ["card resource fades", f.level, status.verdict.subject === f.resource && "subject"], "data-key": `r-${f.resource}` },
    h("div", { class: "head" }, h("h2", { title: f.resource.startsWith("cgroup:") ? f.resource.slice(7) : null }, f.name, gpu ? named(` ${gpu.name}`, { class: "dim small" }) : null),
      chip(f.level)),
    h("p", { class: ["big", blind(f) ? "dim" : ""] }, h("strong", {}, used), h("span", { class: "dim" }, blind(f) ? t("of {all} were used, {left} left", { all, left }) : t("of {all} used, {left} left", { all, left })),
      h("span", { class: "outlook" }, f.outlook)),
    h("p", { class: "small line", translate: "no" }, f.who),
    gpu?.windows ? h("p", { class: "dim small", translate: "no" }, gpu.windows) : null,
    bar(f, status, gpu),
    h("p", { class: "dim small axis" }, t("used, over time")),
    h("div", { class: "chart", "data-key": `fan-${f.resource}`, "data-keep": true, role: "img",
      "aria-label": t("{what}: {used} of {all} used. {outlook}", { what: f.name, used, all, outlook: f.outlook ?? "" }) }),
    h("p", { class: "dim small line" }, [full || jobs.length ? null : chance(f),
      f.capacity_learned ? `${t("actual limit")}: ${label("learned", f.capacity_learned)}` : null].filter(Boolean).join(" · ")),
    jobs.map((job) => h("p", { class: "small" }, ["resume", "stop"].map((what) => [command(`sudo wslgpud brake ${what} ${job}`), " "]))));
}

/** The source of this memory is late: the figures are the last known ones. */
const blind = (f) => f.cause === "blind";

function bar(f, status, gpu) {
  const { ram, swap } = status;
  if (f.resource === "ram" && ram) {
    const all = ram.total + (swap?.total ?? 0);
    const used = ram.total - ram.available;
    const swapped = swap ? swap.total - swap.free : 0;
    const cache = Math.max(0, ram.available - (ram.free ?? ram.available));
    const parts = [["a", used / all], ["c", swapped / all], ["b", cache / all]];
    return [layers(parts, f.level, `${t("used")} ${size(used)}`),
      keys([["a", `${t("used")} ${size(used)}`], swapped ? ["c", `${t("in swap")} ${size(swapped)}`] : null,
        ["b", `${t("cache")} ${size(cache)}`], ["", `${t("free")} ${size(Math.max(0, all - used - swapped - cache))}`]], f.level)];
  }
  if (gpu?.total_bytes && gpu.used_bytes !== undefined) return vramBar(gpu, f);
  const used = Math.max(0, f.capacity_bytes - f.headroom_bytes);
  return [layers([["a", used / f.capacity_bytes]], f.level, `${t("used")} ${size(used)}`),
    keys([["a", `${t("used")} ${size(used)}`], ["", `${t("free")} ${size(f.headroom_bytes)}`]], f.level)];
}

/** The layers of a card's memory: used, kept by the driver or Windows, free, and what Windows has moved out of it. */
export function vramBar(gpu, { level, headroom_bytes: left, spilled_bytes: spilled } = {}) {
  const { total_bytes: all, used_bytes: used } = gpu;
  const free = Math.min(gpu.free_bytes ?? Math.max(0, all - used - (gpu.reserved_bytes ?? 0)), left ?? Infinity);
  const reserved = left === undefined ? gpu.reserved_bytes ?? 0 : Math.max(0, all - used - free);
  return [layers([["a", used / all], ["b", reserved / all]], level, `${t("used")} ${size(used)}`),
    keys([["a", `${t("used")} ${size(used)}`], reserved ? ["b", `${t("reserved")} ${size(reserved)}`] : null,
      ["", `${t("free")} ${size(free)}`],
      spilled ? ["a spilled", t("{amount} has spilled into Windows RAM", { amount: size(spilled) })] : null], level)];
}

/** The Windows side, if it is sampled. */
function windows({ windows: host, forecasts = [] }) {
  if (!host) return null;
  const { memory_total_bytes: all, memory_available_bytes: free, committed_bytes: promised, commit_limit_bytes: most } = host;
  const spilled = (host.gpus ?? []).map((gpu) => [gpu.adapter, gpu.shared_bytes]).filter(([, bytes]) => bytes !== undefined);
  const sessions = Object.entries(host.containers_bytes ?? {});
  const boxed = sum(sessions.map(([, bytes]) => bytes));
  const programs = all - free - (host.vm_bytes ?? 0) - boxed;
  return h("section", { class: "card resource fades", "data-key": "windows" },
    h("div", { class: "head" }, h("h2", {}, "Windows"), h("span", { class: "dim small" }, t("host of this virtual machine"))),
    free === undefined || all === undefined ? null : [
      forecasts.some((f) => f.resource === "windows") ? null : h("p", { class: "big" }, h("strong", {}, size(all - free)), h("span", { class: "dim" }, t("of {all} used, {left} left", { all: size(all), left: size(free) }))),
      layers([["a", programs / all], ["b", (host.vm_bytes ?? 0) / all], ["c", boxed / all]], null, `${t("used")} ${size(all - free)}`),
      keys([["a", `${t("used")} ${size(Math.max(0, programs))}`], host.vm_bytes === undefined ? null : ["b", `WSL ${size(host.vm_bytes)}`],
        boxed ? ["c", `${t("containers")} ${size(boxed)}`] : null, ["", `${t("free")} ${size(free)}`]])],
    h("dl", { class: "facts" },
      promised === undefined ? null : fact(t("committed"), [size(promised), h("span", { class: "dim" }, " ", t("of {all}", { all: size(most) }))]),
      host.vm_unreturned_bytes === undefined ? null : fact(t("not returned by WSL"), size(host.vm_unreturned_bytes)),
      sessions.map(([name, bytes]) => fact(t("containers"), [size(bytes), named(` ${name}`, { class: "dim small" })])),
      spilled.map(([adapter, bytes]) => h("div", {}, h("dt", {}, t("shared GPU memory, pinned or spilled")), h("dd", { title: adapter, translate: "no" }, size(bytes), spilled.length > 1 ? named(` ${adapter}`, { class: "dim small" }) : null)))));
}

/** Missing parts, and why: no GPU is not the same as a silent driver. */
export function absent(sample) {
  const found = [];
  if (!sample.source("memory") || sample.source("memory").health !== "ok") {
    found.push(h("section", { class: "card", "data-key": "no-ram" }, h("div", { class: "head" }, h("h2", {}, t("RAM")), chip("unknown", t("not known"))),
      h("p", { class: "dim" }, t("The memory of this machine cannot be read:"), " ", sample.source("memory")?.error ?? "?")));
  }
  const gpu = sample.source("gpu");
  if (gpu && gpu.health !== "ok") {
    const none = gpu.health === "absent";
    found.push(h("section", { class: "card", "data-key": "no-gpu" },
      h("div", { class: "head" }, h("h2", {}, "GPU"), chip("unknown", label("health", gpu.health))),
      h("p", {}, none ? t("No NVIDIA GPU here") : gpu.health === "late" ? t("The GPU driver does not answer") : t("The GPU cannot be read")), gpu.error === t("no NVIDIA GPU here") ? null : h("p", { class: "dim small" }, gpu.error), none ? h("p", { class: "dim small" }, t("RAM, swap and everything else are monitored all the same.")) : null));
  }
  const lost = (sample.status.incidents ?? []).find((one) => one.rule === "gpu_lost")?.level ?? "unknown";
  for (const { labels } of sample.all("gpu_up").filter((one) => one.value === 0)) {
    found.push(h("section", { class: "card", "data-key": `lost-${labels.gpu}-${labels.uuid}` },
      h("div", { class: "head" }, h("h2", {}, t("GPU {gpu} is lost", { gpu: labels.gpu })), chip(lost, t("no longer reported"))),
      h("p", { class: "dim" }, labels.uuid ? t("It was there before and no longer answers.") : t("The driver counts it, but it has not answered since the daemon's start.")),
      labels.uuid ? h("p", { class: "dim small" }, h("code", {}, labels.uuid)) : null));
  }
  for (const gpu of (sample.status.gpus ?? []).filter((one) => one.unread)) {
    found.push(h("section", { class: "card", "data-key": `unread-${gpu.index}` },
      h("div", { class: "head" }, h("h2", {}, `GPU ${gpu.index}`, named(` ${gpu.name}`, { class: "dim small" })), chip("unknown", t("not known"))),
      h("p", { class: "dim" }, gpu.unread)));
  }
  return found;
}

// The small curves: live points from the samples, preceded by the recorded minutes.

const sum = (values) => values.reduce((all, one) => all + one, 0);
const VITAL = [
  { key: "cpu", text: template("CPU"), unit: "ratio", top: 1, board: "cpu", metric: "cpu_seconds_total", where: { mode: "idle" }, rate: true,
    of: (values, sample) => Math.max(0, 1 - sum(values) / (sample.value("cpus") || 1)) },
  { key: "gpu_busy", text: template("GPU busy"), unit: "ratio", top: 1, board: "gpu", metric: "gpu_utilization_ratio", of: (values) => Math.max(...values) },
  { key: "psi", text: template("memory stalls"), unit: "ratio", top: 0.2, board: "pressure", metric: "pressure_stalled_seconds_total", where: { resource: "memory" }, rate: true, of: sum },
  { key: "swap_in", text: template("swap-in"), unit: "bytes_per_second", top: 2 ** 20, board: "pressure", metric: "swap_in_bytes_total", rate: true, of: sum },
  { key: "disk_busy", text: template("busiest disk"), unit: "ratio", top: 1, board: "disk", metric: "disk_io_time_seconds_total", rate: true, of: (values) => Math.min(1, Math.max(...values)) },
  { key: "net", text: template("network"), unit: "bytes_per_second", top: 2 ** 20, board: "network", metric: "network_receive_bytes_total", rate: true, of: sum },
];

const seriesOf = (sample, vital) => sample.all(vital.metric)
  .filter(({ labels }) => Object.entries(vital.where ?? {}).every(([k, v]) => labels[k] === v)).slice(0, 12);

/** Add a sample to the curves; `before` is the previous one. */
export function remember(recent, sample, before) {
  for (const f of shownForecasts(sample.status)) if (!blind(f)) recent.add(`headroom ${f.resource}`, sample.wall, f.headroom_bytes);
  for (const vital of VITAL) {
    const now = seriesOf(sample, vital);
    const seconds = before ? sample.wall - before.wall : 0;
    const values = !vital.rate ? now.map((one) => one.value) : now.map(({ name, value }) => {
      const was = before?.document.values?.[name];
      return was === undefined || value < was || seconds <= 0 || seconds > 30 ? null : (value - was) / seconds;
    });
    if (values.length && values.every((value) => value !== null)) recent.add(vital.key, sample.wall, vital.of(values, sample));
  }
}

/** The names of these resources' curves. One that is blind has none in the sample, but what was recorded before. */
async function recorded(sample, resources) {
  const now = sample.all("headroom_bytes");
  const all = resources.every((r) => now.some(({ labels }) => labels.resource === r));
  const known = all ? now : (await get("series", { match: "wslgpud_headroom_bytes*" })).document.series;
  return known.filter(({ labels }) => resources.includes(labels.resource)).map(({ name }) => name);
}

/** Ask once for the minutes before the page was opened. */
function seed(ctx) {
  const { sample, recent } = ctx;
  const end = sample.wall;
  const wanted = shownForecasts(sample.status).map((f) => f.resource).filter((r) => !seeded.has(r));
  if (wanted.length) {
    wanted.forEach((r) => seeded.add(r));
    recorded(sample, wanted).then((series) => series.length ? get("range", { series, start: end - PAST, end, step: 5 }) : null).then((answer) => {
      for (const one of answer?.document.series ?? []) recent.seed(`headroom ${one.labels.resource}`, extremes(one));
      ctx.render();
    }, () => {}); // a database that cannot be read just now: the live points come all the same
  }
  for (const vital of VITAL) {
    const names = seriesOf(sample, vital).map((one) => one.name);
    if (!names.length || seeded.has(vital.key)) continue;
    seeded.add(vital.key);
    get("range", { series: names, start: end - VITALS, end, step: 5 }).then(({ document }) => {
      const byTime = new Map();
      for (const { time, value } of document.series) {
        const points = vital.rate ? rates(time, value, 30, 5, end) : time.map((wall, n) => [wall, value[n]]);
        for (const [wall, one] of points) if (one !== null) byTime.set(wall, [...(byTime.get(wall) ?? []), one]);
      }
      recent.seed(vital.key, [...byTime].sort((a, b) => a[0] - b[0]).map(([wall, values]) => [wall, vital.of(values, sample)]));
      ctx.render();
    }, () => {});
  }
}

function tiles(ctx) {
  const { sample, recent } = ctx;
  return VITAL.map((vital) => {
    const points = recent.points(vital.key, sample.wall - VITALS);
    if (!points.length && !seriesOf(sample, vital).length) return null; // not on this machine
    const last = points[points.length - 1];
    const fresh = last && sample.wall - last[0] < 30;
    const name = t(vital.text);
    return h("a", { class: "tile", href: `#/history?board=${vital.board}`, "data-key": `v-${vital.key}` },
      h("span", {}, name), h("strong", {}, fresh ? amount(last[1], vital.unit) : h("span", { class: "dim" }, t("no data yet"))),
      sparkline(points, { from: sample.wall - VITALS, to: sample.wall, top: vital.top, label: `${name}: ${fresh ? amount(last[1], vital.unit) : t("no data yet")}` }));
  }).filter(Boolean);
}

