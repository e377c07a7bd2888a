"""A user who makes trouble for weeks fills the history with incidents; the daemon stays as small as it is."""

from __future__ import annotations

import gc
import json
import re
import socket
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from tests.alerts.ticks import START, fold, transition
from tests.stress.support import night
from tests.support.daemons import Running, daemon, eventually
from wslgpud.alerts.channels import Channel, DeliveryError
from wslgpud.alerts.dispatcher import MAX_WAITING, Dispatcher
from wslgpud.alerts.incidents import IncidentLedger, after
from wslgpud.config import StoreSettings, Stress
from wslgpud.host import Host
from wslgpud.model import Forecast, Level, StressResult, Transition
from wslgpud.risk.forecast_messages import headline
from wslgpud.store import Store, engines, schema
from wslgpud.store.records import _forecast_payload, stress_to_json
from wslgpud.stress.schedule import Nightly
from wslgpud.words import MessageLike, to_json

MIB = 1 << 20
OK, WARNING, CRITICAL, EMERGENCY = Level.OK, Level.WARNING, Level.CRITICAL, Level.EMERGENCY
INCIDENTS, ROWS_EACH, NIGHTS = 4000, 5, 400
STEPS = ((OK, WARNING), (WARNING, CRITICAL), (CRITICAL, EMERGENCY), (EMERGENCY, WARNING), (WARNING, OK))
#: what all of this history may cost
COST_BYTES = 40 * MIB
CHUNK = {"bytes": 1 << 28, "write": 0.033, "change": 0.03, "read": 0.043, "class": "ok"}


def full_night(number: int) -> StressResult:
    """Return a run as a card of 16 GB leaves it."""
    detail = {"chunks": [{"index": index, **CHUNK} for index in range(64)], "phases": {"fill": 1.0}}
    return replace(night(number), detail=detail)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home of a daemon that has seen the incidents of a month, and the nights of two years."""
    home = tmp_path_factory.mktemp("long")
    file = home / "state" / "wslgpud.db"
    file.parent.mkdir()
    with Store(file, StoreSettings(), host_name=socket.gethostname()) as store:
        assert store.flush()
    forecast = Forecast(
        "ram",
        WARNING,
        3 << 30,
        24 << 30,
        1e7,
        100.0,
        200.0,
        300.0,
        {60: 0.1, 3600: 0.99},
        "python train.py (pid 4121)",
        "growth",
        "process",
        4121,
        1e7,
        0.9,
        True,
        None,
        240.0,
    )
    told, seen = json.dumps(_forecast_payload(forecast)), json.dumps({"text": "y" * 100, "victim": "python"})
    message = json.dumps(to_json(headline(forecast)))
    begin_ms = round((time.time() - 29 * 86400) * 1000)
    rows = [
        {
            "id": 1 + ROWS_EACH * number + place,
            "mono": 1.0,
            "ms": begin_ms + 300_000 * number + 1000 * place,
            "resource": f"cgroup:/user.slice/user-1001.slice/{number % 40}",
            "rule": "memory_exhaustion",
            "old": int(old),
            "new": int(new),
            "message": message,
            "forecast": told,
            "facts": seen,
        }
        for number in range(INCIDENTS)
        for place, (old, new) in enumerate(STEPS)
    ]
    with engines.writer_engine(file).begin() as connection:
        connection.execute(schema.transition.insert(), rows)
        for number, run in enumerate(map(full_night, range(NIGHTS))):
            document = json.dumps(stress_to_json(run))
            row = {"ms": round(run.wall * 1000), "gpu": run.uuid, "verdict": run.verdict, "document": document}
            connection.execute(schema.stress_run.insert(), {"id": 1_000_000 + number, **row})
    return home


def memory_bytes(running: Running, what: str) -> int:
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    found = re.search(rf"^{what}:\s+(\d+) kB", status, re.MULTILINE)
    assert found
    return int(found[1]) * 1024


@pytest.fixture(scope="module")
def calm_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Return the memory of a daemon without history after each question has been asked once."""
    with daemon(tmp_path_factory.mktemp("calm")) as running:
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
        for path in ("/api/v1/incidents", "/api/v1/stress", "/api/v1/status", "/api/v1/incidents/1"):
            running.status_of(path)
        return memory_bytes(running, "VmHWM")


@pytest.mark.slow
def test_neither_start_nor_queries_load_the_history_into_memory(state: Path, calm_bytes: int) -> None:
    paths = ("incidents?lang=zh", f"incidents/{1 + ROWS_EACH * 3000}", "stress", "stress/1000007", "status")
    with daemon(state, settings={"WSLGPUD_SAMPLING__INTERVAL_SECONDS": "5"}) as running:
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
        for path in paths:
            with ThreadPoolExecutor(4) as crowd:
                statuses = set(crowd.map(running.status_of, [f"/api/v1/{path}"] * 4))
            assert statuses <= {200, 504}, "a slow machine may say that it takes too long"
        page = json.loads(running.get(f"/api/v1/incidents?limit=2&before={ROWS_EACH * 3000}"))
        run = json.loads(running.get("/api/v1/stress/1000007"))
        most = memory_bytes(running, "VmHWM")

    assert [found["id"] for found in page["incidents"]] == [1 + ROWS_EACH * n for n in (2999, 2998)]
    assert (page["total"] >= INCIDENTS, page["next"]) == (True, 1 + ROWS_EACH * 2998)
    assert len(run["detail"]["chunks"]) == 64
    assert most - calm_bytes < COST_BYTES


def rows(count: int) -> Iterator[tuple[int, Transition]]:
    """Yield the rows of a kill that happens again and again, a loop that anybody can start."""
    yield 1, transition(0, OK, CRITICAL, rule="oom_kill")
    for number in range(2, count):
        yield number, transition(30.0 * number, CRITICAL, CRITICAL, rule="oom_kill", headline=f"no. {number}")


def traced_bytes() -> int:
    """Return the memory in use, without what the interpreter keeps for tuples to come."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_an_endless_incident_takes_no_more_memory_than_another() -> None:
    ledger = IncidentLedger([], 0.0, START)
    tracemalloc.start()
    try:
        for number, row in rows(1500):
            ledger.take(number, row)
            if number == 500:
                before = traced_bytes()
        grown = traced_bytes() - before
    finally:
        tracemalloc.stop()

    (incident,) = ledger.open.values()
    assert grown < 20_000
    assert (incident.id, incident.last_id, str(incident.message)) == (1, 1499, "no. 1499")
    assert fold(rows(1500)) == [incident]


def test_an_incident_keeps_what_its_score_is_made_of() -> None:
    scarce = Forecast("ram", CRITICAL, 5, 100)
    steps = [
        transition(10, OK, Level.INFO),
        transition(20, Level.INFO, WARNING),
        replace(transition(30, WARNING, CRITICAL), forecast=scarce),
        replace(transition(40, CRITICAL, WARNING), forecast=Forecast("ram", WARNING, 90, 100)),
    ]
    incident = None
    for number, row in enumerate(steps):
        incident = after(incident, number, row)

    assert incident is not None
    assert (incident.warned_wall, incident.close_call) == (START + 20, True)


class Shelf:
    """An outbox in memory, full of messages."""

    def __init__(self, levels: list[str]) -> None:
        self.waiting = {n: Parcel(n, {"level": level, "headline": str(n)}) for n, level in enumerate(levels)}

    def unsent(self, channel: str | None = None) -> list[Parcel]:
        return list(self.waiting.values())

    def tried(self, delivery_id: int, error: MessageLike, *, done: bool) -> None:
        assert not error or not done or "more than" in str(error)
        if done:
            del self.waiting[delivery_id]


class Parcel:
    channel, created_wall, transition_id = "down", START, None

    def __init__(self, number: int, payload: dict[str, str]) -> None:
        self.id, self.payload = number, payload


class Down(Channel):
    name, human = "down", False

    def __init__(self) -> None:
        self.asked = Event()

    def send(self, message: Mapping[str, object]) -> None:
        self.asked.set()
        raise DeliveryError("nobody there")


@pytest.mark.slow
def test_the_bounded_backlog_of_a_dead_channel_keeps_the_worst() -> None:
    shelf, channel = Shelf(["emergency", *["warning"] * 1000, "critical", *["info"] * 1000]), Down()
    dispatcher = Dispatcher([channel], shelf, Host().clock)
    dispatcher.start()
    assert channel.asked.wait(60)
    for number in range(5000, 5100):
        shelf.waiting[number] = Parcel(number, {"level": "warning", "headline": ""})
        dispatcher.wake()
        eventually(lambda: len(shelf.waiting) <= MAX_WAITING, "the bound")
    dispatcher.close(10)

    levels = Counter(parcel.payload["level"] for parcel in shelf.waiting.values())
    assert levels == {"emergency": 1, "critical": 1, "warning": MAX_WAITING - 2}
    assert max(shelf.waiting) == 5099, "of equals the newest"
    assert dispatcher.counts["down", "dropped"] == 2002 + 100 - MAX_WAITING


def test_only_each_cards_last_complete_run_keeps_its_rows(tmp_path: Path) -> None:
    with Store(tmp_path / "wslgpud.db", StoreSettings(), host_name="pc") as store:
        for number in range(6):
            store.record_stress(full_night(number))
        store.record_stress(night(7, verdict="skipped"))
        assert store.flush()
        nightly = Nightly(Stress(), Host(), tmp_path, store)
        nightly._news.put(full_night(8))
        before = [bool(run.detail) for run in nightly.runs()]
        nightly.news()

        assert before == [False] * 5 + [True, False]
        assert [bool(run.detail) for run in nightly.runs()] == [False] * 7 + [True]
        nightly.close()
