"""``wslgpud replay``: the same engine over recordings, for people and for programs."""

import gzip
import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from wslgpud.cli.replay import replay_command
from wslgpud.model import Level
from wslgpud.risk.baselines import BASELINE_NAMES, run_baseline
from wslgpud.risk.score import Score, Truth, TruthError, alarms, brier, read_truth, reliability
from wslgpud.risk.trace import read_trace

app = typer.Typer()
app.command()(replay_command)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def recording(traces):
    return {path.name.split(".")[0]: path for path in traces}


def test_json_gives_one_object_for_each_change_of_level_and_nothing_else(recording):
    result = run("--json", recording["ram-leak_linear-1"], recording["gpu-jax_prealloc-1"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert {row["trace"] for row in rows} == {"ram-leak_linear-1"}
    raised = ["warning", "critical", "emergency"]
    assert [row["level"] for row in rows if row["level"] != "info"] == [*raised, "ok"], (
        "the kill gave it back"
    )
    for row in rows:
        assert set(row) == {"trace", "t", "resource", "level", "eta_s", "probability", "who", "reason"}
    warning = next(row for row in rows if row["level"] == "warning")
    assert warning["resource"] == "ram"
    assert warning["who"].startswith("python3 (pid ")
    assert 0.5 < warning["probability"] <= 1
    assert 175.5 - warning["t"] == pytest.approx(warning["eta_s"], rel=0.5)


def test_a_timeline_shows_use_levels_the_event_and_what_the_warning_said(recording):
    out = run(recording["ram-staircase_oom-1"]).stdout
    assert "out of memory at 94.5 s" in out
    assert "RAM full in about " in out
    assert "\N{LIGHT SHADE} warning" in out
    assert "█" in out


def test_score_prints_the_engine_beside_the_simple_rules(recording):
    result = run("--score", *recording.values())
    assert result.exit_code == 0
    for name in ("wslgpud without PSI", *BASELINE_NAMES, "Brier"):
        assert name in result.stdout


def test_score_without_a_truth_says_what_is_missing(tmp_path, recording):
    path = tmp_path / "mine.jsonl.gz"
    path.write_bytes(recording["gpu-jax_prealloc-1"].read_bytes())
    result = run("--score", path)
    assert result.exit_code == 2
    assert "mine.truth.json" in result.stderr


def test_a_plot_is_a_picture(tmp_path, recording):
    pytest.importorskip("matplotlib")
    out = tmp_path / "p.png"
    assert run(recording["ram-staircase_oom-1"], "--plot", out).exit_code == 0
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_says_how_to_get_it(tmp_path, recording, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(recording["ram-staircase_oom-1"], "--plot", tmp_path / "p.png")
    assert result.exit_code == 2
    assert "pip install matplotlib" in result.stderr


@pytest.mark.parametrize("text", [None, "nonsense\n"])
def test_what_cannot_be_read_is_one_line_and_exit_code_2(tmp_path, text):
    path = tmp_path / "t.jsonl"
    if text is not None:
        path.write_text(text)
    result = run(path)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "t.jsonl" in result.stderr


def test_a_broken_recording_keeps_nobody_from_seeing_the_others_and_what_it_holds(tmp_path, recording):
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


def test_baselines_fire_where_their_rule_says(recording):
    path = recording["ram-leak_linear-1"]
    changes = run_baseline("used > 90 %", read_trace(path))
    assert next(level for _, resource, level in changes if resource == "ram") == Level.WARNING
    assert run_baseline("never", read_trace(path)) == []
    assert run_baseline("always", read_trace(path))[0][0] < 1.0
    prealloc = recording["gpu-jax_prealloc-1"]
    assert run_baseline("predict_linear 1 min -> 2 min", read_trace(prealloc))


def judged(changes, *, event=None, onset=0.0, tolerated=False, at_least=Level.WARNING):
    score = Score()
    truth = Truth("t", {} if event is None else {"ram": event}, onset, tolerated)
    score.add(truth, {"ram": changes}, at_least)
    return score


def test_an_alarm_that_holds_until_the_event_is_right_and_its_lead_counts():
    score = judged([(60.0, Level.WARNING)], event=100.0)
    assert score.leads == [40.0]
    assert score.in_time == 1
    assert score.false_alarms == 0


def test_an_alarm_that_ended_well_before_the_event_is_false():
    score = judged([(60.0, Level.WARNING), (80.0, Level.OK)], event=100.0)
    assert score.leads == [0.0]
    assert score.false_alarms == 1


def test_half_of_what_was_possible_is_in_time_when_little_was():
    assert judged([(95.0, Level.WARNING)], event=100.0, onset=91.0).in_time == 1
    assert judged([(96.0, Level.WARNING)], event=100.0, onset=91.0).in_time == 0


def test_a_warning_is_fair_where_memory_stopped_by_itself_but_a_critical_is_not():
    changes = [(10.0, Level.WARNING), (20.0, Level.CRITICAL), (30.0, Level.OK)]
    assert judged(changes, tolerated=True).false_alarms == 0
    assert judged(changes, tolerated=True).tolerated_with_alarm == 1
    assert judged(changes, tolerated=True, at_least=Level.CRITICAL).false_alarms == 1


def test_alarms_are_intervals_at_a_level_or_above():
    changes = [(1.0, Level.INFO), (2.0, Level.CRITICAL), (3.0, Level.WARNING), (4.0, Level.OK)]
    assert alarms(changes, Level.WARNING) == [(2.0, 4.0)]
    assert alarms(changes, Level.CRITICAL) == [(2.0, 3.0)]


def test_the_brier_score_punishes_certainty_that_was_wrong():
    assert brier([(0.0, 1.0, 30.0)], 60.0) == 0.0
    assert brier([(0.0, 1.0, 90.0)], 60.0) == 1.0
    assert brier([(0.0, 0.5, None)], 60.0) == 0.25
    assert brier([], 60.0) is None


def test_reliability_sets_what_was_said_beside_what_came():
    said = [(0.0, 0.9, 30.0), (0.0, 0.9, None), (0.0, 0.1, None), (0.0, 0.0, None)]
    assert reliability(said, 60.0) == [(pytest.approx(0.1), 0.0, 1), (pytest.approx(0.9), 0.5, 2)]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "x", "events": [{}]}'])
def test_a_truth_that_is_none_is_named(tmp_path, text):
    path = tmp_path / "x.truth.json"
    path.write_text(text)
    with pytest.raises(TruthError, match=r"x\.truth\.json"):
        read_truth(path)
