"""What is replayed from the database is what the engine saw live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hosts.machines import HERE
from wslgpud.config import Config
from wslgpud.host import RecordedHost
from wslgpud.model import GpuSample, Observation, ProcessSample, Reading, Sample, Snapshot, SourceReport, SwapState
from wslgpud.sampling.assessor import Assessor
from wslgpud.sampling.observation import observations
from wslgpud.sources.memory import MEMINFO, OOM_KILLS
from wslgpud.store import Reader, Store
from wslgpud.words.moments import MomentError, moment

START = 1_790_000_000


@pytest.mark.parametrize("machine", ["wsl2-vram-full", "wsl2-swap-thrash", "cgroup-limit", "bare-linux"])
def test_an_observation_survives_the_database(machine: str, tmp_path: Path) -> None:
    host = RecordedHost(HERE / machine)
    monitor = Assessor(Config(), host)
    state, _ = monitor.tick()
    monitor.close()
    seen, wall = state.observation, state.wall
    with Store(tmp_path / "db.sqlite", Config().store, clock=host.clock) as store:
        store.append(state)
        assert store.flush()
        reader = Reader(str(tmp_path / "db.sqlite"))
        (again,) = observations(reader, wall - 5, wall + 5)
        reader.close()

    assert again.t == pytest.approx(wall, abs=0.002)
    for part in ("ram", "swap", "vm", "cgroups", "wsl"):
        assert getattr(again, part) == getattr(seen, part), part
    assert {k: v.full_total_us for k, v in again.psi.items()} == {k: v.full_total_us for k, v in seen.psi.items()}
    assert [(p.pid, p.start_ticks, p.rss_bytes) for p in again.processes] == [
        (p.pid, p.start_ticks, p.rss_bytes) for p in seen.processes
    ]
    assert again.gpus == tuple(kept_of(gpu) for gpu in seen.gpus)


def kept_of(gpu: GpuSample) -> GpuSample:
    return GpuSample(
        gpu.index,
        gpu.uuid,
        "",
        gpu.total_bytes,
        gpu.used_bytes,
        gpu.free_bytes,
        gpu.reserved_bytes,
        processes=gpu.processes,
    )


def replayed(tmp_path: Path, samples: Mapping[int, Sample]) -> list[Observation]:
    """Return the observations that a history of these samples gives, by the second of each."""
    clock = RecordedHost(HERE / "bare-linux").clock
    with Store(tmp_path / "db.sqlite", Config().store, clock=clock) as store:
        for second, sample in samples.items():
            report = SourceReport("made", "ok", sample, second, 0.0)
            store.append(Snapshot(START + second, second, second, (report,)))
        assert store.flush()
        return list(observations(store.reader, START, START + max(samples)))


def memory_of(*swap: Reading, processes: tuple[ProcessSample, ...] | None = None) -> Sample:
    return Sample((Reading(MEMINFO["MemTotal"], 1000), Reading(MEMINFO["MemAvailable"], 400), *swap), processes)


def test_a_replayed_value_counts_for_a_quarter_of_a_minute(tmp_path: Path) -> None:
    swap = Reading(MEMINFO["SwapTotal"], 50), Reading(MEMINFO["SwapFree"], 20)
    seen = replayed(tmp_path, {0: memory_of(*swap), 15: memory_of(), 16: memory_of()})

    assert [one.swap for one in seen] == [SwapState(50, 20), SwapState(50, 20), None]


def test_replayed_processes_count_for_two_and_a_half_minutes(tmp_path: Path) -> None:
    process = ProcessSample(42, 1, "python", 1 << 20, 0)
    ticks = {0: memory_of(processes=(process,)), 150: memory_of(), 151: memory_of()}
    seen = replayed(tmp_path, ticks)

    assert [one.processes for one in seen] == [(process,), (process,), ()]


def test_more_than_a_minute_without_a_sample_is_no_stall(tmp_path: Path) -> None:
    alone = Sample((Reading(OOM_KILLS, 1),))
    seen = replayed(tmp_path, {0: memory_of(), 30: alone, 60: memory_of(), 120: alone, 121: memory_of()})

    assert [(one.t - START, one.gap_expected) for one in seen] == [(0, False), (60, False), (121, True)]


@pytest.mark.parametrize(("text", "ago"), [("90min", 5400), ("24h", 86400), ("7 d", 7 * 86400), ("30s", 30)])
def test_a_moment_may_be_so_long_ago(text: str, ago: float) -> None:
    assert moment(text, now=1e9) == 1e9 - ago


def test_a_moment_may_be_a_date_with_its_zone() -> None:
    assert moment("2026-11-21T03:00:00+00:00", now=0) == 1795230000


@pytest.mark.parametrize("text", ["", "the other day", "12 parsecs", "2026-13-40"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(MomentError):
        moment(text, now=0)
