// What the daemon says in English of itself: its sentences in Chinese, and marks on what stays as it is.

import { h } from "./dom.js";
import { lang } from "./i18n.js";

/** A name (of a program, a card, a series): nobody's language, and no translator's business. */
export const name = (text, props = {}) => h("span", { translate: "no", ...props }, text);

// Sentences of stress runs: how they begin and end, and with what figures.
const SENTENCES = [
  [/^([\d,]+) wrong words?: (.*)$/, "{1} 个字出错：{2}"],
  [/^read wrong once, right the next time: the bus or an overclocked memory$/, "第一次读错、再读正确：总线问题或显存超频"],
  [/^lost what was written, keeps it when written again: weak cells or writes$/, "写入后丢失、重写后保持：存储单元弱或写入不稳"],
  [/^bits that do not change: broken cells$/, "有位不再变化：存储单元损坏"],
  [/^words in the wrong place: address lines or the memory controller$/, "数据出现在错误的位置：地址线或显存控制器"],
  [/^seven or eight bits of a byte at once: the line that inverts the bus$/, "一个字节同时错七八位：总线反转线"],
  [/^one fixed value instead of data: the memory controller$/, "读回固定值而非数据：显存控制器"],
  [/^not looked into any more after so many$/, "数量太多，不再逐个分析"],
  [/^(\d+) MiB within the limit lie in shared memory, not on the card: .*$/, "限额内有 {1} MiB 在共享内存而不在显卡上：显存未满程序就会变慢"],
  [/^Windows moved (\d+) MiB of other programs' GPU memory into RAM during the run: .*$/, "压测期间 Windows 把其他程序的 {1} MiB 显存移到了内存：请调高 stress.reserve_bytes"],
  [/^(\d+) MiB did not come back after the run$/, "压测后有 {1} MiB 没有归还"],
  [/^the worker hangs in the driver and cannot be ended: .*$/, "压测进程卡在驱动里，无法结束：请重启 WSL（wsl --shutdown）"],
  [/^(\d+) memory errors that ECC could not correct$/, "{1} 个 ECC 无法纠正的显存错误"],
  [/^(\d+) rows of memory were given up as broken by the card$/, "显卡弃用了 {1} 行损坏的显存"],
  [/^(write|read-and-write|read) bandwidth fell by ([\d.]+) ?% (two runs running|at once): (.*), usually (.*?)( \(its clock: .*\))?$/,
    "{1}带宽下降 {2} %（{3}）：{4}，平时 {5}"],
  [/^usable VRAM fell by ([\d.]+) ?% (two runs running|at once): (.*), usually (.*)$/, "可用显存下降 {1} %（{2}）：{3}，平时 {4}"],
  [/^write$/, "写"], [/^read-and-write$/, "读写"], [/^read$/, "读"],
  [/^two runs running$/, "连续两次"], [/^at once$/, "单次"],
  [/^((?:driver|torch|cuda|wsl) .*): (.*)$/, "环境变化（{1}）：{2}"],
  [/^(.*(?:bandwidth|VRAM) [+-].*)$/, "{1}"],
  [/^the worker of an earlier run hangs in the driver: .*$/, "上次压测的进程卡在驱动里：请先重启 WSL 或本机"],
  [/^the kernel (?:has just reported|reports) errors of the GPU's driver$/, "内核报告了显卡驱动错误"],
  [/^a program (?:holds|waits for) the GPU's lock file$/, "有程序占用或等待显卡锁文件"],
  [/^programs use the GPU: (.*)$/, "有程序在使用 GPU：{1}"],
  [/^the GPU was in use by (.*)$/, "GPU 被 {1} 占用"],
  [/^(.*) wants the GPU$/, "{1} 要使用 GPU"],
  [/^another program took (\d+) MiB$/, "另一程序占用了 {1} MiB"],
  [/^only (\d+) MiB are left free$/, "只剩 {1} MiB 空闲"],
  [/^the machine runs on battery$/, "正在用电池供电"],
  [/^the machine woke up only (\d+) s ago$/, "本机 {1} 秒前刚唤醒"],
  [/^the GPU does not answer$/, "GPU 没有应答"],
  [/^the GPU is busy \((\d+)% in the last (\d+) s\)$/, "GPU 忙（近 {2} 秒占用 {1} %）"],
  [/^the driver does not tell how much memory is in use$/, "驱动不提供显存用量"],
  [/^the memory in use varies by (\d+) MiB$/, "显存用量在变动（{1} MiB）"],
  [/^only (\d+)% of the memory are free$/, "只有 {1} % 的显存空闲"],
  [/^the GPU is hot \((\d+) °C\)$/, "GPU 温度过高（{1} °C）"],
  [/^the driver has not answered for (\d+) s$/, "驱动 {1} 秒没有应答"],
  [/^no Python with torch was found; .*$/, "没有找到装有 torch 的 Python；请在配置 stress.python 中指定"],
  [/^wslgpud ends$/, "wslgpud 正在退出"],
  [/^no NVIDIA driver: (.*)$/, "没有 NVIDIA 驱动：{1}"],
];

/** The Chinese for one of the daemon's sentences; null where it is none of those known here. */
function chinese(text) {
  for (const [pattern, words] of SENTENCES) {
    const found = pattern.exec(text);
    if (found) return words.replace(/\{(\d)\}/g, (_, n) => chinese(found[n] ?? "") ?? found[n] ?? "");
  }
  return null;
}

/** A text of the daemon's: in the page's language where that can be had, else marked as the English it is. */
export function said(text) {
  if (!text || lang !== "zh" || /[\u4e00-\u9fff]/.test(text)) return text;
  const parts = text.split("; ").map((part) => chinese(part));
  return parts.every((part) => part !== null) ? h("span", { translate: "no" }, parts.join("；")) : h("span", { lang: "en" }, text);
}
