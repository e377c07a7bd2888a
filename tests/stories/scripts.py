"""The stories that are played: each is a machine by the second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.stories.machine import GIB, MIB, Group, Script, Second, oom_lines, program
from wslgpud.model import GpuProcess
from wslgpud.words import say

TRAIN = "python3 train.py"
PID = 8932


class Moment(NamedTuple):
    """A second of a story at which the surfaces are checked, and the expected level."""

    second: int
    level: str


@dataclass(frozen=True)
class Tale:
    """A machine by the second, and its moments in their order."""

    script: Script
    moments: Mapping[str, Moment]

    @property
    def end(self) -> int:
        """The last second."""
        return max(moment.second for moment in self.moments.values())


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
                calm,
                ram_available=44 * GIB - used,
                groups={"/train": group},
                programs=(program(PID, TRAIN, used, "/train"),),
            )
        lines = oom_lines(PID, "python3", limit, "/train") if t == killed and kernel_log else ()
        return replace(calm, groups={"/train": Group(limit, 3 * MIB, 1)}, kernel=lines)

    moments = {
        "calm": Moment(15, "ok"),
        "growing": Moment(90, "info"),
        "warning": Moment(120, "warning"),
        "critical": Moment(140, "critical"),
        "emergency": Moment(killed - 2, "emergency"),
        "killed": Moment(killed, "ok"),
        "after it": Moment(killed + 23, "ok"),
    }
    return Tale(script, moments)


def burst() -> Tale:
    """It takes all of its group within two seconds, and is killed."""
    limit, killed = 3 * GIB, 30

    def script(t: int) -> Second:
        calm = Second(ram_available=44 * GIB)
        if t >= killed:
            lines = oom_lines(PID, "python3", limit, "/train") if t == killed else ()
            return replace(calm, groups={"/train": Group(limit, 3 * MIB, 1)}, kernel=lines)
        used = limit - 100 * MIB if t == killed - 1 else 256 * MIB
        train = program(PID, TRAIN, used, "/train")
        return replace(calm, groups={"/train": Group(limit, used)}, programs=(train,))

    return Tale(script, {"after it": Moment(killed + 10, "ok")})


def three_kills() -> Tale:
    """Three groups, and in each a build that ends at the group's limit, ten seconds apart."""
    limit = 2 * GIB
    rates = {"/build-a": (101, 40), "/build-b": (102, 36), "/build-c": (103, 32)}

    def of(t: int, pid: int, rate: int) -> tuple[int, int]:
        """Return the usage, and the second in which it ends."""
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
        return Second(ram_available=44 * GIB - taken, groups=groups, programs=tuple(programs), kernel=tuple(lines))

    moments = {
        "calm": Moment(25, "ok"),
        "growing": Moment(48, "info"),
        "warning": Moment(52, "warning"),
        "critical": Moment(63, "critical"),
        "one killed": Moment(65, "critical"),
        "two killed": Moment(73, "critical"),
        "all killed": Moment(76, "ok"),
        "after it": Moment(140, "ok"),
    }
    return Tale(script, moments)


def leak_that_stops() -> Tale:
    """It grows by 20 MiB/s in a group of 3 GiB, and stops by itself at 2.6 GiB."""
    limit, top = 3 * GIB, int(2.6 * GIB)

    def script(t: int) -> Second:
        used = min(top, 512 * MIB + max(0, t - 20) * 20 * MIB)
        return Second(
            ram_available=44 * GIB - used,
            groups={"/train": Group(limit, used)},
            programs=(program(PID, TRAIN, used, "/train"),),
        )

    moments = {
        "growing": Moment(90, "info"),
        "warning": Moment(115, "warning"),
        "stopped": Moment(165, "warning"),
        "over": Moment(250, "ok"),
        "long after": Moment(400, "ok"),
    }
    return Tale(script, moments)


def full_card_with_spill() -> Tale:
    """A card fills by 200 MiB/s; then 3 GiB of it move into Windows RAM, and it stays full."""
    ceiling = 16 * GIB - 150 * MIB

    def script(t: int) -> Second:
        wanted = 2 * GIB + max(0, t - 20) * 200 * MIB
        used, over = min(ceiling, wanted), min(3 * GIB, max(0, wanted - ceiling))
        return Second(
            card_used=used,
            shared=256 * MIB + over,
            on_card=(GpuProcess(PID, "python3", None),),
            programs=(program(PID, TRAIN, 2 * GIB),),
        )

    moments = {
        "calm": Moment(25, "ok"),
        "growing": Moment(60, "info"),
        "warning": Moment(75, "warning"),
        "critical": Moment(87, "critical"),
        "emergency": Moment(91, "emergency"),
        "spilling": Moment(100, "warning"),
        "full": Moment(140, "warning"),
        "full for long": Moment(200, "critical"),
    }
    return Tale(script, moments)


def lost_card() -> Tale:
    """A card that is at work leaves the bus."""

    def script(t: int) -> Second:
        return Second(
            card_used=9 * GIB,
            on_card=(GpuProcess(PID, "python3", 8 * GIB),),
            card_lost=t >= 40,
            programs=(program(PID, TRAIN, 2 * GIB),),
        )

    moments = {"calm": Moment(30, "ok"), "lost": Moment(46, "critical"), "after it": Moment(65, "critical")}
    return Tale(script, moments)


def stale_source() -> Tale:
    """The driver stops answering."""

    def script(t: int) -> Second:
        why = say("{probe} did not answer within {limit_seconds} and was killed", probe="NVML", limit_seconds=9)
        silent = {"gpu": why} if t >= 30 else {}
        return Second(card_used=4 * GIB, silent=silent)

    moments = {
        "calm": Moment(20, "ok"),
        "late": Moment(30, "info"),
        "later": Moment(32, "warning"),
        "silent": Moment(100, "warning"),
        "gone": Moment(230, "critical"),
    }
    return Tale(script, moments)


STORIES: dict[str, Callable[[], Tale]] = {
    "a leak, a warning, a kill": leak_and_kill,
    "three kills in three groups": three_kills,
    "a leak that stops": leak_that_stops,
    "a full card that spills": full_card_with_spill,
    "a card lost": lost_card,
    "a silent source": stale_source,
    "a kill without the kernel's log": lambda: leak_and_kill(kernel_log=False),
}
