"""A whole screen, character by character: each row with everything in it that it can show."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.live.test_rows import drawn, looked, printed
from tests.support.documents import GIB, calm, leak
from wslgpud.advise.live_sample import CurveKey, Hint, LiveSample, RecentSeries, Values
from wslgpud.cli.chart import bar, spark
from wslgpud.cli.console import Console
from wslgpud.cli.live.rows import SPANS_SECONDS, RowContext, Shown, rule
from wslgpud.cli.live.screen import once, process_table, processes

MIB = 1 << 20


def local(text: str) -> str:
    return datetime.fromisoformat(text).astimezone().isoformat()


NOW = local("2026-11-21 12:00:00")
CARD = {"gpu": "0"}
VALUES: Values = {
    "wslgpud_gpu_clock_hertz": [({**CARD, "clock": "sm"}, 2.516e9), ({**CARD, "clock": "memory"}, 1e10)],
    "wslgpud_gpu_power_limit_watts": [(CARD, 450.0)],
    "wslgpud_gpu_fan_speed_ratio": [(CARD, 0.4)],
    "wslgpud_gpu_performance_state": [(CARD, 2.0)],
    "wslgpud_gpu_throttle_reason": [
        ({**CARD, "reason": "sw_power_cap"}, 1.0),
        ({**CARD, "reason": "gpu_idle"}, 1.0),
        ({**CARD, "reason": "hw_slowdown"}, 0.0),
    ],
    "wslgpud_cpus": [({}, 8.0)],
    "wslgpud_load1": [({}, 1.26)],
    "wslgpud_filesystem_avail_bytes": [({"mountpoint": "/mnt/c"}, 80.0 * GIB), ({"mountpoint": "/"}, 200.0 * GIB)],
}


def full() -> LiveSample:
    """Return a machine of which everything is told."""
    document = leak(at=NOW)
    document["verdict"]["level"] = "warning"
    document["gpus"][0].update(power_watts=301.6, temperature_celsius=71.4)
    document["processes"][0]["swap_bytes"] = GIB
    group = {**document["forecasts"][1], "eta_seconds": None}
    groups = [
        {**group, "resource": f"cgroup:/{n}", "name": f"/{n}", "headroom_bytes": n * GIB, "level": "ok"}
        for n in range(1, 6)
    ]
    since = {"level": "warning", "headline": "a disk fills"}
    changes = [
        (local("2026-11-21 11:50:00"), "ok", "warning"),
        (local("2026-11-20 23:50:00"), "ok", "critical"),
        (local("2026-11-21 11:49:00"), "warning", "ok"),
        (local("2026-11-21 11:48:00"), "warning", "critical"),
        (local("2026-11-21 11:47:00"), "ok", "info"),
    ]
    adapters = [{"adapter": "NVIDIA RTX", "shared_bytes": 3 * GIB}, {"adapter": "Intel UHD", "shared_bytes": GIB}]
    document |= {
        "forecasts": [*document["forecasts"], *groups],
        "swap": {"total": 8 * GIB, "free": 6 * GIB},
        "windows": {
            "memory_available_bytes": 5 * GIB,
            "memory_total_bytes": 64 * GIB,
            "committed_bytes": 60 * GIB,
            "commit_limit_bytes": 72 * GIB,
            "vm_bytes": 48 * GIB,
            "vm_unreturned_bytes": 21 * GIB,
            "gpus": adapters,
        },
        "running": [
            {"kind": "guard", "elapsed_seconds": 30.0, "left_seconds": 90.0, "headline": "make"},
            {"kind": "stress", "elapsed_seconds": 3.0, "done_ratio": 0.5, "headline": "soak"},
            {"kind": "guard", "elapsed_seconds": 3.0, "headline": "endless"},
        ],
        "incidents": [{**since, "id": n, "since": local(f"2026-11-21 11:0{n}:00")} for n in range(1, 8)],
        "sources": [
            {"name": "nvml", "health": "failed", "error": "driver is gone"},
            {"name": "psi", "health": "late"},
            {"name": "disk", "health": "ok"},
        ],
        "recent": [
            {"at": at, "previous_level": before, "level": level, "headline": f"{before} to {level}"}
            for at, before, level in changes
        ],
        "stress": [{"at": NOW, "verdict": "passed", "headline": "GPU 0 passed"}],
    }
    return LiveSample(60.0, document, VALUES, "daemon", "http://127.0.0.1:9655", age_seconds=5.1)


def trail() -> RecentSeries:
    found = RecentSeries()
    curves = {
        CurveKey("cpu"): 0.25,
        CurveKey("waiting", "io"): 0.01,
        CurveKey("waiting", "memory"): 0.009,
        CurveKey("disk read"): 3.0 * MIB,
        CurveKey("disk write"): 2.0 * MIB,
        CurveKey("received"): 1.0 * MIB,
        CurveKey("sent"): 4.0 * MIB,
        CurveKey("swap in"): 1.0 * MIB + 1,
        CurveKey("busy", "0"): 0.5,
        CurveKey("used", "ram"): 0.5,
        CurveKey("used", "swap"): 0.25,
    }
    for key, value in curves.items():
        found.seed(key, [(float(second), value) for second in range(0, 61, 2)])
    for pid, rise in (("8932", 2 * MIB), ("4000", MIB / 61)):
        found.seed(CurveKey("rss", pid), [(float(second), second * rise) for second in range(61)])
        found.seed(CurveKey("vram", pid), [(float(second), second * rise) for second in range(61)])
    return found


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def drawn_before(name: str, now: list[str]) -> list[str]:
    if os.environ.get("WSLGPUD_RENEW"):
        (Path(__file__).parent / "whole" / f"{name}.txt").write_text("\n".join(now) + "\n")
    return (Path(__file__).parent / "whole" / f"{name}.txt").read_text().splitlines()


@pytest.mark.parametrize(("name", "size"), [("wide", (120, 60)), ("narrow", (75, 34))])
def test_everything_stands_in_its_place_on_a_terminal(name: str, size: tuple[int, int]) -> None:
    now = lines(drawn(full(), trail(), size=size))
    assert now == drawn_before(name, now)


def test_everything_stands_in_its_place_where_lines_have_no_end() -> None:
    now = lines(printed(once(full()), 90))
    assert now == drawn_before("once", now)


@pytest.mark.parametrize(("width", "bars", "sparks"), [(75, 0, 0), (76, 1, 0), (109, 1, 0), (110, 1, 1)])
def test_bars_need_76_columns_and_sparklines_110(width: int, bars: int, sparks: int) -> None:
    text = drawn(full(), trail(), size=(width, 60))

    assert ("% used" in text, "swapped" in text) == (bool(bars), bool(bars))
    assert ("last 5 min" in text, "▅▅" in text) == (bool(sparks), bool(sparks))


@pytest.mark.parametrize(
    ("age", "mono", "seen_by", "told"),
    [
        (5.0, 60.0, "daemon", ""),
        (5.1, 60.0, "daemon", "5 s old"),
        (2.0, 64.0, "daemon", "6 s old"),
        (5.0, 59.0, "daemon", ""),
        (9.0, 60.0, "own look", ""),
    ],
)
def test_a_daemons_sample_is_called_old_after_5_s(age: float, mono: float, seen_by: str, told: str) -> None:
    first = drawn(replace(full(), age_seconds=age, seen_by=seen_by), mono=mono).splitlines()[0]

    assert first.partition("1 more is open")[2].strip() == told


def test_swap_that_is_read_back_is_told_from_1_mib_per_second() -> None:
    document = calm(at=NOW, swap={"total": 8 * GIB, "free": 8 * GIB})
    curves = RecentSeries()
    curves.seed(CurveKey("swap in"), [(0.0, 1.0 * MIB), (10.0, 1.0 * MIB)])
    text = drawn(looked(document), curves)

    assert "reads back" not in text


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(100.0, 1.0), (91.0, 0.5), (92.1, 0.9), (90.1, 0.0)], "▅▇  █"),
        ([(89.9, 1.0), (90.0, 1.0)], "     "),
        ([(95.9, 0.25), (94.1, 0.75), (94.2, 0.5)], "  ▆  "),
        ([(100.0, 7.0), (98.1, -1.0)], "    █"),
        ([(97.9, -1.0)], "   ▁ "),
        ([(101.0, 1.0)], "    █"),
        ([(102.1, 1.0)], "     "),
    ],
)
def test_a_sparkline_shows_the_most_of_each_time_within_its_span(points: list[tuple[float, float]], line: str) -> None:
    assert spark(points, 100.0, 10.0, 5) == line


@pytest.mark.parametrize(
    ("used", "ahead", "drawn"),
    [
        (0.5, 0.0, "━━━━━─────"),
        (0.5, 0.8, "━━━━━╍╍╍──"),
        (-1.0, 0.0, "─" * 10),
        (2.0, 3.0, "━" * 10),
        (0.8, 9.0, "━━━━━━━━╍╍"),
    ],
)
def test_a_bar_shows_its_share_solid_and_its_forecast_broken(used: float, ahead: float, drawn: str) -> None:
    assert bar(used, 10, "red", ahead).plain == drawn


def test_a_rule_fills_its_line_and_is_cut_where_there_is_no_room() -> None:
    assert rule("memory", 20).plain == "── memory ──────────"
    assert rule("memory", 20, "now").plain == "── memory ──── now ─"
    assert rule("memory", 8, "now").plain == "── memo…"


def test_sort_order_wraps_and_sparkline_length_stops_at_ends() -> None:
    orders, shown = [], Shown()
    for _ in range(5):
        shown = shown.cycled()
        orders.append(shown.sort)
    assert orders == ["VRAM", "growth", "pid", "RAM", "VRAM"]

    lengths = [Shown(span_seconds=span).longer(way).span_seconds for span in SPANS_SECONDS for way in (1, -1)]
    assert lengths == [300.0, 60.0, 900.0, 60.0, 3600.0, 300.0, 3600.0, 900.0]


def program(pid: int, rss: int, **more: Any) -> dict[str, Any]:
    return {"pid": pid, "name": "x", "command": f"x{pid}", "rss_bytes": rss, "swap_bytes": 0, "roles": [], **more}


def shown_pids(shown: Shown, curves: RecentSeries, *programs: dict[str, Any], **more: Any) -> list[int]:
    document = calm(processes=list(programs), **more)
    return [row["pid"] for row in processes(RowContext(looked(document), curves, shown, 120, 60.0))[0]]


def test_processes_are_ordered_by_what_was_chosen_then_by_ram() -> None:
    cards = [{"index": 0, "name": "x", "processes": [{"pid": 3, "used_bytes": 5}, {"pid": 2, "used_bytes": 0}]}]
    programs = [program(1, 10 * MIB), program(2, 20 * MIB), program(3, 5 * MIB), program(4, 30 * MIB)]
    curves = RecentSeries()
    for pid, key, rise in ((1, "rss", 5.0), (3, "vram", 9.0), (4, "rss", -1.0)):
        curves.seed(CurveKey(key, str(pid)), [(float(n), n * rise) for n in range(61)])
    for sort, pids in {"": [4, 2, 1, 3], "VRAM": [3, 4, 2, 1], "growth": [3, 1, 2, 4], "pid": [1, 2, 3, 4]}.items():
        assert shown_pids(Shown(sort=sort), curves, *programs, gpus=cards) == pids
    blamed = {"level": "warning", "headline": "x", "pid": 1}
    assert shown_pids(Shown(), curves, *programs, verdict=blamed) == [1, 4, 2, 3]
    assert shown_pids(Shown(sort="RAM"), curves, *programs, verdict=blamed) == [4, 2, 1, 3]


def test_unlimited_output_lists_only_programs_that_matter() -> None:
    small = program(1, 31 * MIB, swap_bytes=MIB - 1)
    rest = [program(2, 31 * MIB, swap_bytes=MIB), program(3, 1, roles=["shell"]), program(4, 1), program(5, 1)]
    curves = RecentSeries()
    for pid, rise in (("4", float(MIB)), ("5", MIB + 1.0)):
        curves.seed(CurveKey("rss", pid), [(float(n), n * rise) for n in range(61)])
    look = looked(calm(at=NOW, processes=[small, *rest]))
    text = printed(replace(once(look), trail=curves), 90)

    assert re.findall(r"x(\d)$", "\n".join(lines(text)), re.MULTILINE) == ["2", "3", "5"]


def test_eight_programs_are_listed_where_lines_have_no_end() -> None:
    look = looked(calm(at=NOW, processes=[program(n, n * GIB) for n in range(10, 30)]))

    assert len(re.findall(r"x\d\d\b", printed(once(look), 90))) == 8


def test_noise_is_no_growth() -> None:
    rows = [{**program(1, 1), "role": "", "vram": None, "holds": False, "program": "x", "vram growth": None}]
    view = RowContext(looked(calm()), RecentSeries(), Shown(), 120, 60.0)
    for rate, cell in ((None, ""), (MIB / 60, ""), (MIB / 30, "+2 MiB/min")):
        table = process_table(view, [{**rows[0], "growth": rate}])
        assert [column.header for column in table.columns].count("growth") == bool(cell)
        assert not cell or [str(one) for one in table.columns[3].cells] == [cell]


def test_a_hint_to_act_on_is_marked_otherwise_than_a_reassurance(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [Hint("do this", "as seen"), Hint("all is well", "", act=False)]
    monkeypatch.setattr("wslgpud.cli.live.rows.hints", lambda *_: told)
    lines = printed(once(looked(calm())), 100).splitlines()

    assert [line.strip() for line in lines if line[1:2] in ("➜", "✓")] == ["➜ do this  (as seen)", "✓ all is well"]


@pytest.mark.parametrize(("columns", "width"), [(80, 80), (200, 200), (300, 200), (None, 120)])
def test_a_rule_spans_the_terminal_up_to_200_columns(
    columns: int | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    options: dict[str, Any] = {} if columns is None else {"width": columns}
    Console(file=file, **options).print(once(looked(calm())))
    rules = [len(line.rstrip()) for line in file.getvalue().splitlines() if line.startswith("── ")]

    assert set(rules) == {width}


@pytest.mark.parametrize(
    ("programs", "begins"), [(1, {21: 5, 23: 7, 25: 9, 27: 11, 60: 11}), (30, {25: 5, 29: 7, 33: 9, 37: 11, 60: 11})]
)
def test_the_forecast_curve_takes_the_room_programs_leave(programs: int, begins: dict[int, int]) -> None:
    document = leak()
    document["processes"] = [{**document["processes"][0], "pid": n} for n in range(programs)]

    def lines_of_curve(height: int) -> int:
        return drawn(looked(document), size=(120, height)).count("┤")

    assert {height: lines_of_curve(height) for height in begins} == begins
    assert [lines_of_curve(height - 1) for height in begins] == [0, 5, 7, 9, 11]


def test_a_forecast_is_drawn_after_the_minutes_before_it() -> None:
    past = [(float(second), 0.5 + 0.375 * second / 120) for second in range(0, 121, 2)]
    curves = []
    for points in (past, []):
        found = RecentSeries()
        found.seed(CurveKey("used", "ram"), points)
        sample = LiveSample(120.0, leak(at=NOW), {}, "daemon", "http://pc")
        shown = lines(drawn(sample, found, size=(100, 36), mono=120.0))
        first = next(number for number, line in enumerate(shown) if "its forecast" in line)
        curves += shown[first : first + 13]

    assert curves == drawn_before("forecast", curves)
