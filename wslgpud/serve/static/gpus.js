// Each GPU with everything its driver reports; missing values are shown as missing.

import { get } from "./api.js";
import { sparkline } from "./charts.js";
import { h } from "./dom.js";
import { amount, percent, size } from "./format.js";
import { label, t, template } from "./i18n.js";
import { absent, vramBar } from "./overview.js";
import { chip, empty, fact, named } from "./parts.js";

const PAST = 600, MAX_CARDS = 20;
const CURVES = [[template("utilization"), "gpu_utilization_ratio", "ratio", 1], [template("temperature"), "gpu_temperature_celsius", "celsius", 100],
  [template("power"), "gpu_power_watts", "watts", 0]];

const seeded = new Set();

export const gpus = {
  key: "gpus",

  enter() {
    seeded.clear();
  },

  sampled(ctx) {
    for (const [, metric] of CURVES) seed(ctx, metric);
  },

  render(ctx) {
    const { sample } = ctx;
    if (!sample || sample.waiting) return [h("h1", { class: "unseen" }, t("GPUs")), empty(t("no data yet"))];
    const found = sample.status.gpus ?? [];
    return [h("h1", { class: "unseen" }, t("GPUs")), h("div", { class: "grid" }, found.map((gpu) => one(ctx, gpu)), absent(sample))];
  },
};

/** Ask once for the minutes before the page was opened. */
function seed(ctx, metric) {
  const { recent, sample } = ctx;
  const names = sample.all(metric).map((one) => one.name).slice(0, MAX_CARDS);
  if (!names.length || seeded.has(metric)) return;
  seeded.add(metric);
  get("range", { series: names, start: sample.wall - PAST, end: sample.wall, step: 5 }).then(({ document }) => {
    for (const { labels, time, value } of document.series) recent.seed(`${metric} ${labels.uuid}`, time.map((wall, n) => [wall, value[n]]));
    ctx.render();
  }, () => {}); // the database cannot be read just now: the live points arrive anyway
}

/** Add a sample to the curves. */
export function rememberGpus(recent, sample) {
  for (const [, metric] of CURVES) {
    for (const { labels, value } of sample.all(metric)) recent.add(`${metric} ${labels.uuid}`, sample.wall, value);
  }
}

function one(ctx, gpu) {
  const { sample } = ctx;
  const of = (metric, labels = {}) => sample.value(metric, { uuid: gpu.uuid, ...labels });
  // The card answers, so missing values are ones its driver does not report.
  const why = { text: t("N/A"), more: t("this driver does not report it") };
  const shown = (name, metric, unit, extra) => {
    const value = of(metric);
    return fact(name, value === undefined ? undefined : [amount(value, unit), extra], why);
  };
  const limit = of("gpu_power_limit_watts");
  const reasons = sample.all("gpu_throttle_reason").filter((r) => r.labels.uuid === gpu.uuid && r.value === 1).map((r) => r.labels.reason);
  const told = sample.all("gpu_throttle_reason").some((r) => r.labels.uuid === gpu.uuid);
  const link = [of("gpu_pcie_link_generation"), of("gpu_pcie_link_width")];
  const forecast = (sample.status.forecasts ?? []).find((f) => f.resource === `gpu${gpu.index}`);
  return h("section", { class: "card fades", "data-key": `g-${gpu.uuid}` },
    h("div", { class: "head" }, h("h2", {}, `GPU ${gpu.index} `, named(gpu.name, { class: "dim" })), forecast ? chip(forecast.level) : null),
    gpu.total_bytes && gpu.used_bytes !== undefined
      ? [h("p", { class: "big" }, h("strong", {}, size(gpu.used_bytes)), h("span", { class: "dim" }, t("of {all} VRAM used ({share})", { all: size(gpu.total_bytes), share: percent(gpu.used_bytes / gpu.total_bytes) }))), vramBar(gpu, forecast)]
      : h("p", { class: "dim" }, t("VRAM"), ": ", h("span", { title: t("this driver does not report it") }, t("N/A"))),
    h("div", { class: "tiles" }, CURVES.map(([name, metric, unit, top]) => {
      const value = of(metric);
      const words = `${t(name)}: ${value === undefined ? t("N/A") : amount(value, unit)}`;
      return h("a", { class: "tile", href: `#/history?board=gpu` }, h("span", {}, t(name)),
        h("strong", {}, value === undefined ? h("span", { class: "dim", title: t("this driver does not report it") }, t("N/A")) : amount(value, unit),
          unit === "watts" && limit ? h("span", { class: "dim" }, " ", t("of {all}", { all: amount(limit, "watts") })) : null),
        sparkline(ctx.recent.points(`${metric} ${gpu.uuid}`, sample.wall - PAST), { from: sample.wall - PAST, to: sample.wall, top: unit === "watts" ? limit ?? 0 : top, label: words }));
    })),
    h("dl", { class: "facts" },
      shown(t("memory traffic"), "gpu_memory_utilization_ratio", "ratio"),
      shown(t("fan"), "gpu_fan_speed_ratio", "ratio"),
      fact(t("graphics clock"), clockOf(of, "graphics"), why), fact(t("memory clock"), clockOf(of, "memory"), why),
      fact(t("performance state"), of("gpu_performance_state") === undefined ? undefined : `P${of("gpu_performance_state")}`, why),
      fact(t("PCIe link"), link[0] === undefined ? undefined : `${link[0]}.0 ×${link[1] ?? "?"}`, why),
      shown(t("encoder"), "gpu_encoder_utilization_ratio", "ratio"), shown(t("decoder"), "gpu_decoder_utilization_ratio", "ratio"),
      fact(t("limited by"), told ? (reasons.length ? reasons.map((r) => label("throttle", r)).join(", ") : t("nothing")) : undefined, why)),
    h("h3", {}, t("programs using it"), gpu.vram_by_process === "suspected" ? h("span", { class: "dim", title: t("nothing here tells how much each holds, so who fills the card is suspected, not measured") }, " ", t("(suspected)")) : null),
    gpu.processes?.length
      ? h("ul", { class: "plain-list" }, gpu.processes.map((p) => h("li", { "data-key": `gp${p.pid}` }, named(p.name), h("span", { class: "dim" }, ` (${p.pid}) `),
        p.used_bytes === undefined ? h("span", { class: "dim", title: t("this driver does not report it") }, t("N/A")) : size(p.used_bytes))))
      : h("p", { class: "dim" }, t("none that the driver reports")),
    gpu.in_windows ? [h("h3", {}, t("programs of Windows on it")),
      h("ul", { class: "plain-list" }, gpu.in_windows.map((p) => h("li", { "data-key": `gw${p.name}` }, named(p.name), " ", size(p.used_bytes))))] : null,
    h("p", { class: "dim small foot" }, h("code", {}, gpu.uuid)));
}

function clockOf(of, name) {
  const value = of("gpu_clock_hertz", { clock: name });
  return value === undefined ? undefined : amount(value, "hertz");
}
