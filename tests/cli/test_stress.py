"""``wslgpud stress``: which card, how thorough, the exit status, and where the result is kept."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.page.stage import TRACES
from tests.stress.support import night
from wslgpud.cli import app, stress
from wslgpud.client import SOCKET
from wslgpud.config import Config, StoreSettings
from wslgpud.host import RecordedHost
from wslgpud.model import GpuSample, StressResult
from wslgpud.serve.commands import stress_route
from wslgpud.serve.server import LocalApi
from wslgpud.store import Reader, Store
from wslgpud.stress import separate

HOSTS = TRACES.parent / "hosts"


class Runs:
    """In place of the runner: what was asked of it, and the verdict that it gives."""

    def __init__(self) -> None:
        self.verdict: Any = "passed"
        self.asked: list[tuple[int, str]] = []
        self.settle_seconds: list[float] = []

    def __call__(self, host: Any, settings: Any, *_: Any, **__: Any) -> Runs:
        self.stop = threading.Event()
        self.settle_seconds.append(settings.settle_seconds)
        return self

    def run(self, sample: GpuSample, mode: str, _: Callable[..., None]) -> StressResult:
        self.asked.append((sample.index, mode))
        return replace(night(1, verdict=self.verdict), gpu=sample.index)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    """A recorded machine with two cards, which are not really tested."""
    found = Runs()
    monkeypatch.setattr(separate, "Runner", found)
    monkeypatch.setattr(stress, "Host", lambda: RecordedHost(HOSTS / "two-gpus"))
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield found
    for number, handler in kept.items():
        signal.signal(number, handler)


def run(state: Path, *words: str, **environment: str) -> Result:
    told = {"COLUMNS": "100", "WSLGPUD_SAMPLING__GPU_TIMEOUT_SECONDS": "30", **environment}
    return CliRunner().invoke(app, ["stress", *words, "--state", str(state)], env=told)


def kept(database: Path) -> list[StressResult]:
    with Reader(str(database)) as reader:
        return [found for _, found in reader.stress_runs()]


@pytest.mark.parametrize(
    ("words", "asked"), [((), (0, "nightly")), (("--quick",), (0, "quick")), (("--full", "--gpu", "1"), (1, "full"))]
)
def test_a_run_is_as_thorough_as_asked_and_is_kept(
    words: tuple[str, ...], asked: tuple[int, str], runs: Runs, tmp_path: Path
) -> None:
    done = run(tmp_path, *words)

    assert (done.exit_code, runs.asked) == (0, [asked]), done.output
    assert f"GPU {asked[0]} NVIDIA GeForce RTX 5070 Ti: passed" in done.output
    assert [found.gpu for found in kept(tmp_path / "wslgpud.db")] == [asked[0]]


def test_a_run_is_kept_though_its_reader_has_gone(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(stress, "print_run", gone)
    run(tmp_path)

    assert [found.gpu for found in kept(tmp_path / "wslgpud.db")] == [0]


@pytest.mark.parametrize(
    ("verdict", "status"), [("passed", 0), ("findings", 1), ("skipped", 3), ("left", 3), ("failed", 4)]
)
def test_the_exit_status_is_that_of_the_verdict(verdict: str, status: int, runs: Runs, tmp_path: Path) -> None:
    runs.verdict = verdict
    done = run(tmp_path, "--json")

    assert (done.exit_code, json.loads(done.stdout)["verdict"]) == (status, verdict)


@pytest.mark.parametrize(("configured", "waits"), [("2.5", 2.5), ("30", 3.0)])
def test_starting_a_run_waits_at_most_three_seconds(configured: str, waits: float, runs: Runs, tmp_path: Path) -> None:
    run(tmp_path, WSLGPUD_STRESS__SETTLE_SECONDS=configured)

    assert runs.settle_seconds == [waits]


def test_a_card_that_is_not_there_is_refused_with_those_that_are(runs: Runs, tmp_path: Path) -> None:
    done = run(tmp_path, "--gpu", "2")

    assert (done.exit_code, runs.asked) == (2, [])
    assert "there is no GPU 2; there is GPU 0, GPU 1" in str(done.exception) + done.output
    both = run(tmp_path, "--quick", "--full")
    assert "--quick and --full exclude each other" in str(both.exception) + both.output


def test_the_daemon_of_the_folder_keeps_the_result(tmp_path: Path) -> None:
    taken: list[StressResult] = []
    local = LocalApi(tmp_path, [stress_route(taken.append)])
    assert local.start()
    with closing(local):
        assert separate.keep(night(1), Config(), tmp_path, str(tmp_path / "none.db")) == ""

    assert taken == [night(1)]
    assert not (tmp_path / "none.db").exists()


def test_after_a_killed_daemon_the_result_is_written(tmp_path: Path) -> None:
    database = tmp_path / "wslgpud.db"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / SOCKET))

    assert separate.keep(night(1), Config(), tmp_path, str(database)) == ""
    assert [run.verdict for run in kept(database)] == ["passed"]


def test_a_result_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    database = tmp_path / "wslgpud.db"
    with Store(database, StoreSettings()):
        assert "another" in str(separate.keep(night(1), Config(), tmp_path, str(database)))


def test_the_history_has_the_last_30_runs_by_default(tmp_path: Path) -> None:
    with Store(tmp_path / "wslgpud.db", StoreSettings()) as store:
        for number in range(31):
            store.record_stress(night(number, driver=f"5{number:02}.00"))

    def drivers(*words: str) -> list[str]:
        return [one["key"]["driver"] for one in json.loads(run(tmp_path, "history", "--json", *words).stdout)]

    assert drivers() == [f"5{number:02}.00" for number in range(1, 31)]
    assert drivers("--limit", "1") == ["530.00"]
    assert len(drivers("--limit", "40")) == 31


def test_curves_are_drawn_on_a_terminal_only_if_asked_for(tmp_path: Path) -> None:
    with Store(tmp_path / "wslgpud.db", StoreSettings()) as store:
        for number in range(3):
            store.record_stress(night(number))

    assert "usable VRAM" not in run(tmp_path, "history").output
    assert "usable VRAM" in run(tmp_path, "history", "--plot").output


def test_a_run_is_compared_with_another_and_never_alone(tmp_path: Path) -> None:
    with Store(tmp_path / "wslgpud.db", StoreSettings()) as store:
        for number in range(2):
            store.record_stress(night(number))
    (first, second) = (one["id"] for one in json.loads(run(tmp_path, "history", "--json").stdout))
    alone = run(tmp_path, "compare", str(first))
    pair = run(tmp_path, "compare", str(first), str(second), "--json")

    assert "two runs are needed, or none for driver by driver" in str(alone.exception) + alone.output
    assert json.loads(pair.stdout)["columns"] == [str(first), str(second)]
