"""The units and what may be laid over them, as systemd reads them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from wslgpud.brake.watchdog import HeldJob, HeldJobsFile
from wslgpud.security.exact_signals import ExactProcess

DEPLOY = Path(__file__).parents[2] / "deploy"
DROP_INS = sorted((DEPLOY / "drop-ins").glob("*.conf"))
#: exposure in tenths, by systemd-analyze security; the README names the first two
MOST = {"": 20, "wsl": 23, "save-signal": 21, "home": 21, "desktop": 31, "brake": 25, "return-cache": 25}
#: the same of the unit of the stress test, which becomes other users and reads where they keep their torch
MAX_OF_STRESS = 35


@pytest.fixture
def analyze(tmp_path: Path):
    """Ask systemd-analyze about the units, of which each runs a program that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for kind in ("system", "user"):
        for unit in (DEPLOY / kind).iterdir():
            text = unit.read_text().replace("/opt/wslgpud/bin/wslgpud", "/bin/true")
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / unit.name).write_text(text.replace("%h/.local/share/wslgpud/bin/wslgpud", "/bin/true"))

    def do(
        *arguments: str, kind: str = "system", drop_in: str = "", unit: str = ""
    ) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / kind
        if drop_in:
            (folder / "wslgpud.service.d").mkdir()
            shutil.copy(DEPLOY / "drop-ins" / f"{drop_in}.conf", folder / "wslgpud.service.d")
        units = [str(file) for file in sorted(folder.iterdir()) if file.is_file() and file.stem.startswith(unit)]
        command = ["systemd-analyze", *arguments, *(units if arguments[0] == "verify" else units[-1:])]
        environment = {"SYSTEMD_UNIT_PATH": f"{folder}:", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return do


@pytest.mark.parametrize("drop_in", ["", *(file.stem for file in DROP_INS)])
def test_systemd_understands_every_line(analyze, drop_in: str) -> None:
    done = analyze("verify", "--recursive-errors=yes", drop_in=drop_in)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_understands_the_users_unit(analyze) -> None:
    done = analyze("verify", "--user", "--recursive-errors=yes", kind="user")

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("drop_in", ["", *(file.stem for file in DROP_INS)])
def test_little_is_exposed_and_each_relaxation_adds_only_its_own(analyze, drop_in: str) -> None:
    done = analyze("security", "--offline=true", f"--threshold={MOST[drop_in]}", drop_in=drop_in)

    assert done.returncode == 0, done.stdout + done.stderr


def test_little_of_the_stress_unit_is_exposed(analyze) -> None:
    done = analyze("security", "--offline=true", f"--threshold={MAX_OF_STRESS}", unit="wslgpud-stress@")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "wslgpud-stress@" in done.stdout


@pytest.mark.parametrize("kind", ["system", "user"])
@pytest.mark.parametrize(("held", "said"), [({3: (ExactProcess(20, 777, 1000),)}, "released\n"), ({}, ""), (None, "")])
def test_jobs_on_the_list_are_released_after_a_stop(
    tmp_path: Path, kind: str, held: dict[int, HeldJob] | None, said: str
) -> None:
    (folder := tmp_path / ".local/state/wslgpud").mkdir(parents=True)
    if held is not None:
        HeldJobsFile(folder).write(3, held)
    (line,) = re.findall("^ExecStopPost=-(.*)$", (DEPLOY / kind / "wslgpud.service").read_text(), re.MULTILINE)
    command = re.sub(r"exec \S+ brake release", "echo released", line)

    done = subprocess.run(
        shlex.split(command),
        env={"HOME": str(tmp_path), "STATE_DIRECTORY": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
