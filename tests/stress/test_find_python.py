"""The Python that trains here: which one it is, and as whom it is run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stress.test_jobs import Shelf
from tests.support.accounts import ALICE, BOB, give, needs_root, shared_python
from tests.support.daemons import daemon, eventually
from wslgpud.config import Stress
from wslgpud.host import Host
from wslgpud.model import ProcessSample, Sample, Snapshot, SourceReport
from wslgpud.security.run_as import account_of
from wslgpud.stress import find_python
from wslgpud.stress.find_python import FILE, NoTorch, Python, Training, command, last_training, remember
from wslgpud.stress.schedule import Nightly

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


def environment(folder: Path, uid: int | None = None) -> Training:
    """Make an environment with torch, as venv does; return its user's training."""
    torch = folder / "lib" / VERSION / "site-packages/torch"
    torch.mkdir(parents=True)
    (torch / "version.py").touch()
    base = shared_python().resolve()
    for name in ("python", "python3", base.name):
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).symlink_to(base)
    if uid is not None:
        give(folder, uid)
    return Training(os.geteuid() if uid is None else uid, str(base), str(torch))


def named(training: Training) -> Path:
    """Return an environment's own name of its interpreter."""
    return Path(training.torch).parents[3] / "bin" / Path(training.python).name


@pytest.fixture(autouse=True)
def _nothing_else(monkeypatch: pytest.MonkeyPatch, public: Path) -> None:
    monkeypatch.setattr(find_python, "MADE_FOR_US", public / "extra")
    monkeypatch.setattr(Path, "home", lambda: public / "home")
    monkeypatch.setattr(sys, "executable", str(public / "none/bin/python"))


def found(folder: Path, setting: str = "", **environ: str) -> Python:
    return find_python.find_python(setting, environ, folder)


def seen(*trainings: Training) -> Snapshot:
    processes = tuple(
        ProcessSample(50 + n, 1000 + n, "python3", 1 << 30, 0, one.uid, frozenset({"training"}), torch=one[1:])
        for n, one in enumerate(trainings)
    )
    report = SourceReport("processes", "ok", Sample(processes=processes), time.monotonic(), 0.0)
    return Snapshot(time.time(), time.monotonic(), 1, (report,))


def test_the_newest_training_is_remembered_and_found_again(tmp_path: Path, public: Path) -> None:
    older, newer = environment(public / "older"), environment(public / "newer")
    nightly = Nightly(Stress(), Host(), tmp_path, Shelf())
    nightly.observe(seen(older))
    assert found(tmp_path).path == named(older)
    nightly.observe(seen(older, newer))
    nightly.observe(seen())
    nightly.close()

    assert last_training(tmp_path) == newer
    assert found(tmp_path).path == named(newer)
    assert (tmp_path / FILE).stat().st_mode & 0o007 == 0, "paths in homes are nobody's business"


def test_a_running_daemon_sees_a_training_and_remembers_it(tmp_path: Path, public: Path) -> None:
    training = environment(public / "env")
    libraries = [Path(training.torch) / name for name in ("_C.cpython-312.so", "libtorch_cpu.so")]
    for library in libraries:
        library.write_bytes(bytes(4096))
    trains = (
        "import mmap, os, sys; block = b'x' * (64 << 20); "
        f"maps = [mmap.mmap(os.open(f, 0), 0, flags=mmap.MAP_PRIVATE, prot=5) for f in {[*map(str, libraries)]}]; "
        "sys.stdin.read()"
    )
    child = subprocess.Popen([named(training), "-c", trains], stdin=subprocess.PIPE)
    with daemon(tmp_path, settings={"WSLGPUD_SAMPLING__PROCESSES_SECONDS": "1"}) as running, child:
        eventually(lambda: last_training(running.state) == training, "the training")
        running.end()
        assert child.stdin is not None
        child.stdin.close()

    assert found(tmp_path / "state").path == named(training)


@needs_root
def test_root_runs_it_as_the_user_who_was_seen_running_it(tmp_path: Path, public: Path) -> None:
    remember(tmp_path, training := environment(public / "env", ALICE))

    assert found(tmp_path) == Python(named(training), account_of(ALICE))


@needs_root
def test_a_strangers_python_is_run_as_the_stranger_or_not(tmp_path: Path, public: Path) -> None:
    """Also where the record says that another user ran it, as the service's account may have forged it."""
    strangers = environment(public / "env", BOB)
    remember(tmp_path, strangers)
    assert found(tmp_path).account == account_of(BOB)

    remember(tmp_path, strangers._replace(uid=ALICE))
    with pytest.raises(NoTorch, match=f"can be used: .* belongs to uid {BOB}"):
        found(tmp_path)


@needs_root
@pytest.mark.parametrize("part", ["", "bin", f"lib/{VERSION}/site-packages", f"lib/{VERSION}/site-packages/torch"])
def test_of_what_decides_what_runs_no_part_is_a_strangers(tmp_path: Path, public: Path, part: str) -> None:
    remember(tmp_path, environment(public / "env", ALICE))
    os.chown(public / "env" / part, BOB, BOB)
    with pytest.raises(NoTorch, match=f"belongs to uid {BOB}"):
        found(tmp_path)

    os.chown(public / "env" / part, ALICE, ALICE)
    (public / "env" / part).chmod(0o1777)
    with pytest.raises(NoTorch, match="can be written by everybody"):
        found(tmp_path)


@needs_root
def test_roots_own_training_is_run_without_any_rights(tmp_path: Path, public: Path) -> None:
    remember(tmp_path, environment(public / "env"))

    assert found(tmp_path).account == account_of(None)


@needs_root
def test_the_records_writer_cannot_have_itself_run_by_root(tmp_path: Path, public: Path) -> None:
    """The service's account would leave its sandbox."""
    remember(tmp_path, environment(public / "env", ALICE))
    os.chown(tmp_path, ALICE, ALICE)

    with pytest.raises(NoTorch, match="no Python with torch was found"):
        found(tmp_path)


def test_a_user_runs_ones_own_python_as_oneself(tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = environment(public / "env")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    remember(tmp_path, training._replace(uid=1000))
    assert found(tmp_path) == Python(named(training), None)

    remember(tmp_path, training._replace(uid=1001))
    with pytest.raises(NoTorch, match="no Python with torch was found"):
        found(tmp_path)


def test_the_named_one_is_first_then_the_training_then_the_extra(tmp_path: Path, public: Path) -> None:
    with pytest.raises(NoTorch, match=r"brings one, or name yours as stress\.python"):
        found(tmp_path)
    environment(public / "extra")
    assert found(tmp_path).path == public / "extra/bin/python3"
    remember(tmp_path, training := environment(public / "env"))
    assert found(tmp_path).path == named(training)
    environment(public / "mine")
    assert found(tmp_path, f"{public}/mine/bin/python").path == public / "mine/bin/python"


def test_without_a_training_a_users_own_shell_counts(
    tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("extra", "active", "path"):
        environment(public / name)
    shell = {"VIRTUAL_ENV": str(public / "active"), "PATH": f"{public}/path/bin"}
    if os.geteuid() == 0:
        assert found(tmp_path, **shell).path == public / "extra/bin/python3", "root's may have been a user's"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert found(tmp_path, **shell).path == public / "active/bin/python"
    assert found(tmp_path, PATH=shell["PATH"]).path == public / "path/bin/python3"
    assert found(tmp_path, VIRTUAL_ENV=str(public / "none")).path == public / "extra/bin/python3"


def test_torch_outside_of_an_environment_is_its_interpreters(tmp_path: Path, public: Path) -> None:
    """As ``pip install --user`` leaves it."""
    remember(tmp_path, training := environment(public / "env"))
    shutil.rmtree(public / "env/bin")

    assert found(tmp_path).path == Path(training.python)


def test_a_remembered_python_that_is_gone_is_said_plainly(tmp_path: Path, public: Path) -> None:
    remember(tmp_path, environment(public / "env"))
    (public / "env").rename(public / "elsewhere")

    with pytest.raises(NoTorch, match=f"^the Python of the last training is gone: there is no {public}/env"):
        found(tmp_path)
    environment(public / "extra")
    assert found(tmp_path).path == public / "extra/bin/python3"


@needs_root
def test_one_that_its_account_cannot_reach_is_refused(tmp_path: Path, public: Path) -> None:
    remember(tmp_path, environment(public / "env"))
    (public / "env").chmod(0o700)  # as /root is

    with pytest.raises(NoTorch, match=r"cannot read .*: make an environment elsewhere, such as /opt/torch"):
        found(tmp_path)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"uid": -1},
        {"uid": True},
        {"python": "/bin/rm"},
        {"python": "python3"},
        {"torch": "/tmp/torch"},
        {"torch": "/a/../lib/python3.1/site-packages/torch"},
        {"torch": 7},
    ],
)
def test_a_record_that_says_anything_else_is_none(tmp_path: Path, spoilt: dict[str, object]) -> None:
    training = Training(1000, "/usr/bin/python3.12", "/home/me/.venv/lib/python3.12/site-packages/torch")
    remember(tmp_path, training)
    assert last_training(tmp_path) == training
    (tmp_path / FILE).write_text(json.dumps(training._asdict() | spoilt))

    assert last_training(tmp_path) is None


@needs_root
@pytest.mark.parametrize("odd", ["\0", "\ud800"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, odd: str) -> None:
    remember(tmp_path, Training(ALICE, "/usr/bin/python3", f"/home/{odd}/lib/python3.12/site-packages/torch"))

    with pytest.raises(NoTorch, match="no Python with torch can be used"):
        found(tmp_path)


def test_a_link_or_a_pipe_in_its_place_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    assert last_training(tmp_path) is None
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to("/dev/zero")
    assert last_training(tmp_path) is None


def test_our_own_worker_is_no_training(tmp_path: Path, public: Path, caplog: pytest.LogCaptureFixture) -> None:
    training, nobody = environment(public / "env"), account_of(None).uid
    nightly = Nightly(Stress(), Host(), tmp_path, Shelf())
    nightly.observe(seen(training, training._replace(uid=nobody)))
    assert last_training(tmp_path) == training
    tmp_path.rename(public / "moved")
    nightly.observe(seen(training._replace(uid=ALICE)))
    nightly.close()

    assert "the Python of the last training is not remembered" in caplog.text


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
