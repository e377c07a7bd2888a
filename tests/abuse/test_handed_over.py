"""What root opens of users' files and hands to their programs neither holds it up nor can be used again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.accounts import ALICE, give, needs_root, shared_python
from wslgpud.security import safe_files
from wslgpud.security.run_as import Account, Command, run
from wslgpud.stress.conditions import GpuLock, LockError
from wslgpud.stress.parent import supervise

#: Does with the descriptor of its own script what it can, and says what it could.
THIEF = r"""
import os, sys
handed, target = int(sys.argv[0].rsplit("/", 1)[1]), sys.argv[2]
def succeeds(act):
    try:
        act()
    except OSError:
        return ""
    return "yes"
os.set_blocking(handed, True)
print("written", succeeds(lambda: os.pwrite(handed, b"forged", 0)))
print("shortened", succeeds(lambda: os.truncate(handed, 0)))
print("reopened", succeeds(lambda: os.open(f"/proc/self/fd/{handed}", os.O_RDWR)))
print("linked", succeeds(lambda: os.link(f"/proc/self/fd/{handed}", target, follow_symlinks=True)))
"""


@needs_root
def test_a_script_cannot_become_a_root_file_with_a_users_words(public: Path) -> None:
    """A note of root's that says whatever its reader likes would let anybody vouch for a lock."""
    script = public / "script.py"
    script.write_text(THIEF)
    python = shared_python()
    forged = public / "hers" / "forged"
    forged.parent.mkdir()
    give(forged.parent, ALICE)

    order = Command([str(python), str(forged)], {}, Account("alice", ALICE, ALICE))
    _, said, complaints = run(order, 60.0, script=script)

    assert said.split() == ["written", "shortened", "reopened", "linked"], complaints
    assert not forged.exists()


@needs_root
def test_a_package_its_reader_cannot_open_is_handed_over_whole(public: Path) -> None:
    package = public / "closed" / "job"
    package.mkdir(parents=True)
    (package / "work.py").write_text("import os\ndone = f'done by {os.getuid()}'\n")
    (package / "__init__.py").write_text("from .work import done\n\ndef main():\n    print(done)\n")
    package.parent.chmod(0o700)

    order = Command([str(shared_python())], {}, Account("alice", ALICE, ALICE))

    assert run(order, 60.0, script=package) == (0, f"done by {ALICE}\n", "")


@pytest.fixture
def leased() -> Iterator[Callable[[Path], None]]:
    """Have a file's owner hold a lease on it: opening it blocks until they release it, or for the kernel's 45 s."""
    holders: list[subprocess.Popen[bytes]] = []

    def hold(path: Path) -> None:
        code = (
            "import fcntl, os, signal, sys\n"
            "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
            f"file = os.open({str(path)!r}, os.O_RDONLY)\n"
            "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
            "os.write(1, b'.')\n"
            "signal.pause()\n"
        )
        holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        holders.append(holder)
        assert holder.stdout is not None
        if holder.stdout.read(1) != b".":
            pytest.skip("this file system has no leases")

    yield hold
    for holder in holders:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()


def waits(act: Callable[[], object]) -> bool:
    """Tell whether something had not ended when the kernel was asked to take the lease away.

    The alarm is far below the 45 s of ``/proc/sys/fs/lease-break-time`` and only ends what hangs.
    """

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    try:
        act()
    except TimeoutError:
        return True
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return False


class TestALease:
    """A user can make thousands of files, each of which would cost root 45 s."""

    def test_on_a_lock_or_a_document_holds_no_reader_up(self, tmp_path: Path, leased: Callable[[Path], None]) -> None:
        lock = GpuLock(0, tmp_path)
        lock.path.touch()
        leased(lock.path)

        def read() -> None:
            with pytest.raises(BlockingIOError):
                safe_files.contents(lock.path)
            with pytest.raises(LockError), lock.held():
                pass

        assert not waits(read)

    @pytest.mark.slow
    @needs_root
    def test_a_lease_on_the_program_delays_start_until_the_deadline(
        self, public: Path, leased: Callable[[Path], None]
    ) -> None:
        program = public / "python3"
        shutil.copy("/bin/sleep", program)
        leased(program)
        order = Command([str(program), "0"], {}, Account("alice", ALICE, ALICE))

        def begin() -> None:
            failures.append(str(supervise(order, dict, deadline_seconds=1.0).failure))

        failures: list[str] = []
        assert not waits(begin)
        assert failures == ["not done within 1 s"]


def test_a_device_in_the_place_of_a_file_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening /dev/watchdog starts a clock that ends the machine."""
    link = tmp_path / "pyvenv.cfg"
    link.symlink_to("/dev/null")
    opened, really = [], os.open

    def noted(path: str, flags: int, *args: object, **kwargs: object) -> int:
        if not flags & os.O_PATH:
            opened.append(path)
        return really(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", noted)
    with pytest.raises(OSError, match="this is a device, not a plain file"):
        safe_files.contents(link, follow=True)

    assert opened == []
