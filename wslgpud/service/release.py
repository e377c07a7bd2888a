"""Releases: the service's own environments, copied from the program that this command runs from.

Its packages are copied from where they are installed, each file verified against its package's RECORD
(https://packaging.python.org/en/latest/specifications/recording-installed-packages/): this needs no network and no pip,
and the service is independent of the environment that the command came from, such as pipx's. The checksums detect
damage, not attackers: the owner of the environment can change RECORD as well, and sudo runs their code as root anyway.
Only missing packages of an extra are downloaded, in the tested versions and with verified hashes.
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
from collections.abc import Collection
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Final

import wslgpud
from wslgpud.host import NoData, SourceError
from wslgpud.security import safe_files
from wslgpud.security.run_as import replaceable
from wslgpud.service.changes import ServiceError, Tell, output, run_with_output, succeeds
from wslgpud.service.places import Places
from wslgpud.shipped_files import ROOT
from wslgpud.words import cause, say

OURS: Final = "wslgpud"
EXTRAS_FOLDER = ROOT / "deploy/extras"
#: size limit of a package's file; NumPy's largest has 40 MB
_MAX_BYTES = 512 << 20
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[([\w,\s.-]*)\])?")
_FOR_EXTRA = re.compile(r"""extra\s*==\s*["']([\w.-]+)["']""")
#: pip's output about large downloads
_DOWNLOAD = re.compile(r"^ *Downloading (\S+) \(([\d.]+ [MG]B)\)")
_PROGRESS = ("Collecting ", "Downloading ", "Ignoring ", "Installing ", "Looking in ", "Processing ", "Using cached ")
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


def offered_extras() -> list[str]:
    """Return the names accepted by ``--extra``."""
    return sorted(file.stem for file in EXTRAS_FOLDER.glob("*.txt"))


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


def make(release: Path, python: Path, extras: Collection[str], tell: Tell) -> None:
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
    shutil.rmtree(release, ignore_errors=True)
    release.parent.mkdir(parents=True, exist_ok=True)
    try:
        output(python, "-I", "-m", "venv", "--without-pip", release)
        packages = next((release / "lib").glob("python3.*")) / "site-packages"
        for package in copied:
            copy(package, packages)
        if locked:
            fetch(release, locked, tell)
        program = release / "bin/wslgpud"
        program.write_text(_PROGRAM.format(python=release / "bin/python"), encoding="utf-8")
        program.chmod(0o755)
        output(release / "bin/python", "-I", "-m", "compileall", "-q", packages)
        output(program, "--version")
        os.sync()  # otherwise a power cut could leave a link to an empty program
    except BaseException as error:
        shutil.rmtree(release, ignore_errors=True)
        if isinstance(error, (NoData, SourceError, OSError)):
            raise ServiceError("{release} cannot be made: {why}", release=str(release), why=cause(error)) from error
        raise
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


def fetch(environment: Path, locked: Collection[Path], tell: Tell) -> None:
    """Install the packages in lock files: only hashed files, and no source builds.

    ``tell`` is called when a large download starts.

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
    options = ("--progress-bar=off", "--disable-pip-version-check", "--require-hashes", "--only-binary=:all:")

    def is_progress(line: str) -> bool:
        if match := _DOWNLOAD.search(line):
            tell(say("fetching {file}, {size}", file=match[1], size=match[2]))
        elif line.startswith("Installing "):
            tell(say("unpacking the downloads"))
        return line.lstrip().startswith(_PROGRESS)

    run_with_output([*pip, "install", *options, *(f"--requirement={file}" for file in locked)], is_progress)
