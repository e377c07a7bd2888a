"""Finds a Python that has torch, without starting any: a start of torch takes seconds."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from wslgpud.stress.parent import WORKER, Command

#: where people keep environments, below a home folder and for all users
BELOW_HOME = (
    ".venv", "venv", "*/.venv", "*/venv", "*/*/.venv", "*/*/venv", ".virtualenvs/*", ".pyenv/versions/*",
    "miniconda3", "anaconda3", "miniforge3", "miniconda3/envs/*", "anaconda3/envs/*", "miniforge3/envs/*",
    ".conda/envs/*", "micromamba/envs/*",
)  # fmt: skip
FOR_ALL = ("/opt/*/.venv", "/opt/*", "/opt/*/envs/*", "/usr/local", "/usr")


class NoTorch(Exception):  # noqa: N818 - a state of the machine
    """No Python with torch was found; the message says what to do."""


def has_torch(python: Path) -> bool:
    """Tell whether torch is installed beside ``python``, by its files."""
    base = python.parent.parent
    places = ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages")
    return any(next(base.glob(f"{place}/torch/version.py"), None) for place in places)


def candidates(environ: Mapping[str, str], homes: Iterable[Path]) -> Iterator[Path]:
    """Return the Pythons to look at, the likeliest first."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable):
            yield Path(environ[variable]) / "bin" / "python"
    for folder in environ.get("PATH", "").split(os.pathsep):
        yield Path(folder or ".") / "python3"
    patterns = [(Path("/"), pattern.lstrip("/")) for pattern in FOR_ALL]
    patterns += [(home, pattern) for home in homes for pattern in BELOW_HOME]
    for base, pattern in patterns:
        try:
            yield from (folder / "bin" / "python3" for folder in sorted(base.glob(pattern)))
        except OSError:  # a folder that we may not read is not ours to use
            continue


def home_folders() -> list[Path]:
    """Return the homes to look into: our own, and as root those of people."""
    if os.geteuid() != 0:
        return [Path.home()]
    people = [entry for entry in pwd.getpwall() if entry.pw_uid == 0 or 1000 <= entry.pw_uid < 60000]
    return [Path(entry.pw_dir) for entry in people if entry.pw_dir != "/"]


def find_python(setting: str, environ: Mapping[str, str], homes: Iterable[Path] | None = None) -> Path:
    """Return the Python to run the worker with.

    Raises:
        NoTorch: none is there, or the one named by the configuration is not.
    """
    if setting:
        named = Path(os.path.expanduser(setting))  # noqa: PTH111 - Path's own fails for a user who is not there
        if not os.access(named, os.X_OK):
            raise NoTorch(f"stress.python: {named} is not a program")
        return named
    for python in candidates(environ, home_folders() if homes is None else homes):
        try:
            if os.access(python, os.X_OK) and has_torch(python):
                return python
        except OSError:
            continue
    raise NoTorch("no Python with torch was found; name yours as stress.python in the configuration")


def command(python: Path, uuid: str, environ: Mapping[str, str], *, worker: Path = WORKER) -> Command:
    """Return how to run the worker on one GPU.

    A root daemon must not run what an ordinary user can change as root: it becomes the owner of that Python.
    """
    kept = {k: environ[k] for k in ("PATH", "HOME", "LD_LIBRARY_PATH") if k in environ}
    environment = {
        **kept,
        "LANG": "C.UTF-8",
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": uuid,
    }
    user = group = None
    if os.geteuid() == 0:
        owner = python.lstat() if python.is_symlink() else python.stat()
        if owner.st_uid:
            user, group = owner.st_uid, owner.st_gid
            environment["HOME"] = pwd.getpwuid(user).pw_dir if _known(user) else "/"
    return Command([str(python), str(worker)], environment, user, group)


def _known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
