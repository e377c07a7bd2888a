"""What the last minutes suggest, with the figures it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from wslgpud.cli.live.looks import Look
from wslgpud.cli.live.trail import Key, Trail
from wslgpud.units import size

WINDOW_SECONDS = 30.0
#: a card below this while somebody trains is waiting for something
_IDLE_GPU = 0.8
#: one thread at full speed, and not much beside it
_ONE_CORE = (0.85, 1.6)
_FULL_VRAM = 0.85
_FLAT = 0.01
_THRASH_BYTES_PER_SECOND = 4 << 20
_NEARLY_FULL = 0.05


class Hint(NamedTuple):
    """A suggestion, or with ``act`` False a reassurance; ``evidence`` is what was seen."""

    text: str
    evidence: str
    act: bool = True


def hints(look: Look, trail: Trail) -> list[Hint]:
    """Return what is worth saying, the most useful first."""
    return [
        *_thrashing(trail),
        *_volumes(look),
        *_windows_drive(look),
        *_waiting_gpus(look, trail),
        *_full_but_flat(look, trail),
    ]


def _waiting_gpus(look: Look, trail: Trail) -> Iterator[Hint]:
    """Find a training whose card waits, and say for what if that can be told."""
    if not any("training" in p["roles"] for p in look.document["processes"]):
        return
    # Its worker has torch loaded and a card half busy, and is nobody's training.
    if any(work["kind"] == "stress" for work in look.document.get("running", ())):
        return
    cpu, cpus = trail.mean(Key("cpu"), WINDOW_SECONDS), look.value("cpus")
    for card in look.document["gpus"]:
        busy = trail.mean(Key("busy", str(card["index"])), WINDOW_SECONDS)
        # one that is not used at all is not waiting: nothing has been given to it
        if busy is None or not 0.03 < busy < _IDLE_GPU:
            continue
        seen = f"GPU {card['index']} {busy:.0%} busy"
        disk = trail.mean(Key("waiting", "io"), WINDOW_SECONDS)
        if disk is not None and disk > 0.3:
            yield Hint("the disk holds the training up: keep the dataset on ext4 or in RAM",
                       f"{seen}, somebody waits for the disk {disk:.0%} of the time")  # fmt: skip
        elif cpu is not None and cpus and _ONE_CORE[0] <= cpu * cpus <= _ONE_CORE[1] and cpus > 2:
            yield Hint("one thread feeds the GPU: raise the data loader's num_workers",
                       f"{seen}, {cpu * cpus:.1f} of {cpus:.0f} cores")  # fmt: skip
        elif cpu is not None and cpu > 0.9:
            yield Hint("the processor holds the GPU up: move augmentation to the GPU, or cache it",
                       f"{seen}, CPU {cpu:.0%}")  # fmt: skip


def _windows_drive(look: Look) -> Iterator[Hint]:
    if look.on_windows is not None:
        who, path = look.on_windows
        yield Hint("the dataset lies on a drive of Windows: many times slower; copy it to ~/data",
                   f"{who} has {path} open")  # fmt: skip


def _full_but_flat(look: Look, trail: Trail) -> Iterator[Hint]:
    for forecast in look.document["forecasts"]:
        resource = forecast["resource"]
        points = trail.points(Key("used", resource))
        recent = [v for mono, v in points if mono >= look.mono - 2 * WINDOW_SECONDS]
        if not resource.startswith("gpu") or not recent or points[0][0] > look.mono - WINDOW_SECONDS:
            continue
        if min(recent) >= _FULL_VRAM and max(recent) - min(recent) <= _FLAT and forecast["level"] == "ok":
            yield Hint("full and flat is fine: the program has taken what it needs",
                       f"GPU {resource[3:]} VRAM {recent[-1]:.0%}", act=False)  # fmt: skip


def _thrashing(trail: Trail) -> Iterator[Hint]:
    back = trail.mean(Key("swap in"), WINDOW_SECONDS)
    memory = trail.mean(Key("waiting", "memory"), WINDOW_SECONDS)
    if back is not None and back > _THRASH_BYTES_PER_SECOND:
        waits = f", waits for memory {memory:.0%} of the time" if memory is not None else ""
        yield Hint("RAM is too small for what runs: stop something, or lower the workers",
                   f"{size(back)}/s come back from swap{waits}")  # fmt: skip


def _volumes(look: Look) -> Iterator[Hint]:
    sizes = {labels["mountpoint"]: value for labels, value in look.series("filesystem_size_bytes")}
    for labels, left in look.series("filesystem_avail_bytes"):
        place = labels["mountpoint"]
        if sizes.get(place) and left / sizes[place] < _NEARLY_FULL:
            why = ": when Windows' volume is full, WSL's disk turns read-only" if "/mnt/" in place else ""
            yield Hint(f"make room on {place}{why}", f"{size(left)} left of {size(sizes[place])}")
