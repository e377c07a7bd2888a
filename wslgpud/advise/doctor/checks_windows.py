"""The Windows side of WSL, tested part by part: only on request, as it takes seconds and shows a notification.

Whether Windows tells the VRAM of each program is tried: nobody has published its answers for NVIDIA.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from wslgpud.advise.doctor.checking import Evidence, Outcome, check, good, in_windows, note, problem, skipped, unknown
from wslgpud.advise.doctor.checks_gpu import PAGE_FILE, most_vram
from wslgpud.advise.doctor.checks_wsl import KEEPS_RUNNING
from wslgpud.advise.wslconfig import files
from wslgpud.alerts.channels import DeliveryError
from wslgpud.alerts.channels.programs import ToastChannel
from wslgpud.host import NoData, RecordedHost, SourceError, output
from wslgpud.probes import dxg, interop
from wslgpud.probes.supervisor import clean_environment, python_command
from wslgpud.risk.attribution import windows_programs
from wslgpud.sources import windows
from wslgpud.sources.windows import MIN_PROGRAM_BYTES
from wslgpud.words import Message, MessageLike, all_of, filled, say, template
from wslgpud.words.units import one_line

#: the first build of Windows 11: https://learn.microsoft.com/windows/release-health/windows11-release-information
_WINDOWS_11 = 22_000
#: PowerShell starts in half a second, or several with a virus scanner that inspects everything
_SLOW_SECONDS = 5.0
_DXG_SECONDS = 20
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
    return Outcome("problem", said, _POLICY if "ConstrainedLanguage" in str(whole) else remedy)


@check("windows.powershell", "PowerShell", "wsl")
def powershell(machine: Evidence) -> Outcome:
    """All queries to Windows go through Windows PowerShell 5.1."""
    about = machine.powershell
    if why := about.get("error"):
        if machine.host.recorded:
            return Outcome("could not tell", why)
        return _refused(why, in_windows("powershell -NoProfile -Command exit"))
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


@check("windows.memory", "Windows' memory", "wsl", "probe")
def memory(machine: Evidence) -> Outcome:
    """When Windows runs out of memory, it ends WSL's virtual machine, however much is free inside."""
    total, available = (machine.windows_facts.sizes.get(size) for size in (windows.TOTAL, windows.AVAILABLE))
    if total is None or available is None:
        return Outcome("problem", _missing(machine, "memory", "system"), _COUNTERS)
    return good("{available_bytes} of {total_bytes} available", available_bytes=available, total_bytes=total)


@check("windows.vm", "WSL's virtual machine", "wsl", "probe")
def virtual_machine(machine: Evidence) -> Outcome:
    """Memory that WSL holds and does not return to Windows is invisible from Linux."""
    sizes, levels = machine.windows_facts.sizes, machine.memory
    held = sizes.get(windows.VM)
    if held is None:
        return Outcome("note", _missing(machine, "vm"))
    if "MemFree" not in levels:
        return unknown("{path} does not say", path="/proc/meminfo")
    used = levels["MemTotal"] - levels["MemFree"]
    if (windows.unreturned_bytes(held, used) or 0) >= _KEPT_BYTES:
        text = template("its process holds {size_bytes}, of which Linux uses {used_bytes}")
        return note(text, _RECLAIM, size_bytes=held, used_bytes=used)
    cache, left = levels.get("Cached", 0) - levels.get("Shmem", 0), windows.left_share(sizes)
    if cache >= _KEPT_BYTES and left is not None and left < _SHORT_RATIO:
        return note(
            "its process holds {size_bytes}, {cache_bytes} of it page cache; Windows has {left_ratio} left",
            _RECLAIM if machine.config.windows.return_cache else _RETURN,
            size_bytes=held,
            cache_bytes=cache,
            left_ratio=left,
        )
    inside = sum(machine.windows_facts.containers.values()) or None
    text = template("its process holds {size_bytes}[; its containers (wslc) hold {containers_bytes}]")
    return good(filled(text, {"size_bytes": held, "containers_bytes": inside}))


@check("windows.gpus", "GPUs in Windows", "wsl", "probe")
def gpus(machine: Evidence) -> Outcome:
    """VRAM that spills into Windows' memory makes a training many times slower; only Windows counts it."""
    names = tuple(name for name, _ in windows.labelled(machine.windows_facts.adapters))
    if not names:
        return Outcome("problem", _missing(machine, "gpu", "adapters"), _COUNTERS)
    strangers = tuple(gpu.name for gpu in machine.gpus.samples if not any(gpu.name in name for name in names))
    if strangers:
        return note("{names}; without {missing}, which NVML sees", names=names, missing=strangers)
    return good("{names}", names=names)


@check("windows.programs", "Windows' programs on the card", "wsl", "probe")
def programs(machine: Evidence) -> Outcome:
    """What browsers, games and the desktop hold of a card is lost to training, and no tool in Linux shows it."""
    told = [
        say("{name}: {programs}", name=name, programs=windows_programs(adapter.programs))
        for name, adapter in windows.labelled(machine.windows_facts.adapters)
        if adapter.programs
    ]
    if told:
        return good(all_of(told))
    missing = machine.windows_answer.get("missing")
    if isinstance(missing, dict) and {"programs", "gpu"} & missing.keys():
        return Outcome("note", _missing(machine, "programs", "gpu"))
    return good("none holds {least_bytes}", least_bytes=MIN_PROGRAM_BYTES)


@check("windows.page_file", "Page file for VRAM", "wsl", "probe")
def page_file(machine: Evidence) -> Outcome:
    """Windows promises room for the whole card in RAM and page file; without it every CUDA program fails in WSL2."""
    vram, sizes = most_vram(machine), machine.windows_facts.sizes
    total, limit = sizes.get(windows.TOTAL), sizes.get(windows.COMMIT_LIMIT)
    if not vram:
        return skipped("no GPU answers")
    if total is None or limit is None:
        return Outcome("could not tell", _missing(machine, "memory", "system"))
    facts = {"vram_bytes": vram, "ram_bytes": total, "file_bytes": max(0, limit - total)}
    found = say("{vram_bytes} of VRAM; Windows has {ram_bytes} of RAM and {file_bytes} of page file", **facts)
    return good(found) if vram <= max(total, limit - total) else problem(found, PAGE_FILE)


@check("windows.size", "The PC's size", "wsl", "powershell")
def size(machine: Evidence) -> Outcome:
    """The presets for .wslconfig divide the PC's memory and processors."""
    found = files.windows_size(machine.host)
    if found is None:
        return problem("Windows gave no answer", "wslgpud wslconfig preset training --memory 64GB --processors 24")
    ram, processors = found
    return good("{size_bytes} of RAM, {count} logical processors", size_bytes=ram, count=processors)


@check("windows.paths", "The user's folder", "wsl", "powershell")
def paths(machine: Evidence) -> Outcome:
    """WSL reads .wslconfig from the folder of the Windows user."""
    path, _, error = machine.wslconfig
    if error:
        return Outcome("problem", error, "wslgpud wslconfig check --file /mnt/c/Users/YOU/.wslconfig")
    return Outcome("good", path)


@check("windows.toast", "Notification", "wsl", "powershell")
def toast(machine: Evidence) -> Outcome:
    """A notification on the screen is seen whatever program is in front."""
    from wslgpud.alerts.dispatcher import trial  # imports the store

    try:
        ToastChannel(machine.host, os.environ).send(trial(machine.host.clock.wall(), "wslgpud doctor --windows"))
    except DeliveryError as error:
        return _refused(error.message, say("in Windows: Settings, System, Notifications"))
    unseen = say("nothing there? In Windows: Settings, System, Notifications; 'Do not disturb' hides it")
    return good("Windows accepted it: it is in the corner of the screen now", unseen)


@check("windows.task", "Scheduled task", "wsl", "powershell")
def task(machine: Evidence) -> Outcome:
    """A task at log-on keeps the distribution, and so the daemon and every training, running without a terminal."""
    try:
        result = one_line(interop.keep_alive(machine.host, "try"))
    except (NoData, SourceError) as error:
        return _refused(error.message, KEEPS_RUNNING)
    if result != "0x0":
        return problem("Windows ran it, and it ended with {status}", KEEPS_RUNNING, status=result)
    return good("created, run and removed again")


def _missing(machine: Evidence, *parts: str) -> MessageLike:
    """Return why the probe does not report a part; PowerShell's own text is in Windows' language."""
    missing = machine.windows_answer.get("missing")
    reasons = [missing[part] for part in parts if part in missing] if isinstance(missing, dict) else []
    if not reasons:
        return say("Windows reports neither a figure nor a reason")
    return reasons[0] if isinstance(reasons[0], Message) else one_line("; ".join(map(str, reasons)), 300)


@check("windows.vram_by_process", "VRAM of each program", "wsl")
def vram_by_process(machine: Evidence) -> Outcome:
    """With it the program that fills a card is measured, and not guessed; the brake needs no guess to act."""
    if not machine.host.exists(dxg.DEVICE):
        return skipped("{path} is missing", path=dxg.DEVICE)
    answer = _dxg_answer(machine)
    if "failed" in answer:
        call, error = answer["failed"]
        text = template("{call} fails with {error}: who fills the card stays a guess")
        return note(text, in_windows("wsl --update"), call=call, error=error)
    if "adapters" not in answer:
        return unknown("no answer")
    count = len({pid for adapter in answer["adapters"] for pid, *_ in adapter["processes"]})
    if any(gpu.demoted_bytes is not None for gpu in machine.gpus.samples):
        return good("measured: {count} programs listed", count=count)
    # With nobody on a card there is nothing to compare.
    return good("{count} programs listed; none with a figure that fits NVML's", count=count)


def _dxg_answer(machine: Evidence) -> dict[str, Any]:
    """Return the answer of ``PatientDxgReader`` in a child that may hang."""
    if isinstance(machine.host, RecordedHost):
        recording = machine.host.recording("nvml.json")
        return json.loads(recording.read_text(encoding="utf-8")).get("dxg", {}) if recording else {}
    with suppress(ValueError):
        text = output(python_command("wslgpud.probes.dxg"), _DXG_SECONDS, clean_environment())
        found: dict[str, Any] = json.loads(text)
        return found
    return {}
