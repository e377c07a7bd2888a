"""Names that users choose have so many series, shared fairly among the users, and the others are not lost."""

from __future__ import annotations

import pytest

from wslgpud.metrics import OTHER, MetricSpec, NameLimit
from wslgpud.model import ProcessSample, Reading, Sample, Snapshot, SourceReport
from wslgpud.sampling.cardinality import CardinalityLimiter, NameSlots, owners

TWO = NameLimit("job", "job", 2, summed=True)
JOBS = MetricSpec("made_jobs", "gauge", "", "Jobs.", ("place", "job", "state"), names=(TWO,))
PLACES = MetricSpec("made_places", "gauge", "", "Places.", ("place",))


def limited(limiter: CardinalityLimiter, mono: float, *jobs: str) -> Snapshot:
    """Return a tick of jobs, each with a count of its own, after the limit."""
    counts = [Reading(JOBS, 10**n, ("here", job, "idle")) for n, job in enumerate(jobs)]
    sample = Sample((*counts, Reading(PLACES, 1, ("here",)), Reading(PLACES, 2, ("here",))))
    return limiter.limited(Snapshot(mono, mono, 1, (SourceReport("made", "ok", sample, mono, 0.0),)))


def test_names_without_a_slot_are_summed_and_other_labels_stay() -> None:
    tick = limited(CardinalityLimiter(), 0.0, "a", "b", "c", "d")

    assert tick.family(JOBS) == {("here", "a", "idle"): 1, ("here", "b", "idle"): 10, ("here", OTHER, "idle"): 1100}
    assert tick.family(PLACES) == {("here",): 2}


def test_that_names_have_no_place_is_said_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    limiter = CardinalityLimiter()
    for mono, jobs in ((0.0, "ab"), (1.0, "abc"), (2.0, "abc"), (3600.0, "abcd"), (3601.0, "abcd"), (3602.0, "ab")):
        before = len(caplog.messages)
        limited(limiter, mono, *jobs)
        assert len(caplog.messages) - before == (mono in (1.0, 3601.0)), mono


@pytest.mark.parametrize(
    ("name", "users"),
    [
        ("/user.slice/user-1000.slice/session-1.scope", {"1000"}),
        ("/user.slice/user-1000.slice", {"1000"}),
        ("python", {"1000", "7"}),
        ("train", {"1000"}),
        ("/system.slice", set()),
    ],
)
def test_the_users_of_a_name_are_known_by_slice_or_process(name: str, users: set[str]) -> None:
    group = "/user.slice/user-1000.slice/session-1.scope"
    running = [
        ProcessSample(1, 1, "python", 1, 0, 100_000, command="train", cgroup=group),
        ProcessSample(2, 1, "python", 1, 0, 7),
        ProcessSample(3, 1, "make", 1, 0, 8),
    ]

    assert owners(name, running) == users


def test_a_place_counts_for_its_owner_for_as_long_as_it_is_held() -> None:
    places = NameSlots(4)
    for mono in range(2):
        assert places.refused(["a1", "a2", "a3", "b1"], lambda name: name[0], mono) == set()

    assert places.refused(["b2", "b3"], lambda name: name[0], 3) == {"b3"}
    assert places.refused(["a1", "a2", "a3", "b1"], lambda name: name[0], 4) == {"a1"}
