"""Whom a kill took that nobody named, and for the limit of which group, as properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wslgpud.alerts.measures import GroupCount, KillCounters, UnnamedKill
from wslgpud.alerts.oom_kills import LEAST_BYTES, kills_by_group, victim
from wslgpud.model import ProcessSample

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


@given(processes, st.data(), st.sampled_from(GROUPS), st.none() | st.integers(0, 9 << 30))
def test_a_victim_was_there_is_gone_took_its_memory_along_and_was_in_the_group(
    before: list[ProcessSample], data: st.DataObject, group: str, freed: int | None
) -> None:
    now = data.draw(st.lists(st.sampled_from(before), unique_by=lambda p: p.key) if before else st.just([]))
    found = victim(UnnamedKill(0, 0, 1, tuple(before)), now, group, freed)

    fits = [
        p
        for p in before
        if p not in now
        and p.held_bytes >= LEAST_BYTES
        and (not group or not p.cgroup or p.within(group))
        and (freed is None or 2 * freed >= p.held_bytes)
    ]
    assert (found is None) == (not fits)
    assert found is None or (found in fits and found.held_bytes == max(p.held_bytes for p in fits))


@given(processes, st.data())
def test_of_those_that_are_gone_the_one_that_was_known_to_grow_is_the_victim(
    before: list[ProcessSample], data: st.DataObject
) -> None:
    gone = [p for p in before if p.held_bytes >= LEAST_BYTES]
    if gone:
        grower = data.draw(st.sampled_from(gone))
        kill = UnnamedKill(0, 0, 1, tuple(before), growing=grower.pid)
        found = victim(kill, [])
        assert found is not None
        assert found.pid == grower.pid
        assert victim(kill, before) is None, "it lives"


@given(counts, counts)
def test_kills_are_told_of_the_innermost_group_that_ran_into_its_limit_and_of_no_other(
    before: dict[str, int], grown: dict[str, int]
) -> None:
    then = {path: GroupCount(kills, 7) for path, kills in before.items()}
    now = {path: GroupCount(kills + grown.get(path, 0), 8) for path, kills in before.items()}
    found = kills_by_group(then, now)

    more = {path: kills for path, kills in grown.items() if kills and path in before}
    assert found.items() <= more.items()
    assert all(any(inner.startswith(path) for inner in found) for path in more)
    assert not any(path != other and other.startswith(f"{path}/") for path in found for other in found)
    assert kills_by_group(then, {path: seen._replace(limit_hits=7) for path, seen in now.items()}) == {}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_every_kill_is_told_once_of_the_machine_or_of_a_group(kills: list[tuple[int, int]]) -> None:
    """Each kill is counted by the machine at one look; those of groups at the same one or the next."""
    state, told, late = KillCounters(), 0, 0
    for machine, group in kills:
        told += state.of_the_machine(machine + group, late, watched=True)
        late = group
    told += state.of_the_machine(0, late, watched=True)
    told += state.of_the_machine(0, 0, watched=True)

    assert told == sum(machine for machine, _ in kills)
