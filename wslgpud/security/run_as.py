"""The one place that starts programs that a user may control; as root, never with root's rights.

Root starts a Python for the stress test, the doctor and ``fit``, which runs whatever its owner likes: as that user, who
could have started it anyway, or, if it is root's own, as an account without any rights. Anything that others can change
is refused. It never runs as root, so a mistake in gathering the facts costs a wrong account at worst.

Checking first and starting later is safe here. The first component of a path that a user can alter lies in a folder
that only root can alter: it is found, with that user's uid, whatever they do meanwhile. So they can add components,
which is refused, but cannot hide their own uid; and anything they replace after the check runs with their own rights.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import itertools
import os
import pwd
import re
import select
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from wslgpud.words import MessageError, MessageLike, cause, say

#: gid without rights, by convention of every distribution (nogroup, nobody)
NOBODY = 65534
#: accounts for programs without a single owner; the first existing one is used
WITHOUT_RIGHTS = ("wslgpud-stress", "nobody")
#: root's PATH in a systemd unit; a shell's may include users' folders
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: the kernel's limit (MAXSYMLINKS)
_MAX_LINKS = 40
_DEVICES = ("nvidia*", "nvidia-caps/*", "dri/render*", "dxg")


#: Asks the kernel as the account itself, whose modes, groups and access control lists decide.
_REACHES = 'for path; do test -x "$path" || { printf %s "$path"; exit 1; }; done'
_REACH_SECONDS = 20.0


class UntrustedProgram(MessageError):
    """Root does not start this program; the message names the path and the remedy."""


@dataclass(frozen=True, slots=True)
class Account:
    """The account to switch to; ``groups`` are the supplementary ones. ValueError: it is root, or in root's group."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"

    def __post_init__(self) -> None:
        if 0 in (self.uid, self.gid, *self.groups):
            raise ValueError(f"{self.name} has the rights of root")


def account_for(python: Path, *parts: Path, uid: int | None = None) -> Account | None:
    """Return the account to run a Python as; None for our own, which is not root.

    ``uid`` is the user who was seen running it, and None whoever owns it; root's runs without any rights. ``parts``
    decide what runs, too: nobody else may be able to change them either.

    Raises:
        OSError: it does not exist, or a user's file system does not answer.
        UntrustedProgram: root must not start it, or the account to run it as cannot read it.
    """
    if os.geteuid() != 0:
        return None
    if uid is None:  # of several owners one, so that the others' parts are refused
        uid = max(facts.st_uid for _, facts in walk_path(python))
    needed = (python, python.parent, python.parent.parent, *parts)
    for path in needed:
        refuse_others(path, uid)
    account = account_of(uid or None)
    status, closed, _ = run(Command(["/bin/sh", "-c", _REACHES, "sh", *map(str, needed)], {}, account), _REACH_SECONDS)
    if status:
        raise UntrustedProgram(
            "{account}, the account that root runs it as, cannot read {path}: make an environment elsewhere,"
            " such as /opt/torch, and name its Python as stress.python",
            path=closed,
            account=account.name,
        )
    return account


def account_of(uid: int | None) -> Account:
    """Return an ordinary user's account, or for None the one without rights.

    Only groups that may open a GPU are kept, never root's.
    """
    for name in WITHOUT_RIGHTS if uid is None else ():
        with contextlib.suppress(KeyError):
            if uid := pwd.getpwnam(name).pw_uid:
                break
    uid = uid or NOBODY
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(f"user {uid}", uid, NOBODY)
    allowed = gpu_groups() - {0}
    groups = [gid for gid in os.getgrouplist(entry.pw_name, entry.pw_gid) if gid in allowed]
    return Account(entry.pw_name, uid, entry.pw_gid or NOBODY, tuple(groups), entry.pw_dir)


def gpu_groups() -> set[int]:
    """Return the groups that may open a GPU's device files, unless everybody may."""
    groups = set()
    for path in itertools.chain.from_iterable(map(Path("/dev").glob, _DEVICES)):
        with contextlib.suppress(OSError):
            facts = path.stat()
            if stat.S_ISCHR(facts.st_mode) and facts.st_mode & 0o66 == 0o60:
                groups.add(facts.st_gid)
    return groups


def environment(account: Account | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a program's environment: ours if it runs as ourselves, else nothing of root's."""
    if account is None:
        return dict(environ)
    return {"PATH": _PATH, "HOME": account.home, "USER": account.name, "LOGNAME": account.name}


def replaceable(path: Path, uid: int | None = None) -> MessageLike:
    """Return who besides root and a user (None: ourselves) could replace a file; empty when no one could."""
    try:
        refuse_others(path, os.geteuid() if uid is None else uid)
    except OSError as error:
        return say("{path}: {why}", path=str(error.filename), why=cause(error))
    except UntrustedProgram as refused:
        return cause(refused)
    return ""


def refuse_others(path: Path, uid: int) -> None:
    """Check that only root and one user can change what lies at a path: each folder and link on it, and its end.

    A folder on the path with the sticky bit (/tmp) keeps others from replacing what is not theirs. The last one must be
    closed to them: a new file in it may change what runs.

    Raises:
        OSError: it does not exist, or may not be inspected.
        UntrustedProgram: others could; the message names them.
    """
    chain = [*walk_path(path)]
    for part, facts in chain:
        if facts.st_uid not in (0, uid):
            raise UntrustedProgram("{path} belongs to uid {uid}", path=str(part), uid=facts.st_uid)
        passed = facts.st_mode & stat.S_ISVTX and part != chain[-1][0]
        if not stat.S_ISLNK(facts.st_mode) and not passed and (writers := _writers(part, facts, uid)):
            raise UntrustedProgram(
                "{path} can be written by {writers}: only root and its one owner may (chmod {bits}),"
                " or anybody could change what runs",
                path=str(part),
                writers=writers,
                bits="o-w" if facts.st_mode & stat.S_IWOTH else "g-w",
            )


def _writers(path: Path, facts: os.stat_result, uid: int) -> MessageLike:
    """Return who besides root and a user may write to a file or folder; empty when no one may."""
    if facts.st_mode & stat.S_IWOTH:
        return say("everybody")
    if not facts.st_mode & stat.S_IWGRP:
        return ""
    with contextlib.suppress(OSError):  # a file system without access control lists
        if "system.posix_acl_access" in os.listxattr(path, follow_symlinks=False):
            return say("users in its access control list")
    with contextlib.suppress(KeyError):  # a group or a member that this machine's own files do not know
        users = pwd.getpwall()
        uids = {entry.pw_name: entry.pw_uid for entry in users}
        members = {uids[name] for name in grp.getgrgid(facts.st_gid).gr_mem}
        members |= {entry.pw_uid for entry in users if entry.pw_gid == facts.st_gid}
        if members <= {0, uid}:
            return ""
    return say("its group ({gid})", gid=facts.st_gid)


def walk_path(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each folder, link and file on the path to a file, starting at the root, with its lstat.

    Raises:
        OSError: a part does not exist or may not be inspected, or links form a loop.
        UntrustedProgram: it lies on a user's own file system, which may say anything, or never answer.
    """
    here, rest, links, mounts = Path("/"), list(path.absolute().parts), 0, users_mounts()
    while rest:
        name = rest.pop(0)
        here = here.parent if name == ".." else here / name
        if (user := mounts.get(str(here))) is not None:
            raise UntrustedProgram(
                "{path} is a file system of user {user}: use a Python elsewhere", path=str(here), user=user
            )
        facts = here.lstat()
        yield here, facts
        if stat.S_ISLNK(facts.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            rest = [*here.readlink().parts, *rest]
            here = here.parent


def users_mounts() -> dict[str, int]:
    """Return the file systems that ordinary users have mounted (FUSE), and by whom."""
    mounts: dict[str, int] = {}
    with contextlib.suppress(OSError):
        text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        for line in text.splitlines():
            # 36 35 0:50 / /home/me/far rw,nosuid - fuse.sshfs me@far: rw,user_id=1000,group_id=1000
            place, _, kind = line.partition(" - ")
            match = re.search(r"\buser_id=(\d+)", kind)
            if kind.startswith("fuse") and match and int(match[1]):
                name = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place.split(" ")[4])
                mounts[name] = int(match[1])
    return mounts


def program(name: str, path: str | None = None) -> str | None:
    """Return the path of a program: the first on ``path`` (else ``PATH``) that only we or root can replace.

    A name with a slash is returned unchanged; check it with ``replaceable``.
    """
    if os.sep in name:
        return shutil.which(name)
    folders = (path if path is not None else os.environ.get("PATH", os.defpath)).split(os.pathsep)
    candidates = (shutil.which(name, path=folder) for folder in folders if folder)
    return next((place for place in candidates if place is not None and not replaceable(Path(place))), None)


#: output kept, bytes per read, and seconds that a killed program may take to end
_MAX_BYTES, _KILL_SECONDS = 1 << 16, 3.0
#: prctl(2)
_PR_SET_NO_NEW_PRIVS = 38
#: memfd_create(2): neither content nor seals can be changed afterwards
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class Command:
    """A program with its arguments, its whole environment, its account and its working folder (None: our own)."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    account: Account | None = None
    folder: str | None = "/"


def start(
    command: Command, *, stdin: int, stdout: int, stderr: int, script: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a new session; with an account, as that account, without any way back to root.

    ``script`` is a file of ours for a Python to run, or a package (its ``main``). It becomes the first argument as
    an open descriptor, because the account may be unable to read its folder; its name follows for display. The other
    parameters are Popen's.

    Raises OSError: it cannot be started, or the script cannot be read.
    """
    account = command.account
    with contextlib.ExitStack() as stack:
        arguments, handed = list(command.arguments), []
        if script is not None:
            handed = [stack.enter_context(_open_copy(script))]
            arguments[1:1] = [f"/dev/fd/{handed[0]}", str(script)]
        if account is not None:
            # Popen returns once the shell runs. A user's lease or file system can block execve(2), and only a started
            # process can be killed. Not setpriv(1): until execve(2) it keeps root's capabilities, with which a user's
            # link leads to what only root may run; and it needs capset(2), which the service may not call.
            arguments[:0] = ["/bin/sh", "-c", 'exec "$0" "$@"']

        def begin() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                # In a new session it has no terminal into which it could inject input.
                arguments,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=handed,
                env=dict(command.environment),
                cwd=command.folder,
                start_new_session=True,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=account.groups if account else None,
            )

        return _without_new_privileges(begin) if account else begin()


def run(
    command: Command, seconds: float, *, script: Path | None = None, text: str = "", spare_children: bool = False
) -> tuple[int, str, str]:
    """Run a program to its end; return exit status, standard output and standard error (only the end of long ones).

    Its input is ``text``. Processes that it started are killed with it; ``spare_children`` lets them continue if the
    program itself ended in time, and drops the output.

    Raises:
        OSError: it cannot be started.
        TimeoutError: it did not end within ``seconds``, and was killed.
    """
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    in_time, stdin = False, null
    with contextlib.ExitStack() as stack:
        if text:  # a file in memory: unlike a pipe, it cannot block the writer
            file = stack.enter_context(os.fdopen(os.memfd_create("text"), "w+b", buffering=0))
            file.write(text.encode())
            file.seek(0)
            stdin = file.fileno()
        process = start(command, stdin=stdin, stdout=null if spare_children else pipe, stderr=pipe, script=script)
        streams = [stack.enter_context(stream).fileno() for stream in (process.stdout, process.stderr) if stream]
        try:
            in_time, outputs = listen(process.pid, streams, time.monotonic() + seconds)
        finally:
            if not (in_time and spare_children):
                # Not reaped yet, so its pid is not reused. Its group may have become another user's (sudo).
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in a driver and cannot be killed
                process.wait(_KILL_SECONDS)
    if not in_time:
        raise TimeoutError(f"{command.arguments[0]} did not end within {seconds:.0f} s")
    *output, complaints = (part.decode("utf-8", "replace") for part in outputs)
    return process.returncode, "".join(output), complaints


def listen(pid: int, streams: Iterable[int], until_mono: float) -> tuple[bool, list[bytes]]:
    """Read pipes until a process has ended; return whether it did so in time, and the last output of each.

    A pidfd signals its end, as its own children may keep the pipes open.
    """
    outputs, end, poll = dict.fromkeys(streams, b""), os.pidfd_open(pid), select.poll()
    try:
        for descriptor in (end, *outputs):
            poll.register(descriptor, select.POLLIN)
        while (left := until_mono - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poll.poll(1000 * left + 1)}
            for stream in ready & outputs.keys():
                data = os.read(stream, _MAX_BYTES)  # the capacity of a pipe
                outputs[stream] = (outputs[stream] + data)[-_MAX_BYTES:]
                if not data:
                    poll.unregister(stream)
            if end in ready:
                return True, list(outputs.values())
        return False, list(outputs.values())
    finally:
        os.close(end)


@contextlib.contextmanager
def _open_copy(script: Path) -> Iterator[int]:
    """Yield a descriptor of a sealed copy in memory, which any account can open through /proc.

    A file would be root's, and the descriptor would let its recipient write to it: with a link to it, they would have a
    file owned by root with content of their own.
    """
    with os.fdopen(os.memfd_create(script.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb") as copy:
        if script.is_dir():
            _write_archive(script, copy)
        else:
            copy.write(script.read_bytes())
        copy.flush()
        os.fchmod(copy.fileno(), 0o444)
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
        yield copy.fileno()


def _write_archive(package: Path, file: IO[bytes]) -> None:
    """Write a package as an archive that Python can run: https://docs.python.org/3/library/zipapp.html."""
    import zipfile  # few commands need it

    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("__main__.py", f"from {package.name} import main\n\nmain()\n")
        for module in sorted(package.glob("*.py")):
            archive.writestr(f"{package.name}/{module.name}", module.read_bytes())


def _without_new_privileges(begin: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a program for which setuid bits have no effect (prctl(2), PR_SET_NO_NEW_PRIVS).

    The flag applies to a thread and its children, irrevocably: hence a short-lived thread.
    """
    import ctypes  # never needed in the daemon

    def run() -> subprocess.Popen[bytes]:
        # It fails only on kernels before 3.5, without harm: the account has no rights anyway.
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return begin()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
