"""A guarded command's VRAM is known card by card, and impossible values are rejected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.machines import HERE as HOSTS
from wslgpud.advise.guard.failures import CardUse
from wslgpud.advise.guard.usage import VramWatch
from wslgpud.config import Config, Sampling
from wslgpud.host import RecordedHost
from wslgpud.model import GpuSample

GIB = 1 << 30
#: a stand-in of a driver takes its time on a busy machine
PATIENT = Config(sampling=Sampling(gpu_timeout_seconds=30.0))


@pytest.fixture
def watch() -> Iterator[VramWatch]:
    watch = VramWatch(RecordedHost(HOSTS / "two-gpus"), PATIENT)
    yield watch
    watch._source.close()


def card(used: int | None, index: int = 0) -> GpuSample:
    return GpuSample(index, f"GPU-{index}", "RTX 5070 Ti", 16 * GIB, used)


def test_start_present_use_and_peak_are_kept_for_each_card(watch: VramWatch) -> None:
    for used in (2 * GIB, 9 * GIB, 5 * GIB):
        watch._note(card(used))
        watch._note(card(used // 2, index=1))

    assert watch.start_bytes == {0: 2 * GIB, 1: GIB}
    assert watch.now_bytes == {0: 5 * GIB, 1: 5 * GIB // 2}
    assert watch.peak_bytes == {0: 9 * GIB, 1: 9 * GIB // 2}
    assert watch.taken_bytes(watch.peak_bytes) == {"GPU-0": 7 * GIB, "GPU-1": 7 * GIB // 2}


def test_a_card_reporting_no_use_or_too_much_changes_nothing(watch: VramWatch) -> None:
    watch._note(card(2 * GIB))
    watch._note(card(None))
    watch._note(card(17 * GIB))

    assert watch.peak_bytes == watch.now_bytes == {0: 2 * GIB}


def test_use_below_where_a_card_started_counts_as_nothing_taken(watch: VramWatch) -> None:
    watch._note(card(4 * GIB))

    assert watch.taken_bytes({0: GIB}) == {"GPU-0": 0}


def test_the_cards_of_this_machine_are_asked_in_a_thread(watch: VramWatch) -> None:
    watch.start()
    sizes, free = watch.total_by_uuid(), watch.free_by_uuid()
    watch.stop()

    assert len(sizes) == 2, "it waited for the first answer"
    assert all(0 < free[uuid] < size for uuid, size in sizes.items())
    assert watch.peak_bytes.keys() == {0, 1}


def test_how_a_card_stood_at_the_end_is_that_of_the_last_seconds(watch: VramWatch) -> None:
    for used in (15, 1, 2, 5, 4, 3, 0):
        watch._note(card(used * GIB))

    assert watch.last_cards() == [CardUse(0, 5 * GIB, 16 * GIB, 3 * GIB)]
