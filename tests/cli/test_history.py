"""``wslgpud history`` and ``export`` over a database of two machines, one of which has ten cards."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.store.made import T0, FakeClock, as_on_a_server, snapshot
from wslgpud.app.catalogue import catalogue
from wslgpud.cli import app, history
from wslgpud.config import StoreSettings
from wslgpud.store import Store
from wslgpud.words.units import amount

MIB = 1 << 20
KNOWN = catalogue()
LOAD, SWAPPED, FAN = KNOWN["load1"], KNOWN["swap_in_bytes"], KNOWN["gpu_fan_speed_ratio"]
NOW = T0 + 600.0


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten minutes of both machines."""
    folder = tmp_path_factory.mktemp("state")
    for name in ("server", "pc"):
        clock = FakeClock(T0)
        with Store(folder / "wslgpud.db", StoreSettings(raw_days=3650), host_name=name, clock=clock) as store:
            for second in range(601):
                clock.now = T0 + second
                values: dict[Any, float] = {LOAD: second / 100, SWAPPED: second * MIB}
                if name == "server":
                    values |= {(FAN, str(n)): n / 10 for n in range(10)}
                store.append(snapshot(clock.now, values))
            assert store.flush()
        if name == "server":
            as_on_a_server(folder / "wslgpud.db")
    return folder


def run(state: Path, *words: str, columns: int = 100, now: float = NOW) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now)
        return CliRunner().invoke(app, [*words, "--state", str(state)], env={"COLUMNS": str(columns)})


def test_the_list_has_machine_unit_and_last_value(state: Path) -> None:
    lines = [" ".join(line.split()) for line in run(state, "history").output.splitlines()]

    assert lines[0] == "series unit last value host"
    assert lines[-5:-2] == ["load1 load 6 server", "swap_in_bytes bytes total 600 MiB pc", lines[-3]]
    assert lines[-1] == "14 series; the short names of some stand beside them in green."
    assert "host" not in run(state, "history", "--host", "pc").output.splitlines()[0]


def test_a_last_value_has_its_age_from_91_seconds_on(state: Path) -> None:
    assert " ago" not in run(state, "history", now=NOW + 90).output
    assert run(state, "history", now=NOW + 91).output.count("2 min ago") == 14


def test_of_many_curves_the_highest_are_drawn(state: Path) -> None:
    shown = run(state, "history", "gpu_fan_speed_ratio", "--since", "10min").output

    assert "only the 8 highest are drawn; narrow it by a pattern or --across" in shown
    assert [line.split()[-4] for line in shown.splitlines() if "gpu_fan" in line] == [
        f"{n}.0%" if n else "0.0%" for n in range(90, -10, -10)
    ]
    assert "highest are drawn" not in run(state, "history", "load1", "--since", "10min").output


def test_a_plot_of_one_unit_has_twelve_lines_and_others_eight(state: Path) -> None:
    def heights(*series: str) -> list[int]:
        plots = run(state, "history", *series, "--since", "10min", "--host", "pc").output.split("series")[:-1]
        return [plot.count("┤") for plot in plots]

    assert heights("load1") == [12]
    assert heights("load1", "swap_in_bytes") == [8, 8]


@pytest.mark.parametrize(("columns", "points"), [(100, 172), (35, 42), (34, 40), (20, 40)])
def test_a_drawing_has_two_values_a_column(
    columns: int, points: int, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, int]] = []

    def step_for(seconds: float, most: int) -> int:
        asked.append((seconds, most))
        return 10

    monkeypatch.setattr(history, "step_for", step_for)
    monkeypatch.setattr(history, "plot_curves", lambda *_: None)
    words = ("history", "load1", "--since", "10min", "--host", "pc")
    run(state, *words, columns=columns)
    run(state, *words, "--plot", str(tmp_path / "load.png"), columns=columns)

    assert asked == [(600.0, points), (600.0, 700)]


def test_for_programs_steps_have_means_and_counters_rates(state: Path) -> None:
    words = ("history", "load1", "swap_in_bytes", "--host", "pc", "--since", "2min", "--step", "1min", "--json")
    levels = json.loads(run(state, *words).stdout)["series"]
    rates = json.loads(run(state, *words[:2], *words[3:], "--rate").stdout)["series"]
    swapped = json.loads(run(state, "history", *words[2:], "--rate", "--since", "10min").stdout)["series"]

    assert [point[1] for point in levels[0]["points"]][:2] == pytest.approx([5.095, 5.695])
    assert [point[1] for point in rates[0]["points"]] == pytest.approx([point[1] for point in levels[0]["points"]])
    assert {round(point[1]) for point in swapped[0]["points"][:-1]} == {MIB}
    assert [one[0]["unit"] for one in (levels, rates, swapped)] == ["", "", "bytes/s"]


def test_several_cards_become_one_and_only_in_steps(state: Path) -> None:
    words = ("history", "gpu_fan_speed_ratio", "--since", "1min", "--across", "max", "--json")
    (one,) = json.loads(run(state, *words, "--step", "1min").stdout)["series"]
    refused = run(state, *words)

    assert {round(value, 3) for _, value in one["points"]} == {0.9}
    assert "--across and --rate need --step" in str(refused.exception) + refused.output


def test_a_label_is_added_to_every_exported_series(state: Path) -> None:
    words = ("export", "-", "load1", "--format", "openmetrics", "--step", "10min")
    lines = run(state, *words, "--label", 'job="a b"', "--label", "site=x").stdout.splitlines()
    samples = [line for line in lines if line.startswith("wslgpud_load1")]

    assert samples
    assert all('job="a b"' in line and 'site="x"' in line for line in samples)


def test_an_export_begins_as_asked_and_not_after_its_end(state: Path) -> None:
    def times(*words: str) -> list[str]:
        done = run(state, "export", "-", "load1", "--host", "pc", "--format", "csv", *words)
        return done.stdout.splitlines()[1:]

    assert len(times()) == 601
    assert len(times("--since", "1min")) == 61
    assert len(times("--until", "9min")) == 61
    late = run(state, "export", "-", "load1", "--format", "csv", "--until", "1h")
    assert "there is no history before 1h" in str(late.exception) + late.output


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("fan", "no series 'fan'; did you mean gpu_fan_speed_ratio? "),
        ("lod1", "no series 'lod1'; did you mean load1, load"),
        ("xyzzy", "no series 'xyzzy'; 'wslgpud history' lists them all"),
        ("o", "did you mean clock, gpu_fan_speed_ratio, headroom?"),
        ("vram", "nothing is recorded here of vram (gpu_memory_used_bytes)"),
    ],
)
def test_a_missing_series_is_answered_with_up_to_three_like_it(asked: str, told: str, state: Path) -> None:
    done = run(state, "history", asked)

    assert done.exit_code == 2
    assert told in str(done.exception) + done.output


def test_what_is_not_recorded_here_is_told_beside_what_is(state: Path) -> None:
    done = run(state, "history", "load", "vram", "--since", "10min", "--host", "pc")

    assert (done.exit_code, "load1" in done.stdout) == (0, True)
    assert done.stderr == "wslgpud: nothing is recorded here of vram (gpu_memory_used_bytes)\n"
    other = run(state, "history", "--host", "nobody")
    assert "no history of a machine called nobody" in str(other.exception) + other.output


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (999.9e6, "hertz", "1000 MHz"),
        (1e9, "hertz", "1.00 GHz"),
        (1.5e9, "hertz", "1.50 GHz"),
        (2.5e6, "hertz", "2 MHz"),
        (999.94, "", "1e+03"),
        (999.4, "", "999"),
        (1000.4, "", "1,000"),
        (-1234.5, "watts", "-1,234 W"),
        (0.5, "joules", "0.5 J"),
    ],
)
def test_a_value_is_written_in_its_unit_with_three_figures(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text
