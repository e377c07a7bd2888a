"""Stress runs in a unit of their own: the daemon asks, the unit answers, and nobody waits for ever."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

from tests.stress.support import gpu
from tests.stress.test_jobs import Shelf, tick
from tests.support.daemons import WSLGPUD, clean_environment
from wslgpud.config import Stress
from wslgpud.host import Host, SystemClock
from wslgpud.model import StressFinding, StressResult
from wslgpud.store.records import MAX_RESULT_BYTES, stress_to_json
from wslgpud.stress.schedule import Nightly
from wslgpud.stress.separate import MAX_REQUEST_BYTES, Asker, serve_one
from wslgpud.stress.stress_run import Mode
from wslgpud.stress.telemetry import Recent
from wslgpud.words import MessageError

RESULT = StressResult(
    1.5, "GPU-1", 1, "a card", "findings", findings=(StressFinding("spill", "some of it"),), values={"usable_bytes": 7}
)


def answered(request: bytes, run: Callable[[int, Mode], StressResult] = lambda *_: RESULT) -> str:
    """Return what the unit writes when it reads a request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", TextIOWrapper(BytesIO(request)))
        patch.setattr(sys, "stdout", written := StringIO())
        with suppress(RuntimeError, MessageError):  # a unit that fails troubles nobody but systemd
            serve_one(run)
    return written.getvalue()


@contextmanager
def unit(folder: Path, reply: Callable[[bytes], bytes]) -> Iterator[str]:
    """Do what systemd does: listen, and start who answers a request."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines, suppress(BrokenPipeError):
            connection.sendall(reply(lines.readline()))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield str(folder / "socket")
        thread.join(10)


def asker(path: str, patience_seconds: float = 60.0) -> Asker:
    return Asker(SystemClock(), path, patience_seconds, Recent())


def test_the_answer_is_the_result_of_the_run_asked_for(tmp_path: Path) -> None:
    asked: list[tuple[int, Mode]] = []

    def run(index: int, mode: Mode) -> StressResult:
        asked.append((index, mode))
        return RESULT

    with unit(tmp_path, lambda request: answered(request, run).encode()) as path:
        assert asker(path).run(gpu(index=1), "nightly") == RESULT
    assert asked == [(1, "nightly")]


def test_a_unit_that_breaks_down_is_a_failed_run(tmp_path: Path) -> None:
    def run(*_: object) -> StressResult:
        raise RuntimeError("no NVML here")

    with unit(tmp_path, lambda request: answered(request, run).encode()) as path:
        result = asker(path).run(gpu(), "nightly")

    assert (result.verdict, result.uuid) == ("failed", gpu().uuid)
    assert "no NVML here" in str(result.reason)


@pytest.mark.parametrize("reply", [b"", b"{", b"[1]", b'{"fault": 1}', b'{"wall": 1}', b"1" * (MAX_RESULT_BYTES + 1)])
def test_what_is_no_answer_is_a_failed_run(tmp_path: Path, reply: bytes) -> None:
    with unit(tmp_path, lambda _: reply) as path:
        assert asker(path).run(gpu(), "nightly").verdict == "failed"


def test_without_an_answer_the_run_has_failed_with_advice(tmp_path: Path) -> None:
    ended = threading.Event()

    def hang(_: bytes) -> bytes:
        ended.wait(60)
        return b""

    with unit(tmp_path, hang) as path:
        result = asker(path, patience_seconds=0.0).run(gpu(), "nightly")
        ended.set()

    assert result.verdict == "failed"
    assert "journalctl -u 'wslgpud-stress@*'" in str(result.reason)


def test_without_a_unit_the_run_has_failed(tmp_path: Path) -> None:
    result = asker(str(tmp_path / "none")).run(gpu(), "nightly")

    assert result.verdict == "failed"
    assert "wslgpud-stress.socket" in str(result.reason)


def test_the_unit_is_not_asked_right_after_the_machine_woke_up() -> None:
    """It starts with the run: only the daemon has seen the machine sleep, or the driver fail."""
    one = asker("/nowhere")
    one.recent.last_jump_mono = one.clock.mono() - 30.0
    woken = one.run(gpu(), "nightly")
    one.recent.last_jump_mono, one.recent.last_error_mono = None, one.clock.mono()
    ill = one.run(gpu(), "nightly")

    assert (woken.verdict, ill.verdict) == ("skipped", "skipped")
    assert str(woken.reason).startswith("the machine woke up only 30 s ago")
    assert str(ill.reason) == "the kernel has just reported errors of the GPU driver"


def test_a_daemon_that_ends_does_not_wait_for_the_answer(tmp_path: Path) -> None:
    with unit(tmp_path, lambda _: b"") as path:
        one = asker(path)
        one.stop.set()

        assert one.run(gpu(), "nightly").verdict == "left"


@pytest.mark.parametrize(
    "request_line",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"gpu": "x", "mode": "nightly"}',
        b'{"gpu": 1e999, "mode": "quick"}',
        b'{"gpu": 0, "mode": "rm -rf"}',
        b'{"gpu": 0, "mode":'.ljust(MAX_REQUEST_BYTES) + b'"quick"}',
    ],
)
def test_what_is_no_request_is_refused(request_line: bytes) -> None:
    def run(*_: object) -> StressResult:
        pytest.fail("it was taken for one")

    assert "fault" in json.loads(answered(request_line, run))


def test_the_command_of_the_unit_answers_even_without_a_gpu(tmp_path: Path) -> None:
    settings = {"WSLGPUD_SAMPLING__NVML_LIBRARY": "/nowhere/libnvidia-ml.so.1"}
    request = json.dumps({"gpu": 0, "mode": "nightly"})
    command = [*WSLGPUD, "stress", "answer", "--state", str(tmp_path)]
    environment = clean_environment(tmp_path, settings)
    done = subprocess.run(command, env=environment, input=request, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert json.loads(done.stdout)["fault"]


def test_a_night_asks_the_unit_and_keeps_what_it_answers(tmp_path: Path) -> None:
    shelf = Shelf()
    with unit(tmp_path, lambda _: json.dumps(stress_to_json(RESULT)).encode()) as path:
        nightly = Nightly(Stress(jitter_minutes=0), Host(), tmp_path, shelf, unit_socket=path)
        try:
            nightly.observe(tick(gpu()))
            nightly._night()
            nightly.news()
        finally:
            nightly.close()

    assert shelf.kept == [RESULT]
