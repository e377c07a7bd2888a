"""What Windows said, in either of two ways of saying it: the probe's JSON or windows_exporter's text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from wslgpud.words.units import one_line

_INSTANCE = re.compile(r"luid_0x([0-9a-f]+)_0x([0-9a-f]+)_phys_\d+", re.IGNORECASE)
_LUID = re.compile(r"0x([0-9a-f]+)_0x([0-9a-f]+)", re.IGNORECASE)
_SAMPLE = re.compile(r"(?P<name>windows_\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: \d+)?")
# From the beginning of a name only: with any place to begin, a long word without "=" takes quadratic time,
# in which no other thread of Python runs.
_LABEL = re.compile(r'(?<!\w)(\w{1,60})="((?:[^"\\]|\\.)*)"')
#: no line of windows_exporter is as long; a name of Windows has 255 characters at most
_LONGEST_LINE = 4000
#: cards with a name or a use; each becomes five series that are kept for years
_MOST_ADAPTERS = 16
_NAME_CHARACTERS = 80
_VM_NAMES = ("vmmemwsl", "vmmem")
#: Field of ``Facts`` -> what the probe and what windows_exporter call it.
_MEMORY = {
    "available": ("AvailableBytes", "windows_memory_available_bytes"),
    "committed": ("CommittedBytes", "windows_memory_committed_bytes"),
    "commit_limit": ("CommitLimit", "windows_memory_commit_limit"),
    "pool_nonpaged": ("PoolNonpagedBytes", "windows_memory_pool_nonpaged_bytes"),
}
#: What windows_exporter calls them -> fields of ``Adapter``.
_GPU = {
    "windows_gpu_dedicated_video_memory_size_bytes": "size",
    "windows_gpu_adapter_memory_dedicated_bytes": "dedicated",
    "windows_gpu_adapter_memory_shared_bytes": "shared",
    "windows_gpu_adapter_memory_committed_bytes": "committed",
}


@dataclass(frozen=True, slots=True)
class Adapter:
    """A GPU as Windows counts it, in bytes; ``size`` is its dedicated memory."""

    luid: tuple[int, int]
    name: str = ""
    size: int | None = None
    dedicated: int | None = None
    shared: int | None = None
    committed: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of Windows, in bytes; ``vm`` is what the process of WSL's virtual machine holds."""

    total: int | None = None
    available: int | None = None
    committed: int | None = None
    commit_limit: int | None = None
    pool_nonpaged: int | None = None
    vm: int | None = None
    adapters: tuple[Adapter, ...] = ()


def from_probe(answer: Mapping[str, Any]) -> Facts:
    """Read an answer of the probe; whatever does not have the form that was agreed on is not known."""
    memory, system = ({**next(iter(_rows(answer, part)), {})} for part in ("memory", "system"))
    total = _whole(system.get("TotalVisibleMemorySize"))
    found: dict[tuple[int, int], Adapter] = {}
    for row in _rows(answer, "gpu"):
        if match := _INSTANCE.fullmatch(str(row.get("Name"))):
            luid = (int(match[1], 16), int(match[2], 16))
            used = (_whole(row.get(name)) for name in ("DedicatedUsage", "SharedUsage", "TotalCommitted"))
            found[luid] = Adapter(luid, "", None, *used)
    for row in _rows(answer, "adapters"):
        number = _whole(row.get("Luid"))
        luid = (number >> 32, number & 0xFFFFFFFF) if number is not None else (-1, -1)
        if luid in found:
            name, size = row.get("Name"), _whole(row.get("DedicatedVideoMemory"))
            found[luid] = replace(found[luid], name=name if isinstance(name, str) else "", size=size)
    held = [
        (str(row.get("Name")), max(_whole(row.get(kind)) or 0 for kind in ("WorkingSet", "Private")))
        for row in _rows(answer, "vm")
    ]
    known = {field: _whole(memory.get(name)) for field, (name, _) in _MEMORY.items()}
    return Facts(None if total is None else total * 1024, vm=_vm(held), adapters=tuple(found.values()), **known)


def from_exporter(text: str) -> Facts:
    """Read what windows_exporter (0.31 or newer) serves.

    https://github.com/prometheus-community/windows_exporter, docs/collector.gpu.md, .memory.md, .process.md
    """
    values: dict[str, int] = {}
    cards: dict[tuple[int, int], Adapter] = {}
    held: dict[tuple[str, str], int] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line) if len(line) <= _LONGEST_LINE else None
        value = _whole(match["value"]) if match else None
        if match is None or value is None:
            continue
        name, labels = match["name"], dict(_LABEL.findall(match["labels"] or ""))
        if luid := _LUID.fullmatch(labels.get("luid", "")):
            key = (int(luid[1], 16), int(luid[2], 16))
            told = {"name": labels.get("name", "")} if name == "windows_gpu_info" else {_GPU.get(name, ""): value}
            told.pop("", None)
            cards[key] = replace(cards.get(key, Adapter(key)), **told)
        elif name in ("windows_process_working_set_bytes", "windows_process_private_bytes"):
            process = (labels.get("process", ""), labels.get("process_id", ""))
            held[process] = max(value, held.get(process, 0))
        elif not labels:
            values[name] = value
    known = {field: values.get(name) for field, (_, name) in _MEMORY.items()}
    vm = _vm([(process, size) for (process, _), size in held.items()])
    return Facts(values.get("windows_memory_physical_total_bytes"), vm=vm, adapters=tuple(cards.values()), **known)


def labelled(adapters: Iterable[Adapter]) -> list[tuple[str, Adapter]]:
    """Give each adapter a name that survives a restart of Windows, as its LUID does not; the second is ``NAME #2``.

    Adapters with neither name nor use are omitted: Windows' own software renderer.
    """
    seen: dict[str, int] = {}
    found: list[tuple[str, Adapter]] = []
    for adapter in sorted(adapters, key=lambda a: a.luid):
        if not adapter.name and not adapter.dedicated and not adapter.shared:
            continue
        if len(found) == _MOST_ADAPTERS:
            break
        name = one_line(adapter.name, _NAME_CHARACTERS) or f"luid 0x{adapter.luid[0]:x}_0x{adapter.luid[1]:x}"
        seen[name] = seen.get(name, 0) + 1
        found.append((name if seen[name] == 1 else f"{name} #{seen[name]}", adapter))
    return found


def unreturned_bytes(vm: int | None, linux_used: int | None) -> int | None:
    """Return what the virtual machine holds of Windows' RAM beyond what Linux uses (its page cache included).

    None where the process does not show the memory of its guest, which is so in some versions of Windows
    (https://github.com/microsoft/WSL/issues/40705): then it shows less than half of what Linux uses.
    """
    if vm is None or linux_used is None or vm < linux_used / 2:
        return None
    return max(0, vm - linux_used)


def _vm(held: Iterable[tuple[str, int]]) -> int | None:
    """Return what WSL's machine holds; where there is a ``vmmemWSL``, a ``vmmem`` is another machine's."""
    for wanted in _VM_NAMES:
        sizes = [size for name, size in held if name.lower() == wanted and size > 0]
        if sizes:
            return max(sizes)
    return None


def _rows(answer: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    rows = answer.get(part)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _whole(value: object) -> int | None:
    """Return a number of bytes; Windows writes them as numbers, WMI's 64 bits sometimes as text."""
    try:
        number = int(float(value)) if isinstance(value, str) else value
    except (ValueError, OverflowError):
        return None
    return int(number) if isinstance(number, (int, float)) and 0 <= number < 1 << 62 else None
