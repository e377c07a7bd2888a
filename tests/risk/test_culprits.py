"""Who is named for a loss of memory: by how much each grew, from when on, and by which name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from wslgpud.model import GpuProcess, GpuSample, Level, Observation, ProcessSample, RamState
from wslgpud.risk.attribution import (
    NOBODY,
    Attribution,
    Culprit,
    GpuAttribution,
    Grower,
    briefer,
    full_name,
    group_name,
    short_name,
)
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.headroom import Room
from wslgpud.risk.owners import MAX_SNAPSHOTS
from wslgpud.risk.settings import RiskSettings
from wslgpud.words import Message

MIB, GIB = 1 << 20, 1 << 30
TOTAL = 16 * GIB


def process(pid: int, held: int, command: str = "python train.py", swap: int = 0) -> ProcessSample:
    return ProcessSample(pid, 1, command.split(" ", 1)[0], held - swap, swap, command=command)


def ram(**more: int) -> RamState:
    return RamState(**{"total": TOTAL, "available": TOTAL // 2, **more})


def lost(*seen: Observation, rate: float = 100 * MIB, window: float = 10.0) -> Culprit:
    """Return who is named for a loss of so many bytes per second over a window up to the last observation."""
    attribution = Attribution()
    for one in seen:
        attribution.push(one)
    return attribution.ram_culprit(seen[-1], window, rate)


def ten_seconds(*before_and_after: tuple[int, int, str]) -> tuple[Observation, Observation]:
    """Two observations ten seconds apart: of each program what it holds in MiB, then and now."""
    first, last = (
        tuple(process(pid, held[i] * MIB, held[2]) for pid, held in enumerate(before_and_after, 1)) for i in (0, 1)
    )
    return Observation(t=0.0, processes=first), Observation(t=10.0, processes=last)


def test_a_process_is_named_only_if_it_took_half_of_the_loss() -> None:
    half = lost(*ten_seconds((100, 600, "python train.py"), (50, 50, "bash")))
    less = lost(*ten_seconds((100, 599, "python train.py"), (50, 50, "bash")))

    assert half == Culprit("python train.py (pid 1)", "process", 50 * MIB, 0.5, 1)
    assert (str(less.who), less.kind, less.pid) == ("no watched process", "unknown", None)


def test_a_share_is_never_more_than_all_that_was_lost() -> None:
    assert lost(*ten_seconds((100, 3100, "python train.py"))) == Culprit(
        "python train.py (pid 1)", "process", 300 * MIB, 1.0, 1
    )


def test_equal_programs_are_named_as_a_group_if_none_dominates() -> None:
    group = lost(*ten_seconds((100, 790, "cc1plus a.cc"), (100, 410, "cc1plus a.cc")))
    one = lost(*ten_seconds((100, 800, "cc1plus a.cc"), (100, 400, "cc1plus a.cc")))

    assert (str(group.who), group.kind, group.rate, group.share, group.pid) == (
        "2 x cc1plus a.cc",
        "group",
        100 * MIB,
        1.0,
        None,
    )
    assert one == Culprit("cc1plus a.cc (pid 1)", "process", 70 * MIB, 1.0, 1)


def test_several_culprits_are_named_together_if_none_has_half() -> None:
    several = lost(*ten_seconds((0, 400, "a"), (0, 300, "b"), (0, 100, "c"), (90, 10, "d")))

    assert (str(several.who), several.kind) == ("several: a 40 %, b 30 %", "group")
    assert (several.rate, several.share) == (80 * MIB, pytest.approx(0.8))
    assert lost(*ten_seconds((0, 400, "a"), (0, 400, "b"), (0, 400, "c"))).share == 1.0, "never more than all"
    assert lost(*ten_seconds((0, 260, "a"), (0, 240, "b"))).kind == "group"
    assert lost(*ten_seconds((0, 260, "a"), (0, 239, "b"))).kind == "unknown"


@pytest.mark.parametrize(
    ("field", "kind", "who"),
    [
        ("shmem", "tmpfs", "files in /dev/shm or tmpfs"),
        ("slab_unreclaimable", "kernel", "the kernel (slab)"),
        ("hugepages", "huge pages", "huge pages"),
    ],
)
def test_memory_without_a_process_is_named_from_half_of_the_loss(field: str, kind: str, who: str) -> None:
    def grown(mib: int) -> Culprit:
        states = (ram(**{field: 10 * MIB}), ram(**{field: (10 + mib) * MIB}))
        return lost(
            *(Observation(t=10.0 * i, ram=state, processes=(process(1, GIB),)) for i, state in enumerate(states))
        )

    assert (str(grown(500).who), grown(500).kind, grown(500).rate, grown(500).share) == (who, kind, 50 * MIB, 0.5)
    assert grown(499).kind == "unknown"
    assert grown(2000).share == 1.0


def test_a_host_that_takes_memory_back_is_named() -> None:
    states = (ram(), ram(total=TOTAL - GIB))
    culprit = lost(*(Observation(t=10.0 * i, ram=state) for i, state in enumerate(states)))

    assert (str(culprit.who), culprit.kind) == ("the host, which is taking memory back", "balloon")


def test_nobody_is_named_without_a_loss_or_an_earlier_sample() -> None:
    before, after = ten_seconds((100, 600, "python train.py"))

    assert lost(before, after, rate=0.0) is NOBODY
    assert lost(after) is NOBODY
    assert lost(Observation(t=0.0, ram=ram()), Observation(t=10.0, ram=ram())) is NOBODY


def test_growth_is_measured_over_at_least_five_seconds() -> None:
    steps = [Observation(t=2.0 * i, processes=(process(1, (100 + 100 * i**2) * MIB),)) for i in range(10)]

    def rate(window: float) -> float:
        return lost(*steps, rate=MIB, window=window).rate / MIB

    assert rate(8.0) == pytest.approx(100 * (9**2 - 5**2) / 8)
    assert rate(1.0) == rate(5.0) == rate(6.0) == pytest.approx(100 * (9**2 - 6**2) / 6)
    assert rate(100.0) == pytest.approx(100 * 9**2 / 18)
    assert lost(*steps[:4:3], rate=MIB, window=100.0).rate == pytest.approx(150 * MIB), "all that is known"


def test_swapped_out_memory_still_counts_as_held_by_a_process() -> None:
    new = replace(process(2, 600 * MIB, "node x.js"), start_ticks=2)
    first = Observation(t=0.0, processes=(process(1, 900 * MIB),))
    swapped = Observation(t=10.0, processes=(process(1, 900 * MIB, swap=400 * MIB), new))

    assert lost(first, swapped).who == "node x.js (pid 2)"


def test_three_hours_of_holdings_are_kept_newest_in_most_detail() -> None:
    attribution = Attribution()
    for t in range(4 * 3600):
        attribution.push(Observation(t=float(t), processes=(process(1, t * MIB),)))
    times = [one.t for one in attribution._snapshots]

    assert len(times) == MAX_SNAPSHOTS
    assert times[-10:] == [float(t) for t in range(4 * 3600 - 20, 4 * 3600, 2)]
    assert 2.5 * 3600 < times[-1] - times[0] <= 3 * 3600
    assert times == sorted(times)
    assert attribution.ram_culprit(Observation(t=14399.0, processes=(process(1, 14399 * MIB),)), 60.0, MIB).rate == (
        pytest.approx(MIB, rel=0.3)
    )


@pytest.mark.parametrize(
    ("linux", "rate", "expected"),
    [
        (500, 100, Culprit("Linux, including its page cache", "linux", 50 * MIB, 0.5)),
        (400, 100, Culprit("programs of Windows", "windows", 60 * MIB, 0.6)),
        (2000, 100, Culprit("Linux, including its page cache", "linux", 100 * MIB, 1.0)),
        (-100, 100, Culprit("programs of Windows", "windows", 100 * MIB, 1.0)),
        (500, 0, NOBODY),
    ],
)
def test_of_a_loss_of_windows_linux_is_named_from_half_on(linux: int, rate: int, expected: Culprit) -> None:
    attribution = Attribution()
    seen = [Observation(t=10.0 * i, ram=ram(free=(4000 - linux * i) * MIB)) for i in (0, 1)]
    for one in seen:
        attribution.push(one)
    culprit = attribution.windows_culprit(seen[-1], 10.0, rate * MIB)

    assert (str(culprit.who), culprit[1:]) == (str(expected.who), pytest.approx(expected[1:], nan_ok=True))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3 -u /home/me/train.py --lr 1", "python3 train.py"),
        ("node", "node"),
        ("", "fallback"),
        (f"python {'x' * 50}.py", f"python {'x' * 33}"),
    ],
)
def test_a_process_is_named_by_program_and_script_kept_short(command: str, name: str) -> None:
    assert short_name(ProcessSample(1, 1, "fallback", 0, 0, command=command)) == name


def test_names_become_shorter_step_by_step() -> None:
    named = [str(one) for one in briefer("python train.py (pid 7)")]
    assert named == ["python train.py (pid 7)", "python train.py", "train.py"]
    assert list(briefer(f"python {'x' * 20}"))[-1] == "x" * 20
    assert list(briefer(f"python {'x' * 21}"))[-1] == f"{'x' * 19}…"
    guessed = Culprit("python train.py (pid 7)", "process").likely.who
    assert [str(one) for one in briefer(guessed)] == [
        "probably python train.py (pid 7)",
        "probably python train.py",
        "probably train.py",
    ]
    several = lost(*ten_seconds((0, 400, "a"), (0, 300, "b"))).who
    assert [str(one) for one in briefer(several)] == ["several: a 40 %, b 30 %", "several programs"]
    assert full_name("", 7) == "pid 7"


def test_only_a_group_has_a_common_name() -> None:
    group = lost(*ten_seconds((100, 700, "cc1plus a.cc"), (100, 700, "cc1plus a.cc")))

    assert group_name(group.who) == group_name(group.likely.who) == "cc1plus a.cc"
    assert group_name("python train.py (pid 7)") == ""
    assert group_name(Message("several: {parts}", {"parts": ()})) == ""


def card(*processes: GpuProcess, self_reported: tuple[GpuProcess, ...] = ()) -> GpuSample:
    return GpuSample(0, "GPU-1", "a card", total_bytes=16 * GIB, processes=processes, self_reported=self_reported)


def on_card(*samples: GpuSample, rate: float = 100 * MIB, window: float = 5.0) -> Culprit:
    attribution = GpuAttribution()
    for t, sample in enumerate(samples):
        attribution.push(float(t), sample)
    return attribution.culprit(Observation(t=len(samples) - 1.0), samples[-1], window, rate)


def test_a_program_that_took_half_of_a_cards_loss_is_named() -> None:
    def growing(mib: int, **more: float) -> Culprit:
        return on_card(*(card(GpuProcess(7, "python", (1000 + mib * t) * MIB)) for t in range(10)), **more)

    assert growing(50) == Culprit("python (pid 7)", "process", 50 * MIB, 0.5, 7)
    assert growing(300).share == 1.0
    assert growing(49).kind == "unknown"
    assert growing(50, rate=0.0).kind == "unknown"
    ever_faster = on_card(*(card(GpuProcess(7, "python", 10 * t**2 * MIB)) for t in range(10)))
    assert ever_faster.rate == 10 * (9**2 - 4**2) / 5 * MIB


def test_a_newcomer_on_a_card_took_all_it_holds() -> None:
    empty = card()
    culprit = on_card(*[empty] * 8, card(GpuProcess(7, "python", 400 * MIB)), card(GpuProcess(7, "python", 500 * MIB)))

    assert (culprit.pid, culprit.rate) == (7, 100 * MIB)


def test_a_programs_report_counts_only_if_the_driver_is_silent() -> None:
    def growing(driver: bool) -> Culprit:
        return on_card(
            *(
                card(
                    GpuProcess(7, "python", 2 * GIB if driver else None),
                    self_reported=(GpuProcess(7, "train", GIB + 100 * t * MIB),),
                )
                for t in range(10)
            )
        )

    assert growing(driver=False) == Culprit("python (pid 7)", "process", 100 * MIB, 1.0, 7)
    assert growing(driver=True).kind == "unknown"


def test_of_a_full_card_the_largest_holder_is_named() -> None:
    attribution = GpuAttribution()
    full = card(GpuProcess(7, "python", 3 * GIB), GpuProcess(8, "node", 9 * GIB), GpuProcess(9, "Xorg", 0))

    assert attribution.holder(Observation(t=0.0), full) == Culprit("node (pid 8)", "process", pid=8)
    assert attribution.holder(Observation(t=0.0), card()) is NOBODY


def room(share: float, gpu: GpuSample | None = None) -> Room:
    return Room("ram", "ram", round(share * 1000), 1000, gpu=gpu)


def test_the_last_program_to_grow_ends_once_when_it_is_gone() -> None:
    settings, grower = RiskSettings(), Grower()
    other = (process(2, GIB, "bash"),)
    grower.note(Culprit("python (pid 1)", "process", pid=1))

    def ended(t: float, *processes: ProcessSample) -> bool:
        return grower.just_ended(room(0.5), Observation(t=t, processes=processes), settings)

    assert not ended(10.0, process(1, GIB))
    assert not ended(11.0)  # nothing is known of any process
    assert ended(12.0, *other)
    assert not ended(13.0, *other)
    assert [grower.ended(t, settings).pid for t in (-3.1, -3.0, 27.0, 27.1)] == [None, 1, 1, None]
    assert not ended(14.0, process(1, GIB))
    assert grower.ended(14.0, settings) is NOBODY


def test_an_unknown_program_that_freed_most_of_a_card_has_ended() -> None:
    settings, seen = RiskSettings(), Observation(t=1.0)

    assert Grower().just_ended(room(0.6, card()), seen, settings)
    assert not Grower().just_ended(room(0.59, card()), seen, settings)
    assert not Grower().just_ended(room(0.6, card(GpuProcess(7, "python", GIB))), seen, settings)
    assert not Grower().just_ended(room(0.6), seen, settings)


def test_a_gap_in_the_list_blames_nobody_for_all_it_holds() -> None:
    seen = [Observation(t=5.0 * i, ram=ram(), processes=listed) for i, listed in enumerate(leak_beside_a_big_one())]
    unknown = [replace(one, processes=()) if 5.0 <= one.t <= 10.0 else one for one in seen]

    assert lost(*seen, rate=20 * MIB).who == lost(*unknown, rate=20 * MIB).who == "leak.py (pid 2)"


def leak_beside_a_big_one() -> Iterator[tuple[ProcessSample, ...]]:
    for i in range(5):
        yield process(1, 5 * GIB), process(2, (100 + 100 * i) * MIB, "leak.py")


def test_returning_to_the_list_is_not_growth_by_all_one_holds() -> None:
    """Of many workers of about one size, now these and now those are among the listed ones."""
    workers = [replace(process(pid, GIB + pid * MIB), start_ticks=pid) for pid in range(1, 30)]
    listed = [tuple(workers[(7 * i + n) % len(workers)] for n in range(12)) for i in range(16)]
    seen = [Observation(t=2.0 * i, ram=ram(shmem=200 * i * MIB), processes=some) for i, some in enumerate(listed)]

    assert str(lost(*seen).who) == "files in /dev/shm or tmpfs"


def test_who_was_too_small_to_be_listed_is_named_once_grown() -> None:
    others = tuple(replace(process(pid, 100 * MIB, "bash"), start_ticks=pid) for pid in range(1, 7))
    small = replace(process(9, 2 * GIB, "leak.py"), start_ticks=3)
    before, now = Observation(t=0.0, processes=others), Observation(t=10.0, processes=(small, *others))

    assert lost(before, now, rate=200 * MIB) == Culprit("leak.py (pid 9)", "process", 194.8 * MIB, 0.974, 9)


def test_under_wsl2_nobody_ends_while_processes_are_unknown() -> None:
    grower, room = Grower(), Room("gpu0", "GPU-1", TOTAL, TOTAL, gpu=GpuSample(0, "GPU-1", "card", TOTAL, 0))
    grower.note(Culprit("train.py (pid 1)", "guess", pid=1))
    unknown = Observation(t=1.0, wsl=True)

    assert not grower.just_ended(room, unknown, RiskSettings())
    assert not grower.just_ended(room, replace(unknown, processes=(process(1, GIB),)), RiskSettings())
    assert grower.just_ended(room, replace(unknown, processes=(process(2, GIB),)), RiskSettings())


@pytest.mark.parametrize(
    ("mib_per_second", "late_from", "t", "level", "who"),
    [
        (120, 85, 98, Level.CRITICAL, "leak.py (pid 2)"),
        (20, 450, 530, Level.WARNING, "leak.py (pid 2)"),
        (20, 450, 560, Level.CRITICAL, ""),  # nobody knows who has grown since
    ],
)
def test_a_late_list_of_processes_leaves_an_alarm_its_culprit(
    mib_per_second: int, late_from: int, t: int, level: Level, who: str
) -> None:
    engine = RiskEngine(users_known=True)
    for second in range(t + 1):
        leak = replace(process(2, second * mib_per_second * MIB, "leak.py"), uid=1000)
        free = RamState(16 * GIB, 12 * GIB - leak.rss_bytes)
        listed = () if second >= late_from else (replace(process(1, 4 * GIB), uid=1000), leak)
        (forecast,) = engine.observe(Observation(float(second), free, processes=listed)).forecasts

    assert (forecast.level, forecast.who) == (level, who)
