"""What an installation changes on the machine, done or only shown."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from wslgpud import host
from wslgpud.security import safe_files
from wslgpud.words import MessageError, MessageLike
from wslgpud.words.units import one_line

#: hears how far it is
Tell = Callable[[MessageLike], None]

#: a unit that starts may take as long as it is allowed to (TimeoutStartSec=300), a download longer
_LONGEST_SECONDS = 3600.0
#: of a program that has failed
_LAST_LINES = 5
#: root runs no program that a user's own PATH names
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ServiceError(MessageError):
    """The service cannot be changed as asked; it says why and what helps."""


def output(*command: str | Path) -> str:
    """Run a program of the system and return what it printed. Raises NoData, SourceError: as ``host.output``."""
    return host.output([str(word) for word in command], _LONGEST_SECONDS)


def followed(command: Sequence[str], heard: Callable[[str], bool]) -> None:
    """Run a program that may take long; ``heard`` gets each line of what it says, and returns whether it is progress.

    Raises SourceError: it could not be started, or failed; the end of what else it said is why.
    """
    last: deque[str] = deque(maxlen=_LAST_LINES)
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            host.unprotected(command),
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            cwd="/",
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise host.SourceError("cannot start {program}: {why}", program=command[0], why=str(error)) from error
    with process:
        try:
            for line in process.stdout or ():
                if not heard(line):
                    last.append(line)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise host.SourceError(
            "{program} failed ({status}): {told}",
            program=one_line(" ".join(command)),
            status=process.returncode,
            told="".join(last).strip(),
        )


def succeeds(*command: str | Path) -> bool:
    """Tell whether a program of the system is there and ends well."""
    try:
        output(*command)
    except (host.NoData, host.SourceError):
        return False
    return True


def use_the_systems_programs() -> None:
    """Let root, from here on, find programs where only root puts them."""
    if os.geteuid() == 0:
        os.environ["PATH"] = _PATH


class Changes:
    """Does each change; with ``dry`` it only says it, as somebody would type it."""

    def __init__(self, *, dry: bool, tell: Tell = lambda _: None) -> None:
        self.dry, self.tell = dry, tell
        self.said: list[str] = []

    def does(self, said: str, deed: Callable[[], object]) -> None:
        self.said.append(said)
        if not self.dry:
            deed()

    def run(self, *command: str | Path) -> None:
        """Run a program. Raises NoData, SourceError: as ``host.output``."""
        self.does(shlex.join(map(str, command)), lambda: output(*command))

    def put(self, text: str, path: Path, mode: int = 0o644) -> bool:
        """Write a file, unless it has this text already; return whether it had not."""

        def write() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            safe_files.put(path, text, mode=mode, synced=True)

        if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
            return False
        self.does(f"write {path}", write)
        return True

    def link(self, target: Path, path: Path) -> None:
        """Make a link, or let it lead elsewhere, from one moment to the next."""
        new = path.with_name(f"{path.name}.new")

        def switch() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
            new.symlink_to(target)
            new.replace(path)

        self.does(f"ln -sfn {shlex.join([str(target), str(path)])}", switch)

    def remove(self, *paths: Path) -> None:
        """Remove files, links and folders, those that are there."""
        for path in paths:
            if path.is_symlink() or path.is_file():
                self.does(f"rm {shlex.quote(str(path))}", path.unlink)
            elif path.is_dir():
                self.does(f"rm -r {shlex.quote(str(path))}", lambda path=path: shutil.rmtree(path))  # type: ignore[misc]
