"""Headroom of each resource, and the real end of a card, to the byte and the second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wslgpud.model import CgroupState, GpuProcess, GpuSample, Observation, RamState, SwapState
from wslgpud.risk.headroom import (
    BalloonedMemory,
    Ceilings,
    Room,
    cgroup_room,
    gpu_room,
    gpu_used,
    ram_room,
    rooms,
    windows_room,
)
from wslgpud.risk.settings import RiskSettings

GIB, MIB = 1 << 30, 1 << 20


def card(used: int | None = None, total: int | None = 1000, free: int | None = None, reserved: int = 0) -> GpuSample:
    return GpuSample(0, "GPU-1", "card", total, used, reserved_bytes=reserved, free_bytes=free)


def sizes(room: Room | None) -> tuple[int, int] | None:
    return None if room is None else (room.headroom, room.capacity)


def test_the_share_of_headroom_lies_between_none_and_all() -> None:
    assert [Room("ram", "ram", headroom, 100).share for headroom in (-5, 0, 40, 100, 120)] == [0.0, 0.0, 0.4, 1.0, 1.0]


@pytest.mark.parametrize(
    ("gpu", "wsl", "learned", "found"),
    [
        (card(700, reserved=50), False, None, (250, 950)),
        (card(700, reserved=50), False, 900, (200, 900)),
        (card(700, reserved=50), False, 960, (250, 950)),
        (card(700, free=200), False, None, (200, 1000)),
        (card(700, free=400), False, None, (300, 1000)),
        (card(free=400), False, None, (400, 1000)),
        (card(1100), False, None, (0, 1000)),
        # what Windows keeps: half a GiB, or 4 % of a large card, or of one that is too small for that
        (card(0, 8 * GIB), True, None, (8 * GIB - 512 * MIB,) * 2),
        (card(0, 100 * GIB), True, None, (96 * GIB,) * 2),
        (card(0, 2 * GIB), True, None, (2 * GIB - 2 * GIB // 25,) * 2),
        (card(0, 2 * GIB + 1), True, None, (2 * GIB + 1 - 512 * MIB,) * 2),
        (card(0, 8 * GIB), True, 7 * GIB, (7 * GIB,) * 2),
        # as measured there: a budget that ends sooner than the card takes the place of that, what was learned of both
        (replace(card(4 * GIB, 8 * GIB), ceiling_bytes=7 * GIB), True, None, (3 * GIB, 7 * GIB)),
        (replace(card(4 * GIB, 8 * GIB), ceiling_bytes=7 * GIB), True, 6 * GIB, (2 * GIB, 6 * GIB)),
        (card(0, 1), False, None, (1, 1)),
        (card(5, None), False, None, None),
        (card(5, 0), False, None, None),
        (card(5, -1), False, None, None),
        (card(), False, None, None),
    ],
)
def test_a_cards_headroom_ends_at_its_ceiling_or_at_what_is_free(
    gpu: GpuSample, wsl: bool, learned: int | None, found: tuple[int, int] | None
) -> None:
    assert sizes(gpu_room(gpu, wsl=wsl, learned_ceiling=learned)) == found


def test_card_use_is_what_nvml_reports_or_all_that_is_not_free() -> None:
    assert [gpu_used(one) for one in (card(7, free=900), card(free=900), card(), card(total=None, free=900))] == [
        *[7, 100],
        *[None, None],
    ]


@pytest.mark.parametrize(
    ("ram", "swap", "found"),
    [
        (RamState(100, 40), SwapState(50, 20), (60, 150, True)),
        # what zram may still free is room, but never more than there is
        (RamState(100, 40, compressible=7), SwapState(0, 0), (47, 100, False)),
        (RamState(100, 98, compressible=7), None, (100, 100, False)),
        (RamState(100, 40, compressible=7), SwapState(50, 20), (67, 150, True)),
    ],
)
def test_ram_headroom_is_what_is_available_and_swap(
    ram: RamState, swap: SwapState | None, found: tuple[int, int, bool]
) -> None:
    room = ram_room(Observation(0.0, ram, swap))
    assert room is not None
    assert (room.headroom, room.capacity, room.swap) == found


@pytest.mark.parametrize(
    ("more", "swap_free", "found"),
    [
        ({}, None, (10, 100, False)),
        ({"inactive_file": 20, "active_file": 10, "slab_reclaimable": 5}, None, (45, 100, False)),
        ({"inactive_file": 95}, None, (100, 100, False)),
        ({"swap_limit": 20, "swap_current": 5}, None, (25, 120, True)),
        ({"swap_limit": 20, "swap_current": 5}, 7, (17, 120, True)),
        ({"swap_limit": 20}, 70, (30, 120, True)),
        ({"swap_limit": 20, "swap_current": 25}, None, (10, 120, True)),
        ({"swap_limit": 0}, 50, (10, 100, False)),
    ],
)
def test_group_headroom_is_its_limit_less_unreclaimable_memory(
    more: dict[str, int], swap_free: int | None, found: tuple[int, int, bool]
) -> None:
    room = cgroup_room(CgroupState("/a", 100, 90, **more), swap_free)

    assert room is not None
    assert (room.headroom, room.capacity, room.swap) == found


def test_a_group_without_a_limit_is_not_a_resource() -> None:
    assert cgroup_room(CgroupState("/a", 0, 90), None) is None
    assert sizes(cgroup_room(CgroupState("/a", 100, 101), None)) == (0, 100)
    assert sizes(cgroup_room(CgroupState("/a", 1, 0), None)) == (1, 1)


def test_ram_includes_swap_and_what_a_host_took_back() -> None:
    ram, swap = RamState(100, 40), SwapState(50, 20)
    plain, roomy = ram_room(Observation(t=0, ram=ram)), ram_room(Observation(t=0, ram=ram, swap=swap), 130)

    assert plain == Room("ram", "ram", 40, 100)
    assert roomy == Room("ram", "ram", 60, 180, swap=True, swap_free=20)
    assert ram_room(Observation(t=0, ram=ram, swap=SwapState(0, 0))) == plain
    assert ram_room(Observation(t=0, ram=RamState(0, 0))) is None
    assert ram_room(Observation(t=0)) is None
    assert sizes(ram_room(Observation(t=0, ram=RamState(1, -5)))) == (0, 1)
    assert windows_room(Observation(t=0, windows=RamState(100, -5))) == Room("windows", "windows", 0, 100, swap=True)


def test_every_resource_with_a_size_is_judged_and_no_other() -> None:
    groups = (CgroupState("/a", 100, 90, swap_limit=50), CgroupState("/b", 0, 5))
    cards = (
        card(700),
        GpuSample(1, "", "card", 1000, 300),
        GpuSample(2, "", "card", 10, 0, reserved_bytes=10),
        GpuSample(3, "", "card", 1, 0),
    )
    seen = Observation(t=0, ram=RamState(100, 40), swap=SwapState(50, 20), gpus=cards, cgroups=groups)
    seen_wsl = Observation(t=0, ram=RamState(100, 40), windows=RamState(0, 0))

    assert [(r.resource, r.headroom, r.capacity) for r in rooms(seen, {"GPU-1": 900, "gpu1": 800})] == [
        ("ram", 60, 150),
        ("gpu0", 200, 900),
        ("gpu1", 500, 800),
        ("gpu3", 1, 1),
        ("cgroup:/a", 30, 150),
    ]
    assert [(r.resource, r.capacity) for r in rooms(seen_wsl, {}, 120)] == [("ram", 120)]


def test_ram_taken_back_by_the_host_counts_for_ten_minutes() -> None:
    taken = BalloonedMemory()

    def total(t: float, size: int) -> int:
        return taken.total(Observation(t=t, ram=RamState(size, 1)))

    assert taken.total(Observation(t=0.0)) == 0
    assert [total(0.0, 8), total(1.0, 7), total(300.0, 6), total(900.0, 6), total(900.1, 6)] == [8, 8, 8, 8, 6]


def watched(
    story: dict[float, int], programs: dict[float, tuple[int, ...]], *, usual: bool = False, known: int | None = None
) -> tuple[int | None, str]:
    """Return the ceiling learned from a card's use by the second, of 1000 bytes, and the program blamed."""
    ceilings, blamed = Ceilings(RiskSettings()), ""
    running: tuple[GpuProcess, ...] = ()
    if known is not None:
        ceilings.failed("GPU-1", known, 1000)
    for t, used in story.items():
        running = tuple(GpuProcess(pid, f"p{pid}", None) for pid in programs[t]) if t in programs else running
        gpu = GpuSample(0, "GPU-1", "card", 1000, used, processes=running)
        failure = ceilings.update(t, gpu, 1000, usual=usual)
        blamed += "" if failure is None else f"{failure.resource} {failure.uuid} {failure.used_bytes} {failure.program}"
    return ceilings.bytes_by_key.get("GPU-1"), blamed


FILLED = {0.0: 500, 20.0: 950, 21.0: 750}
ENDED = {0.0: (7,), 21.0: ()}


@pytest.mark.parametrize(
    ("story", "programs", "learned"),
    [
        (FILLED, ENDED, 950),
        (FILLED | {20.0: 949}, ENDED, None),  # not quite full
        (FILLED | {21.0: 751}, ENDED, None),  # hardly a fall
        (FILLED | {0.0: 938}, ENDED, 950),
        (FILLED | {0.0: 939}, ENDED, None),  # as full before: a server that is stopped
        ({0.0: 500, 20.0: 950, 30.0: 700}, {0.0: (7,), 30.0: ()}, 950),
        ({0.0: 500, 20.0: 950, 30.1: 700}, {0.0: (7,), 30.1: ()}, None),  # long after
        ({0.0: 500, 20.0: 950, 21.0: 945, 30.1: 700}, {0.0: (7,), 30.1: ()}, None),
        ({0.0: 500, 10.0: 940, 20.0: 950, 20.5: 700}, {0.0: (7, 8), 10.0: (8,)}, None),  # nor is it the one that stays
        ({0.0: 500, 10.5: 940, 20.0: 950, 20.5: 700}, {0.0: (7, 8), 10.5: (8,)}, 950),
        (FILLED, {0.0: (), 21.0: ()}, 950),  # the driver shows none
        (FILLED, {0.0: (0,), 21.0: ()}, 950),
        (FILLED, {0.0: (7,)}, None),
        ({0.0: 500, 61.0: 939, 62.0: 950, 63.0: 700}, {0.0: (7,), 63.0: ()}, None),
        ({0.0: 500, 59.0: 939, 60.0: 950, 60.5: 700}, {0.0: (7,), 60.5: ()}, None),
        ({1.0: 500, 59.0: 939, 60.0: 950, 60.5: 700}, {1.0: (7,), 60.5: ()}, 950),
    ],
)
def test_a_ceiling_is_learned_where_a_full_card_loses_a_program(
    story: dict[float, int], programs: dict[float, tuple[int, ...]], learned: int | None
) -> None:
    assert watched(story, programs)[0] == learned


def test_a_failure_tells_card_use_and_program() -> None:
    assert watched(FILLED, ENDED) == (950, "gpu0 GPU-1 950 p7")
    assert watched(FILLED, {}) == (950, "gpu0 GPU-1 950 ")
    assert watched(FILLED, ENDED, usual=True) == (950, "gpu0 GPU-1 950 p7")
    assert watched(FILLED, {}, usual=True) == (None, "")
    assert watched(FILLED, {}, known=960) == (960, "")
    assert watched(FILLED, ENDED, known=960) == (960, "gpu0 GPU-1 950 p7")
    assert watched({0.0: 961}, {}, known=960) == (None, ""), "it went beyond that"
    assert watched(FILLED | {21.5: 700}, ENDED) == (950, "gpu0 GPU-1 950 p7"), "told once"


def test_only_a_failed_allocation_near_the_end_shows_the_ceiling() -> None:
    ceilings = Ceilings(RiskSettings())
    ceilings.failed("a", 900, 1000)
    ceilings.failed("b", 899, 1000)

    assert ceilings.bytes_by_key == {"a": 900}
    assert (ceilings.certainty("a"), ceilings.certainty("b")) == ("seen", "")


def test_of_many_samples_a_second_the_most_is_remembered() -> None:
    often = {t / 10: 500 for t in range(200)} | {20.0: 800, 20.1: 950, 20.2: 760, 20.3: 740}

    assert watched(often, {0.0: (7,), 20.3: ()}) == (950, "gpu0 GPU-1 950 p7")


def test_of_ten_samples_a_second_a_whole_minute_is_remembered() -> None:
    rising = {t / 10: 500 if t < 30 else 945 for t in range(600)} | {60.0: 950, 60.1: 945, 60.2: 700}

    assert watched(rising, {0.0: (7,), 60.2: ()})[0] == 950, "it was emptier at first"


def test_a_ceiling_survives_a_restart() -> None:
    first, second = Ceilings(RiskSettings()), Ceilings(RiskSettings())
    first.failed("a", 950, 1000)
    second.recall("a", first.document("a"))

    assert first.document("b") == {}
    assert (second.bytes_by_key, second.certainty("a")) == ({"a": 950}, "seen")
