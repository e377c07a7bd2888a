"""The service manager is told that the daemon has started, and what it shall wait for."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from wslgpud.app.systemd import Notifier, lack_of_protection


@pytest.mark.parametrize(
    ("watchdog", "told"),
    [("4999999", "READY=1\nWATCHDOG_USEC=5000000"), ("5000000", "READY=1"), ("", "READY=1"), ("soon", "READY=1")],
)
@pytest.mark.parametrize("abstract", [False, True])
def test_a_watchdog_shorter_than_five_samples_is_told_to_wait(
    watchdog: str, told: str, tmp_path: Path, *, abstract: bool
) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name if abstract else name)
        environ = {"NOTIFY_SOCKET": "@" + name if abstract else name, "WATCHDOG_USEC": watchdog}
        notifier = Notifier(environ, interval_seconds=1.0)
        notifier.ready()

        assert notifier.enabled
        assert manager.recv(1000).decode() == told


def test_a_daemon_out_of_files_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socket", none_left)
    Notifier({"NOTIFY_SOCKET": "/run/notify"}, interval_seconds=1.0).send("WATCHDOG=1")


def test_without_a_service_manager_nothing_is_told() -> None:
    notifier = Notifier({}, interval_seconds=1.0)
    notifier.ready()

    assert not notifier.enabled


@pytest.mark.parametrize(
    ("environ", "score", "warned"),
    [
        ({"NOTIFY_SOCKET": "/run/notify"}, 0, True),
        ({"NOTIFY_SOCKET": "/run/notify"}, -1, False),
        ({"NOTIFY_SOCKET": "/run/notify"}, None, False),
        ({}, 100, False),
    ],
)
def test_a_service_that_the_kernel_may_kill_first_is_warned_of(
    environ: dict[str, str], score: int | None, *, warned: bool
) -> None:
    assert (f"adjustment is {score}." in lack_of_protection(environ, score)) is warned
