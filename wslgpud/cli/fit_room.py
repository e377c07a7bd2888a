"""The VRAM available to a program on this card: given, verified, learned from a failure, or free now."""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple

from wslgpud.cli.common import Fault
from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuSample
from wslgpud.risk.headroom import gpu_room
from wslgpud.risk.risk_metrics import LEARNED
from wslgpud.sources.gpu import GpuSource
from wslgpud.sources.wsl import generation
from wslgpud.store import Reader, StoreError
from wslgpud.words import Message, say

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([MGT]?)(?:i?B)?", re.IGNORECASE)
_MIN_BYTES = 1 << 20
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


def usable(card: GpuSample | None, database: str, now: float) -> Usable | None:
    """Return the VRAM verified by the last stress run, else that seen by the daemon or free now; None: no card."""
    if card is None:
        return None
    with contextlib.suppress(StoreError), Reader(database) as reader:
        for _, run in reversed(reader.stress_runs()):
            if run.uuid == card.uuid and run.complete and "usable_bytes" in run.values:
                return Usable(int(run.values["usable_bytes"]), say("verified by the last stress run"))
        limits = [
            ref
            for ref in reader.series()
            if ref.metric == LEARNED.name and dict(ref.labels)["resource"] == f"gpu{card.index}"
        ]
        days = [day for ref in limits for day in reader.summaries(ref, now - _HISTORY_SECONDS, now, _DAY_SECONDS)]
        if days and card.used_bytes is not None:
            how = say("an allocation above this has failed here before; minus the current use")
            return Usable(max(0, round(days[-1].last) - card.used_bytes), how)
    if card.free_bytes is None:
        return None
    room = gpu_room(card, wsl=generation(Host()) == 2)
    left = room.headroom if room else card.free_bytes
    return Usable(left, say("free on {card} now; 'wslgpud stress' measures it", card=card.name))
