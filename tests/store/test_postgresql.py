"""Several machines write into one PostgreSQL database, and none minds when it goes away for a while."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import create_engine, func, select
from sqlalchemy.pool import NullPool

from wslgpud.metrics import MetricSpec
from wslgpud.model import Level, Transition
from wslgpud.store import Reader, Store, StoreError, schema, upkeep, writer
from wslgpud.words import Message

pytestmark = pytest.mark.servers


@pytest.fixture(autouse=True)
def _tries_again_soon(monkeypatch):
    monkeypatch.setattr(writer, "RETRY_SECONDS", (0.02,))
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)


@pytest.fixture
def administer(postgresql):
    """Return a function that runs a statement as the administrator would."""

    def run(sql):
        engine = create_engine(f"{postgresql}/postgres", isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(sql)

    return run


@pytest.fixture
def url(postgresql, administer):
    name = f"test_{uuid.uuid4().hex}"
    administer(f"CREATE DATABASE {name}")
    return f"{postgresql}/{name}"


def _append(store, made, seconds, clock, value):
    for second in seconds:
        clock.now = made.T0 + second
        store.append(made.snapshot(clock.now, {made.EVENTS: value + second, (made.BYTES, "x"): value}))


@pytest.fixture
def begun(url, settings, clock, tmp_path):
    """Return a function that opens a machine's file, which is copied to the server."""

    def go_on(name="pc", file=None, clock=clock):
        return Store(url, settings, host_name=name, clock=clock, own_file=tmp_path / (file or f"{name}.db"))

    return go_on


def test_machines_sharing_a_database_each_keep_their_own_data(begun, url, made):
    clocks = [made.FakeClock(made.T0) for _ in range(3)]
    stores = [begun(f"pc{i}", clock=clock) for i, clock in enumerate(clocks)]
    for i, store in enumerate(stores):
        _append(store, made, range(2000), clocks[i], value=i * 10_000)
        store.outbox.record(
            Transition(made.T0, 1.0, "ram", "r", Level.OK, Level.INFO, Message("x")), {"mail": {"text": "x"}}
        )
        made.copied(store, clocks[i])
        assert store.close()
    with Reader(url) as reader:
        refs = reader.series("made_events")
        assert [ref.host for ref in refs] == ["pc0", "pc1", "pc2"]
        for i, ref in enumerate(refs):
            points = reader.read(ref, made.T0, made.T0 + 3000)
            assert [p.value for p in points] == [i * 10_000 + second for second in range(2000)]
            assert [b.n for b in reader.summaries(ref, made.T0, made.T0 + 3000, 900)] == [900, 900, 200]
            assert reader.latest()[ref].value == i * 10_000 + 1999
        assert len(reader.transitions()) == 3
    hosts = made.query(url, "SELECT DISTINCT host FROM recent ORDER BY host")
    assert hosts == [("pc0",), ("pc1",), ("pc2",)]


def test_two_daemons_of_one_name_are_told_apart(begun, made):
    with begun() as first:
        made.copied(first)
        with begun(file="other.db") as second:
            made.until(lambda: "another wslgpud writes for the host pc" in str(second.stats().error))


def test_a_server_that_throws_everybody_out_is_found_again(begun, url, clock, made, administer):
    with begun() as store:
        _append(store, made, range(10), clock, value=0)
        made.copied(store)
        administer("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        _append(store, made, range(10, 20), clock, value=0)
        assert store.flush()
        made.copied(store)
        with Reader(url) as reader:
            assert [v for _, v in made.read_all(reader, "made_events")] == list(range(20))


def test_an_address_without_a_driver_says_what_to_install(settings, file):
    with pytest.raises(StoreError, match="pip install"):
        Store("postgresql+nodriver://me@127.0.0.1/x", settings, own_file=file)


def test_a_server_that_is_away_is_named_without_its_password(settings, clock, made, file):
    away = "postgresql+psycopg://me:secret@127.0.0.1:1/nowhere"
    with Store(away, settings, host_name="pc", clock=clock, own_file=file) as store:
        _append(store, made, range(3), clock, value=0)
        assert store.flush()
        made.until(lambda: store.stats().replication_queue_ticks == 3)
        made.until(lambda: "127.0.0.1" in str(store.stats().error))
        assert "secret" not in str(store.stats().error)
        assert store.stats().queue_ticks == 0


def test_changes_of_kind_and_later_deliveries_are_copied_too(begun, url, clock, made):
    change = Transition(made.T0, 1.0, "ram", "r", Level.OK, Level.INFO, Message("x"))
    for kind in ("gauge", "counter"):
        with begun() as store:
            store.append(made.snapshot(clock.now, {MetricSpec("made_thing", kind, "", "A thing."): 1}), urgent=True)
            store.outbox.record(change, {"mail": {"text": kind}})
            made.copied(store)
            clock.now += 5
            store.outbox.tried(store.outbox.unsent()[0].id, done=True)
            made.copied(store)
    with Reader(url, "pc") as reader:
        assert [*reader.kinds("made_thing").values()] == ["counter"]
        assert [(one.payload["text"], one.done_wall) for one in reader.deliveries(0, 1e10)] == [
            ("gauge", made.T0 + 5),
            ("counter", made.T0 + 10),
        ]
        numbers = [number for number, _ in reader.transitions()]
        assert [one.transition_id for one in reader.deliveries(0, 1e10)] == numbers


def test_a_reader_sees_one_moment_while_ticks_are_sealed(begun, url, clock, made):
    with begun() as store, Reader(url) as reader:
        _append(store, made, range(890), clock, value=0)
        made.copied(store)
        with reader.connected() as connection:
            newest = select(func.count()).select_from(schema.batch)
            before = connection.scalar(newest)
            _append(store, made, range(900, 910), clock, value=0)
            made.copied(store, clock)
            assert made.query(url, "SELECT count(*) FROM chunk") == [(1,)]
            assert connection.scalar(newest) == before
