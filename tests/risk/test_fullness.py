"""Whether a card is full: to the byte and the second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from wslgpud.model import GpuProcess, GpuSample
from wslgpud.risk.headroom import Room
from wslgpud.risk.scarcity import Full, Fullness, Spill, may_spill
from wslgpud.risk.settings import RiskSettings

MIB = 1 << 20
SIZE = 10_000 * MIB


def card(mib: float, pids: tuple[int, ...] = (), shared: float | None = None) -> GpuSample:
    processes = tuple(GpuProcess(pid, "python", None) for pid in pids)
    moved = None if shared is None else int(shared * MIB)
    return GpuSample(0, "GPU-1", "card", SIZE, int(mib * MIB), processes=processes, shared_bytes=moved)


def update(fullness: Fullness, t: float, gpu: GpuSample, *, alarmed: bool = False) -> Full | None:
    room = Room("gpu0", "GPU-1", SIZE - (gpu.used_bytes or 0), SIZE, gpu=gpu)
    return fullness.update(t, room, alarmed=alarmed)


def full(story: Mapping[float, GpuSample], fullness: Fullness | None = None) -> Full | None:
    """Return how full a card is after these samples by the second."""
    found, fullness = None, fullness or Fullness(RiskSettings())
    for t, gpu in story.items():
        found = update(fullness, t, gpu)
    return found


def seconds(story: Mapping[float, GpuSample]) -> float | None:
    found = full(story)
    return None if found is None else found.seconds


def test_memory_may_spill_from_nine_tenths_on() -> None:
    assert [may_spill(card(mib)) for mib in (9000, 8999)] == [True, False]


def test_the_use_that_windows_sees_counts_as_well() -> None:
    def seen(ratio: float | None, used: int | None = 0, total: int | None = 100) -> bool:
        return may_spill(GpuSample(0, "GPU-1", "card", total, used, windows_ratio=ratio))

    assert [seen(0.9), seen(0.89), seen(None)] == [True, False, False]
    assert [seen(0.9, None), seen(0.1, None), seen(None, 95, None), seen(None, 95, 0)] == [True, False, False, False]


def test_shared_memory_counts_from_where_the_card_became_full() -> None:
    spill = Spill()
    steps = [(0, 50, False), (1, 80, True), (2, 90, True), (3, 70, True), (4, 40, True), (5, 60, True)]

    assert [spill.update(t, shared, full=full) for t, shared, full in steps] == [0, 30, 40, 20, 0, 20]


def test_spilled_memory_survives_only_a_dip_of_up_to_a_minute() -> None:
    def moved(dip: float, shared: float = 90.0) -> list[float]:
        spill = Spill()
        story = [(0.0, 50.0, False), (1.0, 80.0, True), (1.0 + dip, shared, False), (2.0 + dip, shared, True)]
        return [spill.update(t, shared, full=full) for t, shared, full in story]

    assert moved(60.0) == [0, 30, 30, 30]
    assert moved(60.1) == [0, 30, 0, 0]
    twice = Spill(full_t=0.0, before=50.0, grown=30.0)
    assert [twice.update(t, 90.0, full=False) for t in (1.0, 2.0)] == [30, 30]
    assert moved(60.0, 40.0) == [0, 30, 0, 0]


def test_a_card_is_full_after_10_seconds_below_3_percent_free() -> None:
    slow = {float(t): card(5000 + 4 * t) for t in range(0, 1160, 10)}

    def after(mib: float, until: float) -> float | None:
        return seconds(slow | {1200.0: card(mib), until: card(mib)})

    assert [after(9701, 1210.0), after(9701, 1209.0), after(9700, 1210.0)] == [10.0, None, None]
    assert seconds(slow | {1200.0: card(9701), 1205.0: card(9401), 1210.0: card(9401)}) == 10.0
    assert seconds(slow | {1200.0: card(9701), 1205.0: card(9400), 1206.0: card(9701), 1210.0: card(9701)}) is None


def test_without_a_card_nothing_is_full() -> None:
    assert Fullness(RiskSettings()).update(0.0, Room("ram", "ram", 0, 100)) is None


SLOWLY = {float(t): card(5000 + 10 * t) for t in range(391)}


@pytest.mark.parametrize(
    ("story", "share"),
    [
        ({0.0: card(500), 1.0: card(9800)}, True),  # JAX
        ({0.0: card(500), 2.0: card(9800)}, True),
        ({0.0: card(500), 5.0: card(6100), 305.0: card(6100), 306.0: card(9800)}, True),  # a jump
        ({float(t): card(500 + 200 * t) for t in range(47)}, True),  # 2 % a second
        ({float(t): card(500 + 199 * t) for t in range(48)}, False),
        # six tenths of the way at once, the rest slowly
        ({0.0: card(500), 1.0: card(6100)} | {float(t): card(6100 + 37 * (t - 1)) for t in range(2, 101)}, True),
        ({0.0: card(500), 1.0: card(5900)} | {float(t): card(5900 + 37 * (t - 1)) for t in range(2, 105)}, False),
        ({0.0: card(9800), 1.0: card(9800)}, False),  # found full
        ({10.0 * i: card(500 + 465 * i) for i in range(21)}, True),  # 4 % between two samples
        ({10.0 * i: card(500 + 390 * i) for i in range(25)}, False),
        (SLOWLY | {391.0: card(9170), 392.0: card(9440), 393.0: card(9710)}, True),  # 8 % in three seconds
        (SLOWLY | {391.0: card(9101), 392.0: card(9303), 393.0: card(9505), 394.0: card(9707)}, False),
    ],
)
def test_a_server_that_takes_its_share_fast_is_not_full(story: dict[float, GpuSample], *, share: bool) -> None:
    last = max(story)
    after = {last + t: card((story[last].used_bytes or 0) / MIB) for t in (1.0, 30.0, 100.0)}

    assert (full(story | after) is None) is share


@pytest.mark.parametrize(
    ("pids", "appeared", "share"),
    [((7,), 0.0, True), ((7,), 299.0, True), ((7,), 301.0, False), ((), 0.0, True), ((0,), 0.0, True)],
)
def test_its_program_has_appeared_within_five_minutes(pids: tuple[int, ...], appeared: float, *, share: bool) -> None:
    """A program that was there for longer has taken more, not its share."""
    story = {float(t): card(500, pids) for t in range(int(appeared) + 1)}
    began = appeared + 1.0
    story |= {began + t: card(9800, pids) for t in (0.0, 30.0)}

    assert (full(story) is None) is share


def test_a_servers_share_may_grow_a_little_only_at_first() -> None:
    def grown(at: float, mib: float) -> float | None:
        start = {0.0: card(500), 1.0: card(9710), 1.0 + at: card(mib), 31.0 + at: card(mib)}
        return seconds(start)

    assert [grown(60.0, 9900), grown(61.0, 9900), grown(61.0, 9830), grown(61.0, 9831)] == [None, 30.0, None, 30.0]


def test_a_share_ends_on_failed_allocation_or_half_given_back() -> None:
    taken = {0.0: card(500), 1.0: card(9800)}
    later = {400.0: card(9800), 420.0: card(9800)}

    def judged(*, between: float | None = None, failed: bool = False) -> float | None:
        fullness = Fullness(RiskSettings())
        full(taken, fullness)
        if failed:
            fullness.failed()
        found = full(({2.0: card(between)} if between else {}) | later, fullness)
        return None if found is None else found.seconds

    assert judged() is None
    assert judged(failed=True) is not None
    assert judged(between=4901) is None

    slowly = {100.0 + t: card(4900 + 5 * t) for t in range(0, 981, 10)} | {1110.0: card(9800)}
    assert seconds(taken | {2.0: card(4901)} | slowly) is None
    assert seconds(taken | {2.0: card(4899)} | slowly) is not None


def test_a_share_survives_a_capacity_change_and_a_restart() -> None:
    first, second, third = (Fullness(RiskSettings()) for _ in range(3))
    full({0.0: card(500), 1.0: card(9800)}, first)
    first.rebase(0.5)
    assert first.document() == {"reserved_ratio": 0.49}
    second.recall(first.document())
    assert second.document() == first.document()

    full({0.0: card(5000, shared=50), 1.0: card(9500, shared=450)}, third)
    assert third.document() == {"shared_before_bytes": 50 * MIB}
    assert Fullness(RiskSettings()).document() == {}


def spilled(
    mib: Mapping[float, float], *, alarmed: bool = False, used: float = 9800
) -> list[tuple[float, float, bool]]:
    """Return (second, MiB moved, critical) of what is reported of a card that is full from second 0 on."""
    fullness, found = Fullness(RiskSettings()), []
    update(fullness, -1.0, card(5000, shared=100))
    for t, moved in mib.items():
        seen = update(fullness, t, card(used, shared=100 + moved), alarmed=alarmed)
        if seen is not None and seen.spilled_bytes:
            found.append((t, seen.spilled_bytes / MIB, seen.critical))
    return found


def test_a_spill_counts_from_256_mib_after_ten_seconds() -> None:
    assert spilled({0.0: 256, 9.0: 256, 10.0: 256}) == [(10.0, 256, False)]
    assert spilled({0.0: 255, 20.0: 255, 40.0: 255}) == []
    assert spilled({0.0: 256, 1.0: 256}, alarmed=True) == [(0.0, 256, False), (1.0, 256, False)]
    assert spilled({0.0: 256, 1.0: 256}, alarmed=True, used=9600) == [], "not at the ceiling"


def test_what_was_moved_out_is_the_spill_pinned_memory_is_not() -> None:
    def story(demoted: float, seconds: int = 40) -> dict[float, GpuSample]:
        pinned = card(9_500, shared=7_000)
        return {float(t): replace(pinned, demoted_bytes=int(demoted * MIB)) for t in range(seconds)}

    moved = full(story(1_000))
    assert moved is not None
    assert moved.spilled_bytes == 1_000 * MIB
    kept = full(story(0) | {float(t): replace(card(9_500, shared=9_000), demoted_bytes=0) for t in range(40, 90)})
    assert kept is None or not kept.spilled_bytes


def test_a_spill_is_over_after_a_minute_below_half_its_threshold() -> None:
    began = {0.0: 256.0, 20.0: 256.0}
    assert [t for t, *_ in spilled(began | {21.0: 128.0, 100.0: 128.0})] == [20, 21, 100]
    assert [t for t, *_ in spilled(began | {21.0: 127.0, 80.0: 127.0, 81.0: 127.0, 90.0: 127.0})] == [20, 21, 80]


def test_a_card_whose_spilled_memory_returned_is_still_full() -> None:
    fullness = Fullness(RiskSettings())
    taken = {0.0: card(500, shared=100), 1.0: card(9800, shared=100)}
    moved = full(taken | {2.0: card(9800, shared=400), 22.0: card(9800, shared=400)}, fullness)
    back = full({t: card(9800, shared=100) for t in (23.0, 83.0, 84.0, 110.0)}, fullness)

    assert moved is not None
    assert back is not None
    assert (moved.spilled_bytes, back.spilled_bytes) == (300 * MIB, 0)


def test_two_gib_for_a_minute_are_critical() -> None:
    assert [critical for *_, critical in spilled({0.0: 2048, 59.0: 2048, 60.0: 2048})] == [False, True]
    assert [critical for *_, critical in spilled({0.0: 2047, 60.0: 2047})] == [False]


def test_flat_time_is_counted_from_the_last_rise_in_use() -> None:
    slow = {float(t): card(5000 + 4 * t) for t in range(0, 1180, 10)}
    story = slow | {1200.0: card(9750), 1210.0: card(9750), 1230.0: card(9790)}

    found = full(story)
    assert found is not None
    assert (found.seconds, found.flat_seconds) == (30.0, 30.0)
    risen = full(story | {1240.0: card(9791), 1245.0: card(9791)})
    assert risen is not None
    assert (risen.seconds, risen.flat_seconds) == (45.0, 5.0)
