"""Whose VRAM it is under WSL2: which of Windows' figures (``probes/dxg.py``) are believed. Pure.

A wrong figure would accuse, or pause, an innocent program, so a card's are used only where they agree with NVML's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

#: All processes together may hold this share of a card more than NVML says is used: the two are asked one after the
#: other, while programs allocate.
TOLERANCE_RATIO = 0.02
#: The VRAM of one card by Windows and by NVML: Windows leaves out 1 to 2 %.
SAME_SIZE_RATIO = 0.1
#: A budget that leaves less of a card is a share among programs, not its end.
MIN_CEILING_RATIO = 0.5


class MeasuredVram(NamedTuple):
    """What the programs of this distribution hold of one card, in bytes.

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
    """Return, by UUID, what is believed of Windows' figures; ``process_of`` as in :func:`believed`."""
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
    """Return what is believed of an adapter's answer, None where that is nothing.

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
