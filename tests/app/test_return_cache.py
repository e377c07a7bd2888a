"""Page cache goes back to Windows only while that is short, only what it lacks, and never by swapping programs out."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from wslgpud.app import return_cache
from wslgpud.app.return_cache import EVERY_SECONDS, KEPT_BYTES, RETURNED, STEP_BYTES, CacheReturner
from wslgpud.host import Host
from wslgpud.model import Event, Forecast, Level, Reading, Sample, Snapshot, SourceReport
from wslgpud.sources import windows
from wslgpud.sources.memory import MEMINFO

GIB, MIB = 1 << 30, 1 << 20
TOTAL = 64 * GIB


def seen(available: float | None, cached: float | None, mono: float = 5.0, **more: float) -> Snapshot:
    """Return a tick; sizes in GiB."""
    lines = {"Cached": cached, "Shmem": 0.0, **more}
    readings = [Reading(MEMINFO[line], int(size * GIB)) for line, size in lines.items() if size is not None]
    if available is not None:
        readings += [Reading(windows.TOTAL, TOTAL), Reading(windows.AVAILABLE, int(available * GIB))]
    return Snapshot(1.7e9, mono, 1, (SourceReport("memory", "ok", Sample(tuple(readings)), mono, 0.0),))


@pytest.mark.parametrize(
    ("available", "cached", "more", "wanted"),
    [
        (3.68, 30, {}, 4.0),
        (3.68, 3, {}, 2.0),
        (3.68, 30, {"Shmem": 20, "Dirty": 5, "Writeback": 2}, 2.0),
        (7.68, 30, {}, 0.0),
        (7.5, 30, {}, 0.0),
        (3.68, 1.2, {}, 0.0),
        (None, 30, {}, 0.0),
        (3.68, None, {}, 0.0),
    ],
    ids=["lack", "spare", "dirty", "enough", "too little", "kept", "no windows", "no cache"],
)
def test_only_what_windows_lacks_and_linux_can_spare_goes(
    available: float | None, cached: float | None, more: dict[str, float], wanted: float
) -> None:
    assert return_cache.wanted_bytes(seen(available, cached, **more)) == pytest.approx(wanted * GIB, abs=MIB)


@pytest.mark.parametrize(
    ("resource", "level", "short"),
    [("windows", Level.WARNING, True), ("windows", Level.INFO, False), ("ram", Level.CRITICAL, False)],
)
def test_windows_is_short_from_a_warning_on(resource: str, level: Level, short: bool) -> None:
    assert return_cache.is_short([Forecast(resource, level, 1, 2)], ()) is short


class Machine:
    """A kernel with so much page cache (GiB), whose answers to ``memory.reclaim`` are told."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, cached: float = 30.0, *, swappiness: bool = True):
        self.root, self.cached, self.swappiness, self.swapped = root, int(cached * GIB), swappiness, 0
        self.swaps_after, self.written = 10**9, list[str]()
        self.fails: OSError | None = None
        (root / "proc").mkdir()
        self.show()
        monkeypatch.setattr(return_cache, "reclaim_file", lambda _: "/cgroup/memory.reclaim")
        self.returner = CacheReturner(Host(root), self.write)

    def show(self) -> None:
        (self.root / "proc/meminfo").write_text(f"Cached: {self.cached >> 10} kB\nShmem: 0 kB\n")
        (self.root / "proc/vmstat").write_text(f"pswpout {self.swapped}\n")

    def write(self, path: str, text: str) -> None:
        self.written.append(f"{path} {text}")
        if self.fails is not None:
            raise self.fails
        if "swappiness" in text and not self.swappiness:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.cached = 0 if path.endswith("drop_caches") else self.cached - int(text.split(maxsplit=1)[0])
        self.swapped += len(self.written) >= self.swaps_after
        self.show()

    def does(self, snapshot: Snapshot, *, short: bool = True) -> list[Event]:
        """Tick, wait for the attempt, and tick again; return what was told."""
        told = list(self.returner.tick(snapshot, short=short))
        self.returner.close(10.0)
        return told + list(self.returner.tick(snapshot, short=False))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_cache_is_given_back_with_an_event_and_a_metric_in_bytes(machine: Machine) -> None:
    (event,) = machine.does(seen(3.68, 30))

    assert event.kind == "cache_returned"
    assert event.fields["freed_bytes"] == pytest.approx(4 * GIB, abs=MIB)
    assert str(event.message) == "4.0 GiB of page cache given back to Windows, which had 3.7 GiB of 64 GiB left"
    assert [(r.spec, r.value) for r in machine.returner.readings()] == [(RETURNED, event.fields["freed_bytes"])]
    assert machine.written[0] == f"/cgroup/memory.reclaim {STEP_BYTES} swappiness=0"
    assert len(machine.written) == 16


def test_nothing_is_written_while_windows_has_memory(machine: Machine) -> None:
    assert machine.does(seen(3.68, 30), short=False) == []
    assert machine.does(seen(20, 30)) == []
    assert machine.written == []


def test_between_two_attempts_five_minutes_pass(machine: Machine) -> None:
    moments = (5.0, 5.0 + EVERY_SECONDS - 1, 5.0 + EVERY_SECONDS)
    counts = [len(machine.does(seen(3.68, 30, mono))) for mono in moments]

    assert counts == [1, 0, 1]


def test_an_older_kernel_is_asked_only_until_one_page_is_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Machine(tmp_path, monkeypatch, swappiness=False)
    old.swaps_after = 4  # with the refused first request: at the third step
    (event,) = old.does(seen(3.68, 30))

    assert old.written[1:] == [f"/cgroup/memory.reclaim {STEP_BYTES}"] * 3
    assert event.fields["freed_bytes"] == 3 * STEP_BYTES


def test_a_kernel_with_less_to_reclaim_ends_the_attempt(machine: Machine) -> None:
    machine.fails = OSError(errno.EAGAIN, "try again")

    assert machine.does(seen(3.68, 30)) == []  # nothing was given back
    assert len(machine.written) == 1


def test_without_memory_reclaim_root_drops_all_clean_cache(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(return_cache, "reclaim_file", lambda _: "")
    (event,) = machine.does(seen(3.68, 30))

    assert machine.written == ["/proc/sys/vm/drop_caches 1"]
    assert event.fields["freed_bytes"] == 30 * GIB


def test_a_refusal_is_logged_once_with_where_to_look(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.fails = PermissionError(errno.EACCES, "Permission denied")
    for mono in (5.0, 500.0):
        assert machine.does(seen(3.68, 30, mono)) == []

    (line,) = [record.getMessage() for record in caplog.records]
    assert "Permission denied" in line
    assert "wslgpud doctor" in line


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    (tmp_path / "memory.reclaim").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        return_cache._write(str(tmp_path / "memory.reclaim"), "1")

    assert KEPT_BYTES == GIB
    assert (tmp_path / "target").read_text() == ""
