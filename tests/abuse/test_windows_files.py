"""Files on Windows' drives, where every user of Linux may write: pipes, links, giants for .wslconfig."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.support.daemons import wslgpud
from wslgpud.advise.doctor.checking import Evidence
from wslgpud.advise.wslconfig import files
from wslgpud.alerts.manager import ControlFile
from wslgpud.brake.watchdog import HeldJobsFile
from wslgpud.config import Config
from wslgpud.host import Host, SourceError
from wslgpud.probes.interop import automount_root
from wslgpud.sources.disk import Mount, holder, mounts

NOW = datetime(2026, 11, 21, 9, 30, 5, tzinfo=timezone.utc)
NOBODY = 65534
DRIVE = "C:\\134 /mnt/c 9p rw,noatime,aname=drvfs;path=C:\\134;uid=1000 0 0\n"
root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which only root can")


def giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte that takes no place


#: what may lie there instead, and what is said of it
SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "not a plain file"),
    "a terabyte": (giant, "larger than"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "not a plain file"),
    "a link to a pipe": (lambda path: (os.mkfifo(f"{path}.pipe"), path.symlink_to(f"{path}.pipe")), "not a plain file"),
    "a folder": (Path.mkdir, "not a plain file"),
    "a link to itself": (lambda path: path.symlink_to(path), "Too many levels"),
}
spoiled = pytest.mark.parametrize(("spoil", "complaint"), SPOILED.values(), ids=SPOILED)


def machine(folder: Path) -> Host:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mounts").write_text(DRIVE)
    (folder / "mnt/c/Users/me").mkdir(parents=True)
    return Host(folder)


@spoiled
def test_the_doctor_of_the_daemon_says_so_and_goes_on(spoil, complaint, tmp_path):
    host = machine(tmp_path)
    spoil(tmp_path / "mnt/c/Users/me/.wslconfig")

    assert complaint in str(Evidence(host, Config(), None, str(tmp_path)).wslconfig.error)


@spoiled
def test_the_command_says_so_in_one_line(spoil, complaint, tmp_path):
    spoil(tmp_path / ".wslconfig")
    done = wslgpud("wslconfig", "check", "--file", str(tmp_path / ".wslconfig"), home=tmp_path)

    assert done.returncode
    assert complaint in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@spoiled
def test_no_backup_is_made_of_it_and_nothing_written(spoil, complaint, tmp_path):
    file = tmp_path / ".wslconfig"
    spoil(file)
    if file.exists():  # a link to itself is none that exists
        with pytest.raises(OSError, match=complaint):
            files.replace(file, files.decoded(b"[wsl2]\n"), NOW)
        assert not files.backups(file)


@pytest.mark.parametrize("spoil", [giant, lambda path: path.symlink_to("/dev/zero"), os.mkfifo])
def test_any_file_that_is_read_of_the_machine_comes_to_an_end(spoil, tmp_path):
    (tmp_path / "etc").mkdir()
    spoil(tmp_path / "etc/wsl.conf")

    assert automount_root(Host(tmp_path)) == "/mnt/"


def test_a_file_without_end_is_named(tmp_path):
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(SourceError, match="/zero is too long"):
        Host(tmp_path).read("/zero")


@spoiled
def test_daemon_notes_replaced_by_somebody_are_ignored(spoil, complaint, tmp_path):
    said: list[str] = []
    spoil(tmp_path / "held.json")
    spoil(tmp_path / "alerts.json")

    assert HeldJobsFile(tmp_path).read() == (0, {})
    assert not ControlFile(tmp_path, said.append).now.silences


def test_nested_too_deeply_is_no_note(tmp_path):
    (tmp_path / "held.json").write_text("[" * 100_000)
    (tmp_path / "alerts.json").write_text('{"silences": ' + "[" * 100_000)

    assert HeldJobsFile(tmp_path).read() == (0, {})
    assert not ControlFile(tmp_path).now.silences


class TestWriting:
    """``sudo wslgpud wslconfig preset`` in a folder that others may write."""

    def test_a_link_that_waits_under_a_backup_s_name_is_not_followed(self, tmp_path):
        file, elsewhere = tmp_path / ".wslconfig", tmp_path / "cron"
        file.write_text("* * * * * root sh /tmp/evil\n")
        (tmp_path / f".wslconfig.{NOW:%Y%m%d-%H%M%S-%f}").symlink_to(elsewhere)

        with pytest.raises(FileExistsError):
            files.replace(file, files.decoded(b"[wsl2]\n"), NOW)
        assert not elsewhere.exists()
        assert file.read_text() == "* * * * * root sh /tmp/evil\n"

    @root
    def test_root_writes_through_no_link_into_a_foreign_folder(self, tmp_path):
        theirs, etc = tmp_path / "Users/me", tmp_path / "etc"
        theirs.mkdir(parents=True)
        etc.mkdir()
        os.chown(theirs, NOBODY, NOBODY)
        (etc / "cron").write_text("as it was\n")
        link = theirs / ".wslconfig"
        link.symlink_to(etc / "cron")
        os.chown(link, NOBODY, NOBODY, follow_symlinks=False)

        with pytest.raises(OSError, match="another user's link into"):
            files.replace(link, files.decoded(b"* * * * * root sh /tmp/evil\n"), NOW)
        assert (etc / "cron").read_text() == "as it was\n"
        assert [file.name for file in etc.iterdir()] == ["cron"]

    @root
    def test_their_own_folder_of_dotfiles_is_written(self, tmp_path):
        theirs = tmp_path / "home/dotfiles"
        theirs.mkdir(parents=True)
        (theirs / "wslconfig").write_text("[wsl2]\n")
        link = tmp_path / ".wslconfig"
        link.symlink_to(theirs / "wslconfig")
        os.chown(theirs, NOBODY, NOBODY)
        os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
        files.replace(link, files.decoded(b"[wsl2]\nswap=0\n"), NOW)

        assert (theirs / "wslconfig").read_text() == "[wsl2]\nswap=0\n"


class TestMounts:
    """A user may mount a file system of their own (FUSE) that never answers: it is never asked."""

    @pytest.mark.parametrize(
        "line",
        [
            "C:\\134 /home/me/c fuse.drvfs rw,user_id=1001 0 0",
            "drvfs /home/me/c fuse rw,user_id=1001,aname=drvfs;path=C:\\134 0 0",
            "C:\\134 /home/me/c fuse.9p rw,user_id=1001 0 0",
            "x /home/me/c\\0409p\\040rw fuse.sshfs rw,user_id=1001,drvfs 0 0",
        ],
    )
    def test_no_name_makes_it_a_drive_of_windows(self, line):
        assert not mounts(line)[0].windows

    def test_it_holds_neither_the_root_nor_our_data(self):
        found = mounts(
            "/dev/vda / ext4 rw 0 0\n"
            "x /home/me/var/lib/wslgpud fuse rw 0 0\n"
            "x /home/me/a\\012/dev/vda\\040/var/lib/wslgpud fuse rw 0 0\n"
        )
        assert len(found) == 3
        for path in ("/", "/var/lib/wslgpud"):
            assert holder(found, path) == Mount("/dev/vda", "/", "ext4", ("rw",))
