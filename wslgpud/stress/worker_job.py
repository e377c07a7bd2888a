"""The worker's job for a given card. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Literal, get_args

from wslgpud.config import Stress
from wslgpud.model import GpuSample

MIB, GIB = 1 << 20, 1 << 30
Mode = Literal["quick", "nightly", "full"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: Increase it when the worker measures differently: older runs are not comparable then.
ENGINE = "1"
#: shares of a 16 GB card: 2, 5, 8, 10, 12 and 14 GB, from users' own notes
LADDER = (1 / 8, 5 / 16, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
_NIGHTLY = ("solid", "checkerboard", "walking", "address", "random", "move", "modulo", "retention")
PASSES: Mapping[Mode, tuple[str, ...]] = {
    "quick": ("solid", "address"),
    "nightly": _NIGHTLY,
    "full": (*_NIGHTLY, "random", "walking", "random", "address", "move", "random"),
}
#: how often a chunk is timed, number of the modulo pattern's twenty offsets, how long memory is left idle
EFFORT: Mapping[Mode, Mapping[str, float]] = {
    "quick": {"repeats": 2, "offsets": 0, "retention_seconds": 0.0},
    "nightly": {"repeats": 3, "offsets": 2, "retention_seconds": 2.0},
    "full": {"repeats": 3, "offsets": 20, "retention_seconds": 15.0},
}
#: A kernel on a chunk must be long relative to its launch, and on a chunk behind PCIe short relative to the 2 s after
#: which Windows resets the driver.
CHUNK_BYTES, LARGE_CARD_BYTES, LARGE_CHUNK_BYTES = 256 * MIB, 64 * GIB, GIB
#: nominal sizes of cards, in GiB
SOLD = (1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 192, 256, 288)


def sold_bytes(total_bytes: int) -> int:
    """Return a card's nominal size: the next one up from the memory that its driver manages.

    The difference goes to ECC and the driver: 23,034 MiB are left of an L4's 24 GB, 16,303 of a 5070 Ti's 16.
    """
    return next((size * GIB for size in SOLD if size * GIB >= total_bytes), total_bytes)


def reserve_bytes(total_bytes: int, setting: int, *, wsl: bool) -> int:
    """Return the bytes that must stay free.

    Under WSL2 allocations fail, and the desktop is paged out, before a card is full: with 2 GB left of 16 on one
    machine (microsoft/WSL#41176). On native Linux only the driver's own small needs must fit.
    """
    if setting:
        return setting
    return max(512 * MIB, total_bytes // 16) if wsl else 64 * MIB


def ladder(total_bytes: int) -> list[int]:
    """Return the sizes to try as single tensors, in whole MiB, from the card's nominal size."""
    return [int(sold_bytes(total_bytes) * share) // MIB * MIB for share in LADDER]


def job(sample: GpuSample, settings: Stress, mode: Mode, *, wsl: bool) -> dict[str, Any]:
    total = sample.total_bytes or 0
    return {
        "device": "cuda:0",
        "reserve": reserve_bytes(total, settings.reserve_bytes, wsl=wsl),
        "chunk": LARGE_CHUNK_BYTES if total >= LARGE_CARD_BYTES else CHUNK_BYTES,
        "ladder": ladder(total),
        "passes": PASSES[mode],
        **EFFORT[mode],
        "soak_seconds": settings.soak_seconds if mode == "full" else 0.0,
        "beyond": 2 if settings.probe_beyond else 0,
        "seed": random.getrandbits(60),
    }
