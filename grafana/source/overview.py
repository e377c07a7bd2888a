"""One machine at a glance: the verdict first, then why."""

from __future__ import annotations

from grafana.source import in_depth
from grafana.source.frame import dashboard, variables
from grafana.source.kit import (
    CRITICAL,
    GOOD,
    LEVELS,
    NEUTRAL,
    NOT_HERE,
    NOTE,
    RISK,
    SINCE_URL,
    TIME_LEFT_STEPS,
    TIME_LEFT_WORDS,
    WARNING,
    Panel,
    ask,
    bars,
    coloured,
    dashed,
    figure,
    for_gpu,
    gpu,
    limit_line,
    lines,
    metric,
    override,
    rate,
    rows,
    states,
    steps,
    steps_of,
    words,
)
from grafana.source.training import training
from wslgpud.model import Level

#: for how long the present rate is carried on in the picture of VRAM
FORECAST_SECONDS = 300
CHANCES = {300: "5 min", 3600: "an hour"}
#: an integrated GPU lives in shared memory: there it means nothing
NVIDIA = 'adapter=~".*NVIDIA.*"'
OFFERED = words({1: ("yes", GOOD), 0: ("no", CRITICAL), -1: ("N/A", NOT_HERE)})
_ALIVE = f"max by (job, instance) ({metric('build')})"


def _verdict() -> list[Panel]:
    level = metric("verdict_level")
    left = metric("time_to_exhaustion_seconds", estimate="middle")
    headroom = f"min by (resource) ({metric('headroom_bytes')} / ({metric('headroom_capacity_bytes')} > 0))"
    return [
        figure(
            "Verdict",
            "The overall level, as wslgpud shows it in the terminal, on its page and in messages.",
            ask(f"max({level})", now=True),
            mappings=LEVELS,
            background=True,
            height=5,
        ),
        figure(
            "Current state",
            "The verdict in words, with the figures of its last change: the resource and the process that takes the "
            "memory.",
            ask(f"max by (headline) ({metric('verdict')})", "{{headline}}", now=True),
            names=True,
            width=9,
            height=5,
            colour=NEUTRAL,
        ),
        figure(
            "Time left",
            "Until the first resource is exhausted at the current rate: the middle of the range. Nothing points "
            "to exhaustion: not running out.",
            ask(f"min({left}) or max({level}) * 0 - 1", now=True),
            unit="s",
            mappings=TIME_LEFT_WORDS,
            decimals=1,
            thresholds=steps(*TIME_LEFT_STEPS),
            height=5,
        ),
        bars(
            "Headroom",
            "Share that can still be allocated: RAM with swap, VRAM below its real ceiling. "
            "How bad that is says the level: a card may be nearly full for hours without harm.",
            ask(headroom, "{{resource}}", now=True),
            unit="percentunit",
            width=7,
            height=5,
            thresholds=steps((None, NOTE)),
            full=1,
        ),
    ]


def _memory() -> list[Panel]:
    total, available = metric("memory_total_bytes"), metric("memory_available_bytes")
    swap_total, swap_free = metric("swap_total_bytes"), metric("swap_free_bytes")
    ram = lines(
        "RAM and swap",
        "Memory in use and installed. It runs out when both reach their dashed lines.",
        ask(f"{total} - {available}", "RAM in use"),
        ask(f"{swap_total} - {swap_free}", "swap in use"),
        ask(total, "RAM"),
        ask(f"{total} + {swap_total}", "RAM and swap"),
        unit="bytes",
        width=12,
        stacked=True,
    )
    coloured(ram, {"RAM in use": NOTE, "swap in use": "purple"})
    limit_line(limit_line(ram, "RAM", NOTE), "RAM and swap", CRITICAL)
    pressure = lines(
        "Pressure",
        "Share of time in which some or all programs waited for memory (PSI). "
        "Dashed: thrashing, and critical, from here on.",
        ask(metric("pressure_stalled_ratio", resource="memory", window="10s"), "all wait"),
        ask(metric("pressure_waiting_ratio", resource="memory", window="10s"), "some wait"),
        unit="percentunit",
        most=1,
        thresholds=steps_of("swap_thrash", "transparent"),
        width=6,
    )
    traffic = lines(
        "Swap traffic",
        "Into swap is drawn downwards. Out of it all the time means that RAM is too small; both at once is thrashing.",
        ask(rate(metric("swap_in_bytes")), "from swap"),
        ask(f"-{rate(metric('swap_out_bytes'))}", "into swap"),
        unit="binBps",
        least=None,
        width=6,
    )
    level = states(
        "Level",
        "Level of each resource over time.",
        ask(f"max by (resource) ({metric('risk_level')})", "{{resource}}"),
        LEVELS,
        width=8,
        height=7,
    )
    chance = lines(
        "Chance of exhaustion",
        "Probability that nothing is left within five minutes, and within an hour.",
        *(
            ask(
                f"max by (resource) ({metric('exhaustion_probability_ratio', within_seconds=str(seconds))})",
                f"{{{{resource}}}} in {words}",
            )
            for seconds, words in CHANCES.items()
        ),
        unit="percentunit",
        most=1,
        height=7,
    )
    programs = lines(
        "Programs",
        "RAM of the listed programs; shared pages count in each.",
        ask(f"topk(8, sum by (program) ({metric('program_resident_bytes')}))", "{{program}}"),
        unit="bytes",
        height=7,
    )
    return [
        ram,
        coloured(pressure, {"all wait": CRITICAL, "some wait": WARNING}),
        coloured(traffic, {"from swap": NOTE, "into swap": "purple"}),
        level,
        chance,
        programs,
    ]


def vram(width: int = 24) -> Panel:
    """Return VRAM by layer with the forecast; for one GPU."""
    used, total = f"max({gpu('gpu_memory_used_bytes')})", f"max({gpu('gpu_memory_total_bytes')})"
    reserved = f"max({gpu('gpu_memory_reserved_bytes')})"
    usable = f"max({for_gpu(metric('headroom_bytes'))})"
    growing = f"clamp_min(max({for_gpu(metric('consumption_bytes_per_second'))}), 0)"
    learnt = f"max({for_gpu(metric('learned_ceiling_bytes'))})"
    kept = f"({reserved} or {used} * 0)"
    # Only where the forecast sees an end that is near, and believes in it: a rate alone is noise.
    foreseen = f"max({for_gpu(metric('time_to_exhaustion_seconds', estimate='middle'))}) < {RISK.warn_eta_seconds:g}"
    felt = f"max({for_gpu(metric('risk_level'))}) >= {int(Level.INFO)}"
    soon = f"({used} + {kept} + {FORECAST_SECONDS} * {growing} and {foreseen} and {felt})"
    panel = lines(
        "VRAM by layer",
        "From below: reserved by the driver; used by all programs (under WSL2 including Windows' desktop); "
        "really usable, as wslgpud has learned; free in name only. Dashed: the card's size, the size at which an "
        "allocation "
        "failed before, and the use in five minutes at the current rate.",
        ask(reserved, "reserved by the driver"),
        ask(used, "in use"),
        ask(usable, "really usable"),
        ask(f"clamp_min({total} - ({used} + {usable} + {kept}), 0)", "free in name only"),
        ask(f"{soon} < {total} or {total} and {soon}", "in 5 min"),
        ask(f"{learnt} + {kept}", "failed before"),
        ask(total, "size of the card"),
        unit="bytes",
        stacked=True,
        width=width,
        height=9,
        table_legend=width > 12,
    )
    layers = {"reserved by the driver": NOT_HERE, "in use": NOTE, "really usable": GOOD, "free in name only": "yellow"}
    coloured(panel, layers)
    override(panel, "really usable", custom__fillOpacity=15)
    override(panel, "free in name only", custom__fillOpacity=25)
    for name, colour in (("in 5 min", WARNING), ("failed before", "purple"), ("size of the card", CRITICAL)):
        limit_line(panel, name, colour)
    return panel


def _cards() -> list[Panel]:
    repeated = vram().repeat("gpu").repeat_direction("v")
    busy = lines(
        "GPU load",
        "Share of time in which a kernel ran. Low during training: the data loader is the bottleneck.",
        ask(gpu("gpu_utilization_ratio"), "GPU {{gpu}}"),
        unit="percentunit",
        most=1,
        height=7,
    )
    heat = lines(
        "GPU temperature",
        "Of the core. Dashed: throttling from here on.",
        ask(gpu("gpu_temperature_celsius"), "GPU {{gpu}}"),
        ask(gpu("gpu_temperature_limit_celsius", limit="slowdown"), "GPU {{gpu}} throttles"),
        unit="celsius",
        height=7,
        least=20,
    )
    power = lines(
        "GPU power",
        "Drawn by the board. Dashed: the limit in force.",
        ask(gpu("gpu_power_watts"), "GPU {{gpu}}"),
        ask(gpu("gpu_power_limit_watts"), "GPU {{gpu}} limit"),
        unit="watt",
        height=7,
    )
    return [repeated, busy, dashed(heat, "/throttles/"), dashed(power, "/limit/")]


def _trouble() -> list[Panel]:
    none = f"max({metric('build')}) * 0"
    quiet = f'label_replace({_ALIVE} * 0, "rule", "nothing open", "", "")'
    table = rows(
        "Open incidents",
        "Found by wslgpud and not over yet; `wslgpud incidents` shows the minutes before each. A click on its beginning "
        "leads to the time from then on.",
        ask(f"{metric('alert_level')} or on (job, instance) {quiet}", rows=True),
        ask(f"floor({metric('alert_opened_timestamp_seconds')}) * 1000", rows=True),
        columns={"rule": "Rule", "resource": "Where", "Value #A": "Level", "Value #B": "Since"},
        width=8,
        height=7,
    )
    override(
        table,
        "Level",
        mappings=[m.to_json() for m in LEVELS],
        custom__cellOptions={"type": "color-background", "mode": "basic"},
        custom__width=90,
    )
    override(table, "Where", custom__width=90)
    override(table, "Since", unit="dateTimeFromNow", links=[{"title": "From then on", "url": SINCE_URL}])
    return [
        table,
        lines(
            "Kills",
            "Processes killed for lack of memory: by the kernel's counter, and by the scope in its log: "
            "the whole machine or a cgroup.",
            ask(f"increase({metric('oom_kills')}[$__rate_interval])", "counted"),
            ask(f"sum by (scope) (increase({metric('kernel_oom_kills')}[$__rate_interval]))", "{{scope}}, by the log"),
            ask(f"sum by (daemon) (increase({metric('oom_daemon_kills')}[$__rate_interval]))", "{{daemon}}"),
            unit="short",
            height=7,
            decimals=0,
            soft_most=4,
        ),
        lines(
            "Errors of drivers and disks",
            "From WSL's driver (dxgkrnl) and NVIDIA's (Xid), connections to Windows that failed, and disks that do. "
            "Notices are usually harmless.",
            ask(f"sum(increase({metric('dxg_errors')}[$__rate_interval])) or {none}", "WSL's driver"),
            ask(f"sum(increase({metric('dxg_notices')}[$__rate_interval])) or {none}", "WSL's driver, notices"),
            ask(f"sum(increase({metric('nvidia_xid_errors')}[$__rate_interval])) or {none}", "Xid"),
            ask(f"sum(increase({metric('vmbus_allocation_failures')}[$__rate_interval])) or {none}", "no new sessions"),
            ask(f"sum(increase({metric('kernel_disk_errors')}[$__rate_interval])) or {none}", "disks"),
            unit="short",
            height=7,
            decimals=0,
            soft_most=4,
        ),
    ]


def _brake() -> list[Panel]:
    return [
        lines(
            "Paused jobs",
            "Jobs paused by the brake, reasons why none was paused although memory ran out, and how pauses ended. Empty "
            "while the brake is off.",
            ask(f"sum({metric('brake_held_jobs')})", "paused now"),
            ask(f"min({metric('brake_ready')})", "ready"),
            ask(f"sum(increase({metric('brake_pauses')}[$__rate_interval]))", "paused"),
            ask(f"sum by (reason) (increase({metric('brake_spared')}[$__rate_interval]))", "spared: {{reason}}"),
            ask(f"sum by (how) (increase({metric('brake_ends')}[$__rate_interval]))", "end: {{how}}"),
            unit="short",
            height=7,
            decimals=0,
            soft_most=4,
        ),
        lines(
            "Memory of paused jobs",
            "Memory that the paused jobs keep.",
            ask(f"sum({metric('brake_held_bytes')})", "RAM and swap"),
            unit="bytes",
            height=7,
        ),
        lines(
            "Time to pause",
            "From the sample that triggered the pause to the last process stopped.",
            ask(f"max({metric('brake_pause_seconds')})", "last pause"),
            unit="s",
            height=7,
        ),
    ]


def _machine() -> list[Panel]:
    everything = f"sum({rate(metric('cpu_seconds'))})"
    busy = {}
    for name, modes in {
        "user": "user|nice",
        "system": "system",
        "iowait": "iowait",
        "other": "irq|softirq|steal",
    }.items():
        chosen = metric("cpu_seconds", f'mode=~"{modes}"')
        busy[name] = f"sum({rate(chosen)}) / {everything}"
    processor = lines(
        "Processor",
        "Share of all processors by mode; iowait together with swap traffic means thrashing.",
        *(ask(expression, name) for name, expression in busy.items()),
        unit="percentunit",
        most=1,
        stacked=True,
        width=10,
        height=7,
    )
    coloured(processor, {"user": NOTE, "system": "purple", "iowait": WARNING, "other": NOT_HERE})
    disks = bars(
        "Disks",
        "Free space. Inside WSL a disk shows up to 1 TB whatever Windows has left: the drive below /mnt that holds "
        "ext4.vhdx is the real limit. Colours follow the warnings about Windows' disk.",
        ask(f"min by (mountpoint) ({metric('filesystem_avail_bytes')})", "{{mountpoint}}", now=True),
        unit="bytes",
        width=7,
        height=7,
        thresholds=steps_of("windows_disk_full"),
        full=None,
    )
    wsl = f"max by (version, distro, networking) ({metric('wsl')})"
    plain = f'label_replace(max({metric("boot")}) * 0, "distro", "not under WSL", "", "")'
    under = figure(
        "WSL",
        "Distribution, version and networking mode of WSL, if this is WSL.",
        ask(f"{wsl} or on () {plain}", "{{distro}} {{version}} {{networking}}", now=True),
        names=True,
        width=10,
        colour=NEUTRAL,
    )
    offered = figure(
        "GPU for WSL",
        "Whether WSL offers a GPU (/dev/dxg). No: an old driver in Windows, or gpuSupport=false.",
        ask(f"max({metric('wsl_gpu_device')}) or max({metric('build')}) * 0 - 1", now=True),
        mappings=OFFERED,
    )
    found = metric("doctor_findings")
    problems = metric("doctor_findings", state="problem")
    doctor = figure(
        "Doctor",
        "Problems found by the last doctor run; `wslgpud doctor` lists them with their fixes.",
        ask(f"sum({problems}) or sum({found}) * 0 or max({metric('build')}) * 0 - 1", now=True),
        mappings=words({-1: ("not yet", NOT_HERE)}),
        thresholds=steps((None, GOOD), (1, WARNING)),
        width=5,
    )
    since = figure(
        "Uptime",
        "Time since the machine (under WSL2: its virtual machine) started; a small value is a restart.",
        ask(f"max({metric('uptime_seconds')})", now=True),
        unit="s",
        width=5,
        decimals=1,
    )
    last_jump = figure(
        "Last clock jump",
        "Size of the last jump of the wall clock.",
        ask(f"max({metric('clock_last_jump_seconds')}) or max({metric('build')}) * 0", now=True),
        unit="s",
        mappings=words({0: ("never", GOOD)}),
        width=12,
        decimals=1,
        colour=NEUTRAL,
    )
    jumps = figure(
        "Clock jumps",
        "How often the machine slept or its clock was set; gaps around them are not outages.",
        ask(f"max({metric('clock_jumps')})", now=True),
        width=12,
    )
    return [under, offered, doctor, since, processor, disks, *_windows(), jumps, last_jump]


def _windows() -> list[Panel]:
    total, available = metric("windows_memory_total_bytes"), metric("windows_memory_available_bytes")
    limit, committed = metric("windows_memory_commit_limit_bytes"), metric("windows_memory_committed_bytes")
    memory = lines(
        "Windows memory",
        "Held by WSL's virtual machine, how much of that Linux has freed without returning it to Windows, held "
        "permanently by Windows' kernel and drivers (growing for days: a leak), held by WSL's containers (wslc), and "
        "available to all programs.",
        ask(metric("windows_vm_resident_bytes"), "held by WSL"),
        ask(metric("windows_vm_unreturned_bytes"), "freed, not returned"),
        ask(f"sum({metric('windows_containers_resident_bytes')})", "held by containers"),
        ask(metric("windows_memory_pool_nonpaged_bytes"), "kernel and drivers"),
        ask(available, "left"),
        ask(total, "RAM of Windows"),
        unit="bytes",
        width=12,
    )
    left = bars(
        "Windows memory left",
        "Of its RAM, and of its commit limit (RAM and page files); when either is exhausted, Windows programs fail.",
        ask(
            f'label_replace({available} / {total}, "of", "RAM", "", "") or '
            f'label_replace(({limit} - {committed}) / {limit}, "of", "RAM and page files", "", "")',
            "{{of}}",
            now=True,
        ),
        unit="percentunit",
        width=7,
        height=7,
        thresholds=steps_of("windows_memory_low"),
        full=1,
    )
    seen = lines(
        "VRAM as Windows sees it",
        "On the card, and in Windows' RAM. When the second grows while the first is full, VRAM has been evicted: "
        "nothing fails, but everything becomes many times slower. Moved out: the part of programs of WSL, where it is "
        "measured. Committed: what programs could claim.",
        ask(f"sum({metric('windows_gpu_dedicated_bytes', NVIDIA)})", "on the card"),
        ask(f"sum({metric('windows_gpu_shared_bytes', NVIDIA)})", "in shared RAM"),
        ask(f"sum({metric('gpu_memory_demoted_bytes')})", "moved out"),
        ask(f"sum({metric('windows_gpu_committed_bytes', NVIDIA)})", "committed"),
        ask(f"sum({metric('windows_gpu_dedicated_size_bytes', NVIDIA)})", "size of the card"),
        unit="bytes",
        width=12,
    )
    programs = lines(
        "VRAM of Windows' programs",
        "The few that hold most, by card: browsers, games, the desktop. What programs share counts for each of them.",
        ask(f"max by (adapter, program) ({metric('windows_gpu_program_bytes')})", "{{program}}"),
        unit="bytes",
        stacked=True,
        width=24,
    )
    coloured(
        memory, {"held by WSL": NOTE, "freed, not returned": "purple", "kernel and drivers": "yellow", "left": GOOD}
    )
    coloured(seen, {"on the card": NOTE, "in shared RAM": CRITICAL, "moved out": "purple", "committed": NOT_HERE})
    return [left, limit_line(memory, "RAM of Windows"), limit_line(seen, "size of the card"), programs]


def overview() -> str:
    """Return the dashboard."""
    return dashboard(
        "wslgpud-overview",
        "wslgpud / Overview",
        "One machine: whether and when memory runs out, and who takes it. Below: why.",
        (
            ("", _verdict()),
            ("Memory", _memory()),
            ("GPUs", _cards()),
            ("Trouble", _trouble()),
            ("WSL and Windows", _machine()),
        ),
        folded=(
            ("Brake", _brake()),
            ("Trainings", training()),
            ("Memory in depth", in_depth.memory()),
            ("Processors, disks and network", in_depth.machine()),
        ),
        chosen=variables(cards="several"),
    )
