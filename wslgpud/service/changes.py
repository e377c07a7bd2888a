"""Changes that an installation makes to the machine, applied or only shown."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from wslgpud import host
from wslgpud.security import safe_files
from wslgpud.words import MessageError, MessageLike, cause
from wslgpud.words.units import one_line

#: a unit may take its TimeoutStartSec=300 to start, a download longer
_MAX_SECONDS = 3600.0
#: root runs no program from a user's PATH
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ServiceError(MessageError):
    """The service cannot be changed as requested; the message names the reason and the remedy."""


def output(*command: str | Path) -> str:
    """Run a system program and return its output. Raises NoData, SourceError: as ``host.output``."""
    return host.output([str(word) for word in command], _MAX_SECONDS)


def run_shown(command: Sequence[str]) -> None:
    """Run a program that may take long; its output is shown, on standard error.

    Raises SourceError: it could not be started, or failed.
    """
    try:
        done = subprocess.run(host.unprotected(command), stdin=subprocess.DEVNULL, stdout=2, cwd="/", check=False)
    except OSError as error:
        raise host.SourceError("cannot start {program}: {why}", program=command[0], why=str(error)) from error
    if done.returncode:
        program = one_line(" ".join(command))
        raise host.SourceError("{program} failed ({status}), see above", program=program, status=done.returncode)


def succeeds(*command: str | Path) -> bool:
    """Return whether a system program exists and succeeds."""
    try:
        output(*command)
    except (host.NoData, host.SourceError):
        return False
    return True


def use_the_systems_programs() -> None:
    """From now on, as root, find programs only in folders that only root can write, and settings in root's own home."""
    if os.geteuid() == 0:
        os.environ |= {"PATH": _PATH, "HOME": pwd.getpwuid(0).pw_dir}


class Changes:
    """Applies each change; with ``dry`` it only records the equivalent command. ``tell`` receives progress."""

    def __init__(self, *, dry: bool, tell: Callable[[MessageLike], None] = lambda _: None) -> None:
        self.dry, self.tell = dry, tell
        self.descriptions: list[str] = []

    def perform(self, description: str, action: Callable[[], object]) -> None:
        """Make a change. Raises ServiceError: a file or folder cannot be changed; else as the action does."""
        self.descriptions.append(description)
        if self.dry:
            return
        try:
            action()
        except OSError as error:
            raise ServiceError("could not {change}: {why}", change=description, why=cause(error)) from error

    def run(self, *command: str | Path) -> None:
        """Run a program. Raises NoData, SourceError: as ``host.output``."""
        self.perform(shlex.join(map(str, command)), lambda: output(*command))

    def put(self, text: str, path: Path, mode: int = 0o644) -> bool:
        """Write a file, unless it has this text already; return whether it was written."""

        def write() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Its links are root's, or the user's own: managers of dotfiles make them.
            safe_files.put(path.parent.resolve() / path.name, text, mode=mode, synced=True)

        if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
            return False
        self.perform(f"write {path}", write)
        return True

    def link(self, target: Path, path: Path) -> None:
        """Create a link, or change its target atomically."""
        new = path.with_name(f"{path.name}.new")

        def switch() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
            new.symlink_to(target)
            new.replace(path)

        self.perform(f"ln -sfn {shlex.join([str(target), str(path)])}", switch)

    def remove(self, *paths: Path) -> None:
        """Remove files, links and folders, if they exist."""
        for path in paths:
            if path.is_symlink() or path.is_file():
                self.perform(f"rm {shlex.quote(str(path))}", path.unlink)
            elif path.is_dir():
                self.perform(f"rm -r {shlex.quote(str(path))}", lambda path=path: shutil.rmtree(path))  # type: ignore[misc]
