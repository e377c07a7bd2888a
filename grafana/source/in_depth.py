"""Details beyond the overview: folded rows, whose queries run only when they are opened."""

from __future__ import annotations

from grafana.source.kit import (
    CRITICAL,
    GOOD,
    NEUTRAL,
    NOT_HERE,
    NOT_HERE_WORDS,
    NOTE,
    WARNING,
    Panel,
    ask,
    coloured,
    limit_line,
    lines,
    metric,
    override,
    rate,
    rows,
    words,
)

_ALIVE = f"max({metric('build')})"
WRITABLE = words({0: ("no", GOOD), 1: ("yes", CRITICAL)})


def _sum(*names: str) -> str:
    """Return the sum of metrics that not every kernel has: each counts where it exists."""
    return " + ".join(f"({metric(name)} or {_ALIVE} * 0)" for name in names)


def memory() -> list[Panel]:
    """Return panels of memory by kind, of reclaim, and of groups with a limit of their own."""
    kernel = _sum("memory_slab_unreclaimable_bytes", "memory_kernel_stack_bytes", "memory_page_tables_bytes")
    cache = f"{metric('memory_cached_bytes')} - {metric('memory_shmem_bytes')}"
    kinds = {
        "programs": (metric("memory_anon_bytes"), NOTE),
        "shared and tmpfs": (metric("memory_shmem_bytes"), "purple"),
        "kernel": (f"max({kernel})", WARNING),
        "reserved huge pages": (metric("memory_hugepages_bytes"), "yellow"),
        "reclaimable": (f"max({cache} + {_sum('memory_buffers_bytes', 'memory_slab_reclaimable_bytes')})", GOOD),
        "free": (metric("memory_free_bytes"), NOT_HERE),
    }
    kind = lines(
        "RAM by kind",
        "Only free and reclaimable memory can still be allocated. Shared memory, including that of data loaders, can "
        "be swapped but not dropped; kernel memory that grows for days is a driver leak.",
        *(ask(expression, name) for name, (expression, _) in kinds.items()),
        ask(metric("memory_total_bytes"), "RAM"),
        unit="bytes",
        width=12,
        stacked=True,
    )
    coloured(kind, {name: colour for name, (_, colour) in kinds.items()})
    promised = lines(
        "Committed and locked",
        "Committed to programs, touched or not; the dashed limit holds only when overcommit is disabled. Locked memory "
        "cannot be swapped. Balloon: taken back by the host.",
        ask(metric("memory_committed_bytes"), "committed"),
        ask(metric("memory_locked_bytes"), "locked"),
        ask(f"{metric('memory_balloon_bytes')} or {_ALIVE} * 0", "balloon"),
        ask(metric("memory_commit_limit_bytes"), "limit"),
        unit="bytes",
        width=12,
    )
    return [
        limit_line(kind, "RAM"),
        limit_line(promised, "limit"),
        lines(
            "Allocation stalls and major faults",
            "How often programs stalled: to reclaim memory themselves, or for a page on disk. More than a few "
            "hundred per second are noticeable.",
            ask(f"sum({rate(metric('memory_alloc_stalls'))})", "allocation stalls"),
            ask(rate(metric("page_major_faults")), "major faults"),
            unit="cps",
            soft_most=10,
        ),
        lines(
            "Reclaim",
            "Pages scanned and reclaimed by the kernel; scanned by programs because the kernel was too slow; and "
            "refaulted "
            "soon after: the measure of thrashing.",
            ask(rate(metric("memory_reclaim_scanned_pages")), "scanned"),
            ask(rate(metric("memory_direct_reclaim_scanned_pages")), "direct reclaim"),
            ask(rate(metric("memory_reclaim_stolen_pages")), "reclaimed"),
            ask(f"sum by (type) ({rate(metric('memory_refaulted_pages'))})", "refaulted ({{type}})"),
            unit="cps",
            soft_most=10,
        ),
        lines(
            "Dirty pages",
            "Written but not yet on disk. Large values: a slow disk, and stalls when its queue fills.",
            ask(metric("memory_dirty_bytes"), "waits"),
            ask(metric("memory_writeback_bytes"), "writeback"),
            unit="bytes",
        ),
        lines(
            "Swap by program",
            "Swap used by the largest programs, and pages that are in swap and RAM.",
            ask(f"topk(8, sum by (program) ({metric('program_swap_bytes')}))", "{{program}}"),
            ask(metric("swap_cached_bytes"), "also in RAM"),
            unit="bytes",
        ),
        _groups(),
    ]


def _groups() -> Panel:
    """Return a table of groups with a memory limit of their own: containers, services, WSL's group of the user."""
    none = f'label_replace({_ALIVE} * 0 - 1, "cgroup", "none with a limit", "", "")'
    by = "max by (cgroup)"
    droppable = " + ".join(
        f"{by} ({metric(f'cgroup_memory_{kind}_bytes')})"
        for kind in ("inactive_file", "active_file", "slab_reclaimable")
    )
    limit = f"({by} ({metric('cgroup_memory_limit_bytes')}) or on () {none})"
    asked = {
        "Limit": limit,
        "In use": f"{by} ({metric('cgroup_memory_current_bytes')}) or {limit} * 0 - 1",
        "Reclaimable": f"{droppable} or {limit} * 0 - 1",
        "Swap": f"{by} ({metric('cgroup_swap_current_bytes')}) or {limit} * 0 - 1",
        "Swap limit": f"{by} ({metric('cgroup_swap_limit_bytes')}) or {limit} * 0 - 1",
        "At limit": f"{by} (increase({metric('cgroup_memory_limit_hits')}[$__range])) or {limit} * 0 - 1",
        "Kills": f"{by} (increase({metric('cgroup_oom_kills')}[$__range])) or {limit} * 0 - 1",
    }
    columns = {"cgroup": "Group"} | {f"Value #{chr(ord('A') + i)}": name for i, name in enumerate(asked)}
    table = rows(
        "Cgroups with a limit",
        "Containers, services and WSL's own group: each can run out of memory while the machine still has some. At "
        "limit and kills: events in the time range shown.",
        *(ask(expression, rows=True) for expression in asked.values()),
        columns=columns,
        width=16,
    )
    for name in asked:
        shown = {"decimals": 0} if name in ("At limit", "Kills") else {"unit": "bytes"}
        override(table, name, mappings=[m.to_json() for m in NOT_HERE_WORDS], custom__width=100, **shown)
    return table


def machine() -> list[Panel]:
    """Return processors, disks and network."""
    waiting = "max by (resource) ({})"
    others = 'resource=~"cpu|io"'
    pressure = lines(
        "Pressure of processors and disks",
        "Share of time in which some or all programs waited (PSI).",
        ask(waiting.format(rate(metric("pressure_waiting_seconds", others))), "some wait for {{resource}}"),
        ask(waiting.format(rate(metric("pressure_stalled_seconds", 'resource="io"'))), "all wait for {{resource}}"),
        unit="percentunit",
        most=1,
    )
    load = lines(
        "Load",
        "Programs that are running, runnable or waiting for a disk, over 1, 5 and 15 minutes. Above the dashed number "
        "of "
        "processors, work queues up.",
        *(ask(metric(f"load{minutes}"), f"{minutes} min") for minutes in (1, 5, 15)),
        ask(metric("cpus"), "processors"),
        unit="none",
    )
    return [
        pressure,
        limit_line(load, "processors"),
        lines(
            "Active processes",
            "Running or runnable; waiting for a disk; and by role.",
            ask(metric("processes_running"), "running"),
            ask(metric("processes_blocked"), "waiting for a disk"),
            ask(metric("role_processes"), "{{role}}"),
            unit="none",
            decimals=0,
        ),
        _both_ways("Disk traffic", "Writes are drawn downwards.", "disk_read_bytes", "disk_written_bytes"),
        lines(
            "Disk latency",
            "Mean time of reads and writes; under WSL2 this includes Windows' disk and its virus scanner.",
            *(
                ask(
                    f"{rate(metric(f'disk_{way}_time_seconds'))} / ({rate(metric(f'disk_{way}s_completed'))} > 0) or "
                    f"{rate(metric(f'disk_{way}s_completed'))} * 0",
                    f"{{{{device}}}} {way}",
                )
                for way in ("read", "write")
            ),
            unit="s",
            soft_most=0.001,
        ),
        lines(
            "Disk in use",
            "Share of time in which the device was busy.",
            ask(rate(metric("disk_io_time_seconds")), "{{device}}"),
            unit="percentunit",
            most=1,
        ),
        _both_ways(
            "Network", "Transmitted data is drawn downwards.", "network_receive_bytes", "network_transmit_bytes"
        ),
        lines(
            "Network faults",
            "Broken or dropped packets; any steady rate is a fault.",
            *(
                ask(f"sum by (device) ({rate(metric(f'network_{way}_{what}'))})", f"{{{{device}}}} {name}")
                for way, what, name in (
                    ("receive", "errs", "broken"),
                    ("receive", "drop", "dropped"),
                    ("transmit", "errs", "not sent"),
                    ("transmit", "drop", "dropped before sending"),
                )
            ),
            unit="pps",
            soft_most=1,
        ),
        _file_systems(),
    ]


def _both_ways(title: str, text: str, come: str, go: str) -> Panel:
    return lines(
        title,
        text,
        ask(rate(metric(come)), "{{device}} in"),
        ask(f"-{rate(metric(go))}", "{{device}} out"),
        unit="binBps",
        least=None,
        fill=10,
    )


def _file_systems() -> Panel:
    by = "max by (mountpoint, fstype)"
    size = f"{by} ({metric('filesystem_size_bytes')})"
    inodes = f"{by} ({metric('filesystem_files_free')} / ({metric('filesystem_files')} > 0))"
    table = rows(
        "File systems",
        "Size, free space, share of free inodes (none left acts like a full disk; Windows' drives have "
        "none), and whether it is writable.",
        ask(size, rows=True),
        ask(f"{by} ({metric('filesystem_avail_bytes')})", rows=True),
        ask(f"{inodes} or {size} * 0 - 1", rows=True),
        ask(f"{by} ({metric('filesystem_readonly')})", rows=True),
        width=8,
        columns={
            "mountpoint": "Mount point",
            "fstype": "Type",
            "Value #A": "Size",
            "Value #B": "Left",
            "Value #C": "Inodes",
            "Value #D": "Read-only",
        },
    )
    for name in ("Size", "Left"):
        override(table, name, unit="bytes", custom__width=80)
    override(table, "Type", custom__width=70)
    override(
        table,
        "Inodes",
        unit="percentunit",
        decimals=0,
        mappings=[m.to_json() for m in NOT_HERE_WORDS],
        custom__width=70,
    )
    override(
        table,
        "Read-only",
        mappings=[m.to_json() for m in WRITABLE],
        custom__width=90,
        custom__cellOptions={"type": "color-text"},
        color={"mode": "fixed", "fixedColor": NEUTRAL},
    )
    return table
