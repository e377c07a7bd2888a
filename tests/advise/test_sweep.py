"""A sweep measures what each value takes and stops before the one that would not fit."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.advise.guard.box import box
from tests.support.daemons import eventually
from wslgpud.advise.guard.runner import GuardedRun
from wslgpud.advise.guard.sweeping import Sweep, SweepStep, predict, too_much
from wslgpud.advise.guard.usage import CardUse, RunStats, VramWatch
from wslgpud.cli.guard import _print_steps
from wslgpud.config import Config
from wslgpud.host import Host

MIB, GIB = 1 << 20, 1 << 30
SWEEP = [sys.executable, "-m", "wslgpud", "sweep"]
EAT = f"{sys.executable} -c \"import time; x = b'x' * ({{}} << 20); time.sleep(2)\""


def steps(*vram: float) -> list[SweepStep]:
    return [SweepStep(str(2**i), 0, 1.0, GIB, round(v * GIB)) for i, v in enumerate(vram)]


def run(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    return subprocess.run([*before, *SWEEP, *arguments], capture_output=True, text=True, check=False)


def test_two_points_make_a_line():
    assert predict([(1, 3 * GIB), (2, 5 * GIB)], 4) == 9 * GIB
    assert predict([(1, 3 * GIB)], 4) is None
    assert predict([(2, 5 * GIB), (1, 5 * GIB)], 4) == 5 * GIB


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 1 << 45)), max_size=6), st.floats(0, 1e6))
def test_a_prediction_for_more_is_never_less(points, value):
    found = predict(points, value)

    assert found is None or found >= (max(points)[1] if value >= max(points)[0] else 0)


def test_the_value_that_would_not_fit_is_named_before_it_runs():
    assert too_much(steps(3, 5), "4", 50 * GIB, 16 * GIB) is None
    assert too_much(steps(3, 5, 9), "8", 50 * GIB, 16 * GIB) is not None
    why = str(too_much(steps(3, 5, 9), "8", 50 * GIB, 16 * GIB))
    assert why == "8 would take 17 GiB of VRAM, but only 16 GiB is free: stopped before it"
    assert too_much(steps(3, 5, 9), "8", 50 * GIB, None) is None
    for word in ("large", "inf", "nan"):
        assert too_much(steps(3, 5, 9), word, 50 * GIB, 16 * GIB) is None
    assert too_much(steps(3), "8", 50 * GIB, GIB) is None


def test_a_peak_that_nobody_saw_predicts_nothing():
    unseen = [SweepStep("1", 0, 0.1, None, None), SweepStep("2", 0, 0.1, None, None)]

    assert too_much(unseen, "4", 1, 1) is None
    assert too_much([*unseen, SweepStep("3", 0, 1.0, GIB, None)], "4", 1, 1) is None


@pytest.mark.slow
def test_each_value_is_measured():
    done = run("--json", EAT, "50", "150")

    found = json.loads(done.stdout)["steps"]
    assert [s["value"] for s in found] == ["50", "150"]
    assert all(s["code"] == 0 for s in found)
    assert 90 * MIB < found[1]["ram_bytes"] - found[0]["ram_bytes"] < 110 * MIB


def test_an_interrupted_sweep_tries_no_further_value(tmp_path):
    saves = f"trap 'exit 0' TERM; echo >{tmp_path}/{{}}; while :; do sleep 0.1; done"
    with subprocess.Popen(
        [*SWEEP, "--json", saves, "1", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as sweep:
        eventually((tmp_path / "1").exists, "the first value")
        sweep.terminate()
        document = json.loads(sweep.communicate()[0])

    assert [(s["value"], s["code"]) for s in document["steps"]] == [("1", 0)]
    assert document["end"] == "interrupted at 1"


def test_a_command_without_a_placeholder_is_refused_with_a_hint():
    done = run("python train.py --batch", "1", "2")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "wslgpud: the command has no placeholder for the value: write wslgpud sweep 'python train.py --batch {}' 1 2\n"
    )


@pytest.mark.slow
def test_in_a_small_machine_it_stops_in_time():
    with box(600 * MIB) as inside:
        done = run("--json", EAT, "50", "100", "200", "1000", before=tuple(inside))

    document = json.loads(done.stdout)
    assert [s["value"] for s in document["steps"]] == ["50", "100", "200"]
    assert "1000 would take" in document["end"]
    assert done.returncode == 0


def test_a_value_is_shown_as_it_is(capsys):
    _print_steps([SweepStep("[/list]", 0, 1.0, GIB, None)], "")

    assert "[/list]" in capsys.readouterr().out


def test_a_command_that_fails_ends_the_sweep_with_its_last_words():
    done = run("echo trying {}; test {} -lt 3", "1", "5", "7")

    assert "5 ended with status 1\n  trying 5" in done.stderr
    assert "trying 7" not in done.stdout + done.stderr
    assert run("false {}", "1").returncode == 1


@pytest.mark.parametrize(
    ("name", "magic"), [("took.png", b"\x89PNG"), ("took.svg", b"<?xml"), ("took.html", b"<!doctype html>")]
)
def test_it_is_drawn_where_the_user_wants_a_picture(tmp_path, name, magic):
    done = run("--plot", str(tmp_path / name), "echo {}", "small", "large")

    assert done.returncode == 0, done.stderr
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_a_plot_of_an_unknown_kind_is_refused_naming_known_ones(tmp_path):
    done = run("--plot", str(tmp_path / "took.gif"), "echo {}", "1")

    assert done.returncode == 2
    assert "the name of a plot must end in one of .png, .svg, .html" in done.stderr
    assert done.stdout  # what was measured is not lost


@pytest.mark.parametrize(
    ("measured", "table"),
    [
        (
            [SweepStep("1", 0, 1.04, GIB, 2 * GIB), SweepStep("2", 1, 9.96, 8 * GIB, None)],
            [
                "value    time  peak RAM  peak VRAM",
                "    1   1.0 s   1.0 GiB    2.0 GiB  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━",
                "    2  10.0 s   8.0 GiB   not seen",
            ],
        ),
        (
            [SweepStep("1", 0, 1.0, GIB, None), SweepStep("2", 0, 1.0, 2 * GIB, None)],
            [
                "value   time  peak RAM",
                "    1  1.0 s   1.0 GiB  ━━━━━━━━━━━━━━━───────────────",
                "    2  1.0 s   2.0 GiB  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━",
            ],
        ),
        (
            [SweepStep("1", 0, 1.0, 0, None)],
            ["value   time  peak RAM", "    1  1.0 s     0 KiB  ──────────────────────────────"],
        ),
    ],
    ids=["VRAM", "RAM", "nothing"],
)
def test_bars_compare_vram_where_any_value_used_it_and_else_ram(capsys, monkeypatch, measured, table):
    monkeypatch.setenv("COLUMNS", "80")
    _print_steps(measured, "2 ended with status 1")

    shown = capsys.readouterr()
    assert [line.rstrip() for line in shown.out.splitlines()] == table
    assert shown.err == "2 ended with status 1\n"


def test_of_a_command_that_fails_the_last_five_lines_are_shown():
    done = run(r"seq 20000; printf 'the last \377 one\n'; false {}", "1")

    last = "19997\n  19998\n  19999\n  20000\n  the last \N{REPLACEMENT CHARACTER} one"
    assert done.stderr.endswith(f"1 ended with status 1\n  {last}\n")


@pytest.mark.parametrize(
    ("start", "peak", "own"), [(2 * GIB, 5 * GIB, 3 * GIB), (5 * GIB, 4 * GIB, 0), (None, None, None)]
)
def test_the_vram_of_a_value_is_its_peak_beyond_the_use_before(monkeypatch, start, peak, own):
    stats = RunStats(seconds=1.238, peak_bytes=GIB, interrupted=True)
    cards = [CardUse(0, "GPU-0", 16 * GIB, 0, None, 9 * GIB)]
    stats.cards = cards if start is None else [*cards, CardUse(1, "GPU-1", 16 * GIB, start, None, peak)]
    monkeypatch.setattr(GuardedRun, "to_end", lambda _: stats)
    sweep = Sweep(Host(), Config(), "echo {}", gpu=1)

    assert sweep.step("a b", VramWatch(Host(), Config())) == SweepStep("a b", 0, 1.24, GIB, own)
    assert str(sweep.end) == "interrupted at a b"


def test_a_failed_value_is_drawn_in_red_and_others_in_cyan(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    _print_steps([SweepStep("1", 0, 1.0, GIB, None), SweepStep("2", 137, 1.0, GIB, None)], "")
    _, first, second = capsys.readouterr().out.splitlines()

    assert "\x1b[36m━" in first
    assert "\x1b[31m━" in second
