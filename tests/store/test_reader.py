"""A reader gives what lies between two moments, of the machine that it is opened for, in order and not without end."""

from __future__ import annotations

import pytest

from wslgpud.model import Event, Forecast, Level, Transition
from wslgpud.store import Reader, Store, StoreError, reader, series_reader
from wslgpud.words import Message


def change(made, second, rule="r", resource="ram"):
    forecast = Forecast(resource, Level.WARNING, 5, 10, probabilities={60: 0.25})
    text = Message(f"change {second}")
    return Transition(made.T0 + second, 1.0, resource, rule, Level.OK, Level.WARNING, text, forecast, {"count": second})


@pytest.fixture
def filled(file, settings, clock, made):
    """The history of a machine with four events and changes of level, and of another with one of each."""
    for host, seconds in (("other", (2,)), ("pc", (0, 2, 1, 3))):
        with Store(file, settings, host_name=host, clock=clock) as store:
            for second in seconds:
                event = Event("odd" if second % 2 else "even", made.T0 + second, f"event {second}", {"n": second})
                store.append(made.snapshot(made.T0 + 10 * second, {made.EVENTS: second}, events=(event,)))
                store.outbox.record(change(made, second, f"rule {second % 2}", f"gpu{second}"), {})
            assert store.flush()
        if host == "other":
            made.as_on_a_server(file)
    return file


def test_events_are_read_by_kind_and_time_including_both_ends(filled, made, monkeypatch):
    with Reader(str(filled), "pc") as opened:

        def told(*when, kind=""):
            return [event.fields["n"] for event in opened.events(*(made.T0 + second for second in when), kind)]

        assert told(0, 3) == [0, 1, 2, 3]
        assert (told(1, 2), told(1.001, 1.999), told(0, 3, kind="odd")) == ([1, 2], [], [1, 3])
        monkeypatch.setattr(reader, "MAX_EVENTS", 3)
        assert told(0, 3) == [1, 2, 3], "of too many the newest"


def test_level_changes_are_read_by_time_or_number_newest_kept(filled, made):
    with Reader(str(filled), "pc") as opened:
        by_time = opened.transitions()
        numbers = [number for number, _ in opened.changes()]
        first, second, third, _ = numbers

        assert [round(one.wall - made.T0) for _, one in by_time] == [0, 1, 2, 3]
        assert [round(one.wall - made.T0) for _, one in opened.transitions(made.T0 + 1, newest=2)] == [2, 3]
        assert [round(one.wall - made.T0) for _, one in opened.changes()] == [0, 2, 1, 3]
        assert [n for n, _ in opened.changes(made.T0 + 2)] == [second, numbers[3]]
        assert [n for n, _ in opened.changes(made.T0 + 2, ("rule 0",))] == [first, second, numbers[3]]
        assert [n for n, _ in opened.changes(of=(["rule 0"], "gpu2", first, third))] == [second]
        assert [n for n, _ in opened.changes(of=(["rule 0"], "gpu2", third, third))] == []
        ((_, brief), *_) = opened.changes(brief=True)
        assert (brief.forecast, brief.facts, str(brief.message)) == (None, {"count": 0}, "change 0")


def test_a_reader_sees_only_the_rows_of_its_machine_if_named(filled, made):
    told = {}
    for host in ("pc", "other", "", "nobody"):
        with Reader(str(filled), host) as opened:
            told[host] = len(opened.transitions()), len(opened.events(made.T0, made.T0 + 9))
            assert opened.hosts() == ["other", "pc"]
            assert [ref.host for ref in opened.series()] == ["other", "pc"]
            assert [ref.host for ref in opened.series(host="pc")] == ["pc"]

    assert told == {"pc": (4, 4), "other": (1, 1), "": (5, 5), "nobody": (0, 0)}


def test_what_is_not_sealed_yet_is_counted_from_its_oldest_tick(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        assert (store.reader.unsealed(), store.reader.oldest()) == ((0, None), (None, None, None))
        for second in (5, 6, 0):
            store.append(made.snapshot(made.T0 + second, {made.EVENTS: second}))
        assert store.flush()

        assert store.reader.unsealed() == (3, made.T0)


def test_of_too_many_series_the_first_are_listed(file, settings, clock, made, monkeypatch):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        kinds = {(made.BYTES, kind): 1 for kind in "ab"}
        store.append(made.snapshot(made.T0, {**kinds, made.EVENTS: 1, made.RATIO: 1}))
        assert store.flush()
        monkeypatch.setattr(reader, "MAX_LISTED", 3)

        assert [ref.metric for ref in store.reader.series()] == ["made_bytes", "made_bytes", "made_events"]
        assert [str(ref) for ref in store.reader.series("made_ratio")] == ["made_ratio"]


def test_a_step_includes_its_start_but_not_the_start_of_the_next(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second, value in ((0.0, 1), (9.999, 3), (10.0, 7), (19.999, 8), (20.0, 9)):
            store.append(made.snapshot(made.T0 + second, {made.EVENTS: value, made.RATIO: value}))
        assert store.flush()
        (events,), (ratio,) = store.reader.series("made_events"), store.reader.series("made_ratio")

        def told(ref, start, end, step=10.0):
            return [(p.wall - made.T0, p.value) for p in store.reader.read(ref, made.T0 + start, made.T0 + end, step)]

        assert told(events, 0, 20) == [(0, 3), (10, 8), (20, 9)]
        assert told(ratio, 0, 20) == [(0, 2.0), (10, 7.5), (20, 9.0)]
        assert told(events, 5, 10) == [(0, 3), (10, 8)], "whole steps"
        assert told(events, 9.999, 19.999, None) == [(pytest.approx(9.999), 3), (10, 7), (pytest.approx(19.999), 8)]
        (bucket, *_) = store.reader.summaries(ratio, made.T0, made.T0, 10)
        assert bucket == (made.T0, 2, 1.0, 3.0, 4.0, 3.0)
        assert bucket.mean == 2.0


def test_so_many_values_are_read_at_once_and_no_more(file, settings, clock, made, monkeypatch):
    monkeypatch.setattr(series_reader, "MAX_VALUES", 3)
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in range(4):
            store.append(made.snapshot(made.T0 + second, {made.EVENTS: second}))
        assert store.flush()
        assert made.read_all(store.reader, end=made.T0 + 2) == [(0, 0), (1, 1), (2, 2)]
        with pytest.raises(StoreError, match="more than 3 values; request a shorter time, or steps"):
            made.read_all(store.reader)
