"""The list of incidents and the report of one on a terminal, character by character."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.alerts import ticks
from tests.alerts.ticks import transition
from tests.support.daemons import saying
from wslgpud.alerts.incidents import Incident
from wslgpud.alerts.report import HeadroomCurve, Report
from wslgpud.cli import alerts, app
from wslgpud.cli.alerts import _as_of_now, _print_list, _readable, recent
from wslgpud.cli.console import Console
from wslgpud.config import StoreSettings
from wslgpud.model import Forecast, Level, Transition
from wslgpud.store import Store
from wslgpud.words import Message

GIB = 1 << 30
START = datetime(2026, 11, 20, 14, 0).timestamp()


def at(seconds: float) -> str:
    return datetime.fromtimestamp(START + seconds).astimezone().isoformat()


def told(found: Report, **more: bool) -> str:
    """Return a report as it is printed on a terminal of 90 columns."""
    text = io.StringIO()
    Console(file=text, width=90).print(*_readable(found, **more), sep="\n")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def incident(**more: Any) -> Incident:
    row = replace(transition(20, Level.OK, Level.WARNING), wall=START + 20)
    walls = {
        "opened_wall": START + 15,
        "changed_wall": START + 55,
        "warned_wall": START + 20,
        "closed_wall": START + 50,
    }
    given = {
        "level": Level.OK,
        "worst": Level.CRITICAL,
        "message": Message("x"),
        "first": row,
        "last": row,
        "last_id": 1,
    }
    return Incident(**{"id": 12, "rule": "memory_exhaustion", "resource": "ram", **walls, **given, **more})


def report(found: Incident, **more: Any) -> Report:
    """Return the report of a minute, with a forecast that warned after 20 s."""
    points = [(START + n, float((60 - n) * GIB), Level(min(4, n // 12))) for n in range(60)]
    names = ("ram", "gpu0", "cgroup:/a", "gpu1", "swap", "disk", "gpu2")
    curves = [HeadroomCurve(name, 64.0 * GIB, points[: 60 - n]) for n, name in enumerate(names)]
    forecast = Forecast("ram", Level.WARNING, 40 * GIB, 64 * GIB, 1e9, 20.0, 40.0, 70.0)
    warned = replace(transition(20, Level.OK, Level.WARNING), wall=START + 20, forecast=forecast)
    document = {
        "id": 12,
        "rule": found.rule,
        "name": "RAM",
        "headline": "RAM full",
        "worst_level": "critical",
        "opened": at(15),
        "moment": at(55),
        "evidence": "it was seen",
        "growing": [{"who": "train.py (pid 7)", "grown_bytes": 3 * GIB, "seconds": 90.0}],
        "levels": [
            {"at": at(20), "level": "warning", "headline": "RAM full in ~40 s"},
            {"at": at(50), "level": "ok", "headline": "over"},
        ],
        "messages": [
            {"at": at(20), "channel": "desktop", "sent": at(21.4)},
            {"at": at(20), "channel": "webhook", "sent": at(21.5)},
            {"at": at(20), "channel": "email", "error": "refused"},
            {"at": at(20), "channel": "log"},
        ],
        "events": [{"at": at(55), "text": "killed"}],
        **more,
    }
    return Report(found, START + 55, warned, START, START + 60, document, curves)


MORE = {
    "outcome": "python was killed",
    "trouble": "the driver hung",
    "false_alarm": True,
    "advice": "Save its work, then stop it.",
    "kernel": ["a line"],
    "crash_dumps": ["a dump"],
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("closed", report(incident())),
        ("open", report(incident(closed_wall=None))),
        ("unclean", report(incident(rule="unclean_end"), **MORE)),
    ],
)
def test_a_report_is_shown(name: str, found: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    file = Path(__file__).parent / "screens" / f"{name}.txt"
    if os.environ.get("WSLGPUD_RENEW"):
        file.write_text(told(found) + "\n")

    assert told(found).splitlines() == file.read_text().splitlines()


def test_a_kill_is_marked_in_place_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    killed = incident(kill=replace(transition(55, Level.OK, Level.CRITICAL), wall=START + 55))
    marks = [line.strip() for line in told(report(killed)).splitlines() if "^" in line]

    assert marks == ["^ Warned 14:00:20", "Killed 14:00:55 ^"]


def test_marks_and_forecast_stay_within_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    for warned, closed, marks in ((0, 60, 2), (-1, 61, 0), (0, 61, 1)):
        found = report(incident(warned_wall=START + warned, closed_wall=START + closed))
        assert told(found).count("^") == marks
    assert "forecast at the time of the warning" not in told(report(incident())._replace(warned=None))
    assert "^" not in told(report(incident()), charts=False)
    assert "used of" not in told(report(incident())._replace(curves=[]))


def test_the_list_has_its_story_and_below_it_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    one = {"id": 9, "name": "RAM", "opened": at(0), "worst_level": "critical", "headline": "RAM full"}
    path = {**one, "id": 123, "name": "cgroup /a/very/long/path/of/a.service", "outcome": "it ended by itself"}
    _print_list([one, path])

    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        " ID  when              level     subject                       story",
        "  9  2026-11-20 14:00  critical  RAM                           RAM full",
        "123  2026-11-20 14:00  critical  …very/long/path/of/a.service  RAM full",
        " " * 63 + "it ended by itself",
    ]
    _print_list([])
    assert capsys.readouterr().out == "No incidents recorded\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--plot"], "--plot draws one incident: name its number"),
        (["12", "--since", "2d"], "leave them out, or the number 12"),
        (["12", "--until", "1d"], "leave them out, or the number 12"),
        (["12", "--all"], "leave them out, or the number 12"),
        (["12"], "there is no incident 12"),
        (["--all"], ""),
    ],
)
def test_what_chooses_a_list_does_not_choose_an_incident(tmp_path: Path, arguments: list[str], told: str) -> None:
    with Store(tmp_path / "wslgpud.db", StoreSettings(), host_name="pc"):
        pass
    done = CliRunner().invoke(app, ["incidents", *arguments, "--state", str(tmp_path)])

    assert done.exit_code == (2 if told else 0), done.output
    assert told in " ".join(done.output.split())
    assert told or done.output == "No incidents recorded\n"


@pytest.mark.parametrize(
    ("since", "until", "numbers"), [(0, 99, [3, 1]), (19, 99, [3, 1]), (20, 99, [3]), (0, 30, [3, 1]), (0, 29, [1])]
)
def test_the_list_has_what_changed_or_was_open_in_the_period(since: int, until: int, numbers: list[int]) -> None:
    class Rows:
        def changes(self, *, brief: bool) -> list[tuple[int, Transition]]:
            first = [(1, transition(10, Level.OK, Level.WARNING)), (2, transition(20, Level.WARNING, Level.OK))]
            return [*first, (3, transition(30, Level.OK, Level.WARNING, resource="gpu0"))]

    found = recent(Rows(), ticks.START + since, ticks.START + until)  # type: ignore[arg-type]

    assert [one.id for one in found] == numbers


def test_an_open_incident_has_the_daemons_current_headline(tmp_path: Path) -> None:
    ended = {2: {"closed": at(60)}, 3: {"killed": at(55)}}
    recorded = {"opened": at(15.25), "headline": "in ~40 s", "outcome": "kept"}
    told = [{"id": number, **recorded, **ended.get(number, {})} for number in range(1, 6)]
    now = [{"id": number, "since": at(15), "headline": "in ~20 s"} for number in (1, 2, 3)]
    now.append({"id": 4, "since": at(16), "headline": "another daemon's"})

    with saying(tmp_path, {"incidents": now}):
        shown = _as_of_now(told, tmp_path)

    assert [one["headline"] for one in shown] == ["in ~20 s", *["in ~40 s"] * 4]
    assert {one["outcome"] for one in shown} == {"kept"}
    assert _as_of_now(told, tmp_path) == told, "no daemon answers"


@pytest.mark.parametrize(
    ("resource", "drawn"),
    [("ram", ["ram", "gpu0", "gpu1", "swap"]), ("cgroup:/a", ["ram", "gpu0", "cgroup:/a", "gpu1"])],
)
def test_a_plot_has_four_panels_and_no_foreign_cgroup(
    resource: str, drawn: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plots: list[Any] = []
    monkeypatch.setattr(alerts, "plot_incident", lambda *drawing: plots.append(drawing))
    for more in ({}, {"outcome": "it ended"}):
        alerts._draw(report(incident(resource=resource), **more), tmp_path / "plot.png")

    (panels, story, _, title, text), (*_, ended, _) = plots
    assert [curve.resource for curve in panels] == drawn
    assert (story.start, story.end, title) == (START, START + 60, "Incident 12: RAM full")
    assert ended == "Incident 12: RAM full\nit ended"
    assert "^" not in text


@pytest.mark.parametrize(
    ("rule", "level", "listed"),
    [
        ("memory_exhaustion", Level.INFO, False),
        ("memory_exhaustion", Level.WARNING, True),
        ("unclean_end", Level.INFO, True),
        ("clock_jump", Level.INFO, False),
    ],
)
def test_info_is_listed_on_request_but_unclean_ends_always(
    rule: str, level: Level, listed: bool, tmp_path: Path
) -> None:
    with Store(tmp_path / "wslgpud.db", StoreSettings(), host_name="pc") as store:
        row = replace(transition(20, Level.OK, level, rule=rule, headline="it happened"), wall=START)
        store.outbox.record(row, {})
        assert store.flush()

    days = ("--since", "2026-11-01", "--until", "2026-11-21")

    def shown(*words: str) -> bool:
        done = CliRunner().invoke(app, ["incidents", *days, *words, "--state", str(tmp_path)])
        return "No incidents recorded" not in done.output

    assert (shown(), shown("--all")) == (listed, True)
