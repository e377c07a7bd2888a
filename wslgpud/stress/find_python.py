"""Finds a Python with torch, without starting any: importing torch takes seconds."""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from wslgpud import optional_packages
from wslgpud.security.provenance import Account, UntrustedProgram, survey, users_mounts
from wslgpud.security.run_as import Command, account_for, environment
from wslgpud.words import MessageError, say

#: made by 'wslgpud service install --extra stress'; a user's own lies below ~/.local/share
MADE_FOR_US = Path("/opt/wslgpud.stress/bin/python3")
#: usual places of environments, below a home folder and for all users
BELOW_HOME = (
    *(f"{folder}{name}" for folder in ("", "*/", "*/*/") for name in (".venv", "venv")),
    *(".virtualenvs/*", ".pyenv/versions/*", "miniconda3", "anaconda3", "miniforge3"),
    *(f"{conda}/envs/*" for conda in ("miniconda3", "anaconda3", "miniforge3", ".conda", "micromamba")),
)
#: limits on inspected folder entries per home, and on homes
MAX_FOLDERS, MAX_HOMES = 2000, 50
FOR_ALL = ("/opt/*/.venv", "/opt/*", "/opt/*/envs/*", "/usr/local", "/usr")


class NoTorch(MessageError):
    """No Python with torch was found; the message names the remedy."""


def has_torch(python: Path) -> bool:
    try:
        return survey(python).torch
    except (OSError, UntrustedProgram):
        return False


def candidates(environ: Mapping[str, str], homes: Collection[Path]) -> Iterator[Path]:
    """Yield candidate Pythons, the likeliest first, whether they exist or not.

    Root must not be led anywhere by a user: for root, a star matches only real folders, not mounted by a user. A link
    may lead anywhere, and a user's file system may hang.
    """
    yield MADE_FOR_US
    if os.geteuid() != 0:
        yield from (home / ".local/share" / MADE_FOR_US.relative_to("/opt") for home in homes)
    yield Path(sys.executable)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable):
            yield Path(environ[variable]) / "bin" / "python"
    for folder in environ.get("PATH", "").split(os.pathsep):
        yield Path(folder or ".") / "python3"
    avoided = users_mounts() if os.geteuid() == 0 else {}
    for base, patterns in ((Path("/"), FOR_ALL), *((home, BELOW_HOME) for home in homes)):
        budget = iter(range(MAX_FOLDERS))
        for pattern in patterns:
            found = [base]
            for part in PurePath(pattern).parts:
                below = (
                    folder / name for folder in found for name in (_folders(folder, budget) if part == "*" else [part])
                )
                found = [folder for folder in below if str(folder) not in avoided]
            yield from (folder / "bin" / "python3" for folder in found)


def _folders(folder: Path, budget: Iterator[int]) -> list[str]:
    names = []
    # Missing, or not readable for us.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for _, entry in zip(budget, entries, strict=False):
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=os.geteuid() != 0):
                    names.append(entry.name)
    return sorted(names)


def home_folders() -> list[Path]:
    if os.geteuid() != 0:
        return [Path.home()]
    people = [entry for entry in pwd.getpwall() if entry.pw_uid == 0 or 1000 <= entry.pw_uid < 60000]
    homes = dict.fromkeys(Path(entry.pw_dir) for entry in people if entry.pw_dir.startswith("/"))
    return [home for home in homes if home != Path("/")][:MAX_HOMES]


@dataclass(frozen=True)
class Python:
    """A Python with torch, and the account to start it as (None: our own)."""

    path: Path
    account: Account | None


def find_python(setting: str, environ: Mapping[str, str]) -> Python:
    """Return the Python to run the worker with. Raises NoTorch: there is none, or none that root may start."""
    if setting:
        named = Path(os.path.expanduser(setting)).absolute()  # noqa: PTH111 - Path's own fails for a user who is not there
        with contextlib.suppress(OSError):  # it does not exist
            try:
                account = account_for(named)
            except UntrustedProgram as refused:
                raise NoTorch("stress.python: {why}", why=refused.said) from refused
            if os.access(named, os.X_OK):
                return Python(named, account)
        raise NoTorch("stress.python: {path} is not a program", path=str(named))
    why = say(
        "no Python with torch was found: {command} brings one, or name yours as stress.python in the configuration",
        command=optional_packages.remedy("stress"),
    )
    for python in candidates(environ, home_folders()):
        if has_torch(python) and os.access(python, os.X_OK):
            try:
                return Python(python, account_for(python))
            except OSError:
                continue
            except UntrustedProgram as refused:  # another may be usable
                why = say("no Python with torch can be used: {why}", why=refused.said)
    raise NoTorch(why)


def command(python: Python, uuid: str, environ: Mapping[str, str]) -> Command:
    kept = {k: environ[k] for k in ("PATH", "HOME", "LD_LIBRARY_PATH") if k in environ}
    variables = environment(python.account, kept) | {"LANG": "C.UTF-8", "PYTHONSAFEPATH": "1"}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": uuid}
    return Command([str(python.path)], variables, python.account)
