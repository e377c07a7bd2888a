"""Fills the Debian package: the program with an environment for each supported Python, its pages, its configuration.

/usr/lib/wslgpud is a virtual environment (https://docs.python.org/3/library/venv.html) of the system's Python,
whichever that is: it has the packages for each of them. Packages that several share lie in one folder beside those of
the versions, which a .pth file adds to the path (https://docs.python.org/3/library/site.html).
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from packaging.requirements import Requirement

HOME = "usr/lib/wslgpud"
#: the newest is the one of Ubuntu 22.04, whose glibc is 2.35
PLATFORMS = [f"manylinux{version}_x86_64" for version in ("_2_34", "_2_28", "_2_17", "2014")]
PROGRAM = f"""#!/{HOME}/bin/python3 -I
import sys
from wslgpud.__main__ import main
sys.exit(main())
"""


def pythons(pyproject: str) -> list[str]:
    """Return the versions that the project says it supports, like 3.10."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject)


def locked_for(lock: str, python: str) -> str:
    """Return the part of a lock file that one version installs, without markers: pip would ask its own version."""
    kept = []
    for block in re.split(r"\n(?=\S)", lock):
        if block.startswith("#"):
            continue
        head, rest = block.split(" \\\n", 1)
        requirement = Requirement(head)
        versions = {"python_version": python, "python_full_version": f"{python}.0"}
        if requirement.marker is None or requirement.marker.evaluate(versions):
            kept.append(f"{requirement.name}{requirement.specifier} \\\n{rest}")
    return "\n".join(kept)


def install(folder: Path, python: str, *what: str | Path) -> None:
    """Have pip put packages into a folder, as another version of Python would install them."""
    options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps", "--only-binary=:all:"]
    options += [f"--python-version={python}", *(f"--platform={name}" for name in PLATFORMS)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, f"--target={folder}", *map(str, what)], check=True
    )
    # Programs of others, whose first lines, and so checksums, name the Python that builds.
    shutil.rmtree(folder / "bin", ignore_errors=True)
    for record in folder.glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        record.write_text("".join(line for line in lines if not line.startswith("../")), encoding="utf-8")


def share(folders: dict[str, Path]) -> None:
    """Move packages that several versions have alike into a folder of theirs, and let each find it."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for python, folder in folders.items():
        for record in sorted(folder.glob("*.dist-info/RECORD")):
            alike[record.parent.name, record.read_text(encoding="utf-8")].append(python)
    for (_, record), owners in alike.items():
        if len(owners) == 1:
            continue
        first, *others = (folders[python] for python in owners)
        shared = first.parents[1] / f"python{owners[0]}-{owners[-1]}"
        for name, *_ in csv.reader(record.splitlines()):
            if not (first / name).is_file():  # a program or a page, which lies elsewhere
                continue
            (shared / name).parent.mkdir(parents=True, exist_ok=True)
            (first / name).replace(shared / name)
            for other in others:
                (other / name).unlink()
        for folder in (first, *others):
            with (folder / "shared.pth").open("a", encoding="utf-8") as path:
                path.write(f"../../{shared.name}\n")


def main(repository: Path, package: Path) -> None:
    home, build = package / HOME, package.parent / "build"
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", f"--wheel-dir={build}", repository], check=True)
    claimed = pythons((repository / "pyproject.toml").read_text(encoding="utf-8"))
    versions = os.environ.get("PYTHONS", "").split() or claimed
    lock = (repository / "deploy/requirements.txt").read_text(encoding="utf-8")
    folders = {python: home / f"lib/python{python}/site-packages" for python in versions}
    for python, folder in folders.items():
        requirements = build / f"{python}.txt"
        requirements.write_text(locked_for(lock, python), encoding="utf-8")
        install(folder, python, "--require-hashes", "--requirement", requirements)
        # By its name: of a file pip would note where it lay.
        install(folder, python, "--no-index", f"--find-links={build}", "wslgpud")
        shutil.copytree(folder / "share", package / "usr/share", dirs_exist_ok=True)
        shutil.rmtree(folder / "share")
    share(folders)
    # Debian's zsh does not look where zsh's own default is.
    (package / "usr/share/zsh/site-functions").rename(package / "usr/share/zsh/vendor-completions")
    for folder in sorted((home / "lib").rglob("*"), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n", encoding="utf-8")
    (home / "bin").mkdir()
    (home / "bin/python3").symlink_to("../../../bin/python3")
    program = package / "usr/bin/wslgpud"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM, encoding="utf-8")
    program.chmod(0o755)

    sys.path.append(str(repository))  # which needs none of its packages for this
    from wslgpud.config.config_files import sample_file

    configuration = package / "etc/wslgpud/wslgpud.toml"
    configuration.parent.mkdir(parents=True)
    configuration.write_text(sample_file(), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
