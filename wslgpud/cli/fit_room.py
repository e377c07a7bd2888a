"""The VRAM available to a program on this card: given, verified, seen in daily use, or free now."""

from __future__ import annotations

import contextlib
import re
import time
from typing import NamedTuple

from wslgpud.cli.common import Fault
from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuSample
from wslgpud.risk.headroom import gpu_room
from wslgpud.risk.risk_metrics import LEARNED
from wslgpud.sources.gpu import GpuSource
from wslgpud.sources.wsl import generation
from wslgpud.store import Bucket, Reader, StoreError
from wslgpud.words import Message, say

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([MGT]?)(?:i?B)?", re.IGNORECASE)
_MIN_BYTES = 1 << 20
_USED = "gpu_memory_used_bytes"
_DAY_SECONDS, _HISTORY_SECONDS = 86400.0, 90 * 86400.0


class Usable(NamedTuple):
    """The VRAM available to a program, and how it is known."""

    bytes: int
    how: Message


def given(text: str) -> Usable:
    """Return the size given by ``--usable``."""
    match = _SIZE.fullmatch(text)
    size = int(float(match[1]) * {"": 1, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[match[2].upper()]) if match else 0
    if size < _MIN_BYTES:
        raise Fault("--usable {text}: write it like 14.5GiB", text=text)
    return Usable(size, say("as given"))


def card_of(settings: Config, index: int) -> GpuSample | None:
    """Return the card of this number, None if no driver answers."""
    with contextlib.closing(GpuSource(Host(), settings)) as source, contextlib.suppress(NoData, SourceError):
        for card in source.read().gpus or ():
            if card.index == index:
                return card
        raise Fault("there is no GPU {gpu}", gpu=index)
    return None


def usable(card: GpuSample | None, database: str) -> Usable | None:
    """Return the usable VRAM: by the last stress run, by history, else the free memory."""
    if card is None:
        return None
    known = from_history(database, card, time.time())
    if known is not None or card.free_bytes is None:
        return known
    room = gpu_room(card, wsl=generation(Host()) == 2)
    left = room.headroom if room else card.free_bytes
    return Usable(left, say("free on {card} now; 'wslgpud stress' measures it", card=card.name))


def from_history(database: str, card: GpuSample, now: float) -> Usable | None:
    """Return the VRAM verified by stress runs, else that seen by the daemon, minus the current use."""
    with contextlib.suppress(StoreError), Reader(database) as reader:
        for _, run in reversed(reader.stress_runs()):
            if run.uuid == card.uuid and run.complete and "usable_bytes" in run.values:
                return Usable(int(run.values["usable_bytes"]), say("verified by the last stress run"))

        def days(metric: str, label: str, value: str) -> list[Bucket]:
            found = (ref for ref in reader.series() if ref.metric == metric and dict(ref.labels).get(label) == value)
            return [b for ref in found for b in reader.summaries(ref, now - _HISTORY_SECONDS, now, _DAY_SECONDS)]

        most, how = max((day.high for day in days(_USED, "uuid", card.uuid)), default=0.0), None
        room = gpu_room(card, wsl=generation(Host()) == 2)
        if limits := days(LEARNED.name, "resource", f"gpu{card.index}"):
            most, how = limits[-1].last, say("an allocation above this has failed here before; minus the current use")
        elif room is not None and most > room.capacity:
            how = say("the highest use seen here, minus the current use")
        if how and card.used_bytes is not None:
            return Usable(max(0, round(most) - card.used_bytes), how)
    return None
