"""Several machines write into one PostgreSQL database, and none minds when it goes away for a while."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import create_engine, func, select
from sqlalchemy.pool import NullPool

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


def test_machines_sharing_a_database_each_keep_their_own_data(url, settings, made):
    clocks = [made.FakeClock(made.T0) for _ in range(3)]
    stores = [Store(url, settings, host_name=f"pc{i}", clock=c) for i, c in enumerate(clocks)]
    for i, store in enumerate(stores):
        _append(store, made, range(2000), clocks[i], value=i * 10_000)
        assert store.flush()
    for store, clock in zip(stores, clocks, strict=True):
        made.settle(store, clock)
        store.outbox.record(
            Transition(clock.now, 1.0, "ram", "r", Level.OK, Level.INFO, Message("x")), {"mail": {"text": "x"}}
        )
        assert len(store.outbox.unsent()) == 1
        assert store.close()
    reader = Reader(url)
    refs = reader.series("made_events")
    assert [ref.host for ref in refs] == ["pc0", "pc1", "pc2"]
    for i, ref in enumerate(refs):
        points = reader.read(ref, made.T0, made.T0 + 3000)
        assert [p.value for p in points] == [i * 10_000 + second for second in range(2000)]
        assert [b.n for b in reader.summaries(ref, made.T0, made.T0 + 3000, 900)] == [900, 900, 200]
        assert reader.latest()[ref].value == i * 10_000 + 1999
    assert len(reader.transitions()) == 3
    reader.close()
    hosts = made.query(url, "SELECT DISTINCT host FROM recent ORDER BY host")
    assert hosts == [("pc0",), ("pc1",), ("pc2",)]


def test_two_daemons_of_one_name_are_told_apart(url, settings, clock):
    with Store(url, settings, host_name="pc", clock=clock):
        second = Store(url, settings, host_name="pc", clock=clock)
        assert "another wslgpud writes for the host pc" in str(second.stats().error)
        second.close()


def test_a_server_that_throws_everybody_out_is_found_again(url, settings, clock, made, administer):
    with Store(url, settings, host_name="pc", clock=clock) as store:
        _append(store, made, range(10), clock, value=0)
        assert store.flush()
        administer("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        _append(store, made, range(10, 20), clock, value=0)
        assert store.flush()
        assert store.stats().write_errors_total > 0
        assert [v for _, v in made.read_all(store.reader, "made_events")] == list(range(20))


def test_the_daemon_starts_even_if_the_db_server_is_not_up_yet(settings, clock, made):
    url = "postgresql+psycopg://me:secret@127.0.0.1:1/nowhere"
    store = Store(url, settings, host_name="pc", clock=clock)
    _append(store, made, range(10), clock, value=0)
    stats = store.stats()
    assert stats.queue_ticks == 10
    assert "127.0.0.1" in str(stats.error)
    assert "secret" not in str(stats.error)
    store.close()


def test_an_address_without_a_driver_says_what_to_install(settings):
    with pytest.raises(StoreError, match="pip install"):
        Store("postgresql+nodriver://me@127.0.0.1/x", settings)


def test_a_late_server_gets_queued_data_under_the_right_machine(url, settings, clock, made, administer):
    name = url.rpartition("/")[2]
    change = Transition(made.T0, 1.0, "ram", "r", Level.OK, Level.INFO, Message("x"))
    values = [{made.EVENTS: 1, made.RATIO: 0.5}, {made.RATIO: 0.25, made.EVENTS: 100}]
    with Store(url, settings, host_name="one", clock=clock) as store:
        store.append(made.snapshot(made.T0, values[0]))
        store.learn("ram", {"of": "one"})
        store.outbox.record(change, {"mail": {"of": "one"}})
    administer(f"ALTER DATABASE {name} RENAME TO {name}_away")
    with Store(url, settings, host_name="two", clock=clock) as store:
        assert "does not exist" in str(store.stats().error)
        store.append(made.snapshot(made.T0, values[1]))
        store.append(made.snapshot(made.T0 + 1, values[1]))
        store.learn("ram", {"of": "two"})
        store.outbox.record(change, {"mail": {"of": "two"}, "ntfy": {"of": "two"}})
        store.outbox.tried(store.outbox.unsent("ntfy")[0].id, done=True)
        administer(f"ALTER DATABASE {name}_away RENAME TO {name}")
        assert store.flush()
    with Reader(url) as reader:
        assert {(ref.host, ref.metric): [p.value for p in reader.read(ref, 0, 1e10)] for ref in reader.series()} == {
            ("one", "made_events"): [1],
            ("one", "made_ratio"): [0.5],
            ("two", "made_events"): [100, 100],
            ("two", "made_ratio"): [0.25, 0.25],
        }
    for host in ("one", "two"):
        with Store(url, settings, host_name=host, clock=clock) as store:
            assert store.learned["ram"].document == {"of": host}
            assert [delivery.payload for delivery in store.outbox.unsent()] == [{"of": host}]
            assert [number for number, _ in store.reader.transitions()] == [store.outbox.unsent()[0].transition_id]


def test_a_reader_sees_one_moment_while_ticks_are_sealed(url, settings, clock, made):
    with Store(url, settings, host_name="pc", clock=clock) as store:
        _append(store, made, range(890), clock, value=0)
        assert store.flush()
        with store.reader.connected() as connection:
            newest = select(func.count()).select_from(schema.batch)
            before = connection.scalar(newest)
            _append(store, made, range(900, 910), clock, value=0)
            made.settle(store, clock)
            assert store.stats().rows["chunk"] == 1
            assert connection.scalar(newest) == before
