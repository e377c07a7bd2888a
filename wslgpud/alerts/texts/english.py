"""English."""

from __future__ import annotations

from wslgpud.alerts.texts.words import MemoryText, RuleText, Words

RULES = {
    "memory_exhaustion": RuleText("memory running out", (), (), ""),
    "vram_stress": RuleText(
        "VRAM stress run",
        ("VRAM stress run of {resource}: {text}",),
        (),
        "'wslgpud stress history' shows all nights, 'wslgpud stress show ID' the rows behind one. Wrong data: take "
        "back any overclocking and run 'wslgpud stress --full' again; what stays is a card to be replaced.",
    ),
    "oom_kill": RuleText(
        "out-of-memory kill",
        (
            "{kills} programs killed for lack of memory while wslgpud did not run; last: {victim}",
            "Killed for lack of memory: {who}, {size_bytes}, at {died}",
            "Killed for lack of memory: {who}, {size_bytes}",
            "Killed for lack of memory: probably {likely}, {size_bytes}",
            "The kernel killed a process for lack of memory",
        ),
        (
            "Each by the limit of its cgroup: {victims}.",
            "{text}. It held {anon_bytes} of its own and {shmem_bytes} of shared memory.",
            "The kernel's log cannot be read: {likely} was gone, and its memory back, when the counter rose.",
            "The kernel's counter of OOM kills rose; its log cannot be read, so the victim is not known.",
        ),
        "Run fewer jobs at once (MAX_JOBS, -j, num_workers), lower the batch size or context, or give the "
        "machine more: memory= and swap= under [wsl2] in .wslconfig. 'wslgpud incidents' shows who grew.",
    ),
    "vram_residency_failed": RuleText(
        "video memory cannot be brought in",
        ("{resource}: Windows could not bring video memory in (make_resident failed)",),
        ("Kernel: {text}. Under WSL2 this is VRAM that is used up, even if some looks free.",),
        "Save a checkpoint and stop what uses the card; do not simply try again: retries with a full card have "
        "crashed Windows. Then stay below about 80 % of it, close desktop programs that hold VRAM, and do "
        "without expandable_segments and much pinned memory, which WSL limits.",
    ),
    "gpu_error": RuleText(
        "error of the card",
        ("{resource}: the driver reports Xid {xid}",),
        ("Kernel: {text}",),
        "Save your work. Look the number up at https://docs.nvidia.com/deploy/xid-errors/ ; 48, 63, 64, 92, 94 "
        "and 95 are about its memory, 79 means that the card has left the bus: power, cable or card.",
    ),
    "gpu_lost": RuleText(
        "card lost",
        ("{resource} does not answer any more",),
        ("The driver lists the card {uuid} and cannot reach it.",),
        "Programs on it have failed. Restart the machine (under WSL2: wsl --shutdown in Windows, then start "
        "again); if it comes back, look at power supply, heat and riser cable.",
    ),
    "gpu_driver_gone": RuleText(
        "GPU driver silent",
        ("The NVIDIA driver has stopped answering",),
        ("{error}",),
        "After a driver update in Windows: wsl --shutdown, then start again. While Windows resets the driver "
        "(TDR) it comes back by itself. Memory of the machine is watched all the same.",
    ),
    "swap_thrash": RuleText(
        "thrashing",
        (
            "Programs stand still for lack of RAM: {stalled_ratio} of the time lost",
            "Thrashing: {in_bytes_per_second} from swap and {out_bytes_per_second} into it",
        ),
        ("Swap: {in_bytes_per_second} in, {out_bytes_per_second} out.",),
        "Pause or stop the largest program (kill -STOP keeps its work), then run fewer jobs at once. More swap "
        "does not help; more RAM does (memory= in .wslconfig).",
    ),
    "gpu_throttled": RuleText(
        "GPU slowed down",
        (
            "{resource} is slowed down at {temperature_celsius} °C ({reasons})",
            "{resource} is slowed down ({reasons})",
        ),
        ("Reasons given by the driver: {reasons}. A mere power cap is not among them.",),
        "Check fans, dust and airflow, or lower the power limit (nvidia-smi -pl, in Windows): the last 20 % of "
        "power bring few per cent of speed. hw_power_brake points to the power supply.",
    ),
    "vram_spill": RuleText(
        "VRAM spilling into RAM",
        (
            "{resource} is full: {grown_bytes} moved to RAM, programs on it become many times slower",
            "{resource} is full and its memory moves to RAM: programs on it become many times slower",
        ),
        (
            "Windows counts {dedicated_bytes} on the card and {shared_bytes} of shared memory for it.",
            "Windows counts {shared_bytes} of shared memory for the card.",
        ),
        "Nothing fails, it only crawls, and Windows does not move it back while the card is full. Use a smaller "
        "batch, a shorter context or gradient checkpointing, or close desktop programs on this card. Windows' "
        "'Prefer No Sysmem Fallback' is not honoured by WSL2; torch.cuda.set_per_process_memory_fraction is.",
    ),
    "windows_memory_low": RuleText(
        "Windows short of memory",
        (
            "Windows can promise only {commit_left_bytes} more of {commit_limit_bytes}: its programs will fail",
            "Windows is short of memory: {available_bytes} left of {total_bytes}; WSL holds {vm_bytes}",
            "Windows is short of memory: {available_bytes} left of {total_bytes}",
        ),
        (
            "WSL's virtual machine holds {vm_bytes}, of which Linux does not use {unreturned_bytes}.",
            "WSL's virtual machine holds {vm_bytes}.",
        ),
        "Close programs in Windows. Linux gives memory back only when it is free here: stop what you do not need, "
        "then sync; echo 1 | sudo tee /proc/sys/vm/drop_caches. For good: a smaller memory= under [wsl2] and "
        "autoMemoryReclaim=gradual under [experimental] in .wslconfig, a larger page file.",
    ),
    "state_disk_full": RuleText(
        "disk nearly full",
        ("Disk nearly full: {bytes} left on {place}, where wslgpud keeps its history",),
        (),
        "Make room (checkpoints, ~/.cache/huggingface, pip cache purge, docker system prune). When it is full, "
        "training runs lose their checkpoints; wslgpud keeps warning from memory.",
    ),
    "windows_disk_full": RuleText(
        "Windows' disk nearly full",
        ("Windows' disk nearly full: {bytes} left on {place}",),
        ("The Linux disk is a file (ext4.vhdx) that grows there, whatever df says inside.",),
        "Make room in Windows now: when it is full, WSL mounts your disk read-only or does not start. Deleting "
        "files in Linux does not give room back until the vhdx is compacted (wsl --manage DISTRO --set-sparse).",
    ),
    "read_only_disk": RuleText(
        "disk read-only",
        ("{place} has become read-only",),
        ("Programs cannot save anything there, checkpoints included.",),
        "Under WSL2 this follows an error of the virtual disk or a full Windows disk: save elsewhere, make room "
        "in Windows, wsl --shutdown, and check the disk (dmesg, e2fsck) before you go on.",
    ),
    "source_stale": RuleText(
        "blind spot",
        ("No figures from {place} any more: {error}", "No figures from {place} any more"),
        ("What this source tells is missing from forecasts, metrics and history.",),
        "See 'wslgpud status' and the daemon's log for the cause.",
    ),
    "clock_jump": RuleText(
        "clock jumped",
        ("The clock jumped by {seconds}: the machine slept, or the time was set", "The clock jumped"),
        ("{text}.",),
        "Nothing to do. Gaps in the history around it are no outage.",
    ),
    "store_failing": RuleText(
        "history cannot be written",
        ("History cannot be written: {error}", "History cannot be written"),
        ("Warnings go out all the same; what cannot be written is kept in memory for a while.",),
        "Look at the disk that holds the database: full, read-only, or failing.",
    ),
    "store_damaged": RuleText(
        "history was damaged",
        ("The history's database was damaged: {damage}", "The history's database was damaged"),
        ("A damaged file is set aside, a new one begun, and what can be read taken over.",),
        "Look at the disk (dmesg, SMART). 'wslgpud db check' says whether the file of now is sound.",
    ),
    "unclean_end": RuleText(
        "unclean end",
        (
            "The machine ended without a shutdown at {last}; {growing} was growing",
            "The machine ended without a shutdown at {last}",
            "wslgpud was killed at {killed}; it runs again",
        ),
        (
            "{trouble}",
            "Last sample {last}.",
        ),
        "'wslgpud incidents' shows the last minutes before it: who grew, what was left, what the kernel said.",
    ),
}

MEMORY = MemoryText(
    starts=("{resource} full in ~{eta_seconds} ({range}): ", "{resource} full in ~{eta_seconds}: ",
            "{resource} has not grown for {paused_seconds}: ", "{resource} is nearly full: "),
    ends=(
        "came to {peak_bytes} before, {left_bytes} left of {capacity_bytes}",
        "{rate_bytes_per_second}, {left_bytes} left of {capacity_bytes}",
        "{left_bytes} left of {capacity_bytes}",
    ),
    causes={
        "growth": ("Use of {resource} has grown for {window_seconds}.",),
        "steps": ("Use of {resource} climbs in steps every {window_seconds} or so; few more fit.",),
        "pressure": ("All programs stand still for much of the time because memory is short.",),
        "stall": ("The machine stood still under memory pressure.",),
        "limit": ("{resource} keeps running into its limit.",),
        "oom": ("An allocation on {resource} has just failed, or a process was killed for it.",),
        "paused": ("Nothing points to {resource} running out any more, but it may go on.",),
        "expected": ("In an earlier run {who} came to {peak_bytes} of {resource}; {left_bytes} are left for the rest.",),
    },
    growing=("Growing: {who}.",),
    chances=("Probability that it runs out within {within_seconds}: {chance_ratio}.",),
    advice={
        "ram": "Save a checkpoint or your work, then stop or restart what grows. Loading a model or a data set "
        "grows as well, and stops by itself.",
        "paused": "Nothing needs to be done unless it grows again; if it does not, this ends by itself.",
        "expected": "Free memory first, or start it smaller: fewer jobs or workers, a smaller batch.",
        "group": "Run fewer of them at once: MAX_JOBS or -j for builds, num_workers for data loaders; each needs "
        "its own memory.",
        "jobs": "Run fewer of them at once: about {jobs} fit here (MAX_JOBS={jobs} or -j{jobs} for builds, "
        "num_workers={jobs} for data loaders).",
        "tmpfs": "Remove files in /dev/shm or tmpfs, or let fewer data loader workers share memory.",
        "kernel": "Close what is not needed; no single process is to blame. 'slabtop' shows which kernel cache "
        "grows, often that of a driver or of files under /mnt/c.",
        "huge pages": "Huge pages are set aside for nobody else: lower vm.nr_hugepages.",
        "gpu": "Save a checkpoint, then use a smaller batch, a shorter context, or stop another process on this "
        "card; under WSL2 desktop programs hold VRAM, too. JAX and TensorFlow take most of it at their start "
        "by design. PyTorch: expandable_segments is not reliable under WSL2.",
        "cgroup": "Raise the group's limit or stop what grows in it.",
    },
)  # fmt: skip

WORDS = Words(
    over="Over: {what} ({resource})",
    digest="{count} alerts: {headline}",
    repeated="Again: {headline}",
    levels={
        "ok": "ok",
        "info": "info",
        "warning": "warning",
        "critical": "critical",
        "emergency": "emergency",
    },
    rules=RULES,
    memory=MEMORY,
    keeps_headline=True,
    resources={
        "disk": "disk",
        "source": "source",
        "clock": "clock",
        "store": "history",
        "machine": "machine",
        "windows": "Windows",
    },
)
