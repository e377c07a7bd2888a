"""Stress runs in a unit of their own: the monitor asks, the unit answers, and nobody waits for ever."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.sampling.test_pipeline import SteppingClock
from tests.stress.support import gpu
from tests.stress.test_jobs import Shelf, tick
from tests.support.daemons import eventually, wslgpud
from wslgpud.config import Stress
from wslgpud.host import Host, SystemClock
from wslgpud.model import StressFinding, StressResult
from wslgpud.store.records import stress_to_json
from wslgpud.stress.schedule import Nightly
from wslgpud.stress.unit import ANSWER, REQUEST, Asker, NoRequestError, answer
from wslgpud.stress.worker_job import Mode

RESULT = StressResult(
    1.5, "GPU-1", 1, "a card", "findings", findings=(StressFinding("spill", "some of it"),), values={"usable_bytes": 7}
)


@contextmanager
def unit(folder: Path, result: StressResult | Exception) -> Iterator[list[tuple[int, Mode]]]:
    """Do what systemd does: as soon as a request lies there, start who answers it."""
    asked: list[tuple[int, Mode]] = []
    ended = threading.Event()

    def run(index: int, mode: Mode) -> StressResult:
        asked.append((index, mode))
        if isinstance(result, Exception):
            raise result
        return result

    def watch() -> None:
        while not ended.wait(0.01):
            if (folder / REQUEST).exists():
                with suppress(RuntimeError):  # a unit that fails troubles nobody but systemd
                    answer(folder, run)

    thread = threading.Thread(target=watch)
    thread.start()
    yield asked
    ended.set()
    thread.join()


def asker(folder: Path, patience_seconds: float = 60.0) -> Asker:
    return Asker(SystemClock(), folder, patience_seconds)


def test_the_answer_is_the_result_of_the_run_that_was_asked_for(tmp_path: Path) -> None:
    with unit(tmp_path, RESULT) as asked:
        result = asker(tmp_path).run(gpu(index=1), "nightly")

    assert asked == [(1, "nightly")]
    assert result == RESULT
    assert list(tmp_path.iterdir()) == []


def test_an_answer_left_from_another_night_is_not_used_tonight(tmp_path: Path) -> None:
    (tmp_path / ANSWER).write_text("of last night")
    with unit(tmp_path, RESULT):
        assert asker(tmp_path).run(gpu(), "nightly") == RESULT


def test_a_unit_that_breaks_down_is_a_failed_run_with_its_reason(tmp_path: Path) -> None:
    with unit(tmp_path, RuntimeError("no NVML here")):
        result = asker(tmp_path).run(gpu(), "nightly")

    assert (result.verdict, result.uuid) == ("failed", gpu().uuid)
    assert "no NVML here" in str(result.reason)


def test_a_unit_that_never_answers_is_a_failed_run_with_advice(tmp_path: Path) -> None:
    result = asker(tmp_path, patience_seconds=0.0).run(gpu(), "nightly")

    assert result.verdict == "failed"
    assert "systemctl status wslgpud-stress.path" in str(result.reason)
    assert not (tmp_path / REQUEST).exists()  # or a unit repaired at noon would start then


def test_a_monitor_that_ends_does_not_wait_for_the_answer(tmp_path: Path) -> None:
    one = asker(tmp_path)
    one.stop.set()

    assert one.run(gpu(), "nightly").verdict == "left"
    assert list(tmp_path.iterdir()) == []  # or the unit would start at the next boot, for nobody


class Passing(threading.Event):
    """Lets time pass instead of waiting."""

    def __init__(self, clock: SteppingClock) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.now += timeout or 0.0
        return False


def test_a_unit_has_two_extra_minutes_to_start_and_stop(tmp_path: Path) -> None:
    clock, shelf = SteppingClock(), Shelf()
    settings = Stress(settle_seconds=30.0, deadline_seconds=600.0, retries=0)
    nightly = Nightly(settings, Host(tmp_path, clock=clock), tmp_path, shelf, separate_unit=True)
    nightly._runner.stop = Passing(clock)
    nightly.observe(tick(gpu()))
    nightly._night()
    nightly.news()

    assert clock.now - SteppingClock().now == 750.0
    assert [(run.verdict, run.wall) for run in shelf.kept] == [("failed", SteppingClock().wall())]
    assert str(shelf.kept[0].reason).startswith("wslgpud-stress.service gave no answer within 12 min:")


def test_each_side_can_read_but_not_write_the_file_of_the_other(tmp_path: Path) -> None:
    modes: dict[str, int] = {}

    class Looking(Passing):
        def wait(self, timeout: float | None = None) -> bool:
            modes[REQUEST] = (tmp_path / REQUEST).stat().st_mode & 0o7777
            answer(tmp_path, lambda *_: RESULT)
            modes[ANSWER] = (tmp_path / ANSWER).stat().st_mode & 0o7777
            return False

    Asker(SystemClock(), tmp_path, 60.0, Looking(SteppingClock())).run(gpu(), "nightly")

    assert modes == {REQUEST: 0o644, ANSWER: 0o644}


def test_oversized_requests_and_answers_are_not_read(tmp_path: Path) -> None:
    request, document = tmp_path / REQUEST, tmp_path / ANSWER
    request.write_text('{"gpu": 0, "mode": "quick"}'.ljust(4096))
    assert answer(tmp_path, lambda *_: RESULT) == RESULT
    document.write_text(document.read_text().ljust(16 << 20))
    assert asker(tmp_path)._answer() == RESULT

    request.write_text('{"gpu": 0, "mode": "quick"}'.ljust(4097))
    with pytest.raises(NoRequestError, match="larger than"):
        answer(tmp_path, lambda *_: RESULT)
    document.write_text(json.dumps(stress_to_json(RESULT)).ljust((16 << 20) + 1))
    with pytest.raises(OSError, match="larger than"):
        asker(tmp_path)._answer()


@pytest.mark.parametrize("text", ["", "{}", '{"gpu": "x", "mode": "nightly"}', '{"gpu": 0, "mode": "rm -rf"}', "[1]"])
def test_what_is_no_request_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / REQUEST).write_text(text)

    with pytest.raises(NoRequestError, match=REQUEST):
        answer(tmp_path, lambda index, mode: RESULT)


def test_the_command_of_the_unit_answers_even_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / REQUEST).write_text(json.dumps({"gpu": 0, "mode": "nightly"}))
    settings = {"WSLGPUD_SAMPLING__NVML_LIBRARY": "/nowhere/libnvidia-ml.so.1"}
    done = wslgpud("stress", "answer", "--state", str(tmp_path), home=tmp_path, settings=settings)

    assert done.returncode == 2
    assert json.loads((tmp_path / ANSWER).read_text())["fault"]
    assert not (tmp_path / REQUEST).exists()


def test_a_night_asks_the_unit_and_keeps_what_it_answers(tmp_path: Path) -> None:
    shelf = Shelf()
    nightly = Nightly(Stress(jitter_minutes=0), Host(), tmp_path, shelf, separate_unit=True)
    try:
        nightly.observe(tick(gpu()))
        with unit(tmp_path, RESULT) as asked:
            nightly._night()
        nightly.news()
    finally:
        nightly.close()

    assert asked == [(gpu().index, "nightly")]
    assert shelf.kept == [RESULT]
    assert eventually(lambda: not (tmp_path / ANSWER).exists(), "the answer taken away")
