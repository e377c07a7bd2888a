"""A guarded command's VRAM is known card by card, and impossible values are rejected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.machines import HERE as HOSTS
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

    assert [(one.start_bytes, one.now_bytes, one.peak_bytes) for one in watch.cards] == [
        (2 * GIB, 5 * GIB, 9 * GIB),
        (GIB, 5 * GIB // 2, 9 * GIB // 2),
    ]
    assert {one.key: one.taken_bytes for one in watch.cards} == {"GPU-0": 7 * GIB, "GPU-1": 7 * GIB // 2}


def test_a_card_reporting_no_use_or_too_much_changes_nothing(watch: VramWatch) -> None:
    watch._note(card(2 * GIB))
    watch._note(card(None))
    watch._note(card(17 * GIB))

    (one,) = watch.cards
    assert one.peak_bytes == one.now_bytes == 2 * GIB


def test_the_cards_of_this_machine_are_asked_in_a_thread(watch: VramWatch) -> None:
    with watch:
        cards = watch.first_answer()

    assert [one.index for one in cards] == [0, 1], "it waited for the first answer"
    assert all(0 <= one.start_bytes < one.total_bytes for one in cards)


def test_how_a_card_stood_at_the_end_is_that_of_the_last_seconds(watch: VramWatch) -> None:
    for used in (15, 1, 2, 5, 4, 3, 0):
        watch._note(card(used * GIB))

    (one,) = watch.cards
    assert (one.used_bytes, one.rise_bytes, one.full) == (5 * GIB, 3 * GIB, False)
    watch._note(card(16 * GIB))
    assert one.full
