"""The programs on a card: those that the driver lists, and those of which Windows says how much they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wslgpud.host import Host
from wslgpud.model import GpuProcess
from wslgpud.security.redaction import named
from wslgpud.sources import parse_uint
from wslgpud.sources.driver_names import DriverNames
from wslgpud.sources.process_turns import parse_stat
from wslgpud.sources.vram_by_process import MeasuredVram

PROCESS_LISTS = ("compute_processes", "graphics_processes")


class GpuPrograms:
    """Recognises processes without reading anything that they could keep us waiting for."""

    def __init__(self, host: Host, names: DriverNames) -> None:
        self._host, self._names = host, names

    def on_card(self, values: Mapping[str, Any], measured: MeasuredVram | None) -> tuple[GpuProcess, ...]:
        """Return the processes on a GPU, biggest first, each once.

        The pid of a process in another namespace (``/Xwayland`` of WSLg, another distribution) may belong to an
        unrelated process here (XuehaiPan/nvitop#49), so it becomes 0, and no innocent process is blamed.
        """
        most = values.get("gpu_memory_total_bytes") or 2**63
        merged: dict[int, GpuProcess] = {}
        for kind in PROCESS_LISTS:
            for pid, used in values.get(kind) or ():
                # WDDM does not report memory per process: the value is a sentinel, sometimes garbage.
                used_bytes = used if used is not None and used <= most else None
                known = merged.get(pid)
                if known is None or (known.used_bytes or 0) < (used_bytes or 0):
                    ours, name = self._who(pid)
                    merged[pid] = GpuProcess(pid if ours else 0, named(name), used_bytes)
        of_windows = measured.used_bytes if measured else {}
        listed = [one for one in merged.values() if one.pid not in of_windows]
        known_names = {one.pid: one.name for one in merged.values()}
        listed += [
            GpuProcess(pid, known_names.get(pid) or named(self._program(pid)), used) for pid, used in of_windows.items()
        ]
        return tuple(sorted(listed, key=lambda process: -(process.used_bytes or 0)))

    def process_of(self, number: int) -> int | None:
        """Return the process of a PID or thread ID in our namespace, None where there is none."""
        lines = self._host.read_optional(f"/proc/{number}/status").splitlines()
        return next((parse_uint(line.partition(":")[2].strip()) for line in lines if line.startswith("Tgid:")), None)

    def _who(self, pid: int) -> tuple[bool, str]:
        """Return whether ``pid`` in our namespace is the process that the driver means, and its best name."""
        comm, program = self._host.read_optional(f"/proc/{pid}/comm").strip(), self._program(pid)
        if not self._host.exists("/dev/dxg"):
            return bool(comm), program
        row = parse_stat(self._host.read_optional(f"/proc/{pid}/stat"))
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
