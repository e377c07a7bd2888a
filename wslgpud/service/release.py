"""The service's own environments: releases, copied from the program that this command runs from, and one with torch.

Its packages are copied from where they are installed, each file verified against its package's RECORD
(https://packaging.python.org/en/latest/specifications/recording-installed-packages/): this needs no network and no pip,
and the service is independent of the environment that the command came from, such as pipx's. The checksums detect
damage, not attackers: the owner of the environment can change RECORD as well, and sudo runs their code as root anyway.
Only missing packages of an extra are downloaded, in the tested versions and with verified hashes.

Torch, for the nightly GPU memory test, has an environment apart from the daemon's, which stays small. The worker only
reads it: for root it runs as the account ``wslgpud-stress`` (wslgpud/stress/README.md).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Final

import wslgpud
from wslgpud.host import NoData, SourceError
from wslgpud.security import safe_files
from wslgpud.security.run_as import replaceable
from wslgpud.service.changes import Changes, ServiceError, output, run_shown, succeeds
from wslgpud.service.places import EXTRAS_FOLDER, STRESS_EXTRA, Places
from wslgpud.shipped_files import ROOT
from wslgpud.words import cause, say
from wslgpud.words.units import size

OURS: Final = "wslgpud"
TORCH_LOCK = EXTRAS_FOLDER / f"{STRESS_EXTRA}.txt"
#: ratio of disk space to download size, measured with torch 2.13
_UNPACKED_RATIO = 2.0
_DOWNLOADS = re.compile(r"^# downloads (\d+) bytes", re.MULTILINE)
#: size limit of a package's file; NumPy's largest has 40 MB
_MAX_BYTES = 512 << 20
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[([\w,\s.-]*)\])?")
_FOR_EXTRA = re.compile(r"""extra\s*==\s*["']([\w.-]+)["']""")
_OLDEST, _NEWEST = 10, 14
#: from lib/python3.x/site-packages to the root of an environment
_UP = ("..", "..", "..")
#: folders hidden by the service's sandbox (ProtectHome)
_HOMES = ("/home", "/root")
#: starts the program by the environment's own Python, even with a space in the path, which a "#!" line cannot have
_PROGRAM = """#!/bin/sh
'''exec' "{python}" -I "$0" "$@"
' '''
import sys
from wslgpud.__main__ import main
sys.exit(main())
"""


def needed(name: str, extras: Collection[str] = ()) -> dict[str, Distribution]:
    """Return an installed package and its dependencies for this platform, by name.

    Raises PackageNotFoundError: the package itself, or one required by an extra, is not installed.
    """
    distributions = {name: distribution(name)}
    todo = [(distributions[name], frozenset(extras))]
    seen = set()
    while todo:
        package, wanted = todo.pop()
        for text in package.requires or ():
            match, marker = _REQUIREMENT.match(text), text.partition(";")[2]
            extra = _FOR_EXTRA.search(marker)
            if match is None or (extra and extra[1] not in wanted) or match[0] in seen:
                continue
            seen.add(match[0])
            try:
                other = distribution(match[1])
            except PackageNotFoundError:
                if extra and package is distributions[name]:
                    raise
                continue
            distributions[other.metadata["Name"].lower().replace("_", "-")] = other
            todo.append((other, frozenset(part.strip() for part in (match[2] or "").split(","))))
    return distributions


def have_file_lists(packages: Collection[Distribution]) -> bool:
    """Return whether each package has a list of its files: Debian's and editable ones do not."""
    return all(package.read_text("RECORD") and not _is_editable(package) for package in packages)


def _is_editable(package: Distribution) -> bool:
    origin = safe_files.parsed(package.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def name_of(packages: Collection[Distribution], extras: Collection[str]) -> str:
    """Return the name of a release, derived from its content."""
    identity = [sys.version, " ".join(sorted(extras))]
    identity += sorted(package.read_text("RECORD") or "" for package in packages)
    return f"{wslgpud.__version__}-{hashlib.sha256(chr(0).join(identity).encode()).hexdigest()[:12]}"


def copy(package: Distribution, target: Path) -> None:
    """Copy a package into a folder of packages, and its manual pages next to the program.

    Raises ServiceError: a file is missing, or was changed since its installation.
    """
    root = target.parents[2]
    for name, checksum, *_ in csv.reader(io.StringIO(package.read_text("RECORD") or "")):
        path = PurePosixPath(name)
        folder = target
        if path.parts[:4] == (*_UP, "share"):
            folder, path = root, PurePosixPath(*path.parts[3:])
        # Files outside the folder are programs; ours is generated, as is bytecode.
        if path.is_absolute() or ".." in path.parts or path.suffix == ".pyc":
            continue
        try:
            content = safe_files.contents(str(package.locate_file(name)), _MAX_BYTES, follow=True)
        except OSError as error:
            raise _damaged(package, name) from error
        kind, _, expected = checksum.partition("=")
        if kind == "sha256" and _sha256(content) != expected:
            raise _damaged(package, name)
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _sha256(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _damaged(package: Distribution, name: str) -> ServiceError:
    return ServiceError(
        "{file} of {package} is missing or was changed: install {package} again",
        file=name,
        package=package.metadata["Name"],
    )


def interpreter(places: Places) -> Path:
    """Return the Python for the service.

    It is this command's, or the system's where the service could not reach that (its sandbox has no home folders), or
    where other users than root could replace it.

    Raises ServiceError: none is suitable.
    """
    base = own_interpreter()
    if places.user:
        return base
    minors = [sys.version_info.minor, *range(_NEWEST, _OLDEST - 1, -1)]
    others = [Path(f"/usr/bin/python3.{minor}") for minor in dict.fromkeys(minors)]
    chosen = next((python for python in (base, *others) if python.exists() and _will_do(python)), None)
    if chosen is None:
        raise ServiceError(
            "the service cannot run with {python}, which lies in a home folder or can be changed by others than root: "
            "install python3 with your package manager",
            python=str(base),
        )
    return chosen


def own_interpreter() -> Path:
    """Return the Python that this command's environment was created with."""
    return Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))


def _will_do(python: Path) -> bool:
    return not any(python.is_relative_to(home) for home in _HOMES) and not replaceable(python, 0)


@contextmanager
def _making(environment: Path, python: Path) -> Iterator[None]:
    """Create an environment, without pip, for the block to fill. Raises ServiceError: nothing is left."""
    shutil.rmtree(environment, ignore_errors=True)
    environment.parent.mkdir(parents=True, exist_ok=True)
    try:
        output(python, "-I", "-m", "venv", "--without-pip", environment)
        yield
    except BaseException as error:
        shutil.rmtree(environment, ignore_errors=True)
        if isinstance(error, (NoData, SourceError, OSError)):
            raise ServiceError("{release} cannot be made: {why}", release=str(environment), why=cause(error)) from error
        raise


def make(release: Path, python: Path, extras: Collection[str]) -> None:
    """Create a release; the file ``complete`` in it marks it as whole.

    Raises ServiceError: missing packages cannot be installed.
    """
    ours, everything = distribution(OURS), needed(OURS, [extra for extra in extras if is_installed(extra)])
    locked = [EXTRAS_FOLDER / f"{extra}.txt" for extra in extras]
    if _minor(python) == sys.version_info.minor and have_file_lists(everything.values()):
        copied = list(everything.values())
        locked = [file for file in locked if not is_installed(file.stem)]
    elif have_file_lists([ours]):
        copied = [ours]
        locked = [ROOT / "deploy/requirements.txt", *locked]
    else:
        raise ServiceError(say("this program runs from a clone: sudo ./deploy/install in it installs the service"))
    with _making(release, python):
        packages = next((release / "lib").glob("python3.*")) / "site-packages"
        for package in copied:
            copy(package, packages)
        if locked:
            fetch(release, locked)
        program = release / "bin/wslgpud"
        program.write_text(_PROGRAM.format(python=release / "bin/python"), encoding="utf-8")
        program.chmod(0o755)
        output(release / "bin/python", "-I", "-m", "compileall", "-q", packages)
        output(program, "--version")
        os.sync()  # otherwise a power cut could leave a link to an empty program
        (release / "complete").touch()


def is_installed(extra: str) -> bool:
    """Return whether the packages of an extra are installed in this command's environment."""
    try:
        needed(OURS, [extra])
    except PackageNotFoundError:
        return False
    return True


def _minor(python: Path) -> int:
    return int(output(python, "-I", "-c", "import sys; print(sys.version_info.minor)"))


def fetch(environment: Path, locked: Collection[Path]) -> None:
    """Install the packages in lock files: only hashed files, and no source builds.

    Raises NoData, SourceError, ServiceError: installation failed.
    """
    python = str(environment / "bin/python")
    if succeeds(python, "-I", "-m", "ensurepip"):
        pip = [python, "-I", "-m", "pip"]
    elif succeeds(sys.executable, "-m", "pip", "--version"):
        pip = [sys.executable, "-m", "pip", f"--python={python}"]
    else:
        raise ServiceError(
            say("pip is needed to download what is missing: install python3-venv with your package manager")
        )
    options = ("--disable-pip-version-check", "--require-hashes", "--only-binary=:all:")
    run_shown([*pip, "install", *options, *(f"--requirement={file}" for file in locked)])


def put_torch(python: Path, places: Places, changes: Changes, *, asked: bool) -> None:
    """Repair the environment with torch if there is one; if ``asked`` for, create or update it to this lock file.

    An upgrade leaves a working one unchanged: it must not download gigabytes unasked.

    Raises ServiceError: it cannot be created; the previous one, if any, stays.
    """
    made_of = places.stress / TORCH_LOCK.name
    works = (places.stress / "bin/python3").exists()  # False if the link's target, a Python, has been removed
    if asked:
        works = works and made_of.is_file() and made_of.read_bytes() == TORCH_LOCK.read_bytes()
    if works or not (asked or places.stress.exists()):
        return
    description = f"make {places.stress}: an environment of {python} with torch (downloads {size(download_bytes())})"
    changes.perform(description, lambda: _make_torch(python, places, changes))


def download_bytes() -> int:
    """Return the size of torch's download for a PC, according to the lock file."""
    match = _DOWNLOADS.search(TORCH_LOCK.read_text(encoding="utf-8"))
    return int(match[1]) if match else 0


def _make_torch(python: Path, places: Places, changes: Changes) -> None:
    need_bytes, free_bytes = download_bytes(), shutil.disk_usage(places.stress.parent).free
    changes.tell(say("torch for the nightly test: downloading {size_bytes}", size_bytes=need_bytes))
    need_bytes = int(need_bytes * (1 + _UNPACKED_RATIO))
    if free_bytes < need_bytes:
        raise ServiceError(
            "{folder} needs {need_bytes}, and {free_bytes} are free there",
            folder=str(places.stress),
            need_bytes=need_bytes,
            free_bytes=free_bytes,
        )
    new = places.stress_being_made
    with _making(new, python):
        fetch(new, [TORCH_LOCK])
        shutil.copy(TORCH_LOCK, new)
        shutil.rmtree(places.stress, ignore_errors=True)
        new.rename(places.stress)
