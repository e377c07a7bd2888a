"""Knowledge learned by one run of the daemon is available to the next."""

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from wslgpud.app.daemon import Daemon
from wslgpud.config import Config
from wslgpud.host import RecordedHost
from wslgpud.model import GpuSample, Observation
from wslgpud.sampling.assessor import Assessor
from wslgpud.store import Store

FULL_CARD = Path(__file__).parent.parent / "hosts" / "wsl2-vram-full"
UUID = "GPU-00000000-0000-0000-0000-000000000001"
CEILING = {"ceiling_bytes": 16_600_000_000, "ceiling": "seen"}


def life(folder):
    """Start a daemon on a full card, let it tick until it has seen it, stop it; return its forecast."""
    config = Config()
    config = replace(config, server=replace(config.server, port=0))
    with Daemon(config, RecordedHost(FULL_CARD), folder, {}) as daemon:
        found: list[dict[str, object]] = []
        while not found:  # on a busy machine the card's process may miss its first deadline
            daemon.tick.run()
            found = [f for f in daemon.tick.now("en")["forecasts"] if f["resource"] == "gpu0"]
        return found[0]


def test_a_learned_ceiling_holds_after_every_restart(tmp_path):
    before = life(tmp_path)
    with Store(tmp_path / "wslgpud.db") as store:
        store.learn(UUID, CEILING)
    after = [life(tmp_path) for _ in range(3)]

    assert "capacity_learned" not in before
    assert [f["capacity_learned"] for f in after] == ["seen"] * 3
    assert {f["capacity_bytes"] for f in after} == {CEILING["ceiling_bytes"]}


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_crash_the_peaks_are_not_believed_any_more(tmp_path, monkeypatch, clean):
    capacity, file = 8 << 30, tmp_path / "wslgpud.db"
    with Store(file) as store:
        store.learn("ram", {"capacity_bytes": capacity, "peaks": [[5.0, 0.9]]})
        store.learn(UUID, CEILING)
        assert store.flush()
    if not clean:
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("UPDATE daemon_run SET stopped_ms = NULL, clean = 0")
    taken = {}
    monkeypatch.setattr(Assessor, "recall", lambda _, key, *lesson: taken.update({key: lesson}))
    life(tmp_path)

    assert ("peaks" in taken["ram"][0]) is clean
    assert taken[UUID][0] == CEILING
    assert taken[UUID][1] >= 0.0


class Clock:
    """Stands still until it is moved."""

    def __init__(self):
        self.now = 100.0

    def wall(self):
        return time.time()

    def mono(self):
        return self.now


def test_a_moved_ceiling_is_handed_out_at_once_the_rest_rarely():
    clock = Clock()
    monitor = Assessor(Config(), RecordedHost(FULL_CARD, clock))
    try:
        while not monitor.tick()[0].gpus:
            pass  # on a busy machine the card's process may miss its first deadline
        assert list(monitor.lessons()) == []
        monitor._engine._ceilings.failed(UUID, 16_700_000_000, 17_094_934_528)
        assert list(monitor.lessons()) == [(UUID, {"ceiling_bytes": 16_700_000_000, "ceiling": "seen"})]
        assert list(monitor.lessons()) == []

        def peak_at(gib: int) -> None:
            for used in (2, gib, 2, gib, 2):
                clock.now += 1.0
                gpu = GpuSample(0, UUID, "card", 16 << 30, used << 30)
                monitor._engine.observe(Observation(t=clock.now, gpus=(gpu,)))

        peak_at(9)
        clock.now = 699.0
        assert list(monitor.lessons()) == []
        clock.now = 700.0
        ((key, document),) = monitor.lessons()
        assert key == UUID
        assert len(document["peaks"]) == 2
        peak_at(12)
        assert list(monitor.lessons()) == []
        ((key, document),) = monitor.lessons(last=True)
        assert len(document["peaks"]) == 4
    finally:
        monitor.close()


def test_what_is_learned_anew_takes_the_place_of_what_was_known(tmp_path):
    for number in range(3):
        with Store(tmp_path / "wslgpud.db", host_name="pc") as store:
            store.learn(UUID, {"ceiling_bytes": number})
            store.learn("ram", {"capacity_bytes": number})
    with Store(tmp_path / "wslgpud.db", host_name="pc") as store:
        assert {key: kept.document for key, kept in store.learned.items()} == {
            UUID: {"ceiling_bytes": 2},
            "ram": {"capacity_bytes": 2},
        }
    with Store(tmp_path / "wslgpud.db", host_name="another") as store:
        assert store.learned == {}
