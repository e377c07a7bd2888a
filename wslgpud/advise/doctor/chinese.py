"""The doctor's findings in Chinese: checks by their id, sentences by their English form.

``{}`` stands for what differs from machine to machine; it is translated as well where it is a sentence.
Commands are the same in every language.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from wslgpud.advise.doctor.findings import Finding, State

STATES: Mapping[State, str] = {
    "problem": "问题", "note": "提示", "good": "良好", "could not tell": "无法判断", "not applicable": "不适用",
}  # fmt: skip

ALL = "用 --all 显示全部。"

#: id -> title, why
CHECKS: Mapping[str, tuple[str, str]] = {
    "wsl.kernel": ("Linux 内核", "WSL2 下的 CUDA 需要 Linux 5.10.43 或更新。"),
    "wsl.version": ("WSL 版本", "新版本修复了崩溃、内存回收和 GPU 驱动的问题。"),
    "wsl.systemd": ("systemd", "守护进程是 systemd 服务；没有 systemd 就没有人启动它。"),
    "wsl.stays": ("持续运行", "最后一个终端关闭 15 秒后，Windows 会停止发行版，服务和训练也随之停止。"),
    "wsl.interop": ("Windows 程序", "通知、Windows 内存和溢出的显存都要向 Windows 查询。"),
    "wslconfig.valid": (".wslconfig", "WSL 会忽略它看不懂的内容，而且只在没人看的地方提示。"),
    "wslconfig.in_force": ("限制是否生效", "等待重启的限制保护不了任何人。"),
    "gpu.visible": ("GPU", "没有它就无法训练。"),
    "gpu.library": ("NVIDIA 库", "发行版自带的驱动包若排在 WSL 的前面，会让显卡不可见。"),
    "gpu.cuda": ("驱动支持的 CUDA", "为比驱动更新的 CUDA 大版本构建的 torch 无法启动；小版本更新则只有部分可用。"),
    "torch.architecture": ("torch 是否支持这张卡", "不含该卡代码的构建能看到卡，但第一个 kernel 就会失败。"),
    "torch.kernel": ("kernel 能否运行", "即使 kernel 无法运行，torch.cuda.is_available() 也返回 True。"),
    "torch.speed": ("快速计算", "TF32 让 float32 矩阵乘法快数倍，尾数为 10 位；torch 默认关闭。"),
    "cuda.toolkit": ("CUDA 工具包", "扩展由它编译：必须与 torch 的 CUDA 相符，并支持这张卡。"),
    "gpu.desktop": ("桌面占用的显存", "桌面和 WSLg 占用的显存，训练时就用不到了。"),
    "memory.size": ("内存", "虚拟机太小，编译和加载模型就会拖垮 WSL。"),
    "memory.swap": ("交换空间", "有交换空间，峰值只会变慢；没有，内核就会杀进程。"),
    "memory.thrashing": ("抖动", "反复换页的机器，做什么都慢一百倍。"),
    "memory.killed": ("OOM 终止", "被内核杀死的程序往往无声无息地消失。"),
    "kernel.swappiness": ("vm.swappiness", "高于 60，内核为保留文件缓存而换出程序；为 0，则到来不及时才换页。"),
    "kernel.overcommit": ("vm.overcommit_memory", "为 1 时分配永不失败：程序无法自救，预警也少了一个征兆。"),
    "kernel.max_map_count": ("vm.max_map_count", "大模型和向量数据库会映射许多块内存。"),
    "kernel.inotify": ("inotify 监视数", "用完后，编辑器和 TensorBoard 就看不到变化。"),
    "kernel.pressure": ("压力 (PSI)", "这是内存变紧张的最早征兆。"),
    "kernel.memory_cgroup": ("内存 cgroup", "容器和受看护的编译靠它限制和计量。"),
    "memory.limited": ("组的限制", "达到上限的组会被杀，即使机器还有内存。"),
    "data.windows_drive": ("训练数据", "从 Linux 访问 Windows 盘 (/mnt/c) 慢很多倍，还会泄漏 Windows 的内存；显卡只能等。"),
    "disk.state": ("历史数据的位置", "在 Windows 盘上，SQLite 的锁会失效，数据会丢失。"),
    "disk.space": ("Linux 磁盘空间", "磁盘满了，checkpoint 和历史就写不下去。"),
    "disk.windows": ("Windows 磁盘空间", "发行版的磁盘是那里的一个文件：Windows 满了，无论 Linux 看起来多空，都会变成只读或无法启动。"),
    "clock.daemons": ("时钟同步", "WSL 的时钟由 Windows 设置；再来一个时间守护进程就会打架，时钟会跳 (microsoft/WSL#11790)。"),
    "clock.skew": ("时间", "Windows 休眠之后，Linux 的时间可能停在原处：下载失败，make 什么也不做。"),
    "docker.nvidia": ("Docker 的 GPU", "容器只有通过 NVIDIA 运行时或 CDI 文件才能看到显卡。"),
    "rights.kernel_log": ("内核日志", "谁被杀死、GPU 驱动说了什么，只记录在那里。"),
    "rights.processes": ("其他用户的进程", "只有能看到的进程，才能说出是谁占用了内存。"),
    "rights.secrets": ("我们的机密", "谁能读到通知渠道的地址，谁就能读到你的预警，还能以你的名义发送。"),
    "service.runs": ("守护进程", "它不运行，就没有人预警。"),
}  # fmt: skip

PHRASES: Mapping[str, str] = {
    # checks_wsl
    "this is WSL 1, which has no GPU": "这是 WSL 1，没有 GPU",
    "the kernel's release cannot be read": "读不到内核版本",
    "too old to tell its version": "太旧，无法报告版本",
    "process 1 is hidden": "看不到 1 号进程",
    "it is process 1": "它是 1 号进程",
    "process 1 is {}: start 'wslgpud run' by what this machine has instead":
        "1 号进程是 {}：请用本机现有的方式启动 wslgpud run",
    "off: process 1 is {}": "未启用：1 号进程是 {}",
    "instanceIdleTimeout=-1: the distro stays": "instanceIdleTimeout=-1：发行版会一直运行",
    "WSL stops this distro {} s after the last terminal": "最后一个终端关闭 {} 秒后 WSL 会停止此发行版",
    "no program of Windows can be started: its entry in binfmt_misc is gone (microsoft/WSL#8843)":
        "无法启动 Windows 程序：binfmt_misc 中的条目不见了 (microsoft/WSL#8843)",
    "switched off in binfmt_misc": "在 binfmt_misc 中被关闭",
    "/run/WSL is hidden: this looks like a container": "看不到 /run/WSL：这像是一个容器",
    "{} is registered": "{} 已注册",
    "there is no {}: all is at its default": "没有 {}：全部为默认值",
    "{}: nothing to remark": "{}：没有问题",
    "{} remark on {} (line {})": "{} 处问题，在 {} (第 {} 行)",
    "{} remarks on {} (line {})": "{} 处问题，在 {} (第 {} 行)",
    "{}; WSL ignores some of it": "{}；其中一部分被 WSL 忽略",
    "there is no .wslconfig": "没有 .wslconfig",
    "not in force: {}": "未生效：{}",
    "all that can be seen from here is in force": "能从这里看到的都已生效",
    # checks_gpu
    "{}, driver {}": "{}，驱动 {}",
    "WSL offers no GPU (/dev/dxg is missing)": "WSL 没有提供 GPU (缺少 /dev/dxg)",
    "{} is a stub for compiling": "{} 是编译用的桩库",
    "{}; other programs may load it and find no card": "{}；其他程序可能会加载它而找不到显卡",
    "{} stands beside WSL's own": "{} 与 WSL 自带的并存",
    "a recording does not tell": "录制的机器没有记录",
    "none is in use": "没有在使用",
    "the driver does not tell its CUDA version": "驱动没有报告 CUDA 版本",
    "the driver knows CUDA {}, too old for {}": "驱动支持 CUDA {}，对 {} 来说太旧",
    "the driver knows CUDA {}: {} runs, but not what compiles PTX":
        "驱动支持 CUDA {}：{} 能运行，但需要编译 PTX 的部分不行",
    "the driver knows CUDA {}; {} needs {}": "驱动支持 CUDA {}；{} 需要 {}",
    "the driver knows CUDA {}; {}": "驱动支持 CUDA {}；{}",
    "{} (a card of the RTX 50 series needs CUDA 12.8 and torch 2.7)":
        "{} (RTX 50 系列需要 CUDA 12.8 和 torch 2.7)",
    "torch {} of {} has no {}": "{1} 中的 torch {0} 不含 {2}",
    "torch {} of {} is built without CUDA": "{1} 中的 torch {0} 不带 CUDA",
    "{} is in torch's list": "torch 的列表中有 {}",
    "no torch runs on the card": "没有 torch 能在这张卡上运行",
    "torch finds no cuDNN": "torch 找不到 cuDNN",
    "TF32 is off, as torch starts; switch it on in your program if float32 is what it computes in":
        "TF32 关闭 (torch 的默认值)；若程序用 float32 计算，请在程序中打开",
    "none in /usr/local/cuda; only compiling needs it": "/usr/local/cuda 中没有；只有编译时需要",
    "{} names no version": "{} 没有写明版本",
    "CUDA {} cannot compile for {}": "CUDA {} 不能为 {} 编译",
    "CUDA {}, but torch {} is built with {}: extensions will not compile":
        "CUDA {}，但 torch {} 用 {} 构建：扩展无法编译",
    "programs of ours use GPU {} now": "我们的程序正在使用 GPU {}",
    "GPU {}: {} held while no program here uses it": "GPU {}：{} 被占用，而这里没有程序在用",
    "less than 1 GB": "不到 1 GB",
    # checks_memory
    "{}, of which {} are available": "{}，其中 {} 可用",
    "only {}": "只有 {}",
    "WSL has only {}": "WSL 只有 {}",
    "/proc/meminfo does not tell": "/proc/meminfo 没有说明",
    "WSL adds it some seconds after its start; ask again in a minute": "WSL 启动几秒后才会添加；请一分钟后再查",
    "none": "没有",
    "{} beside {} of RAM": "{}，而内存为 {}",
    "this kernel shows no pressure": "此内核不提供压力信息",
    "/proc/pressure/memory does not tell": "/proc/pressure/memory 没有说明",
    "nothing moved for want of memory during {} % of the last 10 s": "最近 10 秒中有 {} % 的时间因缺内存而全部停顿",
    "programs waited for memory during {} % of the last 10 s": "最近 10 秒中有 {} % 的时间程序在等内存",
    "/proc/vmstat does not tell": "/proc/vmstat 没有说明",
    "{} process killed for want of memory since the start": "启动以来有 {} 个进程因缺内存被杀",
    "{} processes killed for want of memory since the start": "启动以来有 {} 个进程因缺内存被杀",
    "none since the start": "启动以来没有",
    "1: every allocation succeeds until something is killed": "1：分配总会成功，直到有程序被杀",
    "2: programs that reserve much address space, as CUDA's do, may fail to start":
        "2：像 CUDA 这样预留大量地址空间的程序可能无法启动",
    "/proc/pressure is there": "有 /proc/pressure",
    "the kernel does not show it": "内核没有提供",
    "Linux {} has none": "Linux {} 没有",
    "built into the kernel, and off": "内核内置，但被关闭",
    "version 1": "版本 1",
    "version 2": "版本 2",
    "version 2 without memory": "版本 2，但没有内存控制器",
    "/sys/fs/cgroup shows no controllers": "/sys/fs/cgroup 中没有控制器",
    "WSL sets none here": "WSL 在这里没有设置",
    "{} of {} that WSL gives all programs together": "{}，WSL 给所有程序共 {}",
    # checks_machine
    "no drive of Windows is mounted": "没有挂载 Windows 盘",
    "no training runs now": "现在没有训练在运行",
    "{} ({}) has {} open": "{} ({}) 打开了 {}",
    "nothing open on {}": "{} 上没有打开的文件",
    "no mount holds {}": "没有挂载点包含 {}",
    "{} is on {}": "{} 在 {} 上",
    "{} is read-only": "{} 是只读的",
    "{} on {}": "{}，文件系统 {}",
    "{} left on {}": "{1} 剩余 {0}",
    "no drive of Windows answers": "没有 Windows 盘应答",
    "set by Windows alone": "只由 Windows 设置",
    "{} sets it as well": "{} 也在设置时钟",
    "this machine shows no hardware clock": "这台机器没有提供硬件时钟",
    "within {} s of the hardware's": "与硬件时钟相差不到 {} 秒",
    "as the hardware's, which keeps local time": "与硬件时钟一致 (它用本地时间)",
    "{} behind the hardware's": "比硬件时钟慢 {}",
    "{} ahead of the hardware's": "比硬件时钟快 {}",
    "Docker is not installed here": "这里没有安装 Docker",
    "by CDI": "通过 CDI",
    "by NVIDIA's runtime": "通过 NVIDIA 运行时",
    "by Docker Desktop": "通过 Docker Desktop",
    "Docker has no NVIDIA runtime": "Docker 没有 NVIDIA 运行时",
    "/etc/docker/daemon.json is not valid JSON": "/etc/docker/daemon.json 不是有效的 JSON",
    "there is no /dev/kmsg": "没有 /dev/kmsg",
    "readable": "可读",
    "hidden from this user": "此用户看不到",
    "hidden from this user (hidepid)": "此用户看不到 (hidepid)",
    "visible": "可见",
    "this is a recording": "这是录制的机器",
    "every user can read {}": "所有用户都能读取 {}",
    "for us alone": "只有我们能读",
    "it answers at {}": "在 {} 应答",
    "it does not run": "没有运行",
    # the host, and what a machine lacks for a check
    "{} is not there": "没有 {}",
    "{} holds no number": "{} 中没有数字",
    "cannot read {}": "无法读取 {}",
    "cannot list {}": "无法列出 {}",
    "this is no WSL2": "这不是 WSL2",
    "no GPU answers": "没有 GPU 应答",
    "torch was not asked": "没有询问 torch",
    "no Python with torch was found": "没有找到带 torch 的 Python",
    # remedies that are no commands
    "install NVIDIA's driver in Windows, then wsl --shutdown there": "在 Windows 中安装 NVIDIA 驱动，然后执行 wsl --shutdown",
    "{}, or install NVIDIA's driver in Windows; then wsl --shutdown":
        "{}，或在 Windows 中安装 NVIDIA 驱动；然后执行 wsl --shutdown",
    "remove gpuSupport=false from .wslconfig": "从 .wslconfig 中删除 gpuSupport=false",
    "take CUDA's stubs folder out of LD_LIBRARY_PATH": "把 CUDA 的 stubs 目录从 LD_LIBRARY_PATH 中去掉",
    "update NVIDIA's driver in Windows, then wsl --shutdown there": "在 Windows 中更新 NVIDIA 驱动，然后执行 wsl --shutdown",
    "update NVIDIA's driver": "更新 NVIDIA 驱动",
    "see whether nvidia-smi works; restart the machine": "看看 nvidia-smi 能否运行；重启机器",
    "install CUDA {} or newer: {}": "安装 CUDA {} 或更新版本：{}",
    "install CUDA {} beside it and set CUDA_HOME": "另外安装 CUDA {} 并设置 CUDA_HOME",
    "close browsers and games in Windows before training": "训练前关闭 Windows 中的浏览器和游戏",
    "guiApplications=false below [wsl2] in .wslconfig if you need no Linux windows, and {}":
        "不需要 Linux 窗口时，在 .wslconfig 的 [wsl2] 下写 guiApplications=false；{}",
    "keep MAX_JOBS low: wslgpud guard -- YOUR BUILD": "调低 MAX_JOBS：wslgpud guard -- 编译命令",
    "add psi=1 to the kernel's command line": "在内核命令行中加入 psi=1",
    "remove automount.cgroups=v1 from /etc/wsl.conf, and cgroup_no_v1 from the kernel's command line":
        "从 /etc/wsl.conf 删除 automount.cgroups=v1，并从内核命令行删除 cgroup_no_v1",
    "store.path: a folder like /var/lib/wslgpud": "store.path：像 /var/lib/wslgpud 这样的目录",
    "{}, or empty that drive        (in Windows)": "{}，或清理那个盘        (在 Windows 中)",
    "{}        (in Windows)": "{}        (在 Windows 中)",
    "{}        (in Windows; ends all that runs in WSL)": "{}        (在 Windows 中；会结束 WSL 中的一切)",
    "{}        (below [wsl2] in .wslconfig)": "{}        (写在 .wslconfig 的 [wsl2] 下)",
    "{}        (in .wslconfig; wslgpud wslconfig apply training does it)":
        "{}        (写在 .wslconfig 中；wslgpud wslconfig apply training 会写好)",
    "{}        (who is it?)": "{}        (看看是谁)",
    "the service may see them: {}": "系统服务可以看到：{}",
    "{}   # or the service: it may read it": "{}   # 或使用系统服务：它可以读取",
    "{}   # or: wslgpud run": "{}   # 或：wslgpud run",
    "{}   # then, in Windows: wsl --shutdown": "{}   # 然后在 Windows 中：wsl --shutdown",
    "{}   # a failing disk? see dmesg": "{}   # 磁盘坏了？看 dmesg",
    "{}   # for good: wsl --update (in Windows); 2.1.1 mends it": "{}   # 彻底解决：wsl --update (在 Windows 中)；2.1.1 已修复",
}  # fmt: skip


def summary(problems: int, notes: int) -> str:
    """Return how many findings there are of each kind that matters."""
    counts = [f"{number} 个{word}" for number, word in ((problems, "问题"), (notes, "提示")) if number]
    return f"{'，'.join(counts)}。" if counts else "没有需要修的。"


def translated(finding: Finding) -> Finding:
    """Return a finding in Chinese; what has no translation stays as it is."""
    title, why = CHECKS.get(finding.id, (finding.title, finding.why))
    return replace(
        finding, title=title, why=why, found=sentence(finding.found), remedy=sentence(finding.remedy)
    )


def sentence(text: str) -> str:
    """Return a sentence in Chinese, or as it is where nobody has translated it."""
    if text in PHRASES:
        return PHRASES[text]
    if "; " in text and all(_match(part) for part in text.split("; ")):
        return "；".join(map(sentence, text.split("; ")))
    found = _match(text)
    return found[0].format(*map(sentence, found[1])) if found else text


def _match(text: str) -> tuple[str, tuple[str, ...]] | None:
    for pattern, chinese in _patterns():
        if match := pattern.fullmatch(text):
            return chinese, match.groups()
    return None


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """Return the sentences with blanks, those that say most first."""
    known = sorted((p for p in PHRASES if "{}" in p), key=len, reverse=True)
    return [
        (re.compile(re.escape(p).replace(r"\{\}", "(.+?)"), re.DOTALL), PHRASES[p])
        for p in known
    ]  # fmt: skip
