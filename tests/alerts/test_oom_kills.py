"""Whom a kill took that nobody named, for the limit of which group, and how many are told of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.alerts.ticks import START, oom_kill, tick
from wslgpud.alerts.measures import KillCount, MeasureContext, Signal, UnnamedKill
from wslgpud.alerts.oom_kills import MIN_BYTES, oom_kills, risen, victim
from wslgpud.alerts.rules import RuleEngine
from wslgpud.model import Health, Level, ProcessSample, Reading, Snapshot
from wslgpud.sources import cgroups, memory

GIB = 1 << 30
GROUPS = ("/a", "/a/b", "/c", "")
processes = st.lists(
    st.builds(
        ProcessSample,
        st.integers(1, 12),
        st.integers(1, 2),
        st.just("python3"),
        st.integers(0, 8 << 30),
        st.integers(0, 1 << 30),
        cgroup=st.sampled_from(GROUPS),
    ),
    max_size=12,
    unique_by=lambda process: process.key,
)
counts = st.dictionaries(st.sampled_from(["/a", "/a/b", "/a/b/c", "/d"]), st.integers(0, 5))


@given(processes, st.data(), st.sampled_from(GROUPS))
def test_a_victim_is_the_largest_that_is_gone_from_the_group(
    before: list[ProcessSample], data: st.DataObject, group: str
) -> None:
    now = data.draw(st.lists(st.sampled_from(before), unique_by=lambda p: p.key) if before else st.just([]))
    found = victim(UnnamedKill(0, 0, tuple(before)), now, group)

    gone = [p for p in before if p not in now and p.held_bytes >= MIN_BYTES]
    fits = [p for p in gone if not group or not p.cgroup or p.within(group)]
    assert (found is None) == (not fits)
    assert found is None or (found in fits and found.held_bytes == max(p.held_bytes for p in fits))


@given(processes, st.data())
def test_of_those_gone_the_known_grower_is_the_victim(before: list[ProcessSample], data: st.DataObject) -> None:
    gone = [p for p in before if p.held_bytes >= MIN_BYTES]
    if gone:
        grower = data.draw(st.sampled_from(gone))
        kill = UnnamedKill(0, 0, tuple(before), growing=grower.pid)
        found = victim(kill, [])
        assert found is not None
        assert found.pid == grower.pid
        assert victim(kill, before) is None, "it lives"


@given(counts, counts)
def test_a_kill_is_reported_of_the_innermost_limited_group_only(before: dict[str, int], grown: dict[str, int]) -> None:
    then = {f"cgroup:{path}": KillCount(kills, 7) for path, kills in before.items()}
    now = {f"cgroup:{path}": KillCount(kills + grown.get(path, 0), 8) for path, kills in before.items()}
    found = {name.removeprefix("cgroup:") for name in risen(then, now)}

    more = {path for path, kills in grown.items() if kills and path in before}
    assert found <= more
    assert all(any(inner.startswith(path) for inner in found) for path in more)
    assert not any(path != other and other.startswith(f"{path}/") for path in found for other in found)
    assert risen(then, {name: seen._replace(limit_hits=7) for name, seen in now.items()}) == set()


def looked(*snapshots: Snapshot) -> list[list[Signal]]:
    """Return the kills that are told of at each tick."""
    context, told = MeasureContext(), []
    for snapshot in snapshots:
        context.advance(snapshot)
        told.append(list(oom_kills(context)))
    return told


def counts_at(t: float, machine: int | None, group: int | None = None, log: Health = "absent") -> Snapshot:
    """Return the kernel's counts of kills, of the machine and of one group whose hits of its limit nobody counts."""
    readings = [] if machine is None else [Reading(memory.OOM_KILLS, machine)]
    readings += [] if group is None else [Reading(cgroups.OOM_KILLS, group, ("/a",))]
    return tick(t, *readings, kernel_log=log)


def told_of(*snapshots: Snapshot) -> list[list[str]]:
    """Return the resources whose kills are told of at each tick."""
    return [[signal.resource for signal in told] for told in looked(*snapshots)]


def test_counted_kills_are_told_of_the_machine_or_of_a_group() -> None:
    facts = {"killed_wall": START + 5}

    assert looked(counts_at(1, 3), counts_at(5, 5)) == [[], [Signal("ram", 1.0, facts)]]
    assert looked(counts_at(1, 3, 1), counts_at(5, 5, 3)) == [[], [Signal("cgroup:/a", 1.0, facts)]]
    assert looked(counts_at(1, None, 1), counts_at(5, None, 2)) == [[], [Signal("cgroup:/a", 1.0, facts)]]
    assert looked(counts_at(1, 3), counts_at(5, None), counts_at(7, 3)) == [[], [], []]


def test_a_kill_of_a_group_is_told_once_whichever_counts_first() -> None:
    first, last = counts_at(1, 3, 1), [counts_at(t, 4, 2) for t in (3, 4)]

    assert told_of(first, counts_at(2, 4, 1), *last) == [[], [], ["cgroup:/a"], []]
    assert told_of(first, counts_at(2, 3, 2), *last) == [[], ["cgroup:/a"], [], []]


def test_a_kill_that_no_group_claims_is_the_machines() -> None:
    assert told_of(counts_at(1, 3, 1), *(counts_at(t, 4, 1) for t in (2, 3, 4))) == [[], [], ["ram"], []]


def test_a_kill_while_the_groups_counters_are_unread_is_told() -> None:
    unread, last = counts_at(2, 3), [counts_at(t, 4, 2) for t in (3, 4)]

    assert told_of(counts_at(1, 3, 1), unread, *last) == [[], [], ["cgroup:/a"], []]
    assert told_of(counts_at(1, 3, 1), counts_at(2, 4), *last) == [[], [], ["cgroup:/a"], []]


def test_a_kill_while_the_machines_counter_is_unread_is_told() -> None:
    after = [counts_at(t, 4, 1) for t in (3, 4, 5)]

    assert told_of(counts_at(1, 3, 1), counts_at(2, None, 1), *after) == [[], [], [], ["ram"], []]


def test_kills_from_before_the_logs_silence_are_not_repeated() -> None:
    silent = [counts_at(t, 3, 1) for t in (2, 3, 4)]

    assert looked(counts_at(1, 3, 1, log="ok"), *silent) == [[], [], [], []]
    assert looked(counts_at(1, None, 1, log="ok"), *silent) == [[], [], [], []]
    assert [len(told) for told in looked(counts_at(1, 2, 1, log="ok"), *silent)] == [0, 0, 1, 0]


def test_a_process_of_less_than_64_mib_was_no_victim() -> None:
    def of(size: int) -> ProcessSample | None:
        return victim(UnnamedKill(0, 0, (ProcessSample(7, 1, "sh", size, 0),)), [])

    assert of((64 << 20) - 1) is None
    assert of(64 << 20) is not None


def test_of_a_flood_of_kills_twenty_in_ten_minutes_are_reported() -> None:
    engine = RuleEngine()

    def told(t: float, user: int) -> bool:
        kill = oom_kill(pid=int(t) + 1, cgroup=f"/user.slice/user-{user}.slice/job-{int(t)}")
        return any(c.new == Level.CRITICAL for c in engine.observe(tick(t, events=(kill,))))

    assert [told(t, 1001) for t in range(25)] == [True] * 20 + [False] * 5
    assert told(30, 1002), "another user's"
    assert not told(31, 1001)
    assert [told(t, 1001) for t in (599, 600, 600.5, 601, 601.5)] == [False, True, False, True, False]
