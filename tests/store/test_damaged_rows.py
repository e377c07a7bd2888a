"""One flipped bit in a row, of which SQLite knows nothing, is a gap and not the end of the rest."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from wslgpud.model import Event, ProcessSample
from wslgpud.store import Reader, Store, upkeep, writer
from wslgpud.store.codec import pack_text, unpack_text
from wslgpud.store.maintenance import info


@pytest.fixture(autouse=True)
def _looks_after_every_commit(monkeypatch):
    monkeypatch.setattr(writer, "RETRY_SECONDS", (0.02,))
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)


@pytest.fixture
def begun(file, settings, clock, made):
    """Return a function that continues a history of 2000 seconds with two sealed chunks."""

    def go_on():
        return Store(file, settings, host_name="pc", clock=clock)

    with go_on() as store:
        store.flush()  # a tick that the first look at the buffer takes would shift where each batch ends
        for second in range(2000):
            clock.now = made.T0 + second
            process = ProcessSample(42, 1, "python", 2**30, 0)
            store.append(made.snapshot(clock.now, {made.EVENTS: second * second % 97}, processes=(process,)))
        made.settle(store, clock)
    clock.now = made.T0 + 2700
    return go_on


def _all_with(data, old, new):
    return pack_text(unpack_text(data).replace(old, new))


def _values_with(data, old, new):
    """Change the values of the only series."""
    head, name, tail = unpack_text(data).partition('"values":{')
    values, end, rest = tail.partition("}")
    return pack_text(head + name + values.replace(old, new) + end + rest)


def _everything(reader, made):
    """Ask for all that there is to ask for; return how many samples there are, and how many in minutes."""
    start, end = made.T0, made.T0 + 9000
    (ref,) = reader.series()
    assert reader.latest()
    assert info(reader).samples
    assert reader.read(ref, start, end, 3600)
    assert reader.processes(start, end)
    return len(reader.read(ref, start, end)), sum(b.n for b in reader.summaries(ref, start, end, 60))


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (("batch", "data = values_with(data, ',', '.')", "min"), (1940, 1940)),
        (("batch", "data = values_with(data, '[', '{')", "min"), (1940, 1940)),
        (("batch", "data = values_with(data, ']', '}')", "min"), (1940, 1940)),
        (("batch", "data = values_with(data, ',', '000000000000000000,')", "max"), (1980, 1980)),
        (("batch", "data = values_with(values_with(data, ',', '.5,'), ']', '.5]')", "max"), (1980, 1980)),
        (("batch", "data = all_with(data, '[[', '[')", "min"), (1940, 1940)),
        (("batch", "data = all_with(data, '[0,', '[x,')", "min"), (1940, 1940)),
        (("batch", "data = all_with(data, '\"', '')", ""), (1800, 1800)),
        (("batch", "data = all_with(data, 'processes', '')", "min"), (1940, 1940)),
        (("batch", "data = all_with(data, ',\"python\"', '')", "min"), (2000, 2000)),
        (("batch", "data = all_with(data, '[42,', '[], [42,')", "min"), (2000, 2000)),
        (("batch", "data = x'00'", "min"), (1940, 1940)),
        (("batch", "data = zeroblob(3)", ""), (1800, 1800)),
        (("chunk", "processes = x'01'", "max"), (2000, 2000)),
        (("chunk", "data = x'00'", "max"), (1100, 2000)),
        (("chunk", "data = substr(data, 1, length(data) - 1)", "max"), (1100, 2000)),
        (("rollup_minute", "last_3 = NULL", "min"), (2000, 1100)),
    ],
)
def test_the_rest_is_read_and_goes_on_being_sealed(begun, file, made, damage, left):
    table, change, which = damage
    key = "part" if table == "rollup_minute" else "id"
    those = "JOIN (SELECT sealed FROM host) ON id > sealed" if table == "batch" else ""
    row = f"WHERE {key} = (SELECT {which}({key}) FROM {table} {those})" if which else ""
    with closing(sqlite3.connect(file)) as other, other:
        other.create_function("all_with", 3, _all_with)
        other.create_function("values_with", 3, _values_with)
        assert other.execute(f"UPDATE {table} SET {change} {row}").rowcount
    with Reader(str(file)) as reader:
        assert _everything(reader, made) == left
    with begun() as store:
        store.append(made.snapshot(made.T0 + 2700, {made.EVENTS: 1}))
        # an error would be tried again for ever, and nothing sealed any more
        made.until(lambda: store.flush() and (store.reader.unsealed()[0] == 1 or store.stats().error))
        assert not store.stats().error
        assert _everything(store.reader, made)[0] >= left[0] + 1 - 60


TEXTS = ("event.text", "outbox.payload", "learned.document", "daemon_run.version", "series.labels", "host.name")


@pytest.mark.parametrize("place", TEXTS)
def test_a_flipped_bit_in_a_text_costs_nothing_else(file, settings, clock, made, place):
    """The driver gives up a whole query at the first text that is not UTF-8."""
    table, column = place.split(".")
    event = Event("printer", made.T0, "on fire", {})
    with Store(file, settings, host_name="pc", clock=clock) as store:
        store.append(made.snapshot(made.T0, {made.EVENTS: 1}, events=(event, event)))
        store.outbox.post("mail", {"text": "x"})
        store.learn("ram", {})
    with closing(sqlite3.connect(file)) as other, other:
        changed = f"UPDATE {table} SET {column} = CAST(x'7bff7d' AS TEXT) WHERE id = (SELECT min(id) FROM {table})"
        assert other.execute(changed).rowcount == 1
    with Store(file, settings, host_name="pc", clock=clock) as store:
        store.append(made.snapshot(made.T0 + 1, {made.EVENTS: 2}))
        made.until(lambda: store.flush(1) or store.stats().error)
        assert store.stats().error == ""
        assert len(store.reader.events(0, made.T0)) == 2
        assert store.reader.latest()
