"""A PostgreSQL server shared by machines that do not trust each other: one role and one schema for each.

The statements of ``RECIPE`` are those that the store's README gives.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from tests.store.made import BYTES, T0, snapshot, until
from tests.support.hostile import Peer, rude
from wslgpud.store import Reader, Store, StoreError
from wslgpud.store.engines import APPLICATION_ID

pytestmark = pytest.mark.servers

README = Path(__file__).parents[2] / "wslgpud" / "store" / "README.md"
Run = Callable[..., list[tuple[object, ...]]]


def recipe() -> str:
    found, _ = re.findall(r"```sql\n(.*?)```", README.read_text(), re.DOTALL)
    return str(found)


@pytest.fixture
def run(server_target: str) -> Run:
    """Run SQL as a role, in a connection of its own; words stand for their names in angle brackets."""

    def run(statements: str, role: str = "postgres", **words: str) -> list[tuple[object, ...]]:
        for name, word in words.items():
            statements = statements.replace(f"<{name}>", word)
        engine = create_engine(server_target.replace("postgres@", f"{role}@"), poolclass=NullPool)
        with engine.begin() as connection:
            result = connection.execute(text(statements.replace(":", r"\:")))
            return [tuple(row) for row in result] if result.returns_rows else []

    return run


@pytest.fixture
def shared(run: Run, server_target: str) -> Iterator[dict[str, str]]:
    """Give the addresses of the roles that the recipe makes: two machines, and one that only reads."""
    run(recipe())
    yield {role: server_target.replace("postgres@", f"{role}@") for role in ("box_a", "box_b", "grafana")}
    for role in ("grafana", "box_a", "box_b"):
        run("DROP OWNED BY <name> CASCADE", name=role)
    run("DROP ROLE grafana, box_a, box_b")


@contextmanager
def copied(target: str, host: str, folder: Path) -> Iterator[Store]:
    """Open a machine's history, all of which is on the server at the end."""
    with Store(target, host_name=host, own_file=folder / f"{host}.db") as store:
        yield store
        assert store.flush()
        assert store._replication.flush(300), store.stats().error


def one_tick(target: str, host: str, value: int, folder: Path) -> None:
    with copied(target, host, folder) as store:
        store.append(snapshot(T0, {(BYTES, "free"): value}))
        store.outbox.post("ntfy", {"text": f"from {host}"})


def values(target: str) -> list[object]:
    with Reader(target) as reader:
        return [point.value for point in reader.latest().values()]


def test_machines_of_the_same_name_see_only_their_own_samples(shared: dict[str, str], tmp_path: Path) -> None:
    for box, value in (("box_a", 1), ("box_b", 2)):
        one_tick(shared[box], "pc", value, tmp_path / box)

    assert (values(shared["box_a"]), values(shared["box_b"])) == ([1], [2])


ATTACKS = (
    "SELECT * FROM box_a.outbox",
    "INSERT INTO box_a.outbox VALUES (5, 'ntfy', NULL, '{\"text\": \"from B\"}', 0, 0, '', NULL)",
    "UPDATE box_a.outbox SET done_ms = 1",
    "INSERT INTO box_a.learned VALUES (5, 0, 'ram', '{}')",
    "UPDATE box_a.transition SET new = 0",
    "DELETE FROM box_a.batch",
    "UPDATE box_a.host SET name = 'b'",
    "CREATE FUNCTION box_a.strpos(text, text) RETURNS int LANGUAGE sql AS 'SELECT 0'",
    "CREATE TRIGGER t BEFORE INSERT ON box_a.batch EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE RULE r AS ON INSERT TO box_a.batch DO INSTEAD NOTHING",
    "LOCK TABLE box_a.batch",
    "DROP SCHEMA box_a CASCADE",
    "SET ROLE box_a",
)


def test_one_machine_can_touch_nothing_of_another(shared: dict[str, str], run: Run, tmp_path: Path) -> None:
    one_tick(shared["box_a"], "a", 1, tmp_path)

    for attack in ATTACKS:
        with pytest.raises(DBAPIError, match=r"permission denied|must be owner"):
            run(attack, "box_b")
    assert values(shared["box_a"]) == [1]


def test_functions_planted_in_a_shared_schema_are_never_called(
    shared: dict[str, str], run: Run, tmp_path: Path
) -> None:
    """PostgreSQL before 15 lets everybody create in ``public``, which is on everybody's path."""
    run("GRANT ALL ON SCHEMA public TO PUBLIC")
    trap = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped as %', current_user; END $$"
    for name, takes, gives in (
        ("strpos", "text, varchar", "int"),
        ("pg_advisory_xact_lock", "int, bigint", "void"),
        ("max", "int", "int"),
        ("substr", "text, bigint, int", "text"),
    ):
        run(f"CREATE FUNCTION public.{name}({takes}) RETURNS {gives} {trap}", "box_b")
    for table in ("outbox", "host", "series", "schema_migration"):
        run(f"CREATE TABLE public.{table} (id bigint, version int)", "box_b")
        run(f"GRANT ALL ON public.{table} TO PUBLIC", "box_b")

    one_tick(shared["box_a"], "a", 1, tmp_path)

    assert values(shared["box_a"]) == [1]
    with Reader(shared["box_a"]) as reader, reader.connected() as connection:
        assert str(connection.scalar(text("SHOW search_path"))) == "box_a, pg_temp"
    assert run("SELECT id FROM public.outbox") == [], "nothing went where it could be read"


def test_grafana_reads_both_and_writes_neither(shared: dict[str, str], run: Run, tmp_path: Path) -> None:
    one_tick(shared["box_a"], "a", 1, tmp_path)
    one_tick(shared["box_b"], "b", 2, tmp_path)

    for box, value in (("box_a", 1), ("box_b", 2)):
        assert run("SELECT value FROM <box>.recent", "grafana", box=box) == [(value,)]
        for attack in ("DELETE FROM <box>.batch", "CREATE TABLE <box>.x (id int)"):
            with pytest.raises(DBAPIError, match="permission denied"):
                run(attack, "grafana", box=box)


def test_nonsense_documents_do_not_keep_a_machine_from_copying(server_target: str, run: Run, tmp_path: Path) -> None:
    """In a schema that several may write to there is no protection, but nothing breaks either."""
    one_tick(server_target, "a", 1, tmp_path)
    deep = "[" * 100_000
    for row in (
        "outbox VALUES (902, 'ntfy', NULL, '<deep>', 0, 0, '', NULL)",
        "transition VALUES (903, 0, 0, 'ram', 'r', 0, 99, 'h', '<deep>', NULL)",
        "event VALUES (904, 0, 'k', 't', '<deep>')",
    ):
        run(f"INSERT INTO {row}", deep=deep)

    with copied(server_target, "a", tmp_path) as store:
        store.append(snapshot(T0 + 1, {(BYTES, "free"): 2}))
    with Reader(server_target, "a") as reader:
        assert [delivery.payload for delivery in reader.deliveries(0, 1e11)] == [{"text": "from a"}]
        assert (reader.transitions(), reader.events(-1, 1)) == ([], [])
    assert values(server_target) == [2]


def test_a_daemon_never_touches_the_rows_of_another_machine(server_target: str, run: Run, tmp_path: Path) -> None:
    one_tick(server_target, "a", 1, tmp_path)
    one_tick(server_target, "b", 2, tmp_path)
    run("INSERT INTO rollup_minute (part, series, unit, base, n_0) VALUES (0, 4294967297, 1, 0, 1)")

    one_tick(server_target, "a", 1, tmp_path)
    with Reader(server_target, "a") as reader:
        assert [delivery.payload["text"] for delivery in reader.deliveries(0, 1e11)] == ["from a"] * 2
        (ref,) = reader.series(host="a")
        assert reader.read(ref, T0 - 60, T0 + 60)
    assert run("SELECT count(*) FROM outbox") == [(3,)]


def test_a_series_forged_under_our_name_is_never_written_to(server_target: str, run: Run, tmp_path: Path) -> None:
    with copied(server_target, "a", tmp_path):
        pass
    run("INSERT INTO host VALUES (1, 'b', 0, NULL)")
    run("INSERT INTO series VALUES (4294967300, 0, 'made_bytes', 'gauge', '{\"kind\":\"free\"}', 1, 0)")

    one_tick(server_target, "a", 1, tmp_path)

    (row,) = run("SELECT data FROM batch")
    assert "4294967300" not in str(row[0])


def test_a_foreign_lock_delays_the_copy_but_not_the_monitoring(
    shared: dict[str, str], run: Run, tmp_path: Path
) -> None:
    (ours,) = run("SELECT oid::int FROM pg_namespace WHERE nspname = 'box_a'", "box_b")[0]
    lock = text(f"SELECT pg_advisory_lock({APPLICATION_ID}, {ours})")
    their_engine = create_engine(shared["box_b"], poolclass=NullPool)
    with their_engine.connect() as theirs:
        theirs.execute(lock)
        with Store(shared["box_a"], host_name="pc", own_file=tmp_path / "wslgpud.db") as store:
            store.append(snapshot(T0, {(BYTES, "free"): 1}))
            assert store.flush()
            until(lambda: run("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
            assert store.stats().replication_queue_ticks is None
            theirs.close()
            until(lambda: store.stats().replication_queue_ticks == 0 or store._replication.wake())

    assert values(shared["box_a"]) == [1]


#: what a server says until the first statement: no password, its version, ready (PostgreSQL's protocol, 55.2)
_PARAMETERS = {"server_version": "15.4", "client_encoding": "UTF8", "standard_conforming_strings": "on"}
_NO_TLS, _NOTHING = b"N", struct.pack("!I", 0)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _welcome(peer: Peer) -> None:
    peer.connection.recv(1 << 12)
    peer.say(_NO_TLS)
    peer.connection.recv(1 << 12)
    peer.say(_message(b"R", _NOTHING))
    for name, value in _PARAMETERS.items():
        peer.say(_message(b"S", f"{name}\0{value}\0".encode()))
    peer.say(_message(b"K", 2 * _NOTHING) + _message(b"Z", b"I"))
    peer.connection.recv(1 << 12)


NEVER: dict[str, Callable[[Peer], None]] = {
    "silence": Peer.silence,
    "remarks without end": lambda peer: peer.for_ever(_message(b"N", b"SNOTICE\0VNOTICE\0C00000\0Mx\0\0"), 0.01),
}


@pytest.mark.parametrize("never", NEVER.values(), ids=NEVER)
def test_an_unresponsive_server_is_reported_and_blocks_nobody(
    never: Callable[[Peer], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def behave(peer: Peer) -> None:
        _welcome(peer)
        never(peer)

    monkeypatch.setattr("wslgpud.store.postgresql.ANSWER_SECONDS", 0.5)
    with rude(behave) as server:
        target = f"postgresql+psycopg://me:word@{server.place}/db"
        with Store(target, host_name="pc", own_file=tmp_path / "wslgpud.db") as store:
            store.append(snapshot(T0, {(BYTES, "free"): 1}))
            assert store.flush()
            until(lambda: "did not answer within" in str(store.stats().error))
            assert "word" not in str(store.stats().error)
        with pytest.raises(StoreError, match="did not answer within"):
            Reader(target)
