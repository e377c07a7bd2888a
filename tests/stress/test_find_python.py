"""Where a Python with torch is looked for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from wslgpud.stress import find_python
from wslgpud.stress.find_python import Python, candidates, command, home_folders

MADE_FOR_US = Path("/opt/wslgpud.stress/bin/python3")


def test_root_looks_into_the_homes_of_people_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    homes = [(0, "/root"), (999, "/srv/daemon"), (1000, "/home/first"), (1001, "/home/first"), (1002, "/")]
    homes += [(59999, "/home/last"), (60000, "/nonexistent"), (2000, "here")]
    accounts = [SimpleNamespace(pw_uid=uid, pw_dir=folder) for uid, folder in homes]
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("pwd.getpwall", lambda: accounts)

    assert [*map(str, home_folders())] == ["/root", "/home/first", "/home/last"]
    accounts += [SimpleNamespace(pw_uid=1000, pw_dir=f"/home/{number}") for number in range(100)]
    assert len(home_folders()) == 50


@pytest.mark.parametrize("uid", [0, 1000])
def test_the_likeliest_places_come_first_and_root_follows_no_link_and_no_users_mount(
    uid: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setattr(find_python, "users_mounts", lambda: {str(tmp_path / "mounted"): 1001})
    (tmp_path / "project").mkdir()
    (tmp_path / "mounted").mkdir()
    (tmp_path / "linked").symlink_to("/")
    (tmp_path / "file").touch()
    found = [*candidates({"CONDA_PREFIX": "/conda", "PATH": "/programs:"}, [tmp_path])]

    its_own = [] if uid == 0 else [tmp_path / ".local/share/wslgpud.stress/bin/python3"]
    likeliest = [MADE_FOR_US, *its_own, Path(sys.executable), Path("/conda/bin/python")]
    assert found[: len(likeliest) + 2] == [*likeliest, Path("/programs/python3"), Path("python3")]
    assert tmp_path / "project/.venv/bin/python3" in found
    assert (tmp_path / "linked/.venv/bin/python3" in found) == (uid != 0)
    assert (tmp_path / "mounted/.venv/bin/python3" in found) == (uid != 0)
    assert tmp_path / "file/.venv/bin/python3" not in found


def test_a_worker_gets_only_the_variables_that_it_needs() -> None:
    environ = {"PATH": "/bin", "HOME": "/home/me", "WSLGPUD_ALERTS__URLS": "secret", "PYTHONPATH": "/elsewhere"}

    assert command(Python(Path("/usr/bin/python3"), None), "GPU-7", environ).environment == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LANG": "C.UTF-8",
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-7",
    }
