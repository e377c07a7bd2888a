"""``wslgpud replay``: the same engine over recordings, for people and for programs."""

import gzip
import json
import sys

import pytest
from click.testing import CliRunner

from wslgpud.cli.commands import CliCommand
from wslgpud.cli.replay import replay as replay_command
from wslgpud.model import Level, Observation, RamState
from wslgpud.risk.trace import replay, trace_name

app = CliCommand("replay", replay_command)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def recording(traces):
    return {path.name.split(".")[0]: path for path in traces}


def test_json_gives_one_object_for_each_change_of_level(recording):
    result = run("--json", recording["ram-leak_linear-1"], recording["gpu-jax_prealloc-1"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert {row["trace"] for row in rows} == {"ram-leak_linear-1"}
    raised = ["warning", "critical", "emergency"]
    assert [row["level"] for row in rows if row["level"] != "info"] == [*raised, "ok"], "the kill gave it back"
    for row in rows:
        assert set(row) == {"trace", "t", "resource", "level", "eta_s", "probability", "who", "reason"}
    warning = next(row for row in rows if row["level"] == "warning")
    assert warning["resource"] == "ram"
    assert warning["who"].startswith("python3 (pid ")
    assert 0.5 < warning["probability"] <= 1
    assert 175.5 - warning["t"] == pytest.approx(warning["eta_s"], rel=0.5)


def test_a_timeline_shows_use_levels_and_the_warning(recording):
    out = run(recording["ram-staircase_oom-1"]).stdout
    assert "RAM full in about " in out
    assert "\N{LIGHT SHADE} warning" in out
    assert "█" in out


def test_a_plot_is_a_picture(tmp_path, recording):
    pytest.importorskip("matplotlib")
    out = tmp_path / "p.png"
    assert run(recording["ram-staircase_oom-1"], "--plot", out).exit_code == 0
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_says_how_to_get_it(tmp_path, recording, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(recording["ram-staircase_oom-1"], "--plot", tmp_path / "p.png")
    assert result.exit_code == 2
    assert "a plot needs matplotlib: " in result.stderr
    assert result.stderr.endswith("/deploy/extras/plots.txt\n")  # as locked


@pytest.mark.parametrize("text", [None, "nonsense\n"])
def test_what_cannot_be_read_is_one_line_and_exit_code_2(tmp_path, text):
    path = tmp_path / "t.jsonl"
    if text is not None:
        path.write_text(text)
    result = run(path)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "t.jsonl" in result.stderr


def test_a_broken_recording_still_shows_its_start_and_the_others(tmp_path, recording):
    whole = recording["ram-leak_linear-1"]
    lines = gzip.decompress(whole.read_bytes()).decode().splitlines(keepends=True)
    broken = tmp_path / "broken.jsonl"
    broken.write_text("".join([*lines[:330], "{oops}\n", *lines[330:]]))
    result = run("--json", tmp_path / "missing.jsonl", broken, whole)
    assert result.exit_code == 2
    missing, line = result.stderr.splitlines()
    assert "missing.jsonl" in missing
    assert "broken.jsonl, line 331: not JSON" in line
    assert "replayed up to there" in line
    rows = [json.loads(row) for row in result.stdout.splitlines()]
    until = [row | {"trace": "whole"} for row in rows if row["trace"] == "broken"]
    alone = [json.loads(row) for row in run("--json", whole).stdout.splitlines()]
    assert rows[len(until) :] == alone
    assert until
    assert until == [row | {"trace": "whole"} for row in alone[: len(until)]]


def odd(row):
    """A recorder of another make: another order of fields, another card's number, nothing it need not say."""
    row = dict(reversed(row.items()))
    for gpu in row.get("gpus", ()):
        gpu["index"] = 7
        gpu["temp_c"] = float("nan")
        gpu.pop("free", None)
        gpu.pop("procs", None)
    for absent in ("psi", "procs", "vm"):
        row.pop(absent, None)
    return row


@pytest.mark.parametrize("name", ["gpu-leak_outputs-1", "ram-leak_linear-1", "gpu-jax_prealloc-1"])
def test_a_recorder_of_another_make_leads_to_the_same_warnings(tmp_path, recording, name):
    lines = gzip.decompress(recording[name].read_bytes()).decode().splitlines()
    path = tmp_path / "odd.jsonl.gz"
    rows = [json.dumps(odd(json.loads(line))) for line in lines[1:]]
    rows = [text for row in rows for text in (row, row)]  # and each sample twice
    path.write_bytes(gzip.compress("\r\n".join([lines[0], *rows, ""]).encode()))

    def warnings(*arguments):
        rows = [json.loads(row) for row in run("--json", *arguments).stdout.splitlines()]
        return [(row["t"], row["level"]) for row in rows if row["level"] in ("warning", "critical")]

    assert warnings(path) == warnings(recording[name])


def test_a_replay_counts_samples_and_seconds_and_keeps_forecasts():
    seen = [Observation(t=5.0), *(Observation(t=float(t), ram=RamState(1000, 910 - t)) for t in range(6, 10))]
    result = replay("calm", seen)
    assert (result.name, result.samples, result.seconds, result.start_wall) == ("calm", 5, 4.0, None)
    assert result.points() == {"ram": [(float(t), (910 - t) / 1000, None, Level.OK) for t in range(6, 10)]}
    nothing = replay("empty", [])
    assert (nothing.samples, nothing.seconds, nothing.points(), nothing.changes) == (0, 0.0, {}, [])


def test_a_trace_is_named_by_its_file_up_to_the_first_dot(tmp_path):
    assert [trace_name(tmp_path / name) for name in ("a-1.jsonl.gz", "a.b.jsonl", "a")] == ["a-1", "a", "a"]
