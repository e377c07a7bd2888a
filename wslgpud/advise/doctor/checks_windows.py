"""The Windows side of WSL, tested part by part: only on request, as it takes seconds and shows a notification."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from wslgpud.advise.doctor.checking import (
    KEEPS_RUNNING,
    Evidence,
    Outcome,
    check,
    good,
    in_windows,
    note,
    problem,
    skipped,
    unknown,
)
from wslgpud.advise.doctor.checks_gpu import PAGE_FILE, most_vram
from wslgpud.advise.wslconfig import files
from wslgpud.alerts.channels import DeliveryError
from wslgpud.alerts.channels.programs import ToastChannel
from wslgpud.alerts.messages import trial
from wslgpud.host import NoData, SourceError
from wslgpud.probes import interop
from wslgpud.risk.attribution import windows_programs
from wslgpud.sources import windows
from wslgpud.sources.windows import MIN_PROGRAM_BYTES
from wslgpud.words import Message, MessageLike, all_of, say
from wslgpud.words.units import one_line

#: the first build of Windows 11: https://learn.microsoft.com/windows/release-health/windows11-release-information
_WINDOWS_11 = 22_000
#: PowerShell starts in half a second, or several with a virus scanner that inspects everything
_SLOW_SECONDS = 5.0
#: freed in Linux but not returned, or kept as page cache: https://github.com/microsoft/WSL/issues/4166, 8414, 10011
_KEPT_BYTES = 4 << 30
#: below this share Windows swaps, and its programs begin to fail
_SHORT_RATIO = 0.1
#: Fragmented free memory is not returned. WSL compacts it after ten idle minutes: with an open editor, never
#: (https://github.com/microsoft/WSL/issues/10011).
_RECLAIM = say(
    "{command}   # for good: a smaller memory= below [wsl2] in .wslconfig",
    command="sync; sudo sysctl vm.drop_caches=1 vm.compact_memory=1",
)
_RETURN = say(
    "{reclaim}\nreturn_cache = true   # below [windows] of wslgpud's configuration: it does that", reclaim=_RECLAIM
)
#: rebuilds the registry of Windows' performance counters, which sometimes breaks:
#: https://learn.microsoft.com/windows-server/administration/windows-commands/lodctr
_COUNTERS = in_windows("lodctr /R")
_POLICY = say(
    "Windows' policy (AppLocker, WDAC) restricts PowerShell, and nothing here works without it: ask this PC's "
    "administrator"
)


def _refused(said: MessageLike, remedy: MessageLike = "") -> Outcome:
    """Return why a part does not work; a policy is recognised in every language by PowerShell's error id."""
    # the id is at the end of half a dozen lines
    whole = said if isinstance(said, str) else said.facts.get("told", said)
    return problem(said, _POLICY if "ConstrainedLanguage" in str(whole) else remedy)


@check("windows.powershell", "PowerShell", "windows")
def powershell(machine: Evidence) -> Outcome:
    """All queries to Windows go through Windows PowerShell 5.1."""
    about = machine.powershell
    if why := about.get("error"):
        return (
            unknown(why) if machine.host.recorded else _refused(why, in_windows("powershell -NoProfile -Command exit"))
        )
    numbers = [int(n) for n in about["windows"].split(".") if n.isdecimal()]
    right = say("as administrator") if about["administrator"] else say("as an ordinary user")
    found = say(
        "Windows {generation} ({facts}), PowerShell {version}, answered in {seconds}",
        generation=11 if numbers[2:] >= [_WINDOWS_11] else 10,
        facts=(about["windows"], about["language"], right),
        version=about["version"],
        seconds=about["seconds"],
    )
    if about["seconds"] < _SLOW_SECONDS:
        return good(found)
    return note(found, say("a virus scanner that inspects powershell.exe slows its start"))


@check("windows.memory", "Windows' memory", "probe")
def memory(machine: Evidence) -> Outcome:
    """When Windows runs out of memory, it ends WSL's virtual machine, however much is free inside."""
    sizes = machine.windows_facts.sizes
    if windows.TOTAL not in sizes or windows.AVAILABLE not in sizes:
        return problem(_missing(machine.windows_answer, "memory", "system"), _COUNTERS)
    total, available = sizes[windows.TOTAL], sizes[windows.AVAILABLE]
    return good(say("{available_bytes} of {total_bytes} available", available_bytes=available, total_bytes=total))


@check("windows.vm", "WSL's virtual machine", "probe")
def virtual_machine(machine: Evidence) -> Outcome:
    """Memory that WSL holds and does not return to Windows is invisible from Linux."""
    sizes, levels = machine.windows_facts.sizes, machine.memory
    held = sizes.get(windows.VM)
    if held is None:
        return note(_missing(machine.windows_answer, "vm"))
    if "MemFree" not in levels:
        return unknown(say("{path} does not say", path="/proc/meminfo"))
    used = levels["MemTotal"] - levels["MemFree"]
    if (windows.unreturned_bytes(held, used) or 0) >= _KEPT_BYTES:
        return note(
            say("its process holds {size_bytes}, of which Linux uses {used_bytes}", size_bytes=held, used_bytes=used),
            _RECLAIM,
        )
    cache, left = levels.get("Cached", 0) - levels.get("Shmem", 0), windows.left_share(sizes)
    if cache >= _KEPT_BYTES and left is not None and left < _SHORT_RATIO:
        facts = {"size_bytes": held, "cache_bytes": cache, "left_ratio": left}
        return note(
            say(
                "its process holds {size_bytes}, {cache_bytes} of it page cache; Windows has {left_ratio} left", **facts
            ),
            _RECLAIM if machine.config.windows.return_cache else _RETURN,
        )
    containers = sum(machine.windows_facts.containers.values())
    more = {"containers_bytes": containers} if containers else {}
    return good(
        say("its process holds {size_bytes}[; its containers (wslc) hold {containers_bytes}]", size_bytes=held, **more)
    )


@check("windows.gpus", "GPUs in Windows", "probe")
def gpus(machine: Evidence) -> Outcome:
    """VRAM that spills into Windows' memory makes a training many times slower; only Windows counts it."""
    known = windows.labelled(machine.windows_facts.adapters)
    if not known:
        return problem(_missing(machine.windows_answer, "gpu", "adapters"), _COUNTERS)
    names = tuple(name for name, _ in known)
    strangers = tuple(gpu.name for gpu in machine.gpus.samples if not any(gpu.name in name for name in names))
    if strangers:
        return note(say("{names}; without {missing}, which NVML sees", names=names, missing=strangers))
    return good(say("{names}", names=names))


@check("windows.programs", "Windows' programs on the card", "probe")
def programs(machine: Evidence) -> Outcome:
    """What browsers, games and the desktop hold of a card is lost to training, and no tool in Linux shows it."""
    known = windows.labelled(machine.windows_facts.adapters)
    told = [
        say("{name}: {programs}", name=name, programs=windows_programs(adapter.programs))
        for name, adapter in known
        if adapter.programs
    ]
    missing = machine.windows_answer.get("missing")
    if not told and isinstance(missing, dict) and {"programs", "gpu"} & missing.keys():
        return note(_missing(machine.windows_answer, "programs", "gpu"))
    return good(all_of(told) or say("none holds {least_bytes}", least_bytes=MIN_PROGRAM_BYTES))


@check("windows.page_file", "Page file for VRAM", "probe")
def page_file(machine: Evidence) -> Outcome:
    """Windows promises room for the whole card in RAM and page file; without it every CUDA program fails in WSL2."""
    vram, sizes = most_vram(machine), machine.windows_facts.sizes
    total, limit = sizes.get(windows.TOTAL), sizes.get(windows.COMMIT_LIMIT)
    if not vram:
        return skipped(say("no GPU answers"))
    if total is None or limit is None:
        return unknown(_missing(machine.windows_answer, "memory", "system"))
    facts = {"vram_bytes": vram, "ram_bytes": total, "file_bytes": max(0, limit - total)}
    found = say("{vram_bytes} of VRAM; Windows has {ram_bytes} of RAM and {file_bytes} of page file", **facts)
    return good(found) if vram <= max(total, limit - total) else problem(found, PAGE_FILE)


@check("windows.size", "The PC's size", "windows")
def size(machine: Evidence) -> Outcome:
    """The presets for .wslconfig divide the PC's memory and processors."""
    found = files.windows_size(machine.host)
    if found is None:
        return problem(say("Windows gave no answer"), "wslgpud wslconfig preset training --memory 64GB --processors 24")
    ram, processors = found
    return good(say("{size_bytes} of RAM, {count} logical processors", size_bytes=ram, count=processors))


@check("windows.paths", "The user's folder", "windows")
def paths(machine: Evidence) -> Outcome:
    """WSL reads .wslconfig from the folder of the Windows user."""
    if machine.wslconfig.error:
        return problem(machine.wslconfig.error, "wslgpud wslconfig check --file /mnt/c/Users/YOU/.wslconfig")
    return good(machine.wslconfig.path)


@check("windows.toast", "Notification", "windows")
def toast(machine: Evidence) -> Outcome:
    """A notification on the screen is seen whatever program is in front."""
    try:
        ToastChannel(machine.host, os.environ).send(trial(machine.host.clock.wall(), "wslgpud doctor --windows"))
    except DeliveryError as error:
        return _refused(error.message, say("in Windows: Settings, System, Notifications"))
    found = say("Windows accepted it: it is in the corner of the screen now")
    return good(found, say("nothing there? In Windows: Settings, System, Notifications; 'Do not disturb' hides it"))


@check("windows.task", "Scheduled task", "windows")
def task(machine: Evidence) -> Outcome:
    """A task at log-on keeps the distribution, and so the daemon and every training, running without a terminal."""
    try:
        result = one_line(interop.keep_alive(machine.host, "try"))
    except (NoData, SourceError) as error:
        return _refused(error.message, KEEPS_RUNNING)
    if result != "0x0":
        return problem(say("Windows ran it, and it ended with {status}", status=result), KEEPS_RUNNING)
    return good(say("created, run and removed again"))


def _missing(answer: Mapping[str, Any], *parts: str) -> MessageLike:
    """Return why the probe does not report a part; PowerShell's own text is in Windows' language."""
    missing = answer.get("missing")
    reasons = [missing[part] for part in parts if part in missing] if isinstance(missing, dict) else []
    if reasons and isinstance(reasons[0], Message):
        return reasons[0]
    return (
        one_line("; ".join(map(str, reasons)), 300) if reasons else say("Windows reports neither a figure nor a reason")
    )
