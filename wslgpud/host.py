"""The single way to everything that is measured: files, commands, disks and time.

Everything that measures the machine goes through a ``Host``, so that tests (and ``--host-root``) can put a
recorded machine behind it, as node_exporter does with ``--path.procfs``. Only the brake opens files by itself:
those of cgroups, which it writes.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from wslgpud.security import safe_files
from wslgpud.words import MessageError, cause, say
from wslgpud.words.units import one_line

#: far more than any recorded machine has
_MAX_RECORDED_FILES = 100_000
_SCORE = "/proc/self/oom_score_adj"
#: length limit of a command in a message; a PowerShell script has 20,000 characters
_MAX_COMMAND = 120
_UNPROTECT = 'echo 0 >/proc/self/oom_score_adj; exec "$@"'


def oom_score_adjust() -> int | None:
    """Return our oom_score_adj, from -1000 (never killed) to 1000; None where it cannot be read."""
    try:
        with open(_SCORE, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def unprotected(command: Sequence[str]) -> list[str]:
    """Return the command with the service's protection from the OOM killer removed.

    The service's ``OOMScoreAdjust`` protects the daemon alone, but children inherit it: a growing child would be spared
    while innocent programs die. A shell resets it before the program starts: afterwards would be too late on a machine
    short of memory, and ``preexec_fn`` may deadlock in a program with threads.
    """
    score = oom_score_adjust()
    protected = score is not None and score < 0
    return ["/bin/sh", "-c", _UNPROTECT, "sh", *command] if protected else list(command)


#: reads per file, each of up to 64 KiB
MAX_BYTES = 64 << 20


class NoData(MessageError):
    """The machine does not have it (no PSI, no GPU): no fault, and no data."""


class SourceError(MessageError):
    """It exists and could not be read; the message names it and, where known, the remedy."""


class Clock(Protocol):
    """The source of time: ``wall`` for timestamps, ``mono`` for durations and rates."""

    def wall(self) -> float:
        """Return seconds since the epoch; may jump."""

    def mono(self) -> float:
        """Return monotonic seconds; never jumps."""


class SystemClock:
    wall = staticmethod(time.time)
    mono = staticmethod(time.monotonic)


class DiskSpace(NamedTuple):
    """Size of a file system in bytes; ``available`` is the space that an ordinary user may still use."""

    size: int
    free: int
    available: int
    files: int
    files_free: int


def output(
    command: Sequence[str],
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
    *,
    folder: str = "/",
    text: str = "",
) -> str:
    """Run a short program in ``folder``, with ``text`` on its standard input, and return its output.

    Raises:
        NoData: the program is not installed.
        SourceError: it failed or took longer than ``timeout_seconds``.
    """
    if shutil.which(command[0]) is None:
        raise NoData("{program} is not installed", program=command[0])
    try:
        done = subprocess.run(
            unprotected(command),
            input=text,
            capture_output=True,
            timeout=timeout_seconds,
            cwd=folder,
            env=environment,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        late = say("{program} did not answer within {limit_seconds}", program=command[0], limit_seconds=timeout_seconds)
        raise SourceError(late) from error
    except OSError as error:
        raise SourceError("cannot start {program}: {why}", program=command[0], why=cause(error)) from error
    if done.returncode:
        line, stderr_text = one_line(" ".join(command), _MAX_COMMAND), done.stderr.strip()
        raise SourceError("{program} failed ({status}): {told}", program=line, status=done.returncode, told=stderr_text)
    return done.stdout


class Host:
    """A machine whose files lie below ``root``; ``/`` is the machine we run on.

    No program may be started on a ``recorded`` machine.
    """

    recorded = False

    def __init__(self, root: str | Path = "/", clock: Clock | None = None) -> None:
        self.root = str(root).rstrip("/")
        self.clock: Clock = clock or SystemClock()

    @property
    def live(self) -> bool:
        """Tell whether this is the machine we run on, not a recording."""
        return not self.root

    def path(self, path: str) -> str:
        """Return where ``path``, absolute on that machine, lies on ours."""
        return self.root + path

    def read(self, path: str) -> str:
        """Return the text of a file: NoData where it or the process behind it is missing, else SourceError."""
        data = self._begin(path, MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise SourceError("{path} is too long", path=path)
        return data.decode("utf-8", "replace")

    def read_optional(self, path: str) -> str:
        """Return the text of a file, nothing where it is missing or hidden from us."""
        try:
            return self.read(path)
        except (NoData, SourceError):
            return ""

    def head(self, path: str, max_bytes: int) -> str:
        """Return the first ``max_bytes`` bytes, or a little more, of a file that any user can make long."""
        return self._begin(path, max_bytes).decode("utf-8", "replace")

    def _begin(self, path: str, max_bytes: int) -> bytes:
        try:
            # Plain os calls: half the cost of open(), and this runs dozens of times a second. O_NONBLOCK because
            # anybody can put a pipe in a file's place on a Windows drive.
            descriptor = os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                chunks = [os.read(descriptor, 1 << 16)]
                left = max_bytes - len(chunks[0])
                # Always read to the end: /proc returns whole lines, fewer than a page (4 KiB) where the next line does
                # not fit, so a short read does not mean the end.
                while left > 0 and (chunk := os.read(descriptor, 1 << 16)):
                    chunks.append(chunk)
                    left -= len(chunk)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError) as error:
            raise NoData("there is no {path}", path=path) from error
        except OSError as error:
            raise SourceError("cannot read {path}: {why}", path=path, why=cause(error)) from error
        return b"".join(chunks)

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.root + path)

    def names(self, path: str, max_entries: int | None = None) -> list[str]:
        """Return the names in a folder; of more than ``max_entries`` some. Raises like ``read``."""
        return [entry.name for entry in self._entries(path, max_entries)]

    def folders(self, path: str, max_entries: int = 10_000) -> list[str]:
        """Return the names of the folders in a folder, links left out; of more than ``max_entries`` some."""
        return [entry.name for entry in self._entries(path, max_entries) if entry.is_dir(follow_symlinks=False)]

    def _entries(self, path: str, max_entries: int | None) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root + path) as entries:
                return list(islice(entries, max_entries))
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError) as error:
            raise NoData("there is no {path}", path=path) from error
        except OSError as error:
            raise SourceError("cannot list {path}: {why}", path=path, why=cause(error)) from error

    def owner(self, path: str) -> int:
        """Return the uid of a folder's owner; root's if the folder is gone."""
        try:
            return os.stat(self.root + path).st_uid
        except OSError:
            return 0

    def link(self, path: str) -> str | None:
        """Return the target of a symbolic link; None where it is missing or hidden."""
        try:
            return os.readlink(self.root + path)
        except OSError:
            return None

    def disk_space(self, path: str) -> DiskSpace:
        """Return size and free space of the file system that holds ``path``; SourceError if it does not answer."""
        try:
            status = os.statvfs(self.root + path)
        except FileNotFoundError as error:
            raise NoData("there is no {path}", path=path) from error
        except OSError as error:
            raise SourceError("cannot query the file system of {path}: {why}", path=path, why=cause(error)) from error
        block = status.f_frsize
        return DiskSpace(
            status.f_blocks * block, status.f_bfree * block, status.f_bavail * block, status.f_files, status.f_ffree
        )

    def run(self, command: Sequence[str], timeout_seconds: float) -> str:
        """Return the output of a short program, as ``output`` does; never for anything that runs every tick."""
        return output(command, timeout_seconds)


class StoppedClock:
    """A stopped clock, for recorded machines."""

    def __init__(self, wall_seconds: float, mono_seconds: float) -> None:
        self.wall = lambda: wall_seconds
        self.mono = lambda: mono_seconds


def _refuse_odd_files(folder: Path) -> None:
    """Raise ValueError for anything but files and folders: a link may lead to files that only root may read."""
    entries = (os.path.join(where, name) for where, *names in os.walk(folder) for name in (*names[0], *names[1]))
    for count, path in enumerate(entries):
        facts = os.lstat(path)
        if count >= _MAX_RECORDED_FILES or facts.st_size > MAX_BYTES:
            raise ValueError(say("{path} is too long", path=str(folder) if count >= _MAX_RECORDED_FILES else path))
        if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
            raise ValueError(say("{path} is neither a file nor a folder", path=path))


def _recorded(facts: Mapping[str, Any]) -> bool:
    from wslgpud.security import shapes

    string, failure = shapes.of(str), shapes.record({"error": shapes.of(str)})
    space = shapes.of(list, lambda numbers: len(numbers) == len(DiskSpace._fields) and all(map(shapes.uint, numbers)))
    return shapes.record(
        {"wall": lambda wall: shapes.number(wall) and 0 <= wall < shapes.LATEST_WALL, "mono": shapes.number},
        {
            "links": shapes.table(string, string),
            "disks": shapes.table(string, space),
            "commands": shapes.table(string, lambda answer: string(answer) or failure(answer)),
        },
    )(facts)


class RecordedHost(Host):
    """A machine in a folder, as ``wslgpud capture`` writes it.

    ``root/`` holds its files; ``host.json`` everything else: ``kind`` (recorded or synthetic) and ``origin``, ``wall``
    and ``mono``, ``links``, ``disks`` (path -> the five numbers of DiskSpace) and ``commands`` (command line -> text,
    or ``{"error": ...}``); ``nvml.json`` and ``windows.json``, if present, the answers of NVML and of the Windows
    probe.
    """

    recorded = True

    def __init__(self, folder: str | Path, clock: Clock | None = None) -> None:
        """Look at the folder, which may come from anyone; OSError, ValueError: it holds no recorded machine."""
        self.folder = Path(folder).resolve()  # the NVML probe runs in another folder
        _refuse_odd_files(self.folder)
        facts = safe_files.parsed(safe_files.contents(self.folder / "host.json", MAX_BYTES))
        if not _recorded(facts):
            raise ValueError(say("its host.json lacks something, or says something impossible"))
        super().__init__(self.folder / "root", clock or StoppedClock(facts["wall"], facts["mono"]))
        self._links: Mapping[str, str] = facts.get("links", {})
        self._disks: Mapping[str, list[int]] = facts.get("disks", {})
        self._commands: Mapping[str, str | dict[str, str]] = facts.get("commands", {})

    def recording(self, name: str) -> Path | None:
        """Return the file with a probe's answers (``nvml.json``, ``windows.json``), if this machine has any."""
        path = self.folder / name
        return path if path.exists() else None

    def owner(self, path: str) -> int:  # noqa: ARG002 - owners are not recorded
        """Return root: everything recorded counts as root's."""
        return 0

    def exists(self, path: str) -> bool:
        """Tell whether ``path`` is there, links included."""
        return path in self._links or super().exists(path)

    def names(self, path: str, max_entries: int | None = None) -> list[str]:
        """Return the names in a folder, links included."""
        links = {link.rpartition("/")[2] for link in self._links if link.rpartition("/")[0] == path}
        with suppress(NoData) if links else nullcontext():
            links |= set(super().names(path, max_entries))
        return sorted(links)[:max_entries]

    def link(self, path: str) -> str | None:
        return self._links.get(path) or super().link(path)

    def disk_space(self, path: str) -> DiskSpace:
        if path not in self._disks:
            raise NoData("there is no {path}", path=path)
        return DiskSpace(*self._disks[path])

    def run(self, command: Sequence[str], timeout_seconds: float) -> str:  # noqa: ARG002 - nothing to wait for
        """Return the command's recorded output, or fail as it did."""
        answer = self._commands.get(" ".join(command))
        if answer is None:
            raise NoData("{program} is not installed", program=command[0])
        if isinstance(answer, str):
            return answer
        raise SourceError(answer["error"])
