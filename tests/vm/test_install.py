"""``./deploy/install`` in a Debian of its own, natively: what it says, and leaves, where not all is well.

A stand-in answers for systemd, and one for Windows; ``test_service`` has the real systemd.
"""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

import pytest

from wslgpud.probes import interop

from .image import Image
from .test_fresh import CLONE, Newcomer, newcomer

__all__ = ["newcomer"]  # a fixture

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm-service"), pytest.mark.timeout(3000)]

SYSTEMCTL = """#!/bin/sh
echo "$*" >>/systemctl.log
case "$*" in
*is-active*) [ -e /tmp/active ] ;;
*is-enabled*) [ -e /tmp/enabled ] ;;
*enable*) touch /tmp/enabled ;;
*restart*) touch /tmp/active && ! ls /opt/wslgpud/lib/python3*/site-packages/wslgpud/broken.py 2>/dev/null ;;
esac
"""
JOURNALCTL = """#!/bin/sh
echo "its last words"
"""
POWERSHELL = """#!/bin/sh
cat >>/asked
printf '%s\\n' "$*" >/command
[ -e /task ] && echo present
exit 0
"""
#: What a clone's installer would make in a quarter of a minute; all but one file is as in the release before.
ANOTHER_RELEASE = """
cd "$1" && . deploy/environment.sh
now=$(readlink -f /opt/wslgpud)
new=${now%/*}/$(release_of "$PWD" "")
cp -a "$now" "$new"
cp "wslgpud/$2" "$new"/lib/python3*/site-packages/wslgpud/
sed -i "s|$now|$new|" "$new/bin/wslgpud"
"""
WINDOWS = "mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe"
NOBODY = 65534
SECRET = '[alerts]\nalertmanager_urls = ["http://me:word@127.0.0.1:9093"]\n'
PATHS = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PIP_FIND_LINKS": "/wheels"}


class Admin:
    """Somebody who installs, and the machine as it is afterwards."""

    def __init__(self, newcomer: Newcomer) -> None:
        self.newcomer = newcomer

    def put(self, path: str, text: str = "", mode: int = 0o755) -> None:
        file = self.folder / "upper" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    @property
    def folder(self) -> Path:
        return self.newcomer.folder

    def give(self, path: str, uid: int) -> None:
        top = self.folder / "upper" / path
        for one in (top, *top.rglob("*")):
            os.chown(one, uid, uid, follow_symlinks=False)  # a link of an environment leads to our own Python

    def read(self, path: str) -> str:
        return (self.folder / "upper" / path).read_text()

    def has(self, path: str) -> bool:
        file = self.folder / "upper" / path
        return (file.exists() and not file.is_char_device()) or file.is_symlink()  # an overlay's "gone" is one

    def running(self) -> str:
        """Return the release that runs, by the link to it."""
        return self.types("readlink", "/opt/wslgpud").stdout.strip()

    def access(self, file: Path) -> str:
        """Return whose it is there, and for whom."""
        groups = (self.folder / "upper/etc/group").read_text().splitlines()
        names = {int(line.split(":")[2]): line.split(":")[0] for line in groups}
        found = file.stat()
        owner = "root" if found.st_uid == 0 else found.st_uid
        return f"{owner}:{names[found.st_gid]} {found.st_mode & 0o7777:o}"

    def does(self, name: str, *arguments: str, uid: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Type ``./deploy/NAME``."""
        who = [] if uid == 0 else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        return self.types(*who, f"{CLONE}/deploy/{name}", *arguments, **{**PATHS, **environment})

    def types(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.newcomer.start(*words, environment=environment)
        said, errors = process.communicate()
        return subprocess.CompletedProcess([], process.returncode, said, errors)


def bring_systemd(admin: Admin) -> None:
    """Put a stand-in for systemd there."""
    for name in ("systemctl", "loginctl"):
        admin.put(f"usr/local/bin/{name}", SYSTEMCTL)
    admin.put("usr/local/bin/journalctl", JOURNALCTL)
    admin.put("systemctl.log", mode=0o666)
    admin.put("run/systemd/system/.keep")


@pytest.fixture
def admin(disk: Image, tmp_path: Path) -> Admin:
    """Where the release is made already, by the same script: ``test_readme`` has it made by ``deploy/install``."""
    one = Admin(Newcomer(tmp_path, disk, installed=True))
    bring_systemd(one)
    return one


@pytest.fixture
def in_wsl(admin: Admin) -> Admin:
    admin.put("run/WSL/1_interop")
    admin.put("usr/local/bin/wslpath", "#!/bin/sh\nprintf '%s\\n' '\\\\wsl.localhost\\Ubuntu-24.04\\'\n")
    admin.put("binfmt_misc/WSLInterop")
    admin.put(WINDOWS, POWERSHELL)
    return admin


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("run/WSL/1_interop", "put systemd=true below [boot] in /etc/wsl.conf, then type 'wsl --shutdown'"),
        ("run/other", "./deploy/run starts the daemon without it"),
    ],
)
def test_without_systemd_it_says_what_to_do(newcomer: Newcomer, place: str, expected: str) -> None:
    admin = Admin(newcomer)
    admin.put(place)
    done = admin.does("install")

    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr
    assert "preparing" not in done.stderr  # else it would be said after minutes of downloads


def test_wrong_calls_are_told_about_sudo_and_the_valid_options(admin: Admin) -> None:
    assert f"this needs root: sudo {CLONE}/deploy/install" in admin.does("install", uid=NOBODY).stderr
    assert admin.does("install", "--dryrun").returncode == 2
    assert "no /" not in admin.does("install", "--help").stderr
    assert admin.does("install", "--allow", "everything").returncode == 1
    assert "there is no --extra apprize" in admin.does("install", "--extra", "apprize").stderr


def test_what_cannot_be_downloaded_changes_nothing(newcomer: Newcomer, disk: Image) -> None:
    admin = Admin(newcomer)
    bring_systemd(admin)
    done = admin.does("install", PIP_FIND_LINKS="/nowhere", PIP_NO_INDEX="1")

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "nothing was changed."
    assert not any(admin.has(path) for path in ("opt/wslgpud", "etc/wslgpud", "etc/systemd/system/wslgpud.service"))
    assert "wslgpud" not in Path(disk.tree / "etc/passwd").read_text()
    assert not admin.has("etc/passwd")  # no user was made


def test_a_version_that_does_not_start_leaves_the_old_running(admin: Admin) -> None:
    admin.does("install")
    before = admin.running()
    admin.put("etc/systemd/system/wslgpud.service", "the unit before", 0o644)
    admin.put(f"{CLONE[1:]}/wslgpud/broken.py", "# what the stand-in for systemd does not start\n")
    made = admin.types("sh", "-euc", ANOTHER_RELEASE, "sh", CLONE, "broken.py")
    assert made.returncode == 0, made.stderr
    done = admin.does("install", "--allow", "home")

    assert done.returncode == 2
    assert not admin.has("etc/systemd/system/wslgpud.service.d/wslgpud-home.conf")
    *_, last_words, told = done.stderr.splitlines()
    assert last_words == "its last words"
    assert told.endswith("the new version does not start, see its log above; the previous one runs again")
    assert admin.running() == before
    assert admin.read("etc/systemd/system/wslgpud.service") == "the unit before"
    *_, again, last = admin.read("systemctl.log").splitlines()
    assert (again, last) == ("daemon-reload", "restart wslgpud.service wslgpud-stress.socket")


def test_under_wsl_it_explains_keep_alive_and_can_set_it_up(in_wsl: Admin) -> None:
    first = in_wsl.does("install")
    assert "instanceIdleTimeout=-1" in first.stdout
    assert "RestrictAddressFamilies=AF_VSOCK" in in_wsl.read("etc/systemd/system/wslgpud.service.d/wslgpud-wsl.conf")

    asked = in_wsl.does("install", "--keep-alive")
    *_, encoded = in_wsl.read("command").split()
    assert in_wsl.read("asked").splitlines()[-1] == "create Ubuntu-24.04"
    assert base64.b64decode(encoded).decode("utf-16-le") == interop.framed(interop.KEEP_ALIVE)
    assert "instanceIdleTimeout" not in asked.stdout

    in_wsl.put("task")
    assert "instanceIdleTimeout" not in in_wsl.does("install").stdout

    in_wsl.does("uninstall")
    assert in_wsl.read("asked").splitlines()[-1] == "remove Ubuntu-24.04"
    assert not in_wsl.has("etc/systemd/system/wslgpud.service.d/wslgpud-wsl.conf")


def test_an_upgrade_closes_a_world_readable_configuration(admin: Admin) -> None:
    admin.put("etc/wslgpud/wslgpud.toml", SECRET, 0o644)
    admin.does("install")
    file = admin.folder / "upper/etc/wslgpud/wslgpud.toml"

    assert admin.access(file) == "root:wslgpud 640"
    assert admin.access(file.parent) == "root:wslgpud 750"
    assert file.read_text() == SECRET
    assert "would do:\n  nothing" in admin.does("install", "--dry-run").stdout


def test_what_somebody_has_changed_for_himself_is_left_alone(admin: Admin) -> None:
    admin.put("etc/systemd/system/wslgpud.service.d/override.conf", "[Service]\nNice=5\n", 0o644)
    admin.put("usr/local/bin/wslgpud", "another program")
    admin.put("etc/systemd/system/wslgpud.service.d/wslgpud-home.conf", "as an older version had it", 0o644)
    admin.does("install", "--allow", "save-signal")

    assert admin.has("etc/systemd/system/wslgpud.service.d/wslgpud-save-signal.conf")
    assert "ProtectHome=" in admin.read("etc/systemd/system/wslgpud.service.d/wslgpud-home.conf")
    admin.does("uninstall")
    assert admin.read("usr/local/bin/wslgpud") == "another program"
    assert admin.read("etc/systemd/system/wslgpud.service.d/override.conf") == "[Service]\nNice=5\n"
    assert not admin.has("etc/systemd/system/wslgpud.service.d/wslgpud-save-signal.conf")


def test_a_user_gets_a_service_of_his_own_without_root(admin: Admin) -> None:
    home = "srv/somebody"
    admin.put(f"{home}/.local/state/wslgpud/.keep")
    admin.give(home, NOBODY)
    done = admin.does("install", "--user", uid=NOBODY, HOME=f"/{home}")

    unit = admin.read(f"{home}/.config/systemd/user/wslgpud.service")
    program = unit.split("ExecStart=%h")[1].split()[0]
    assert admin.has(f"{home}{program.removesuffix('/bin/wslgpud')}")
    assert admin.has(f"{home}/.config/wslgpud/wslgpud.toml")
    assert "wslgpud runs" not in done.stderr
    assert "remove    wslgpud service uninstall --user" in done.stdout
    assert {line.split()[0] for line in admin.read("systemctl.log").splitlines()} == {
        "--user",
        "show-user",
        "enable-linger",
    }

    admin.does("uninstall", "--user", "--purge", uid=NOBODY, HOME=f"/{home}")
    left = [path for path in (admin.folder / "upper" / home).rglob("*") if path.is_file()]
    assert left == []


def test_uninstall_removes_what_a_missing_program_left_behind(admin: Admin) -> None:
    admin.types("rm", "/opt/wslgpud")
    admin.put("opt/wslgpud.stress/bin/python3")
    admin.put("etc/wslgpud/wslgpud.toml", SECRET)
    admin.put("srv/kept")
    admin.put("var/lib/wslgpud/.keep")
    (admin.folder / "upper/var/lib/wslgpud/planted").symlink_to("/srv")
    admin.does("uninstall")
    assert not admin.has("opt/wslgpud.stress")
    assert admin.has("etc/wslgpud/wslgpud.toml")
    admin.does("uninstall", "--purge")

    assert not any(admin.has(path) for path in ("etc/wslgpud", "var/lib/wslgpud"))
    assert admin.has("srv/kept")


def test_root_gets_no_service_of_his_own(admin: Admin) -> None:
    assert "as root, omit it" in admin.does("install", "--user").stderr
