"""What is measured of trainings: leaks, retries, sequences that will not fit, steps that became slow."""

from __future__ import annotations

from tests.alerts.test_measures import measured
from tests.alerts.ticks import tick
from wslgpud.alerts import measures
from wslgpud.alerts.measures import Signal
from wslgpud.model import GpuSample, Reading
from wslgpud.risk import training_metrics as metrics
from wslgpud.sources import windows

MIB, GIB = 1 << 20, 1 << 30
ONE, TWO = ("7", "train.py", "gpu0"), ("8", "other.py", "gpu0")


def leaking(labels: tuple[str, ...], steps_left: int, grown_mib: int) -> list[Reading]:
    return [
        Reading(metrics.KEPT, GIB, labels),
        Reading(metrics.STEPS_LEFT, steps_left, labels),
        Reading(metrics.GROWN, grown_mib * MIB, labels),
        Reading(metrics.PER_STEP, MIB, labels),
    ]


def test_a_leak_is_measured_by_the_share_of_room_it_has_taken() -> None:
    seen = tick(1, *leaking(ONE, 1234, 100), *leaking(TWO, 300, 100), Reading(metrics.TIME_LEFT, 60.0, TWO))
    facts = {"program": "other.py", "pid": 8, "steps_left": 300, "step_bytes": MIB, "grown_bytes": 100 * MIB}

    assert measured(measures.training_leaks, seen)[-1] == Signal("gpu0", 0.25, {**facts, "eta_seconds": 60.0})
    (one,) = measured(measures.training_leaks, tick(1, *leaking(ONE, 1264, 100)))
    assert one.facts["steps_left"] == 1300, "two figures"
    assert measured(measures.training_leaks, tick(1, Reading(metrics.KEPT, GIB, ONE))) == []


def test_each_new_retry_is_an_event() -> None:
    def retried(t: float, count: int, *more: Reading) -> object:
        return tick(t, Reading(metrics.RETRIES, count, ONE), *more)

    facts = {"program": "train.py", "pid": 7, "count": 2}
    assert measured(measures.training_retries, retried(1, 3), retried(2, 5)) == [Signal("gpu0", 1.0, facts)]
    assert measured(measures.training_retries, retried(1, 3), retried(2, 3)) == []
    assert measured(measures.training_retries, tick(1), retried(2, 3)) == [], "they may be older than the daemon"
    pieces = Reading(metrics.PIECES, 9 * MIB, ONE)
    (one,) = measured(measures.training_retries, retried(1, 3), retried(2, 4, pieces))
    assert one.facts == {**facts, "count": 1, "pieces_bytes": 9 * MIB}


def test_of_sequences_that_will_not_fit_the_largest_lack_counts() -> None:
    lacks = [Reading(metrics.MAX_LACKS, mib * MIB, labels) for labels, mib in ((TWO, 300), (ONE, 200))]
    facts = {"program": "other.py", "pid": 8, "lacking_bytes": 300 * MIB}

    assert measured(measures.training_lengths, tick(1, *lacks))[-1] == Signal("gpu0", 300 * MIB, facts)


def test_steps_are_slow_from_a_spill_only_with_a_gib_in_windows() -> None:
    def slowed(shared: int, each: float = 0.5) -> list[Signal]:
        readings = [Reading(metrics.KEPT, GIB, ONE), Reading(windows.GPU_SHARED, shared, ("RTX",))]
        readings += [Reading(metrics.STEP_TIME, each, ONE[:2]), Reading(metrics.USUAL_STEP_TIME, 0.125, ONE[:2])]
        seen = tick(1, *readings, gpus=(GpuSample(0, "GPU-1", "RTX"),))
        return measured(measures.training_slowed, seen)

    facts = {"program": "train.py", "pid": 7, "shared_bytes": GIB, "times": "4.0", "number": "2", "usual": "8"}
    assert slowed(GIB) == [Signal("gpu0", 4.0, facts)]
    assert slowed(GIB - 1) == slowed(GIB, 0.0) == []
