"""A tick of the daemon: a bug in one part ends none of the others, and whoever listens is told what it found."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.hosts.machines import HERE as HOSTS
from wslgpud.app.daemon import Daemon
from wslgpud.app.return_cache import CacheReturner
from wslgpud.config import Config
from wslgpud.host import RecordedHost
from wslgpud.model import Event, Forecast, Level, Transition
from wslgpud.sampling.assessor import Assessor
from wslgpud.serve import HttpServer
from wslgpud.stress.schedule import Nightly


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Daemon, socket.socket]]:
    """A daemon on a recorded machine, and what its service manager hears."""
    config = replace(Config(), server=replace(Config().server, port=0))
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        manager.bind(address)
        with Daemon(config, RecordedHost(HOSTS / "wsl2-vram-full"), tmp_path, {"NOTIFY_SOCKET": address}) as daemon:
            yield daemon, manager


def test_a_stress_run_is_told_to_end_before_the_server_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker takes a second or more to free its card, and a client may hold up the server."""
    ended: list[str] = []

    def noted(kind: type, name: str) -> None:
        end = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *of: (ended.append(kind.__name__), end(*of)))

    for kind, name in ((HttpServer, "stop"), (Nightly, "close"), (Assessor, "close")):
        noted(kind, name)
    config = replace(Config(), server=replace(Config().server, port=0))
    with Daemon(config, RecordedHost(HOSTS / "wsl2-vram-full"), tmp_path, {}):
        pass

    assert ended == ["Nightly", "HttpServer", "Assessor"]


def heard(manager: socket.socket) -> list[str]:
    """Return all messages that have arrived so far."""
    messages = []
    while True:
        try:
            messages.append(manager.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_a_bug_in_the_alerts_is_logged_once_and_sampling_goes_on(
    service: tuple[Daemon, socket.socket], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tick, bugs = service[0].tick, ["one", "one", "another", "one"]

    def fail(*_: Any) -> None:
        raise RuntimeError(bugs.pop(0))

    monkeypatch.setattr(tick.alerts, "tick", fail)
    sequences = []
    for _ in range(4):
        tick.run()
        assert tick.latest is not None
        sequences.append(tick.latest.snapshot.sequence)

    logged = [record for record in caplog.records if record.message.startswith("alerts failed at this tick")]
    assert [str(record.exc_info and record.exc_info[1]) for record in logged] == ["one", "another", "one"]
    assert sequences == list(range(sequences[0], sequences[0] + 4))


def test_systemd_hears_ready_once_and_a_heartbeat_at_each_tick(
    service: tuple[Daemon, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, manager = service
    daemon.tick.run()
    ready, lives = heard(manager)
    daemon.tick.run()
    (again,) = heard(manager)

    assert ready == "READY=1"
    assert [line.partition("=")[0] for line in lives.splitlines()] == ["WATCHDOG", "STATUS"]
    assert [line.partition("=")[0] for line in again.splitlines()] == ["WATCHDOG", "STATUS"]

    tick = daemon.tick.assessor.tick

    def blind(*, watched) -> Any:
        state, changes = tick()
        return replace(state, observation=replace(state.observation, ram=None)), changes

    monkeypatch.setattr(daemon.tick.assessor, "tick", blind)
    daemon.tick.run()
    (unseeing,) = heard(manager)
    assert [line.partition("=")[0] for line in unseeing.splitlines()] == ["STATUS"], "without memory it cannot warn"


def test_the_last_ten_alerts_of_a_day_outlive_a_restart(service: tuple[Daemon, socket.socket]) -> None:
    daemon, _ = service
    store, now = daemon.tick.store, daemon.tick.assessor.host.clock.wall()

    def listed(*ages: int) -> list[str]:
        for age in ages:
            row = Transition(now - age, 0.0, f"gpu{age}", "gpu_error", Level.OK, Level.WARNING)
            store.outbox.record(row, {})
        assert store.flush()
        restarted = daemon._alerts(store, daemon.tick.alerts._place)
        assert restarted.lately(1e12) == []
        return [row.resource for row in restarted.recent()]

    assert listed(86_401, 86_390) == ["gpu86390"]
    assert listed(*range(11, 1, -1)) == [f"gpu{age}" for age in range(2, 12)]


def test_status_needs_no_disk(service: tuple[Daemon, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hang while memory is short, and that is when people ask."""
    daemon, _ = service
    clock = daemon.tick.assessor.host.clock
    daemon.tick.alerts.report(
        Transition(clock.wall(), clock.mono(), "disk:/", "read_only_disk", Level.OK, Level.WARNING)
    )
    daemon.tick.run()
    monkeypatch.delattr(type(daemon.tick.store), "reader")

    assert daemon.tick.now("en")["recent"][0]["resource"] == "disk:/"


def test_before_the_first_sample_there_is_nothing_recent(service: tuple[Daemon, socket.socket]) -> None:
    assert not service[0].tick.now("en").get("recent")


def test_a_bug_in_the_nightly_test_ends_no_sample(
    service: tuple[Daemon, socket.socket], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(service[0].tick.nightly, "observe", fail)
    service[0].tick.run()

    assert service[0].tick.latest is not None
    assert "the nightly test failed at this tick" in caplog.text


@pytest.mark.parametrize(
    ("level", "urgent"), [(Level.OK, False), (Level.INFO, False), (Level.WARNING, True), (Level.CRITICAL, True)]
)
def test_a_sample_with_a_warning_is_written_at_once(
    service: tuple[Daemon, socket.socket], monkeypatch: pytest.MonkeyPatch, level: Level, *, urgent: bool
) -> None:
    tick, written = service[0].tick, []
    original = tick.assessor.tick

    def forecasting(*, watched) -> Any:
        state, _ = original()
        return replace(state, forecasts=(Forecast("ram", Level.OK, 9, 9), Forecast("gpu0", level, 1, 9))), ()

    monkeypatch.setattr(tick.assessor, "tick", forecasting)
    monkeypatch.setattr(tick.store, "append", lambda _, *, urgent: written.append(urgent))
    tick.run()

    assert written == [urgent]


@pytest.mark.parametrize("ending", [True, False])
def test_only_while_the_brake_ends_a_job_samples_hurry(
    service: tuple[Daemon, socket.socket], monkeypatch: pytest.MonkeyPatch, *, ending: bool
) -> None:
    tick, hurried = service[0].tick, []
    brake: Any = SimpleNamespace(
        tick=lambda *_: [], held_processes=frozenset, is_ending=lambda: ending, document=lambda: ()
    )
    tick.brake = brake
    monkeypatch.setattr(tick.assessor, "hurry", lambda: hurried.append(1))
    tick.run()

    assert bool(hurried) is ending


def test_page_cache_given_back_is_an_alert_and_an_event(service: tuple[Daemon, socket.socket]) -> None:
    tick, shorts = service[0].tick, []
    sizes = {"freed_bytes": 4 << 30, "available_bytes": 2 << 30, "total_bytes": 64 << 30}
    events = [Event("cache_returned", 1.7e9, "gave {freed_bytes} back", sizes)]

    class Returner:
        def tick(self, _: Any, *, short: bool) -> Iterator[Event]:
            shorts.append(short)
            while events:
                yield events.pop()

    tick.returner = cast("CacheReturner", Returner())
    tick.run()
    tick.run()
    assert tick.latest is not None
    rules = [one.incident.rule for one in tick.latest.incidents]

    assert "cache_returned" in rules
    assert [e.kind for e in tick.latest.snapshot.events if e.kind == "cache_returned"] != []
    assert shorts == [False, False]
