"""A newcomer's first steps: a bare Debian, a clone in a folder with a space in its name, ``./deploy/run``."""

from __future__ import annotations

import shutil
import signal
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.test_shipped import SERVICE, SHIPPED
from tests.support.daemons import Running, eventually

from .conftest import REPOSITORY
from .container import NOT_DEBIAN, hide
from .image import Image, backend, wheelhouse

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm-service"), pytest.mark.timeout(3000)]

CLONE = "/root/my code"
IN_A_ROOT_OF_ITS_OWN = """
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc"
# How the kernel starts a Windows program, where a test says that it does.
[ ! -d "$2/upper/binfmt_misc" ] || mount --bind "$2/upper/binfmt_misc" "$2/root/proc/sys/fs/binfmt_misc"
mount --rbind /dev "$2/root/dev"
root=$2/root
shift 2
exec chroot "$root" "$@"
"""


class Newcomer:
    """Debian as its bootstrap leaves it, with the repository's files and no way to a network.

    With ``installed``, the release that ``deploy/install`` makes of these files is there, as it was made for all tests.
    """

    def __init__(self, folder: Path, disk: Image, *, installed: bool = False) -> None:
        self.folder = folder
        self._lower = f"{disk.program}:{disk.tree}" if installed else str(disk.tree)
        for name in ("upper", "work", "root"):
            (folder / name).mkdir()
        if not installed:
            hide(NOT_DEBIAN, folder / "upper")
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "wslgpud", "deploy", "grafana"]
        files = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
        for name in ["pyproject.toml", "README.md", "LICENSE", *filter(None, files.split("\0"))]:
            target = folder / f"upper{CLONE}" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, target)
        for wheels in (wheelhouse(), backend()):
            shutil.copytree(wheels, folder / "upper/wheels", dirs_exist_ok=True)

    def start(self, *command: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a command there; the process is the command itself, so it takes signals."""
        wrapper = ["unshare", "--mount", "sh", "-euc", IN_A_ROOT_OF_ITS_OWN, "sh"]
        return subprocess.Popen(
            [*wrapper, self._lower, str(self.folder), *command],
            # An index that is asked for would be an error, as it is offline.
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "PIP_NO_INDEX": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, environment: Mapping[str, str]) -> Running:
        """Type ``./deploy/run``."""
        daemon = self.start(f"{CLONE}/deploy/run", environment={"WSLGPUD_SERVER__PORT": "0", **environment})
        return Running(daemon, self.folder)


@pytest.fixture
def newcomer(disk: Image, tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path, disk)


def test_deploy_run_sets_up_once_and_then_needs_no_network(newcomer: Newcomer) -> None:
    first = newcomer.run({"PIP_FIND_LINKS": "/wheels"})
    eventually(lambda: first.status_of("/-/ready") == 200, "readiness")
    beside_it = ["nsenter", f"--target={first.process.pid}", "--mount", "--root"]
    status = [*beside_it, f"{CLONE}/.venv/bin/wslgpud", "status"]
    screen = subprocess.run(status, check=True, capture_output=True, text=True).stdout
    code, said = first.end(signal.SIGINT)
    second = newcomer.run({})
    eventually(lambda: second.status_of("/-/ready") == 200, "readiness")
    code_again, said_again = second.end(signal.SIGINT)

    assert (code, code_again) == (0, 0)
    assert first.said[3] == second.said[3] == "data     /var/lib/wslgpud/wslgpud.db\n"
    assert first.url in screen
    assert f"preparing {CLONE}/.venv (once" in said
    assert "preparing" not in said_again


def test_without_a_network_the_first_time_the_last_line_says_so(newcomer: Newcomer) -> None:
    daemon = newcomer.start(f"{CLONE}/deploy/run", environment={})
    said, errors = daemon.communicate()

    assert (daemon.returncode, said) == (1, "")
    assert "the first run needs the network" in errors.splitlines()[-1]


def test_the_wheel_carries_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    source = {
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "wslgpud").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }

    files = [
        file for place in SERVICE for file in (REPOSITORY / place, *(REPOSITORY / place).glob("*")) if file.is_file()
    ]
    shipped = {f"wslgpud/shipped/{name}" for name in (*SHIPPED, *(file.relative_to(REPOSITORY) for file in files))}
    share = REPOSITORY / "deploy/share"
    pages = {f"share/{path.relative_to(share)}" for path in share.rglob("*") if path.is_file()}
    data = {name.partition(".data/data/")[2] for name in names if ".data/" in name}
    assert data == pages
    assert {name for name in names if ".dist-info/" not in name and ".data/" not in name} == source | shipped
    assert "wslgpud/py.typed" in names
