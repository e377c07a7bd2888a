"""What is replayed from the database is what the engine saw live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hosts.machines import HERE
from wslgpud.cli.common import Fault, moment
from wslgpud.config import Config
from wslgpud.host import RecordedHost
from wslgpud.model import GpuSample, PsiState
from wslgpud.sampling.observation import observations
from wslgpud.sampling.pipeline import SamplingPipeline
from wslgpud.store import Reader, Store


@pytest.mark.parametrize("machine", ["wsl2-vram-full", "wsl2-swap-thrash", "cgroup-limit", "bare-linux"])
def test_an_observation_survives_the_database(machine: str, tmp_path: Path) -> None:
    host = RecordedHost(HERE / machine)
    monitor = SamplingPipeline(Config(), host)
    state, _ = monitor.tick()
    monitor.close()
    seen, wall = state.observation, state.snapshot.wall
    with Store(tmp_path / "db.sqlite", Config().store, clock=host.clock) as store:
        store.append(state.snapshot)
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


def stalls(psi: Mapping[str, PsiState]) -> dict[str, int | None]:
    return {name: state.full_total_us for name, state in psi.items()}


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


@pytest.mark.parametrize(("text", "ago"), [("90min", 5400), ("24h", 86400), ("7 d", 7 * 86400), ("30s", 30)])
def test_a_moment_may_be_so_long_ago(text: str, ago: float) -> None:
    assert moment(text, now=1e9) == 1e9 - ago


def test_a_moment_may_be_a_date_with_its_zone() -> None:
    assert moment("2026-11-21T03:00:00+00:00", now=0) == 1795230000


@pytest.mark.parametrize("text", ["", "the other day", "12 parsecs", "2026-13-40"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(Fault):
        moment(text, now=0)
