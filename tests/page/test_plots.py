"""Every command that draws does so by the same module: on the terminal, as PNG and as SVG."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from tests.page.stage import TRACES, Stage, nights, trace
from wslgpud import colors
from wslgpud.cli import app
from wslgpud.model import Level

TRACE = str(TRACES / "h200" / "h200-slow_leak-1.jsonl.gz")
COMMANDS = {
    "history": ["history", "headroom", "vram", "--since", "10min"],
    "incidents": ["incidents", "{incident}"],
    "stress history": ["stress", "history"],
    "replay": ["replay", TRACE],
    "sweep": ["sweep", "true {}", "1", "2"],
}
#: what each draws on a terminal; of `true` nothing is known unless the machine is slow
DRAWN = {
    "history": r"[\u2801-\u28ff]{5}",
    "incidents": r"[\u2801-\u28ff]{3}",
    "stress history": r"[\u2801-\u28ff]{3}",
    "replay": "▁.*█",
    "sweep": "n/a|not seen|━{5}",
}


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    stage = Stage(folder, database=folder / "wslgpud.db")
    stage.name = "here"
    nights(stage, 12)
    stage.play(trace("h200/h200-slow_leak-1"), 110)
    number = next(iter(stage.ledger.open.values())).id
    stage.close()
    return folder, number


def run(command, state, *more):
    folder, number = state
    words = [word.replace("{incident}", str(number)) for word in COMMANDS[command]]
    mine = ["--state", str(folder)] if command != "sweep" else []
    return CliRunner().invoke(app, [*words, *mine, *more], env={"COLUMNS": "120"})


@pytest.mark.parametrize("command", COMMANDS)
def test_plot_alone_draws_on_the_terminal(command, state):
    done = run(command, state, "--plot")

    assert done.exit_code == 0, done.output
    assert re.search(DRAWN[command], done.stdout)


def test_recorded_series_are_drawn_and_missing_ones_are_named(state):
    done = CliRunner().invoke(app, ["history", "headroom", "temperature", "--state", str(state[0])])

    assert done.exit_code == 0, done.output
    assert "headroom_bytes" in done.stdout
    assert done.stderr == "wslgpud: nothing is recorded here of temperature (gpu_temperature_celsius)\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_plot_with_a_name_draws_into_that_file(command, state, tmp_path):
    pytest.importorskip("matplotlib")
    for name, begins in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        done = run(command, state, "--plot", str(tmp_path / name))

        assert done.exit_code == 0, done.output
        assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_picture_is_refused_in_one_line(command, state, tmp_path):
    pytest.importorskip("matplotlib")
    done = run(command, state, "--plot", str(tmp_path / "a.pdf"))

    assert done.exit_code == 2
    assert re.search(r"a\.pdf: the name of a plot must end in one of \.png, \.svg.*\n", done.stderr)


def test_levels_headroom_and_forecast_have_their_own_colours(state, tmp_path):
    pytest.importorskip("matplotlib")
    run("replay", state, "--plot", str(tmp_path / "r.svg"))
    drawn = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", (tmp_path / "r.svg").read_text()))

    wanted = {colors.LEVELS[level].fill for level in Level if level > Level.OK}
    assert wanted | {colors.INKS["headroom"].light, colors.INKS["eta"].light} <= drawn


def test_lines_have_the_colours_of_the_page_in_their_order(state, tmp_path):
    pytest.importorskip("matplotlib")
    run("history", state, "--plot", str(tmp_path / "h.svg"))
    drawn = re.findall(r"fill: none; stroke: (#[0-9a-f]{6}); stroke-width: 1\.2", (tmp_path / "h.svg").read_text())

    assert list(dict.fromkeys(drawn)) == [ink.light for ink in colors.LINES[:2]]


def test_the_same_data_give_the_same_picture(state, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg"):
        run("stress history", state, "--plot", str(tmp_path / name))

    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
