"""Would it have warned me last night? The engine over the user's own database."""

import json
import time

import pytest
from click.testing import CliRunner

from wslgpud.cli.commands import CliCommand
from wslgpud.cli.replay import replay as replay_command
from wslgpud.config import StoreSettings
from wslgpud.model import GpuProcess, GpuSample, ProcessSample, Reading, Sample, Snapshot, SourceReport
from wslgpud.sampling.observation import observations
from wslgpud.sources import gpu, memory
from wslgpud.store import Store
from wslgpud.store.reader import Reader
from wslgpud.words.moments import MomentError, moment

GIB = 1 << 30
CARD = ("0", "GPU-1")
FED = {spec.name: spec for spec in gpu.FED}
app = CliCommand("replay", replay_command)


def tick(wall, used, vram=None):
    lines = {"MemTotal": 16 * GIB, "MemAvailable": int((16 - used) * GIB), "SwapTotal": 0, "SwapFree": 0}
    readings = [Reading(memory.MEMINFO[line], value) for line, value in lines.items()]
    readings += [
        Reading(FED["gpu_memory_total_bytes"], 8 * GIB, CARD),
        Reading(FED["gpu_memory_used_bytes"], int((1 if vram is None else vram) * GIB), CARD),
    ]
    python = ProcessSample(77, 5, "python", int(used * 0.9 * GIB), 0)
    programs = (GpuProcess(77, "python", None if vram is None else int(vram * GIB)),)
    card = GpuSample(0, "GPU-1", "", processes=programs)
    sample = Sample(tuple(readings), processes=(python,), gpus=(card,))
    report = SourceReport("made", "ok", sample, wall, 0.0)
    return Snapshot(wall, wall, 1, (report,))


@pytest.fixture
def night(tmp_path):
    """Ten minutes of a leak, written the way the daemon writes."""
    file, start = tmp_path / "wslgpud.db", time.time() - 7200
    with Store(file, StoreSettings(), host_name="pc") as store:
        for second in range(600):
            store.append(tick(start + second, 2 + 14 * second / 600))
            if second % 100 == 99:
                assert store.flush()
        assert store.flush()
    return file, start


def test_the_past_is_observed_as_it_was(night):
    file, start = night
    reader = Reader(str(file))
    seen = list(observations(reader, start - 10, start + 700))
    reader.close()
    assert len(seen) == 600
    assert seen[300].ram.available == int((16 - 9) * GIB)
    assert seen[300].swap.total == 0
    assert seen[300].gpus[0].used_bytes == GIB
    assert seen[599].processes[0].name == "python"
    assert not any(o.gap_expected for o in seen)


def test_who_filled_a_card_last_night_is_named(tmp_path, monkeypatch):
    file, start = tmp_path / "wslgpud.db", time.time() - 7200
    with Store(file, StoreSettings(), host_name="pc") as store:
        for second in range(120):
            store.append(tick(start + second, 2, vram=2 + second / 20))
        assert store.flush()
    monkeypatch.setenv("WSLGPUD_STORE__PATH", str(file))
    result = CliRunner().invoke(app, ["--since", "3h", "--json"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {row["who"] for row in rows if row["level"] == "critical"} == {"python (pid 77)"}


def test_a_night_in_the_database_is_replayed_with_its_warning(night, monkeypatch):
    file, start = night
    monkeypatch.setenv("WSLGPUD_STORE__PATH", str(file))
    result = CliRunner().invoke(app, ["--since", "3h"])
    assert result.exit_code == 0, result.output
    title, span, *_ = result.stdout.splitlines()
    assert title.startswith("history: 600 samples")
    assert span.startswith(f"  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(start))} to ")
    assert "RAM full in about " in result.stdout
    assert "python (pid 77)" in result.stdout


def test_without_a_database_or_a_time_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("WSLGPUD_STORE__PATH", str(tmp_path / "none.db"))
    for arguments in (["--since", "8h"], ["--since", "yesterday"], ["--since", "1h", "--until", "2h"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1


def test_neither_recordings_nor_history_is_bad_usage():
    assert CliRunner().invoke(app, []).exit_code == 2


def test_times_are_local_dates_or_so_long_ago():
    assert moment("90m", 10_000.0) == 10_000.0 - 5400
    assert moment("2d", 1e9) == 1e9 - 2 * 86400
    assert moment("2026-11-20 22:00", 0.0) == time.mktime((2026, 11, 20, 22, 0, 0, 0, 0, -1))
    with pytest.raises(MomentError):
        moment("soon", 0.0)
