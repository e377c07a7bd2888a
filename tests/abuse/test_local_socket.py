"""The socket for this machine's commands: access by others, and forged sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wslgpud import client
from wslgpud.client import DaemonClient, answering, noted
from wslgpud.serve.router import Response, Route, dumps
from wslgpud.serve.server import LocalApi

ANSWER = Response(200, dumps({"a": 1}), "application/json")
STATUS = [Route("/api/v1/status", lambda _: ANSWER)]


def ask(path: Path) -> dict[str, object]:
    return DaemonClient("http://127.0.0.1:1", path).ask("/api/v1/status")


def complaints(folder: Path) -> list[str]:
    """Return the error about daemons that do not answer."""
    said: list[str] = []
    assert answering([folder], said.append) is None
    return said


@pytest.fixture
def open_to_all() -> Iterator[None]:
    """A umask of 0."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_to_all")
def test_only_its_owner_may_open_the_socket_whatever_the_umask(tmp_path: Path) -> None:
    local = LocalApi(tmp_path, STATUS)
    assert local.start()
    mode = stat.S_IMODE(local.path.stat().st_mode)
    said = ask(local.path)
    local.close()

    assert mode == 0o600
    assert said == {"a": 1}


@pytest.mark.usefixtures("open_to_all")
def test_a_link_swapped_in_affects_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's daemon in a folder of a user's, who acts between any two steps."""
    victim = tmp_path / "victim"
    victim.touch(0o644)
    victim.chmod(0o644)
    status = LocalApi(tmp_path, STATUS)

    class Raced(socket.socket):
        def bind(self, address: str) -> None:
            super().bind(address)
            modes.append(stat.S_IMODE(status.path.stat().st_mode))
            status.path.unlink()
            status.path.symlink_to(victim)

    modes: list[int] = []
    monkeypatch.setattr(socket, "socket", Raced)
    assert status.start()
    status.close()

    assert modes == [0o600]
    assert stat.S_IMODE(victim.stat().st_mode) == 0o644


@pytest.mark.parametrize("kind", ["link", "broken link", "pipe", "file"])
def test_what_has_its_name_is_replaced_but_its_target_stays(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    path = tmp_path / "state" / "status.sock"
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
    (tmp_path / "status.sock" / "inside").mkdir(parents=True)

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


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/live", "//[", "/api/v1/status/../../etc"])
def test_it_answers_what_commands_ask_for_and_nothing_else(tmp_path: Path, path: str) -> None:
    local = LocalApi(
        tmp_path, [*STATUS, Route("/metrics", lambda _: Response(200, dumps({"secret": 1}), "application/json"))]
    )
    assert local.start()
    with pytest.raises(client.Unanswered, match="answered 404"):
        DaemonClient("http://127.0.0.1:1", local.path).ask(path)
    local.close()


def test_a_handler_that_fails_is_said_to_and_ends_nothing(tmp_path: Path) -> None:
    def handler(_: object) -> Response:
        raise KeyError("bug")

    local = LocalApi(tmp_path, [*STATUS, Route("/api/v1/series", handler)])
    assert local.start()
    with pytest.raises(client.Unanswered, match="answered 500"):
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
    listener.bind(str(folder / "status.sock"))
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
    (folder / "daemon.json").write_text('{"url": "http://127.0.0.1:1", "socket": "status.sock"}')
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


def test_a_note_that_is_a_pipe_or_endless_blocks_no_command(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "daemon.json")
    assert list(noted([tmp_path])) == []
    (tmp_path / "daemon.json").unlink()
    (tmp_path / "daemon.json").symlink_to("/dev/zero")
    assert list(noted([tmp_path])) == []


def test_a_note_leads_to_no_socket_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "daemon.json").write_text('{"url": "http://127.0.0.1:1", "socket": "/run/../etc/x.sock"}')

    assert [daemon.socket for daemon in noted([tmp_path])] == [tmp_path / "x.sock"]
