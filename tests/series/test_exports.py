"""Curves and exported files hold each value once, at its time, under the name that Prometheus knows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.made import as_on_a_server
from wslgpud.config import StoreSettings
from wslgpud.metrics import Catalogue, MetricSpec
from wslgpud.model import Number, Reading, Sample, Snapshot, SourceReport
from wslgpud.series import export
from wslgpud.series.curves import ACROSS, Curve, curve, joined, name_of, rates, step_for
from wslgpud.series.export import Piece, Wanted
from wslgpud.store import Bucket, Reader, SeriesRef, Store

FREE = MetricSpec("made_free_bytes", "gauge", "bytes", 'How much is "left" \\ of it.', ("disk",), decimals=1)
ENDS = MetricSpec("made_ends", "counter", "", "How many have ended.")
CATALOGUE = Catalogue([FREE, ENDS])
#: a midnight
START = 1_790_035_200
WEEK = 7 * 86400


def recorded(file: Path, host: str, ticks: list[tuple[float, dict[MetricSpec, Number]]]) -> None:
    with Store(file, StoreSettings(raw_days=3650), host_name=host) as store:
        for second, values in ticks:
            labels = {FREE: ("a",), ENDS: ()}
            sample = Sample(tuple(Reading(spec, value, labels[spec]) for spec, value in values.items()))
            wall = START + second
            store.append(Snapshot(wall, wall, 1, (SourceReport("made", "ok", sample, wall, 0.0),)))
        assert store.flush()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Return the history of two machines; of one of them the clock went back a second, a day after the start."""
    recorded(tmp_path / "h.db", "two", [(0.25, {FREE: 2})])
    as_on_a_server(tmp_path / "h.db")
    recorded(tmp_path / "h.db", "=pc", [(0.0, {FREE: 1.5, ENDS: 1}), (86400.0, {ENDS: 5}), (86400.0, {ENDS: 7})])
    with Reader(str(tmp_path / "h.db")) as opened:
        yield opened


def wanted(reader: Reader, host: str = "", **more: Any) -> Wanted:
    return Wanted(reader, reader.kinds("*", host), START, START + 86401.0, **more)


def test_openmetrics_has_each_family_once_with_all_its_samples(reader: Reader) -> None:
    out = io.StringIO()
    export.openmetrics(wanted(reader), out, CATALOGUE, {"job": "x"})

    assert out.getvalue().splitlines() == [
        "# TYPE wslgpud_made_ends counter",
        "# HELP wslgpud_made_ends How many have ended.",
        f'wslgpud_made_ends_total{{job="x",host="=pc"}} 1 {START}.000',
        f'wslgpud_made_ends_total{{job="x",host="=pc"}} 7 {START + 86400}.000',
        "# TYPE wslgpud_made_free_bytes gauge",
        "# UNIT wslgpud_made_free_bytes bytes",
        '# HELP wslgpud_made_free_bytes How much is \\"left\\" \\\\ of it.',
        f'wslgpud_made_free_bytes{{job="x",host="=pc",disk="a"}} 1.5 {START}.000',
        f'wslgpud_made_free_bytes{{job="x",host="two",disk="a"}} 2.0 {START}.250',
        "# EOF",
    ]


def test_openmetrics_of_a_single_machine_has_no_host_label(reader: Reader) -> None:
    out = io.StringIO()
    export.openmetrics(wanted(reader, "two"), out, Catalogue([]), {})

    assert out.getvalue().splitlines() == [
        "# TYPE wslgpud_made_free_bytes gauge",
        f'wslgpud_made_free_bytes{{disk="a"}} 2.0 {START}.250',
        "# EOF",
    ]


def test_a_long_csv_has_a_line_for_each_value_day_by_day(reader: Reader) -> None:
    out = io.StringIO()
    export.long_csv(wanted(reader), out)

    assert list(csv.reader(out.getvalue().splitlines())) == [
        ["time", "host", "metric", "labels", "value"],
        ["2026-09-22T00:00:00.000Z", "'=pc", "wslgpud_made_ends_total", "", "1"],
        ["2026-09-22T00:00:00.000Z", "'=pc", "wslgpud_made_free_bytes", '{"disk": "a"}', "1.5"],
        ["2026-09-22T00:00:00.250Z", "two", "wslgpud_made_free_bytes", '{"disk": "a"}', "2.0"],
        ["2026-09-23T00:00:00.000Z", "'=pc", "wslgpud_made_ends_total", "", "7"],
    ]


@pytest.mark.parametrize(("host", "names"), [("two", ["made"]), ("three", ["'=two: made", "three: made"])])
def test_a_wide_csv_has_one_column_per_series(host: str, names: list[str]) -> None:
    first = SeriesRef("made", (), "=two" if host == "three" else "two")
    second = SeriesRef("made", (), host)
    days = [[Piece(first, [0.0, 2.0], [1, 3]), Piece(second, [2.0, 1.0], [5, 4])], [Piece(first, [9.0], [8])]]
    out = io.StringIO()
    export.wide_csv([window[: len(names)] for window in days], out)

    other = [["4"], ["5"]] if len(names) == 2 else []
    assert list(csv.reader(out.getvalue().splitlines())) == [
        ["time", *names],
        ["1970-01-01T00:00:00.000Z", "1", *([""] if other else [])],
        *([["1970-01-01T00:00:01.000Z", "", *other[0]]] if other else []),
        ["1970-01-01T00:00:02.000Z", "3", *(other[1] if other else [])],
        ["1970-01-01T00:00:09.000Z", "8"],
    ]


def test_parquet_has_one_row_per_value_for_any_group_size(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = pytest.importorskip("pyarrow.parquet")
    asked = wanted(reader)
    for rows, groups in ((1, 4), (2, 3), (500_000, 2)):
        monkeypatch.setattr(export, "ROW_GROUP", rows)
        export.parquet(asked.pieces(), asked.series, CATALOGUE, tmp_path / "h.parquet")
        opened = files.ParquetFile(tmp_path / "h.parquet")
        found = [
            (row["time"].timestamp() - START, *(row[name] for name in ("host", "metric", "labels", "unit", "value")))
            for row in opened.read().to_pylist()
        ]
        assert found == [
            (0.0, "=pc", "wslgpud_made_ends_total", "{}", "", 1.0),
            (0.0, "=pc", "wslgpud_made_free_bytes", '{"disk": "a"}', "bytes", 1.5),
            (0.25, "two", "wslgpud_made_free_bytes", '{"disk": "a"}', "bytes", 2.0),
            (86400.0, "=pc", "wslgpud_made_ends_total", "{}", "", 7.0),
        ]
        assert sum(opened.metadata.row_group(n).num_rows > 0 for n in range(opened.num_row_groups)) == groups


def test_a_history_is_read_in_pieces_of_a_day_or_so_many_steps(reader: Reader) -> None:
    read: list[None] = []
    asked = wanted(reader, progress=lambda: read.append(None))
    list(asked.pieces())
    assert len(read) == asked.size == 2 * len(asked.series) == 6

    whole = Wanted(reader, {}, START, START + 86400.0)
    assert whole.windows == [(START, START + 86400.0)]
    later = Wanted(reader, {}, START + 1.0, START + 2 * 86400.0 + 1)
    days = [START + 86400.0, START + 2 * 86400.0]
    assert later.windows == [(START + 1.0, days[0] - 0.001), (days[0], days[1] - 0.001), (days[1], days[1] + 1)]
    steps = Wanted(reader, {}, 0.0, 20_001.0, step_seconds=1.0)
    assert steps.windows == [(0.0, 19_999.999), (20_000.0, 20_001.0)]


def test_a_counter_exported_in_steps_has_its_last_value(reader: Reader) -> None:
    asked = wanted(reader, "=pc", step_seconds=86400.0)
    ends, free = (piece for window in asked.pieces() for piece in window)

    assert (ends.times, ends.values) == ([START, START + 86400], [1, 7])
    assert (free.times, free.values) == ([START], [1.5])
    assert name_of("made", free.ref.labels) == 'made{disk="a"}'


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\t1", "\r1", "\n1"])
def test_a_name_is_no_formula(text: str) -> None:
    assert export.cell(text) == f"'{text}"
    assert export.cell(f"a{text}") == f"a{text}"


def bucket(wall: float, last: int) -> Bucket:
    return Bucket(wall, 1, last, last, last, last)


def test_a_rate_handles_resets_and_stops_at_long_gaps() -> None:
    steady = [bucket(0, 10), bucket(10, 30), bucket(20, 30), bucket(50, 60), bucket(60, 5)]
    assert list(rates(steady, 10, 70)) == [(10, 2.0), (20, 0.0), (50, 1.0), (60, 0.5)]
    assert [wall for wall, _ in rates([*steady, bucket(91, 6), bucket(101, 7)], 10, 111)] == [10, 20, 50, 60, 101]
    assert list(rates(steady[:1], 10, 10)) == []


@pytest.mark.parametrize(("until", "last"), [(80, (70, 1.0)), (78, (70, 1.25)), (75, (70, 2.0)), (74, (60, 3.0))])
def test_an_unfinished_step_counts_once_half_of_it_has_passed(until: float, last: tuple[float, float]) -> None:
    assert list(rates([bucket(50, 0), bucket(60, 30), bucket(70, 40)], 10, until))[-1] == last


def test_a_curve_spans_minimum_to_maximum_or_is_a_rate(reader: Reader) -> None:
    ends, *_ = reader.series("made_ends")
    plain = curve(reader, ends, (START, START + 86400.0), 86400.0, "", rate=False)
    rate = curve(reader, ends, (START, START + 2 * 86400.0), 86400.0, "", rate=True)

    assert plain.points == [(START, 1, 1, 1), (START + 86400, 5, 6, 7)]
    assert (rate.ref.metric, rate.points) == ("made_ends:rate", [(START + 86400, *[6 / 86400] * 3)])


@pytest.mark.parametrize(
    ("how", "values"), [("sum", [9.0, 3.0]), ("mean", [4.5, 3.0]), ("max", [7.0, 3.0]), ("min", [2.0, 3.0])]
)
def test_curves_of_several_cards_are_joined_step_by_step(how: str, values: list[float]) -> None:
    first = Curve(SeriesRef("made", (("gpu", "0"),)), "", False, [(1.0, 0, 3.0, 9), (0.0, 0, 2.0, 9)])
    second = Curve(SeriesRef("made", (("gpu", "1"),)), "", False, [(0.0, 0, 7.0, 9)])
    one = joined([first, second], how)

    assert how in ACROSS
    assert one.points == [(float(n), value, value, value) for n, value in enumerate(values)]
    assert str(one.ref) == f'made{{{how}="of 2"}}'
    assert str(joined([first], how).ref) == f'made{{{how}="of 1"}}'


def test_steps_are_round_times_no_finer_than_the_points_allow() -> None:
    minute, hour, day = 60, 3600, 86400
    clock = [
        *(1, 2, 5, 10, 15, 30),
        *(n * minute for n in (1, 2, 5, 10, 15, 30)),
        *(n * hour for n in (1, 2, 3, 6, 12)),
    ]
    clock += [day, 2 * day, WEEK]
    for step, next_step in zip(clock, [*clock[1:], 2 * WEEK], strict=True):
        assert step_for(100.0 * step, 100) == step
        assert step_for(100.0 * step + 1, 100) == next_step
    assert step_for(300.0 * WEEK, 100) == 3 * WEEK
    assert step_for(7.0, 0) == 10
