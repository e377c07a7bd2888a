"""The socket for this machine's own commands: who else gets something of it, and what a false one does."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wslgpud.cli.common import ask_daemon
from wslgpud.serve import local
from wslgpud.serve.local import ANSWER_BYTES, LocalStatus, ask


@pytest.fixture
def open_to_all() -> Iterator[None]:
    """A umask that forbids nobody anything."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_to_all")
def test_only_its_owner_may_open_the_socket_whatever_the_umask(tmp_path: Path) -> None:
    local = LocalStatus(tmp_path, lambda _: {"a": 1})
    assert local.start()
    mode = stat.S_IMODE(local.path.stat().st_mode)
    said = ask(local.path)
    local.close()

    assert mode == 0o600
    assert said == {"a": 1}


@pytest.mark.usefixtures("open_to_all")
def test_a_link_put_in_its_place_meanwhile_opens_or_closes_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's daemon in a folder of a user's, who acts between any two steps."""
    victim = tmp_path / "victim"
    victim.touch(0o644)
    victim.chmod(0o644)
    status = LocalStatus(tmp_path, lambda _: {})

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
def test_whatever_has_its_name_is_replaced_and_what_it_leads_to_stays_as_it_is(
    tmp_path: Path, kind: str
) -> None:
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
    local = LocalStatus(path.parent, lambda _: {"a": 1})
    assert local.start()
    said = ask(path)
    local.close()

    assert said == {"a": 1}
    assert victim.exists() is (kind in {"link", "file"})
    if victim.exists():
        assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("mine", 0o644)


def test_a_folder_of_its_name_costs_the_socket_and_not_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "status.sock" / "inside").mkdir(parents=True)

    assert not LocalStatus(tmp_path, lambda _: {}).start()


def test_a_client_that_sends_is_not_listened_to(tmp_path: Path) -> None:
    local = LocalStatus(tmp_path, lambda _: {"a": 1}, timeout_seconds=1.0)
    assert local.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as talker:
        talker.connect(str(local.path))
        talker.setblocking(False)
        with pytest.raises((BlockingIOError, ConnectionError)):  # noqa: PT012 - until nobody takes more
            while True:
                talker.send(b"x" * 65536)
        assert ask(local.path) == {"a": 1}
    local.close()


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
    "text", [b" " * 65536, b"[" * 65536, b'{"a":' * 10000], ids=["blanks", "lists", "objects"]
)
def test_an_answer_without_end_is_read_no_further_than_a_daemon_has_to_say(
    tmp_path: Path, text: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with false_daemon(tmp_path, text):
        assert ask_daemon(tmp_path) is None

    assert "does not answer" in capsys.readouterr().err
    assert ANSWER_BYTES <= 16 << 20


def test_an_answer_that_comes_drop_by_drop_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The service's account could hold root's ``wslgpud status`` up for years."""
    monkeypatch.setattr(local, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(local, "ANSWER_BYTES", 1000)  # so that a reader who waits for all of it ends as well
    with false_daemon(tmp_path, b" ", pause_seconds=0.05):
        assert ask_daemon(tmp_path) is None

    assert "timed out" in capsys.readouterr().err


def test_a_note_that_is_a_pipe_or_without_end_keeps_no_command_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "daemon.json")
    assert ask_daemon(tmp_path) is None
    (tmp_path / "daemon.json").unlink()
    (tmp_path / "daemon.json").symlink_to("/dev/zero")
    assert ask_daemon(tmp_path) is None
