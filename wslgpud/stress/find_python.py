"""The Python that trains here.

The daemon sees trainings: user, interpreter and torch of the last one are remembered in its state folder, and the
nightly test, the doctor and ``fit`` start that interpreter again, as that same user. Running as a user what that user
was seen running gives nobody a new right. The record is checked all the same, as root reads what the service's account
writes: root starts nothing but a Python, only one that nobody but root and that user can change, and never as the
record's writer, who would leave its sandbox; root's own runs without any privileges. So whoever forges the record only
chooses among a user's own Pythons.

What is named (``--python``, ``stress.python``) comes first: any user can start a training for the daemon to see, and so
decide whose torch tests the card. An administrator must be able to rule that out.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from wslgpud import optional_packages
from wslgpud.security import safe_files
from wslgpud.security.run_as import Account, Command, UntrustedProgram, account_for, environment
from wslgpud.security.shapes import of, record, uint
from wslgpud.sources.processes import PYTHON, TORCH
from wslgpud.words import MessageError, MessageLike, cause, say

#: where 'wslgpud service install --extra stress' makes one; a user's own lies below the home folder
MADE_FOR_US, _BELOW_HOME = Path("/opt/wslgpud.stress"), ".local/share/wslgpud.stress"
#: the last training, in the state folder
FILE, _MAX_BYTES = "last-training.json", 1 << 14
_RECORD = record(
    {
        "uid": uint,
        "python": of(str, lambda path: path.startswith("/") and PYTHON.fullmatch(path.rpartition("/")[2])),
        "torch": of(str, lambda path: ".." not in path and re.fullmatch(TORCH, path)),
    }
)


class NoTorch(MessageError):
    """No Python with torch was found; the message names the remedy."""


@dataclass(frozen=True)
class Python:
    """A Python with torch, and the account to start it as (None: our own)."""

    path: Path
    account: Account | None


class Training(NamedTuple):
    """Who trained, with which interpreter (of a virtual environment the one it was made from) and which torch."""

    uid: int
    python: str
    torch: str


def remember(state_folder: Path, training: Training) -> None:
    """Keep the last training. Raises OSError: it cannot be written."""
    safe_files.put(state_folder / FILE, json.dumps(training._asdict()), mode=safe_files.file_mode())


def last_training(state_folder: Path) -> Training | None:
    with contextlib.suppress(OSError, ValueError):
        document = safe_files.parsed(safe_files.contents(state_folder / FILE, _MAX_BYTES))
        if _RECORD(document):
            return Training(document["uid"], document["python"], document["torch"])
    return None


def find_python(named: str, environ: Mapping[str, str], state_folder: Path) -> Python:
    """Return the one that is named, else that of the last training, the caller's shell, or ``--extra stress``.

    Raises NoTorch: there is none, or none that root may start.
    """
    if named:
        python = Path(os.path.expanduser(named)).absolute()  # noqa: PTH111 - Path's own fails for a user who is not there
        try:
            return _usable(python)
        except UntrustedProgram as refused:
            raise NoTorch("the Python that is named cannot be used: {why}", why=refused.message) from refused
        except OSError as error:
            raise NoTorch("the Python that is named, {path}, is not a program", path=str(python)) from error
    why: list[MessageLike] = []
    own, seen = os.geteuid(), last_training(state_folder)
    if seen is not None and (own == seen.uid or (not own and seen.uid != state_folder.stat().st_uid)):
        try:
            return _of(seen)
        except FileNotFoundError as error:
            why.append(say("the Python of the last training is gone: there is no {path}", path=str(error.filename)))
        except (OSError, ValueError, UntrustedProgram) as error:  # ValueError: a name that no file can have
            why.append(say("no Python with torch can be used: {why}", why=cause(error)))
    for python in filter(_has_torch, _others(environ)):
        try:
            return _usable(python)
        except (OSError, UntrustedProgram) as error:
            why.append(say("no Python with torch can be used: {why}", why=cause(error)))
    why.append(
        say(
            "no Python with torch was found: {command} brings one, or name yours as stress.python in the configuration",
            command=optional_packages.remedy("stress"),
        )
    )
    raise NoTorch(why[0])


def _of(training: Training) -> Python:
    """Return the Python of a training; its environment is the one with torch and a link to the interpreter."""
    python, torch = Path(training.python), Path(training.torch)
    try:
        return _usable(torch.parents[3] / "bin" / python.name, torch.parent, torch, uid=training.uid)
    except FileNotFoundError:  # torch is in no environment (pip install --user), or is gone
        return _usable(python, torch.parent, torch, uid=training.uid)


def _others(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the Python of a user's shell, that of ``--extra stress``, and our own; root's shell may be a user's."""
    if os.geteuid() != 0:
        if activated := environ.get("VIRTUAL_ENV"):
            yield Path(activated, "bin/python")
        if on_path := shutil.which("python3", path=environ.get("PATH", "")):
            yield Path(on_path)
        yield Path.home() / _BELOW_HOME / "bin/python3"
    yield MADE_FOR_US / "bin/python3"
    yield Path(sys.executable)


def _has_torch(python: Path) -> bool:
    """Look without starting it: importing torch takes seconds."""
    libraries = (python.parent.parent / name for name in ("lib", "lib64", "local/lib"))
    return any(any(library.glob("python3*/*-packages/torch/version.py")) for library in libraries)


def _usable(python: Path, *torch: Path, uid: int | None = None) -> Python:
    account = account_for(python, *torch, uid=uid)
    for path in (python, *torch):
        if not os.access(path, os.X_OK):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return Python(python, account)


def command(python: Python, uuid: str, environ: Mapping[str, str]) -> Command:
    inherited = {k: environ[k] for k in ("PATH", "HOME", "LD_LIBRARY_PATH") if k in environ}
    variables = environment(python.account, inherited) | {"LANG": "C.UTF-8", "PYTHONSAFEPATH": "1"}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": uuid}
    return Command([str(python.path)], variables, python.account)
