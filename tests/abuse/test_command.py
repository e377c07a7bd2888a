"""Programs that the daemon starts for alerts: whatever they do, they cost a bounded time and memory."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import tempfile
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.daemons import PATIENCE_SECONDS, eventually
from wslgpud.alerts.channels import DeliveryError
from wslgpud.alerts.channels.programs import CommandChannel, DesktopChannel
from wslgpud.probes import interop
from wslgpud.security.run_as import program, replaceable

MESSAGE = {"level": "critical", "headline": "LD_PRELOAD=/tmp/evil.so\x1b[2J", "evidence": "PATH=/tmp"}
NOBODY = 65534
root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which only root can")


def channel(script: str, seconds: float = PATIENCE_SECONDS) -> CommandChannel:
    return CommandChannel(["/bin/sh", "-c", script], seconds)


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descriptors() -> dict[str, str]:
    """Number to what it is. What other tests have left to be collected may close at any moment."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found[link.name] = str(link.readlink())
    return {number: target for number, target in found.items() if not target.endswith("/fd")}


@pytest.mark.parametrize(
    "script",
    [
        "sleep 600",
        "trap '' TERM INT HUP; while :; do sleep 600; done",
        "sleep 600 & wait",
        "while :; do echo flood >&2; done",
        "exec <&- >&- 2>&-; sleep 600",
    ],
    ids=["sleeps", "ignores signals", "waits for a child", "floods for ever", "closes everything"],
)
def test_a_command_that_never_ends_is_stopped_with_its_children(script, tmp_path):
    note = tmp_path / "pid"
    before = descriptors()
    with pytest.raises(DeliveryError, match=r"did not end within 1 s and was stopped"):
        channel(f"echo $$ > {note}; {script}", 0.5).send(MESSAGE)

    assert not descriptors().items() - before.items()
    eventually(lambda: not note.exists() or not alive(int(note.read_text() or 0)), "the end of the command")


@pytest.mark.parametrize("detach", ["", "setsid "], ids=["same session", "session of its own"])
def test_a_grandchild_holding_the_pipe_does_not_delay_a_success(detach, tmp_path):
    """This used to fail after 30 seconds and be retried: the same warning for a day."""
    note = tmp_path / "pid"
    channel(f"{detach}sleep 600 & echo $! > {note}; cat > /dev/null").send(MESSAGE)

    os.kill(int(note.read_text()), signal.SIGKILL)


def test_a_flood_of_words_is_read_and_its_end_kept():
    tracemalloc.start()
    try:
        with pytest.raises(DeliveryError) as caught:
            channel("head -c 50000000 /dev/zero | tr '\\0' x >&2; printf '\\033[2J\\nthe end' >&2; exit 3").send(
                MESSAGE
            )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    said = str(caught.value)
    assert said.startswith("/bin/sh failed (3): ")
    assert said.endswith("the end")
    assert said.isprintable()
    assert len(said) <= 300
    assert peak < 2 << 20


def test_a_flood_on_standard_output_goes_nowhere():
    channel("head -c 50000000 /dev/zero").send(MESSAGE)


@pytest.mark.parametrize("script", ["exit 0", "exec <&-", "read line; exit 0"])
def test_a_command_that_does_not_read_is_no_failure(script):
    channel(script).send({**MESSAGE, "evidence": "x" * 1_000_000})


def test_all_of_a_long_message_arrives(tmp_path):
    channel(f"sleep 0.2; cat > {tmp_path}/got").send({"evidence": "x" * 1_000_000})

    assert len(json.loads((tmp_path / "got").read_text())["evidence"]) == 1_000_000


def test_a_message_sets_no_variable_and_is_no_argument(tmp_path):
    script = executable(tmp_path / "alert", f'#!/bin/sh\nenv > {tmp_path}/env\necho "$#" > {tmp_path}/count\n')
    CommandChannel([str(script), "one"], PATIENCE_SECONDS).send(MESSAGE)

    assert "LD_PRELOAD" not in (tmp_path / "env").read_text()
    assert (tmp_path / "count").read_text() == "1\n"


def test_no_core_of_ours_is_left_when_a_command_crashes():
    with pytest.raises(DeliveryError, match="ended with status -6"):
        channel("ulimit -c 0; kill -ABRT $$").send(MESSAGE)
    assert resource.getrlimit(resource.RLIMIT_CORE)  # ours are as they were


class TestWhoCouldReplaceIt:
    def test_our_own_below_a_sticky_folder_is_run(self, tmp_path):
        script = executable(tmp_path / "bin/alert", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        CommandChannel([str(script)], PATIENCE_SECONDS).send(MESSAGE)

        assert (tmp_path / "ran").exists()

    @root
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda p: os.chown(p / "bin/alert", NOBODY, -1),
            lambda p: os.chown(p / "bin", NOBODY, -1),
            lambda p: (p / "bin").chmod(0o777),
            lambda p: (p / "bin/alert").chmod(0o777),
            lambda p: (os.chown(p / "bin", 0, NOBODY), (p / "bin").chmod(0o775)),
        ],
        ids=["the file is", "its folder is", "folder open to all", "file open to all", "folder of a group"],
    )
    def test_another_user_s_is_not_started_and_the_path_named(self, spoil, tmp_path):
        """The daemon as root in the foreground, its command in somebody's folder."""
        script = executable(tmp_path / "bin/alert", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        spoil(tmp_path)

        with pytest.raises(DeliveryError, match=rf"others could replace it: {tmp_path}/bin"):
            CommandChannel([str(script)], PATIENCE_SECONDS).send(MESSAGE)
        assert not (tmp_path / "ran").exists()

    @root
    def test_a_link_of_another_user_s_on_the_way_counts(self, tmp_path):
        executable(tmp_path / "ours/alert", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (tmp_path / "theirs").symlink_to(tmp_path / "ours")
        os.chown(tmp_path / "theirs", NOBODY, -1, follow_symlinks=False)

        assert str(replaceable(tmp_path / "theirs/alert")) == f"{tmp_path}/theirs belongs to uid {NOBODY}"
        assert not replaceable(tmp_path / "ours/alert")

    @root
    def test_a_program_planted_in_a_folder_of_the_path_is_skipped(self, tmp_path, monkeypatch):
        """A root shell of WSL has the folders of Windows' users on its PATH, which are open to everybody."""
        executable(tmp_path / "planted/notify-send", f"#!/bin/sh\ntouch {tmp_path}/planted.ran\n")
        (tmp_path / "planted").chmod(0o777)
        executable(tmp_path / "good/notify-send", f"#!/bin/sh\ntouch {tmp_path}/good.ran\n")
        path = f"{tmp_path}/planted:{tmp_path}/good:/usr/bin:/bin"
        monkeypatch.setenv("PATH", path)
        DesktopChannel({"PATH": path, "DBUS_SESSION_BUS_ADDRESS": "unix:path=/x"}).send(MESSAGE)

        assert (tmp_path / "good.ran").exists()
        assert not (tmp_path / "planted.ran").exists()
        assert program("no-such-program") is None

    def test_links_in_a_circle_end(self, tmp_path):
        (tmp_path / "a").symlink_to(tmp_path / "b")
        (tmp_path / "b").symlink_to(tmp_path / "a")

        assert replaceable(tmp_path / "a/x")


class TestDesktop:
    @root
    def test_a_notifier_runs_as_the_user_and_without_our_environment(self):
        """A user may trace what runs as they do, and read its environment."""
        # Not pytest's folders, which are root's alone.
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            place.chmod(0o755)
            out = place / "out"
            out.mkdir()
            os.chown(out, NOBODY, NOBODY)
            executable(
                place / "bin/notify-send", f"#!/bin/sh\nid -u > {out}/uid; id -G > {out}/groups; env > {out}/env\n"
            )
            (place / f"run/{NOBODY}").mkdir(parents=True)
            os.chown(place / f"run/{NOBODY}", NOBODY, NOBODY)
            (place / f"run/{NOBODY}/bus").touch()
            path = f"{place}/bin:{os.environ['PATH']}"
            environ = {"PATH": path, "WSLGPUD_ALERTS__URLS": "json://me:hunter2@x", "NOTIFY_SOCKET": "/run/x"}
            DesktopChannel(environ, place / "run").send(MESSAGE)

            assert (out / "uid").read_text() == f"{NOBODY}\n"
            assert (out / "groups").read_text() == f"{NOBODY}\n"
            names = {line.partition("=")[0] for line in (out / "env").read_text().splitlines()}
            assert names <= {"PATH", "DBUS_SESSION_BUS_ADDRESS", "LANG", "PWD", "SHLVL", "_", "OLDPWD"}

    def test_a_session_whose_bus_hangs_keeps_no_other_waiting(self, tmp_path, monkeypatch):
        me = os.geteuid()
        for name in (str(me), *([] if me else ["1", "2", "3"])):
            (tmp_path / f"run/{name}").mkdir(parents=True)
            (tmp_path / f"run/{name}/bus").touch()
        script = f'case "$DBUS_SESSION_BUS_ADDRESS" in */{me}/bus) exit 0;; *) sleep 600;; esac'
        executable(tmp_path / "bin/notify-send", f"#!/bin/sh\n{script}\n")
        environ = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

        DesktopChannel(environ, tmp_path / "run", timeout_seconds=1.0).send(MESSAGE)  # one took it


class TestInterop:
    """What starts programs of Windows from inside WSL."""

    @root
    def test_a_socket_that_another_user_has_planted_is_not_spoken_to(self, tmp_path, monkeypatch):
        ours, theirs = tmp_path / "1_interop", tmp_path / "42_interop"
        sockets = []
        for place in (ours, theirs):
            sockets.append(socket.socket(socket.AF_UNIX))
            sockets[-1].bind(str(place))
        os.chown(theirs, NOBODY, -1)
        monkeypatch.setattr(interop, "SOCKET", str(ours))

        assert interop.environment({"WSL_INTEROP": str(theirs)})["WSL_INTEROP"] == str(ours)
        assert interop.environment({"WSL_INTEROP": str(ours)})["WSL_INTEROP"] == str(ours)
        os.chown(ours, NOBODY, -1)
        assert "WSL_INTEROP" not in interop.environment({"WSL_INTEROP": str(theirs)})
        for each in sockets:
            each.close()

    def test_a_socket_is_spoken_to_as_long_as_it_is_ours(self, tmp_path, monkeypatch):
        place, us = tmp_path / "1_interop", os.geteuid()
        monkeypatch.setattr(interop, "SOCKET", str(place))
        with socket.socket(socket.AF_UNIX) as ours:
            ours.bind(str(place))
            assert interop.environment({}) == {"WSL_INTEROP": str(place)}
            monkeypatch.setattr(os, "geteuid", lambda: us + 1)
            assert ("WSL_INTEROP" in interop.environment({})) is (us == 0), "root's sockets are everybody's"

    def test_a_link_or_a_file_is_no_socket(self, tmp_path, monkeypatch):
        monkeypatch.setattr(interop, "SOCKET", str(tmp_path / "none"))
        (tmp_path / "file").touch()
        (tmp_path / "link").symlink_to("/dev/null")
        for name in ("file", "link", "none"):
            assert "WSL_INTEROP" not in interop.environment({"WSL_INTEROP": str(tmp_path / name)})

    def test_windows_gets_no_secret_of_our_environment(self):
        environ = {"WSLENV": "WSLGPUD_ALERTS__URLS", "WSLGPUD_ALERTS__URLS": "x", "PATH": "/bin", "TOKEN": "x"}

        assert interop.environment(environ) == {"PATH": "/bin"}
