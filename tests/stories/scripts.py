"""The stories that are played: each is a machine by the second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.stories.machine import GIB, MIB, Group, Script, Second, oom_lines, program
from wslgpud.model import GpuProcess

TRAIN = "python3 train.py"
PID = 8932


@dataclass(frozen=True)
class Tale:
    """A machine by the second, for how long, and the second after which its trouble is over (or None)."""

    script: Script
    seconds: int
    ends: int | None = None


def leak_and_kill(kernel_log: bool = True) -> Tale:
    """A leak of 20 MiB/s in a group of 3 GiB; at its limit the kernel kills it."""
    start, rate, limit = 512 * MIB, 20 * MIB, 3 * GIB
    killed = 20 + (limit - start) // rate

    def script(t: int) -> Second:
        used = start + max(0, t - 20) * rate
        calm = Second(ram_available=44 * GIB, kernel_log=kernel_log)
        if t < killed:
            group = Group(limit, used)
            return replace(
                calm, ram_available=44 * GIB - used, groups={"/train": group},
                programs=(program(PID, TRAIN, used, "/train"),),
            )  # fmt: skip
        lines = oom_lines(PID, "python3", limit, "/train") if t == killed and kernel_log else ()
        return replace(calm, groups={"/train": Group(limit, 3 * MIB, 1)}, kernel=lines)

    return Tale(script, killed + 30, killed)


def three_kills() -> Tale:
    """Three groups, and in each a build that ends at the group's limit, ten seconds apart."""
    limit = 2 * GIB
    rates = {"/build-a": (101, 40), "/build-b": (102, 36), "/build-c": (103, 32)}

    def of(t: int, pid: int, rate: int) -> tuple[int, int]:
        """Return what is used, and in which second it ends."""
        ends = 20 + (limit - 256 * MIB) // (rate * MIB)
        return 256 * MIB + max(0, t - 20) * rate * MIB, ends

    def script(t: int) -> Second:
        groups, programs, lines = {}, [], []
        for path, (pid, rate) in rates.items():
            used, ends = of(t, pid, rate)
            if t < ends:
                groups[path] = Group(limit, used)
                programs.append(program(pid, f"cc1plus kernel{pid}.cpp", used, path))
            else:
                groups[path] = Group(limit, 2 * MIB, 1)
                lines += oom_lines(pid, "cc1plus", limit, path) if t == ends else ()
        taken = sum(p.rss_bytes for p in programs)
        return Second(
            ram_available=44 * GIB - taken, groups=groups, programs=tuple(programs), kernel=tuple(lines)
        )

    return Tale(script, 20 + (limit - 256 * MIB) // (32 * MIB) + 30, None)


def leak_that_stops() -> Tale:
    """It grows by 20 MiB/s in a group of 3 GiB, and stops by itself at 2.6 GiB."""
    limit, top = 3 * GIB, int(2.6 * GIB)

    def script(t: int) -> Second:
        used = min(top, 512 * MIB + max(0, t - 20) * 20 * MIB)
        return Second(
            ram_available=44 * GIB - used, groups={"/train": Group(limit, used)},
            programs=(program(PID, TRAIN, used, "/train"),),
        )  # fmt: skip

    return Tale(script, 420)


def full_card_with_spill() -> Tale:
    """A card fills by 200 MiB/s; then 3 GiB of it move into Windows' RAM, and it stays full."""
    ceiling = 16 * GIB - 150 * MIB

    def script(t: int) -> Second:
        wanted = 2 * GIB + max(0, t - 20) * 200 * MIB
        used, over = min(ceiling, wanted), min(3 * GIB, max(0, wanted - ceiling))
        return Second(
            card_used=used, shared=256 * MIB + over, on_card=(GpuProcess(PID, "python3", None),),
            programs=(program(PID, TRAIN, 2 * GIB),),
        )  # fmt: skip

    return Tale(script, 200)


def lost_card() -> Tale:
    """A card that is at work leaves the bus."""

    def script(t: int) -> Second:
        return Second(
            card_used=9 * GIB, on_card=(GpuProcess(PID, "python3", 8 * GIB),), card_lost=t >= 40,
            programs=(program(PID, TRAIN, 2 * GIB),),
        )  # fmt: skip

    return Tale(script, 70)


def stale_source() -> Tale:
    """The driver stops answering."""

    def script(t: int) -> Second:
        silent = {"gpu": "no answer from NVML for 9.0 s"} if t >= 30 else {}
        return Second(card_used=4 * GIB, silent=silent)

    return Tale(script, 260)


STORIES: dict[str, Callable[[], Tale]] = {
    "a leak, a warning, a kill": leak_and_kill,
    "three kills in three groups": three_kills,
    "a leak that stops": leak_that_stops,
    "a full card that spills": full_card_with_spill,
    "a card lost": lost_card,
    "a silent source": stale_source,
    "a kill without the kernel's log": lambda: leak_and_kill(kernel_log=False),
}
