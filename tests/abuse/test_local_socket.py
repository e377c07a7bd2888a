"""The socket for this machine's commands: access by others, and forged sockets."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.accounts import ALICE, needs_root
from tests.support.daemons import daemon, eventually
from wslgpud import client, config
from wslgpud.alerts.manager import Control, ControlFile
from wslgpud.client import SOCKET, DaemonClient, answering
from wslgpud.host import SystemClock
from wslgpud.security.shapes import of
from wslgpud.serve import HttpServer, Publisher, commands
from wslgpud.serve.router import Response, Route, dumps
from wslgpud.serve.server import LocalApi
from wslgpud.words.moments import iso

ANSWER = Response(200, dumps({"a": 1}), "application/json")
STATUS = [Route("/api/v1/status", lambda _: ANSWER)]


def ask(path: Path) -> dict[str, object]:
    return DaemonClient("http://127.0.0.1:1", path).ask("/api/v1/status")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A state folder that other users reach, unlike those of pytest."""
    folder = Path("/dev/shm") / f"wslgpud-strangers-{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def served(folder: Path, *more: Route, guarded: bool = False) -> Iterator[ControlFile]:
    """A daemon's socket, and what it keeps of commands."""
    control = ControlFile(folder)
    local = LocalApi(folder, [*STATUS, *commands.alert_routes(control, SystemClock()), *more], guarded=guarded)
    assert local.start()
    with contextlib.closing(local):
        yield control


def as_stranger(act: Callable[[], Any]) -> Any:
    """Return what another user gets. Forked: that user may not be able to start this Python."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(ALICE)
        try:
            told = act()
        except client.Unanswered as error:
            told = {"refused": str(error)}
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        document = said.read()
    os.waitpid(child, 0)
    return json.loads(document)


def complaints(folder: Path) -> list[str]:
    """Return the error about daemons that do not answer."""
    said: list[str] = []
    assert answering([folder], said.append) is None
    return said


@pytest.mark.parametrize("umask", [0, 0o077])
def test_every_user_may_connect_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    local = LocalApi(tmp_path, STATUS)
    assert local.start()
    kept = os.umask(before)
    mode = stat.S_IMODE(local.path.stat().st_mode)
    said = ask(local.path)
    local.close()

    assert (mode, kept) == (0o666, umask)
    assert said == {"a": 1}


def test_a_link_swapped_in_affects_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's daemon in a folder of a user's, who acts between any two steps."""
    victim = tmp_path / "victim"
    victim.touch(0o644)
    victim.chmod(0o644)
    status = LocalApi(tmp_path, STATUS)

    class Raced(socket.socket):
        def bind(self, address: str) -> None:
            super().bind(address)
            status.path.unlink()
            status.path.symlink_to(victim)

    monkeypatch.setattr(socket, "socket", Raced)
    assert status.start()
    status.close()

    assert stat.S_IMODE(victim.stat().st_mode) == 0o644


@pytest.mark.parametrize("kind", ["link", "broken link", "pipe", "file"])
def test_what_has_its_name_is_replaced_but_its_target_stays(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    path = tmp_path / "state" / SOCKET
    path.parent.mkdir()
    if kind in {"link", "file"}:
        victim.write_text("mine")
        victim.chmod(0o644)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "file":
        path.write_text("")
    else:
        path.symlink_to(victim)
    local = LocalApi(path.parent, STATUS)
    assert local.start()
    said = ask(path)
    local.close()

    assert said == {"a": 1}
    assert victim.exists() is (kind in {"link", "file"})
    if victim.exists():
        assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("mine", 0o644)


def test_a_folder_of_its_name_costs_the_socket_not_the_daemon(tmp_path: Path) -> None:
    (tmp_path / SOCKET / "inside").mkdir(parents=True)

    assert not LocalApi(tmp_path, STATUS).start()


@pytest.mark.parametrize(
    "sent",
    [b"x" * 65536, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 9000, b"", b"\0"],
    ids=["no request", "headers without end", "nothing", "no end"],
)
def test_a_client_without_a_request_is_dropped(tmp_path: Path, sent: bytes) -> None:
    local = LocalApi(tmp_path, STATUS, timeout_seconds=0.2)
    assert local.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as talker:
        talker.connect(str(local.path))
        with contextlib.suppress(ConnectionError):
            talker.sendall(sent)
        assert ask(local.path) == {"a": 1}
    local.close()


def test_a_handler_that_fails_is_said_to_and_ends_nothing(tmp_path: Path) -> None:
    def handler(_: object) -> Response:
        raise KeyError("bug")

    local = LocalApi(tmp_path, [*STATUS, Route("/api/v1/series", handler)])
    assert local.start()
    with pytest.raises(client.Unanswered, match=r"http://127\.0\.0\.1:1 refuses: answered 500: internal error; "):
        DaemonClient("http://127.0.0.1:1", local.path).ask("/api/v1/series")
    assert ask(local.path) == {"a": 1}
    local.close()


def test_after_its_end_no_socket_is_left_and_nobody_is_answered(tmp_path: Path) -> None:
    local = LocalApi(tmp_path, STATUS)
    assert local.start()
    listener = local._listener
    assert listener is not None
    assert local.path.is_socket()
    local.close()

    assert not local.path.exists()
    assert not listener._thread.is_alive()


def false_daemon(folder: Path, text: bytes, pause_seconds: float = 0.0) -> socket.socket:
    """Answer without end where a daemon's socket would be."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / SOCKET))
    listener.listen(1)

    ended = threading.Event()

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            try:
                while not ended.wait(pause_seconds):
                    client.sendall(text)
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    return listener


@pytest.mark.parametrize(
    "text",
    [b" " * 65536, b"HTTP/1.0 200 -\r\n\r\n" + b"[" * 65536, b"HTTP/1.0 200 -\r\na: b\r\n" * 10000],
    ids=["blanks", "lists", "headers"],
)
def test_an_endless_answer_is_read_no_further_than_needed(
    tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.MAX_BYTES <= 64 << 20
    monkeypatch.setattr(client, "MAX_BYTES", 1 << 20)
    with false_daemon(tmp_path, text):
        (said,) = complaints(tmp_path)

    assert "does not answer" in said


def test_an_answer_that_comes_drop_by_drop_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's account could hold root's ``wslgpud status`` up for years."""
    monkeypatch.setattr(client, "SECONDS", 0.5)
    with false_daemon(tmp_path, b"H", pause_seconds=0.05):
        (said,) = complaints(tmp_path)

    assert "no complete answer within 1 s" in said


def test_what_is_no_socket_is_no_daemon(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SOCKET)
    assert DaemonClient.of(tmp_path) is None
    (tmp_path / SOCKET).unlink()
    (tmp_path / SOCKET).symlink_to("/dev/zero")
    assert DaemonClient.of(tmp_path) is None


@needs_root
class TestStrangersOnTheSocket:
    """Another user than the daemon's, by the kernel's word."""

    def test_may_read_what_anybody_may_read_on_the_port(self, shared: Path) -> None:
        with served(shared):
            assert as_stranger(lambda: DaemonClient("", shared / SOCKET).ask("/api/v1/status")) == {"a": 1}

    def test_may_not_read_where_the_port_is_guarded(self, shared: Path) -> None:
        with served(shared, guarded=True):
            said = as_stranger(lambda: DaemonClient("", shared / SOCKET).ask("/api/v1/status"))

        assert "another user's: use sudo" in said["refused"]

    def test_may_not_read_where_a_password_may_yet_be_set(self, shared: Path, tmp_path: Path) -> None:
        """It would take effect on the port at once."""
        (shared / "state").mkdir()
        (tmp_path / "web.yml").write_text("")
        with daemon(shared, settings={"WSLGPUD_SERVER__WEB_CONFIG_FILE": str(tmp_path / "web.yml")}) as running:
            path = running.state / SOCKET
            eventually(path.exists, "its socket")
            said = as_stranger(lambda: DaemonClient("", path).ask("/api/v1/status"))
            running.end()

        assert "another user's: use sudo" in said["refused"]

    @pytest.mark.parametrize("name", ["silence", "acknowledge", "brake"])
    def test_can_do_nothing(self, shared: Path, name: str) -> None:
        asked = {"rule": "*", "resource": "*", "seconds": 1e6, "incident": 1, "seen_id": 9, "job": 1, "command": "stop"}
        brake: Any = SimpleNamespace(commands=[], document=lambda: [{"job": 1}])
        with served(shared, commands.brake_route(brake)) as control:
            said = as_stranger(lambda: DaemonClient("", shared / SOCKET).post(f"/api/v1/{name}", asked))

        assert "another user's: use sudo" in said["refused"]
        assert control.now == Control()
        assert not control.path.exists()
        assert not brake.commands

    def test_are_not_read_beyond_their_rights(self, shared: Path) -> None:
        """Nobody fills the daemon's memory with the bodies of requests that he may not make."""
        route = replace(commands.command("much", of(dict), lambda _: None), max_body_bytes=1 << 30)
        with served(shared, route):
            said = as_stranger(lambda: DaemonClient("", shared / SOCKET).post("/api/v1/much", {"a": "x" * 50_000_000}))

        assert said["refused"]

    def test_cannot_keep_the_owner_out_by_their_connections(self, shared: Path) -> None:
        def flood() -> dict[str, Any]:
            held = [socket.socket(socket.AF_UNIX) for _ in range(300)]
            for one in held:
                one.settimeout(5)
                one.connect(str(shared / SOCKET))
            os.write(reading_writing[1], b"x")
            signal.pause()
            return {}

        reading_writing = os.pipe()
        with served(shared) as control:
            child = os.fork()
            if child == 0:
                os.setuid(ALICE)
                flood()
            os.read(reading_writing[0], 1)
            try:
                DaemonClient("", shared / SOCKET).post("/api/v1/acknowledge", {"incident": 1, "seen_id": 1})
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)

        assert control.now.acknowledged == (1,)


def test_a_document_too_long_or_malformed_changes_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as control:
        for asked in ({"rule": "*" * 5000, "resource": "*", "seconds": 1}, {"rule": "*"}, {"seconds": math.inf}):
            with pytest.raises(client.Unanswered, match=r"answered 4\d\d: "):
                DaemonClient("", tmp_path / SOCKET).post("/api/v1/silence", asked)

    assert control.now == Control()


def test_a_silence_ends_before_time_does(tmp_path: Path) -> None:
    """Moments after the year 9999 cannot be written, and each status would fail."""
    with served(tmp_path) as control:
        asked = {"rule": "*", "resource": "*", "seconds": 999_999_999 * 86400}
        DaemonClient("", tmp_path / SOCKET).post("/api/v1/silence", asked)

    assert iso(control.now.silences[0].until_wall) == "9999-12-31T00:00:00.000+00:00"


def test_no_command_is_taken_on_the_port(tmp_path: Path) -> None:
    """There nobody knows who asks."""
    table = [*STATUS, *commands.alert_routes(ControlFile(tmp_path), SystemClock())]
    server = HttpServer(config.Server(port=0), Publisher(()), table)
    server.start()
    try:
        with pytest.raises(client.Unanswered, match="use sudo"):
            DaemonClient(server.url).post("/api/v1/acknowledge", {"incident": 1, "seen_id": 1})
    finally:
        server.stop()

    assert ControlFile(tmp_path).now == Control()
