"""What waits to be written is bounded, is lost in the order of its worth, and lies in rows that others replace."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.pool import NullPool

from wslgpud.model import Event
from wslgpud.store import rollup, schema
from wslgpud.store.batches import MAX_FREE, Batch, OpenBatch, Slots
from wslgpud.store.schema import MAX_BATCH, MAX_TICKS, PERIOD_MS
from wslgpud.store.write_buffer import Backlog, WriteBuffer


@pytest.fixture
def connection():
    """A connection to a database without any row."""
    with create_engine("sqlite://", poolclass=NullPool).connect() as connection:
        schema.metadata.create_all(connection)
        connection.commit()
        yield connection


def backlog(*items: str) -> Backlog[str]:
    """Return texts that wait, 10 characters at most, capitals being urgent, and each counting its letters."""
    made: Backlog[str] = Backlog(10, len, lambda text: len(text.strip()), str.islower)
    for item in items:
        made.put(item)
    return made


@pytest.mark.parametrize(
    ("items", "left", "dropped"),
    [
        (["abcd", "efghij"], ["abcd", "efghij"], 0),
        (["abc ", "efghijk"], ["efghijk"], 3),
        (["ABCD", "efgh", "ijkl"], ["ABCD", "ijkl"], 4),
        (["ABCD", "EFGH", "IJKL"], ["EFGH", "IJKL"], 4),
        (["abc", "abcdefghijkl"], ["abcdefghijkl"], 3),
    ],
)
def test_beyond_the_limit_the_oldest_calm_items_are_dropped(items, left, dropped):
    full = backlog(*items)

    assert (full.waiting(), full.dropped, full.size) == (left, dropped, sum(map(len, left)))


def test_committed_items_wait_for_the_disk_and_are_dropped_first():
    some = backlog("abc", "def", "ghi")
    some.committed(["abc", "def"])
    some.committed(["abc"])
    assert (some.waiting(), len(some), some.size) == (["ghi"], 1, 9)

    some.put("jk")
    assert (some.waiting(), some.size, some.dropped) == (["ghi", "jk"], 8, 0)
    some.again()
    assert some.waiting() == ["def", "ghi", "jk"]
    some.committed(["def"])
    some.synced()
    assert (some.waiting(), some.size, len(some), some.dropped) == (["ghi", "jk"], 5, 2, 0)
    some.committed(some.waiting())
    some.synced()
    assert (some.waiting(), some.size, len(some)) == ([], 0, 0)


def test_without_a_disk_ticks_events_and_rows_wait_up_to_a_limit(made):
    buffer = WriteBuffer()
    for text in ("x" * ((8 << 20) - 1600), ""):
        buffer.pending.put(Batch(1, 0, 60, text, urgent=False))
    assert (buffer.queue, buffer.pending.dropped) == ((120, 8 << 20), 0)
    buffer.pending.put(Batch(2, 0, 1, "", urgent=False))
    assert (buffer.queue, buffer.pending.dropped) == ((61, 1600), 60)

    event = Event("odd", made.T0, "event", {})
    for events, rows, dropped in ((2000, 20_000, 0), (1, 1, 1)):
        buffer.put(made.snapshot(made.T0, events=(event,) * events), urgent=False)
        for _ in range(rows):
            buffer.write(lambda _: None)
        assert (buffer.events.dropped, buffer.writes.dropped) == (dropped, dropped)


def test_a_batch_takes_rising_times_of_a_single_quarter_hour():
    batch = OpenBatch()
    assert batch.takes(2 * PERIOD_MS - MAX_BATCH - 1)
    for ms in range(2 * PERIOD_MS - MAX_BATCH - 1, 2 * PERIOD_MS - 2):
        batch.add(ms, {"1": 7}, None)
    assert [batch.takes(2 * PERIOD_MS - n) for n in (3, 2, 1, 0)] == [False, True, True, False]
    batch.add(2 * PERIOD_MS - 2, {"1": 7}, None)
    assert not batch.takes(2 * PERIOD_MS - 1)
    assert len(batch.times) == MAX_BATCH


def test_series_of_a_batch_share_the_times_of_their_values():
    batch = OpenBatch()
    batch.add(1000, {"1": 7, "2": 1}, None)
    batch.add(1500, {"1": 7, "3": 4}, [["p"]])
    batch.add(2500, {"1": 7, "2": 2}, [])
    closed = batch.closed(9)

    assert (closed.id, closed.ms, closed.ticks, closed.urgent) == (9, 1000, 3, False)
    assert closed.data == (
        '{"ticks":[[[0,500,1500],{"1":7}],[[0,1500],{"2":[1,2]}],[[500],{"3":4}]],"processes":[[500,[["p"]]]]}'
    )
    assert closed.row({"1": 65, "3": 66})["data"] == (
        '{"ticks":[[[0,500,1500],{"65":7}],[[0,1500],{}],[[500],{"66":4}]],"processes":[[500,[["p"]]]]}'
    )


def test_processes_alone_have_the_times_of_all_their_ticks():
    batch = OpenBatch()
    batch.add(1000, {"1": 7}, None)
    batch.add(1500, {}, [["p"]])

    assert batch.closed(9).data == '{"ticks":[[[0,500],{}],[[0],{"1":7}]],"processes":[[500,[["p"]]]]}'


@pytest.mark.parametrize(
    ("value", "rejected"), [(2**62 - 1, 0), (2**62, 1), (1 - 2**62, 0), (-(2**62), 1), (float("nan"), 1)]
)
def test_whole_numbers_below_2_to_62_are_kept_and_no_others(made, connection, value, rejected):
    buffer = WriteBuffer()
    buffer.attach(0, 0)
    buffer.put(made.snapshot(made.T0, {made.EVENTS: value}), urgent=False)
    buffer.look_up(connection)

    assert buffer.rejected_values == rejected
    assert len(buffer.waiting(1).rows) == 1 - rejected


def test_waiting_rows_are_taken_up_to_a_limit_of_ticks(made, connection):
    buffer = WriteBuffer()
    buffer.attach(0, 0)
    for second in (0, 1, 1, 2, 3, 3, 4):
        buffer.put(made.snapshot(made.T0 + second, {made.EVENTS: 1}), urgent=False)
    assert buffer.queue[0] == 7
    buffer.look_up(connection)

    assert [row["ticks"] for row in buffer.waiting(2).rows] == [2]
    assert [row["ticks"] for row in buffer.waiting(3).rows] == [2, 3]
    assert [row["ticks"] for row in buffer.waiting(6).rows] == [2, 3, 2]
    assert not buffer.empty


def test_early_rows_get_the_next_numbers_of_the_opened_database(made, connection):
    def numbers() -> tuple[list[int], list[int]]:
        buffer.look_up(connection)
        waiting = buffer.waiting(9)
        return [row["id"] for row in waiting.rows], [event["id"] for event in waiting.events]

    buffer = WriteBuffer()
    early = buffer.next_row(), buffer.next_row()
    event = Event("odd", made.T0, "event", {})
    buffer.put(made.snapshot(made.T0, {made.EVENTS: 1}, events=(event,)), urgent=False)
    buffer.attach(0, 41)
    assert [buffer.final_row(number) for number in (*early, 17)] == [42, 43, 17]
    assert (numbers(), buffer.next_row()) == (([46], [47]), 48)
    buffer.attach(0, 47, same_file=True)
    assert (numbers(), buffer.next_row()) == (([46], [47]), 49), "they may have been written under these numbers"
    buffer.attach(0, 100)
    assert (numbers(), buffer.next_row()) == (([101], [102]), 103)
    buffer.committed(buffer.waiting(9))
    assert buffer.sealable_row(0) == 100, "no sync has told yet that they are on the disk"
    buffer.synced()
    assert (buffer.sealable_row(0), buffer.sealable_row(1)) == (101, (2 << 34) - 1)
    assert buffer.empty
    buffer.wait_for_copies()
    assert buffer.sealable_row(0) == 0
    buffer.copied(0, 50)
    assert buffer.sealable_row(0) == 50


def test_a_series_keeps_its_number_while_rows_may_be_rewritten(made, connection):
    buffer = WriteBuffer()
    buffer.attach(0, 0)

    def commit(hour: int, key) -> None:
        buffer.put(made.snapshot(made.T0 + 3600 * hour, {key: 7}), urgent=False)
        buffer.look_up(connection)
        buffer.committed(buffer.waiting(9))

    commit(0, made.EVENTS)
    for hour in range(1, 5):
        commit(hour, made.RATIO)
    buffer.again()
    written = [json.loads(row["data"])["ticks"] for row in buffer.waiting(9).rows]
    assert written == [[[[0], {"1": 7}]], *[[[[0], {"2": 7000}]]] * 4]
    buffer.committed(buffer.waiting(9))
    buffer.synced()
    for hour in range(5, 8):
        commit(hour, made.RATIO)
        buffer.synced()
    assert buffer.in_use() == {2}


NOISE = "".join(chr(33 + n * n * 7919 % 10007 % 90) for n in range(20_000))


@pytest.mark.parametrize(("characters", "size"), [(1, 4030), (4000, 4030), (5500, 8192)])
def test_a_batch_slot_fills_whole_pages(connection, characters, size):
    assert Slots().write(connection, [batch(1, NOISE[:characters])]) == size


def batch(number: int, text: str = "") -> dict[str, object]:
    return {"id": number, "ms": number, "ticks": 1, "data": text}


def test_a_slot_is_used_again_once_its_batch_is_sealed(connection):
    slots = Slots()
    schema.insert_new(connection, schema.host, [{"id": 0, "name": "pc", "sealed": 0}])
    slots.load(connection, 0)
    slots.write(connection, [batch(1), batch(2, NOISE[:6000]), batch(3)])
    slots.free(connection, 2)
    slots.write(connection, [batch(4), batch(5)])

    rows = connection.execute(select(schema.batch.c.slot, schema.batch.c.id).order_by(schema.batch.c.slot)).all()
    assert [tuple(row) for row in rows] == [(1, 4), (2, 2), (3, 3), (4, 5)]

    connection.execute(schema.host.update().values(sealed=4))
    again = Slots()
    again.load(connection, 0)
    again.write(connection, [batch(5), batch(6, NOISE[:6000]), batch(7), batch(8)])
    rows = connection.execute(select(schema.batch.c.slot, schema.batch.c.id).order_by(schema.batch.c.slot)).all()
    assert [tuple(row) for row in rows] == [(1, 7), (2, 6), (3, 8), (4, 5)]


def test_only_so_many_free_slots_are_kept(connection):
    slots = Slots()
    slots.write(connection, [batch(number) for number in range(1, MAX_FREE + 4)])
    slots.free(connection, MAX_FREE + 3)

    assert len(connection.scalars(select(schema.batch.c.slot)).all()) == MAX_FREE


@pytest.mark.parametrize(
    ("rows", "last", "due"),
    [
        ([(1, 0, 1), (2, PERIOD_MS - 1, 1)], 9, None),
        ([(1, 0, 1), (2, PERIOD_MS - 1, 1), (3, PERIOD_MS, 1)], 9, 2),
        ([(1, 0, 1), (2, PERIOD_MS - 1, 1), (3, PERIOD_MS, 1)], 2, None),
        ([(1, PERIOD_MS, 1), (2, 0, 1)], 9, 1),
        ([(1, 0, MAX_TICKS - 1), (2, 1, 1), (3, 2, 1)], 9, 2),
        ([(1, 0, MAX_TICKS - 2), (2, 1, 1), (3, 2, 1)], 9, None),
    ],
)
def test_batches_are_sealed_once_many_or_past_their_quarter_hour(connection, rows, last, due):
    schema.insert_new(connection, schema.host, [{"id": 0, "name": "pc", "sealed": 0}])
    schema.insert_new(
        connection, schema.batch, [{"slot": n, "id": n, "ms": ms, "ticks": ticks, "data": b""} for n, ms, ticks in rows]
    )

    assert rollup.due(connection, 0, last) == due
    assert rollup.due(connection, 0, last, ended=True) == (due or min(last, len(rows)))
