"""The programs on a card: those that the driver lists, and those of which Windows says how much they hold.

Under WSL2 the driver lists processes of all distributions and of WSL's own, each with a pid of its own namespace
(XuehaiPan/nvitop#49), and knows their names from Windows. Windows' figures (``probes/dxg.py``) are used only where they
agree with NVML's: a wrong one would accuse, or pause, an innocent program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from wslgpud.host import Host
from wslgpud.model import GpuProcess
from wslgpud.probes.supervisor import ProbeDown, Supervisor
from wslgpud.security.redaction import named
from wslgpud.sources.procfs import process_stat, status_number

PROCESS_LISTS = ("compute_processes", "graphics_processes")
#: All processes together may hold this share of a card more than NVML says is used: the two are asked one after the
#: other, while programs allocate.
TOLERANCE_RATIO = 0.02
#: The VRAM of one card by Windows and by NVML: Windows leaves out 1 to 2 %.
SAME_SIZE_RATIO = 0.1
#: A budget that leaves less of a card is a share among programs, not its end.
MIN_CEILING_RATIO = 0.5
#: pid and start, as one pid may be several processes one after another
Key = tuple[int, int | None]


class MeasuredVram(NamedTuple):
    """The use of one card by the programs of this distribution, in bytes.

    ``demoted_bytes`` were moved out of it. ``ceiling_bytes`` is the use of the whole card at which the largest program
    has its budget; None where that is no less than the card.
    """

    used_bytes: Mapping[int, int]
    demoted_bytes: int
    ceiling_bytes: int | None


class NvmlCard(NamedTuple):
    """A card by NVML; the PCI address as in ``00000000:01:00.0``."""

    total_bytes: int
    used_bytes: int
    pci: str


def measured(
    adapters: Sequence[Mapping[str, Any]], cards: Mapping[str, NvmlCard], process_of: Callable[[int], int | None]
) -> dict[str, MeasuredVram]:
    """Return, by UUID, the credible figures of Windows; ``process_of`` as in :func:`believed`."""
    pairs = ((uuid, believed(one, process_of, cards[uuid])) for uuid, one in matched(adapters, cards).items())
    return {uuid: found for uuid, found in pairs if found is not None}


def matched(adapters: Sequence[Mapping[str, Any]], cards: Mapping[str, NvmlCard]) -> dict[str, Mapping[str, Any]]:
    """Return the adapter of each card, by UUID; none where two could be meant."""

    def alike(adapter: Mapping[str, Any], card: NvmlCard) -> bool:
        return bool(abs(adapter["vram_bytes"] - card.total_bytes) <= SAME_SIZE_RATIO * card.total_bytes)

    found = {}
    for uuid, card in cards.items():
        fitting = [adapter for adapter in adapters if alike(adapter, card)]
        here = [adapter for adapter in fitting if adapter["pci"] and adapter["pci"].upper() == card.pci.upper()]
        if len(here) == 1:
            found[uuid] = here[0]
        elif len(fitting) == 1 and sum(alike(fitting[0], other) for other in cards.values()) == 1:
            found[uuid] = fitting[0]
    return found


def believed(
    adapter: Mapping[str, Any], process_of: Callable[[int], int | None], card: NvmlCard
) -> MeasuredVram | None:
    """Return the credible part of an adapter's answer, None where there is none.

    ``process_of`` returns the process of a PID or thread ID in our namespace: dxgkrnl keeps that of the thread which
    first opened it. A driver that cannot tell processes apart answers for the caller whomever it is asked about; zeros
    alone are no answer.
    """
    rows = [(pid, figures) for pid, *figures in adapter["processes"] if any(figures)]
    if rows and all(figures == adapter["own"] for _, figures in rows):
        return None
    held: dict[int, list[int]] = {}
    for pid, figures in rows:
        process = process_of(pid)
        if process is not None:
            held[process] = max(figures, held.get(process, figures), key=lambda one: one[2])
    whole = sum(usage for _, _, usage, _ in held.values())
    if (adapter["processes"] and not held) or whole > card.used_bytes + TOLERANCE_RATIO * card.total_bytes:
        return None
    budget, _, most, _ = max(held.values(), key=lambda one: one[2], default=[0, 0, 0, 0])
    ceiling = card.used_bytes - most + budget
    limits = 0 < most <= budget and MIN_CEILING_RATIO * card.total_bytes <= ceiling < card.total_bytes
    return MeasuredVram(
        {process: usage for process, (_, _, usage, _) in held.items()},
        sum(demoted for *_, demoted in held.values()),
        ceiling if limits else None,
    )


class DriverNames:
    """Asks for each process once, in the background; ``patient`` (a recorded machine): at once.

    Natively NVIDIA's library takes names from ``/proc/<pid>/cmdline`` (580.159.04), whose readers any process can make
    wait for ever, and nobody has seen what it does under WSL2. So they are asked for in another child than figures,
    which is ended afterwards.
    """

    def __init__(self, make: Callable[[], Supervisor], *, patient: bool) -> None:
        self._make, self._patient = make, patient
        self._names: dict[Key, str | None] = {}
        self._wanted: set[Key] = set()
        self._asking: threading.Thread | None = None
        self._probe: Supervisor | None = None

    def of(self, key: Key) -> str | None:
        """Return the driver's name of a process, empty where it has none, None while that is not known."""
        if key not in self._names:
            self._wanted.add(key)
        if self._wanted and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, name="driver-names", daemon=True)
            self._asking.start()
            if self._patient:
                self._asking.join()
        return self._names.get(key)

    def forget_others(self, pids: Collection[int]) -> None:
        """Forget the processes without these pids: another distribution may use theirs again, unknown to us."""
        self._names = {key: name for key, name in self._names.copy().items() if key[0] in pids}

    def close(self) -> None:
        """End the child, if one runs."""
        if self._probe is not None:
            self._probe.close()

    def _ask(self) -> None:
        probe = self._probe = self._probe or self._make()
        for key in tuple(self._wanted):
            ended = probe.hangs_total + probe.crashes_total
            try:
                self._names[key] = str(probe.ask({"name_of": key[0]}).get("name") or "")
            except ProbeDown:
                if probe.hangs_total + probe.crashes_total == ended:
                    return  # it is not due to start again: the next tick tries
                self._names[key] = None  # not asked for again: it would cost the others theirs
            self._wanted.discard(key)
        probe.renew()


class GpuPrograms:
    """Recognises processes without reading anything that they could keep us waiting for."""

    def __init__(self, host: Host, names: DriverNames) -> None:
        self._host, self._names = host, names
        #: pids by card
        self._listed: dict[str, Collection[int]] = {}

    def on_card(self, uuid: str, values: Mapping[str, Any], measured: MeasuredVram | None) -> tuple[GpuProcess, ...]:
        """Return the processes on a GPU, biggest first, each once.

        The pid of a process in another namespace (``/Xwayland`` of WSLg, another distribution) may belong to an
        unrelated process here (XuehaiPan/nvitop#49), so it becomes 0, and no innocent process is blamed.
        """
        most = values.get("gpu_memory_total_bytes") or 2**63
        sizes: dict[int, int | None] = {}
        for kind in PROCESS_LISTS:
            for pid, used in values.get(kind) or ():
                # WDDM does not report memory per process: the value is a sentinel, sometimes garbage.
                known = used if used is not None and used <= most else None
                sizes[pid] = max(sizes.get(pid), known, key=lambda size: -1 if size is None else size)
        self._listed[uuid] = sizes.keys()
        self._names.forget_others({pid for pids in self._listed.values() for pid in pids})
        who = {pid: self._who(pid) for pid in sizes}
        of_windows = measured.used_bytes if measured else {}
        listed = [
            GpuProcess(pid if ours else 0, named(name), sizes[pid])
            for pid, (ours, name) in who.items()
            if not ours or pid not in of_windows
        ]
        for pid, used in of_windows.items():
            ours, name = who.get(pid, (False, ""))
            listed.append(GpuProcess(pid, named((ours and name) or self._program(pid)), used))
        return tuple(sorted(listed, key=lambda process: -(process.used_bytes or 0)))

    def process_of(self, number: int) -> int | None:
        """Return the process of a PID or thread ID in our namespace, None where there is none."""
        return status_number(self._host.read_optional(f"/proc/{number}/status"), "Tgid")

    def _who(self, pid: int) -> tuple[bool, str]:
        """Return whether ``pid`` in our namespace is the process that the driver means, and its best name."""
        comm, program = self._host.read_optional(f"/proc/{pid}/comm").strip(), self._program(pid)
        if not self._host.exists("/dev/dxg"):
            return bool(comm), program
        row = process_stat(self._host, pid)
        path = self._names.of((pid, row.start_ticks if row else None))
        name = (path or "").rpartition("/")[2]
        if path == "":  # a driver that tells no names
            return bool(comm), program
        return bool(name) and (comm == name[:15] or program == name), name

    def _program(self, pid: int) -> str:
        """Return a process's program, its comm where the link is hidden."""
        # PyTorch names its main thread pt_main_thread, and a script's comm is the script's name.
        program = (self._host.link(f"/proc/{pid}/exe") or "").removesuffix(" (deleted)").rpartition("/")[2]
        return program or self._host.read_optional(f"/proc/{pid}/comm").strip()
