"""The quick tests in later releases of Debian: 13, with Python 3.13, and unstable, with Python 3.14.

Their trees are only unpacked: no script of a package runs, and Python needs none. ``./tests/run --trees`` runs all
quick tests in both, or those that its arguments name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .image import PINS, REPOSITORY, UNUSED_SECONDS, _fresh, _locked, _run, _sha256, cache_folder

SUITES = ("trixie", "unstable")
LOCKED = (PINS, REPOSITORY / "tests/requirements.txt", REPOSITORY / "pyproject.toml")
UNPACK = (
    "mmdebstrap",
    "--quiet",
    "--mode=root",
    "--variant=extract",
    "--include=?essential",
    "--include=git,libstdc++6,media-types,mount,procps,python3-venv,tzdata",
    '--aptopt=Acquire::Check-Valid-Until "false"',  # a mirror that lags behind: its index of unstable is soon too old
)
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PIP = {"PIP_CERT": CERTIFICATES, "PIP_NO_COMPILE": "1"}
VARIABLES = {"HOME": "/root", "LANG": "C.UTF-8", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
#: The accounts come of a script that did not run; names of machines, and who is trusted, are those of this machine.
CONFIGURE = f"""
for name in passwd group; do cp "$1/usr/share/base-passwd/$name.master" "$1/etc/$name"; done
cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
ln -s /usr/share/zoneinfo/Etc/UTC "$1/etc/localtime"
install -D -m 644 "${{PIP_CERT:-{CERTIFICATES}}}" "$1{CERTIFICATES}"
"""
ENTER = """
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
cd "$2/root"
mount -t proc proc proc
for folder in dev sys; do mount --rbind /$folder $folder; done
shift 2
exec chroot . env -i "$@"
"""
ENVIRONMENT = """
cd /code && . deploy/environment.sh
make_environment /env /code deploy/requirements.txt tests/requirements.txt
"""
TESTS = """
cd /code && git init -q && git add --all # some tests ask which files are ours
exec /env/bin/python -m pytest -p no:cacheprovider --dist loadgroup "$@"
"""


def tree_of(suite: str) -> Path:
    """Return a Debian with an environment for the tests at ``/env``; made once a month, which needs the network.

    Raises:
        ImageError: It cannot be made.
    """
    recipe = (*UNPACK, CONFIGURE, ENVIRONMENT, time.strftime("%Y-%m"), *(path.read_text() for path in LOCKED))
    folder = cache_folder() / f"{suite}-tests-{_sha256(''.join(recipe).encode())}"
    folder.mkdir(parents=True, exist_ok=True)
    made, partial = folder / "tree", folder / "tree.partial"
    with _locked(folder / "lock"):
        if not made.exists():
            _fresh(partial)
            _run(*UNPACK, suite, str(partial))
            _run("sh", "-euc", CONFIGURE, "sh", str(partial))
            index = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
            with copy_of(partial, **{**index, **PIP}) as (changes, enter):
                _run(*enter, "sh", "-euc", ENVIRONMENT)
                shutil.move(changes / "env", partial)
            partial.rename(made)
    for lock in cache_folder().glob(f"{suite}-tests-*/lock"):
        if time.time() - lock.stat().st_mtime > UNUSED_SECONDS:  # each use touches it
            shutil.rmtree(lock.parent)
    return made


@contextmanager
def copy_of(tree: Path, **variables: str) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folder of what changes in a copy of the tree, and what to put before a command that runs there."""
    with tempfile.TemporaryDirectory(prefix="wslgpud-tree-") as folder:
        for name in ("upper", "work", "root"):
            Path(folder, name).mkdir()
        changes = Path(folder, "upper")
        changes.chmod(0o755)  # it is the root folder there
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        ours = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
        for name in filter(None, ours.split("\0")):
            (changes / "code" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, changes / "code" / name)
        alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", ENTER, "sh", str(tree), folder]
        yield changes, [*alone, *(f"{name}={value}" for name, value in {**VARIABLES, **variables}.items())]


def run(suite: str, *arguments: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
    """Have pytest run in the tree.

    Raises:
        ImageError: The tree cannot be made.
    """
    with copy_of(tree_of(suite)) as (_, enter):
        command = [*enter, "sh", "-euc", TESTS, "sh", *arguments]
        return subprocess.run(command, check=False, text=True, capture_output=capture)


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument != "--trees"]
    codes = [run(suite, f"-n{os.cpu_count()}", *given).returncode for suite in SUITES]
    sys.exit(max(codes))
