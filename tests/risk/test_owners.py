"""Whose memory it is, and whose peaks make a growth doubtful."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from wslgpud.model import GpuProcess, GpuSample, Observation, ProcessSample, RamState
from wslgpud.risk.headroom import Room
from wslgpud.risk.owners import MAX_OWNERS, MAX_PROGRAMS, Holders, OwnedPeaks, Owner

ANNA, BERT = 1000, 1001
CARD = GpuSample(0, "GPU-0", "card", 100, 60)


def process(
    uid: int | None, size: int = 10, command: str = "", roles: Collection[str] = (), pid: int = 0
) -> ProcessSample:
    return ProcessSample(pid or size, 1, "name", size, 0, uid, frozenset(roles), command, "/a/b")


def held(room: Room, *processes: ProcessSample, wsl: bool = False, gpu: GpuSample = CARD) -> dict[Owner, int] | None:
    holders = Holders(known=True)
    holders.push(Observation(0.0, RamState(100, 40), gpus=(gpu,), processes=processes, wsl=wsl))
    found = holders.of(room)
    return None if found is None else dict(found)


RAM = Room("ram", "ram", 40, 100)
VRAM = Room("gpu0", "GPU-0", 40, 100, gpu=CARD)


def test_ram_is_counted_per_program_and_per_user() -> None:
    listed = [process(ANNA, 1, "python3 a.py"), process(ANNA, 2, "python3 a.py"), process(ANNA, 4), process(None, 8)]

    assert held(RAM, *listed) == {Owner(ANNA, "python3 a.py"): 3, Owner(ANNA, "name"): 4, Owner(ANNA, ""): 7}


@pytest.mark.parametrize(("group", "known"), [("/a", True), ("/a/b", True), ("/a/b/c", False), ("/ab", False)])
def test_a_groups_memory_is_that_of_processes_in_it(group: str, *, known: bool) -> None:
    room = Room(f"cgroup:{group}", f"cgroup:{group}", 40, 100)

    assert bool(held(room, process(ANNA))) is known


def test_vram_of_unlisted_programs_belongs_to_nobody() -> None:
    programs = (GpuProcess(7, "python3", 30), GpuProcess(8, "python3", 20), GpuProcess(0, "elsewhere", 5))
    card = GpuSample(0, "GPU-0", "card", 100, 60, processes=programs)

    assert held(Room("gpu0", "GPU-0", 40, 100, gpu=card), process(ANNA, pid=7), gpu=card) == {
        Owner(ANNA, "name"): 30,
        Owner(ANNA, ""): 30,
    }


def test_under_wsl_measured_vram_belongs_to_whoever_holds_it() -> None:
    card = GpuSample(0, "GPU-0", "card", 100, 60, processes=(GpuProcess(7, "python3", 30), GpuProcess(0, "", None)))
    room = Room("gpu0", "GPU-0", 40, 100, gpu=card)

    assert held(room, process(ANNA, pid=7), process(BERT), wsl=True, gpu=card) == {
        Owner(ANNA, "name"): 30,
        Owner(ANNA, ""): 30,
    }


@pytest.mark.parametrize(
    ("others", "whose"),
    [
        ([], ANNA),
        ([process(0, roles=["gpu"])], ANNA),  # root's containers
        ([process(33)], ANNA),  # a service that is not on the card
        ([process(65534)], ANNA),
        ([process(33, roles=["gpu"])], None),
        ([process(BERT)], None),  # who may hold what is not seen
        ([process(None, roles=["gpu"])], None),
    ],
)
@pytest.mark.parametrize("room", [VRAM, Room("windows", "windows", 40, 100)], ids=["card", "windows"])
def test_under_wsl_card_and_windows_ram_belong_to_the_only_user(
    room: Room, others: list[ProcessSample], whose: int | None
) -> None:
    found = held(room, process(ANNA, roles=["gpu"]), *others, wsl=True)

    assert found == (None if whose is None else {Owner(whose, ""): 60})


def test_users_are_not_told_apart_until_a_process_names_one() -> None:
    holders = Holders(known=False)
    holders.push(Observation(0.0, processes=(process(None),)))
    assert (holders.known, holders.of(RAM)) == (False, None)
    holders.push(Observation(1.0, processes=(process(ANNA),)))
    holders.push(Observation(2.0, processes=(process(None),)))

    assert (holders.known, holders.of(RAM)) == (True, {})


def test_one_user_has_so_many_programs_and_all_so_many_owners() -> None:
    peaks, t = OwnedPeaks(0.04, 1e9), 0.0
    for number in range(20):
        for uid in (ANNA, *([2000 + number * 10 + i for i in range(5)])):
            for share in (0.5, 0.0):
                peaks.push(t := t + 2.0, share, {Owner(uid, f"program {number}"): share} if share else {})
    kept = peaks.document(t)

    assert sum(uid == ANNA for uid, _, _ in kept) == MAX_PROGRAMS
    assert len(kept) == MAX_OWNERS


def test_growth_is_blamed_on_the_main_program_or_else_its_user() -> None:
    def grower(*parts: tuple[int, str, float]) -> Owner | None:
        peaks = OwnedPeaks(0.04, 1e9)
        shares = {Owner(uid, program): share for uid, program, share in parts}
        for owner, share in [*shares.items()]:
            whole = Owner(owner.uid, "")
            shares[whole] = shares.get(whole, 0.0) + share
        peaks.push(0.0, 0.1, {})
        peaks.push(2.0, 0.5, shares)
        return peaks.grower(0.0)

    assert grower((ANNA, "a", 0.31), (BERT, "b", 0.09)) == (ANNA, "a")
    assert grower((ANNA, "a", 0.2), (ANNA, "c", 0.15)) == (ANNA, "")
    assert grower((ANNA, "a", 0.29), (BERT, "b", 0.11)) is None
    assert grower() is None
