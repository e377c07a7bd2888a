"""A user who has made what root starts gains nothing: not root's rights, not another user's, not its secrets.

The attacks are run for real, by root, with files of users who need no entry in /etc/passwd. A fake package
``torch`` writes down as whom it was loaded.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpu.conftest import FAKE
from tests.stress.support import gpu
from tests.stress.test_stress_run import Alone, IdleGpu
from tests.support.accounts import ALICE, BOB, give, needs_root, shared_python
from tests.support.daemons import wslgpud
from wslgpud.advise.doctor import checking
from wslgpud.config import Stress
from wslgpud.security import run_as
from wslgpud.security.run_as import NOBODY, Account, Command, UntrustedProgram, account_for, account_of, start
from wslgpud.stress import find_python
from wslgpud.stress.find_python import Training, remember
from wslgpud.stress.stress_run import Runner

PACKAGE = Path(__file__).parents[2] / "wslgpud"
#: Loaded by the worker and by the doctor's probe. It says who it is, and what it can get at.
TELLTALE = """
import json, os
groups, secret = sorted({os.getgid(), *os.getgroups()}), ""
try:
    with open("/etc/shadow") as file:
        secret = file.read(10)
except OSError:
    pass
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
said = {"uid": os.getresuid(), "groups": groups, "secret": secret, "home": os.environ.get("HOME"),
        "variables": sorted(os.environ), "capabilities": status["CapPrm"].strip(),
        "no_new_privs": status["NoNewPrivs"].strip(), "session": os.getsid(0) == os.getpid()}
with open(LOOT + f"/{os.getpid()}", "w") as file:
    json.dump(said, file)
__version__ = "2.7"
raise SystemExit(0)
"""


class Trap:
    """An environment with a fake torch, and the folder in which it records what it could access."""

    def __init__(self, public: Path) -> None:
        self.loot = public / "loot"
        self.loot.mkdir()
        self.loot.chmod(0o1777)
        self.environment = public / "home" / ".venv"
        self.bin = self.environment / "bin"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = self.environment / "lib" / version / "site-packages"
        self.torch = self.packages / "torch"
        self.torch.mkdir(parents=True)
        (self.torch / "version.py").touch()
        (self.torch / "__init__.py").write_text(f"LOOT = {str(self.loot)!r}\n{TELLTALE}")
        self.base = shared_python()
        self.settings = self.environment / "pyvenv.cfg"
        self.settings.write_text(f"home = {self.base.resolve().parent}\ninclude-system-site-packages = false\n")

    @property
    def python(self) -> Path:
        return self.bin / "python3"

    def honest(self) -> None:
        """Make it as venv does."""
        self.bin.mkdir()
        self.python.symlink_to(self.base.resolve())
        (self.bin / self.base.resolve().name).symlink_to("python3")

    def of_the_issue(self) -> None:
        """Make ``bin`` a link to root's own, so that the last component on the way is root's."""
        self.bin.symlink_to(self.base.resolve().parent)

    def trained(self, uid: int) -> Training:
        """Return what a daemon remembers of it once a user has trained with it."""
        return Training(uid, str(self.base.resolve()), str(self.torch))

    def said(self) -> list[dict[str, object]]:
        return [json.loads(file.read_text()) for file in sorted(self.loot.iterdir())]


@pytest.fixture
def trap(public: Path) -> Trap:
    return Trap(public)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Do a whole stress run in this process; return why it did not pass."""
    idle = IdleGpu()

    def do(python: Path | str = "", worker: Path | None = None, **environ: str) -> str:
        settings = Stress(python=str(python), settle_seconds=60.0)
        given = {} if worker is None else {"worker": worker}
        runner = Runner(
            Alone(), settings, tmp_path, idle.recent, lock_folder=tmp_path, environ={"PATH": "", **environ}, **given
        )
        return str(runner.run(gpu(), "quick").reason)

    yield do
    idle.close()


@pytest.fixture
def nvml(tmp_path: Path) -> Path:
    """NVIDIA's library with an idle card, as far as anybody can tell."""
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler (cc) to build the fake NVML library with")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, FAKE, "-ldl"], check=True)
    library.with_name(f"{library.name}.settings").write_text("utilization 0\ntemperature 41\n")
    return library


@needs_root
class TestTheStressTest:
    def test_the_link_to_roots_programs_runs_as_its_maker(self, trap: Trap, run, tmp_path) -> None:
        """The attack: ~/.venv/bin -> /usr/bin, with pyvenv.cfg and torch of the user's own beside it."""
        trap.of_the_issue()
        give(trap.environment.parent, ALICE)
        remember(tmp_path, trap.trained(ALICE))

        run()

        (said,) = trap.said()
        assert said["uid"] == [ALICE] * 3
        assert said["groups"] == [NOBODY]
        assert said["secret"] == ""

    def test_the_same_named_in_the_configuration(self, trap: Trap, run) -> None:
        trap.of_the_issue()
        give(trap.environment.parent, ALICE)

        run(trap.python)

        assert [said["uid"] for said in trap.said()] == [[ALICE] * 3]

    @pytest.mark.slow
    def test_the_command_itself_run_by_root(self, trap: Trap, tmp_path: Path, nvml: Path) -> None:
        trap.of_the_issue()
        give(trap.environment.parent, ALICE)
        settings = {
            "WSLGPUD_SAMPLING__NVML_LIBRARY": str(nvml),
            "WSLGPUD_STRESS__PYTHON": str(trap.python),
            "WSLGPUD_STRESS__SETTLE_SECONDS": "1",
        }
        for _ in range(5):
            done = wslgpud("stress", "--json", "--state", str(tmp_path / "state"), home=tmp_path, settings=settings)
            if trap.said() or done.returncode != 3:
                break  # else a program that others run here wanted the card

        assert [said["uid"] for said in trap.said()] == [[ALICE] * 3], done.stdout + done.stderr

    def test_nothing_of_root_is_left_to_what_it_starts(self, trap: Trap, run, monkeypatch) -> None:
        monkeypatch.setenv("WSLGPUD_ALERTS__URLS", "a secret")
        trap.honest()
        give(trap.environment.parent, ALICE)

        run(trap.python, LD_LIBRARY_PATH="/roots", HOME="/root", PYTHONPATH="/roots")

        (said,) = trap.said()
        assert said["home"] != "/root"
        assert not {"LD_LIBRARY_PATH", "PYTHONPATH", "WSLGPUD_ALERTS__URLS"} & set(said["variables"])
        assert (said["capabilities"], said["no_new_privs"]) == ("0000000000000000", "1")
        assert said["session"]  # it has no terminal to type into

    def test_what_root_alone_has_made_runs_without_any_rights(self, trap: Trap, run) -> None:
        trap.honest()

        run(trap.python)

        (said,) = trap.said()
        assert set(said["uid"]) == {account_of(None).uid}
        assert 0 not in {*said["uid"], *said["groups"]}

    @pytest.mark.parametrize("uid", [ALICE, BOB, 0])
    @pytest.mark.parametrize("part", ["environment", "packages", "torch", "bin"])
    def test_what_two_users_have_made_is_not_started(self, trap: Trap, run, tmp_path, part: str, uid: int) -> None:
        trap.honest()
        give(trap.environment.parent, ALICE)
        os.chown(getattr(trap, part), BOB, BOB)
        remember(tmp_path, trap.trained(uid))

        assert "belongs to uid" in run()
        assert part in ("packages", "torch") or "belongs to uid" in run(trap.python)
        assert trap.said() == []

    @pytest.mark.parametrize("part", ["environment", "bin"])
    def test_one_part_of_it_is_enough_to_be_the_one_who_made_it(self, trap: Trap, run, part: str) -> None:
        trap.honest()
        os.chown(getattr(trap, part), ALICE, ALICE)

        run(trap.python)

        assert [said["uid"] for said in trap.said()] == [[ALICE] * 3]

    def test_a_link_on_the_way_counts_as_well_as_what_it_leads_to(self, trap: Trap, public: Path, run) -> None:
        trap.honest()
        link = public / "links" / "python"
        link.parent.mkdir()
        link.symlink_to(trap.python)
        os.lchown(link, ALICE, ALICE)
        run(link)
        assert {uid for said in trap.said() for uid in said["uid"]} <= {ALICE}

        give(trap.environment, BOB)
        with pytest.raises(UntrustedProgram, match=f"belongs to uid {ALICE}"):
            account_for(link)

    @pytest.mark.parametrize("part", ["environment", "packages", "torch", "bin"])
    @pytest.mark.parametrize("mode", [0o777, 0o775], ids=["everybody", "an unknown group"])
    def test_what_others_can_write_is_refused_by_name(self, trap: Trap, run, tmp_path, part: str, mode: int) -> None:
        trap.honest()
        give(trap.environment.parent, ALICE)
        remember(tmp_path, trap.trained(ALICE))
        path = getattr(trap, part)
        path.chmod(mode)

        reason = run()

        assert str(path) in reason
        assert "can be written by" in reason
        assert trap.said() == []

    def test_a_shared_folder_may_lie_on_the_way_to_the_environment(self, trap: Trap, run) -> None:
        trap.honest()
        give(trap.environment, ALICE)
        trap.environment.parent.chmod(0o1777)
        assert account_for(trap.python).uid == ALICE

        trap.environment.chmod(0o1777)  # anybody may put a pyvenv.cfg there
        assert str(trap.environment) in run(trap.python)

    def test_links_that_lead_in_circles_end(self, public: Path, run) -> None:
        for one, other in (("a", "b"), ("b", "a")):
            (public / one).symlink_to(public / other)

        assert "is not a program" in run(public / "a" / "bin" / "python3")

    def test_a_swap_between_check_and_start_gains_no_rights(self, trap: Trap, run, monkeypatch) -> None:
        """Alice's environment is looked at; by the time it is started it is the trap of the issue."""
        trap.honest()
        give(trap.environment.parent, ALICE)
        decided = find_python.account_for

        def swapped(python: Path, *parts: Path, uid: int | None = None) -> Account | None:
            account = decided(python, *parts, uid=uid)
            shutil.rmtree(trap.bin)
            trap.of_the_issue()
            return account

        monkeypatch.setattr(find_python, "account_for", swapped)
        run(trap.python)

        assert [said["uid"] for said in trap.said()] == [[ALICE] * 3]

    def test_no_swap_during_the_check_gains_foreign_rights(self, trap: Trap) -> None:
        """Alice changes her links all the time; whatever is seen, her own uid is."""
        trap.honest()
        give(trap.environment.parent, ALICE)
        ended = threading.Event()

        def swap() -> None:
            while not ended.is_set():
                for target in (trap.base, Path("/nowhere"), trap.base.resolve()):
                    new = trap.bin / "new"
                    new.symlink_to(target)
                    os.lchown(new, ALICE, ALICE)
                    new.rename(trap.python)

        thread = threading.Thread(target=swap)
        thread.start()
        seen = set()
        try:
            for _ in range(100):
                try:
                    seen.add(account_for(trap.python).uid)
                except (OSError, UntrustedProgram):
                    continue
        finally:
            ended.set()
            thread.join()

        assert seen <= {ALICE}

    def test_a_python_unreadable_to_the_account_is_refused(self, trap: Trap, run) -> None:
        trap.honest()
        trap.environment.parent.chmod(0o700)  # as /root is

        reason = run(trap.python)

        assert f"cannot read {trap.python}: " in reason
        assert "such as /opt/torch, and name its Python as stress.python" in reason
        assert trap.said() == []

    def test_the_worker_comes_from_where_its_account_cannot_look(self, trap: Trap, tmp_path: Path, run) -> None:
        trap.honest()
        worker = tmp_path / "worker.py"
        worker.write_text("import torch")
        worker.chmod(0o600)
        with pytest.raises(PermissionError):
            _as(account_of(None), worker)

        run(trap.python, worker)

        assert len(trap.said()) == 1

    def test_a_refused_python_does_not_keep_others_from_being_used(
        self, public: Path, tmp_path: Path, run, monkeypatch
    ) -> None:
        traps = []
        for name in ("one", "two"):
            (public / name).mkdir()
            traps.append(Trap(public / name))
            traps[-1].honest()
            (traps[-1].bin / "python").symlink_to("python3")
        one, two = traps
        one.packages.chmod(0o777)
        remember(tmp_path, one.trained(0))
        monkeypatch.setattr(find_python, "MADE_FOR_US", two.environment)

        run()

        assert (len(one.said()), len(two.said())) == (0, 1)


def _as(account: Account, path: Path) -> None:
    script = f"open({str(path)!r})"
    python = shared_python()
    pipe = subprocess.PIPE
    process = start(Command([str(python), "-c", script], {}, account), stdin=pipe, stdout=pipe, stderr=pipe)
    _, said = process.communicate()
    if b"PermissionError" in said:
        raise PermissionError(str(path))


@needs_root
class TestTheDoctor:
    def test_the_link_to_roots_programs_is_asked_as_its_maker(self, trap: Trap, tmp_path) -> None:
        trap.of_the_issue()
        give(trap.environment.parent, ALICE)
        remember(tmp_path, trap.trained(ALICE))

        checking.ask("", os.environ, tmp_path)

        (said,) = trap.said()
        assert (said["uid"], said["groups"], said["secret"]) == ([ALICE] * 3, [NOBODY], "")
        assert said["session"]

    @pytest.mark.slow
    def test_the_command_itself_run_by_root(self, trap: Trap, tmp_path: Path) -> None:
        trap.of_the_issue()
        give(trap.environment.parent, ALICE)

        remember(tmp_path, trap.trained(ALICE))
        wslgpud("doctor", "--state", str(tmp_path), home=tmp_path)
        assert trap.said()
        wslgpud("doctor", "--python", str(trap.python), "--state", str(tmp_path), home=tmp_path)

        assert trap.said()
        assert {uid for said in trap.said() for uid in said["uid"]} == {ALICE}

    def test_the_doctor_asks_nothing_that_others_can_write(self, trap: Trap, tmp_path) -> None:
        trap.honest()
        trap.bin.chmod(0o777)

        facts = checking.ask(str(trap.python), os.environ, tmp_path)

        assert str(facts.failure).startswith(
            f"the Python that is named cannot be used: {trap.bin} can be written by everybody"
        )
        assert trap.said() == []


@needs_root
def test_what_only_root_may_run_is_not_run_for_another(tmp_path: Path) -> None:
    """Until its execve(2) a program may keep root's capabilities, after the check whose account it is for."""
    tmp_path.chmod(0o700)
    hidden = tmp_path / "true"
    shutil.copy("/bin/true", hidden)

    status, _, said = run_as.run(Command([str(hidden)], {}, account_of(None)), 60)

    assert (status, "ermission denied" in said) == (126, True)


def test_a_user_who_is_not_root_runs_what_there_is_as_ever(trap: Trap, monkeypatch) -> None:
    trap.honest()
    trap.bin.chmod(0o777)
    monkeypatch.setattr(run_as.os, "geteuid", lambda: 1000)

    assert account_for(trap.python) is None


#: Where the product starts programs, and what can be said of each: a new one must be thought about.
STARTS = {
    "security/run_as.py": "what a user may have made, as that user or without rights; the command of alerts",
    "advise/guard/tree.py": "/bin/sh with a script of ours",
    "advise/guard/runner.py": "the command that the user who starts guard or sweep has named",
    "alerts/channels/apprise_worker.py": "copies of itself",
    "sources/logs.py": "journalctl, found by PATH",
    "host.py": "wslinfo, journalctl and PowerShell, found by PATH",
    "probes/supervisor.py": "our own probes, in /; PowerShell, which is Windows' administrators' to replace",
    "brake/watchdog.py": "our own watchdog, with our own Python",
    "app/__init__.py": "itself, as it was started",
    "app/process.py": "its own doctor, as it was started",
    "service/changes.py": "pip of the environment that is being made, root's for the system's service, in /",
    "cli/guard.py": "the command that the user who starts it has named",
}
_STARTERS = {
    "Popen",
    "run",
    "call",
    "check_call",
    "check_output",
    "getoutput",
    "getstatusoutput",
    "system",
    "popen",
    "posix_spawn",
    "posix_spawnp",
    "fork",
    "forkpty",
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "execl",
    "execle",
    "execlp",
    "spawnv",
    "spawnve",
    "create_subprocess_exec",
    "create_subprocess_shell",
}
_MODULES = {"subprocess", "os", "pty", "asyncio", "multiprocessing"}


def _starts_programs(path: Path) -> bool:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    types = {id(node.value) for node in nodes if isinstance(node, ast.Subscript)}  # Popen[bytes]
    for node in nodes:
        if (
            id(node) not in types
            and isinstance(node, ast.Attribute)
            and node.attr in _STARTERS
            and isinstance(node.value, ast.Name)
            and node.value.id in _MODULES - {"asyncio"}
        ):
            return True
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            names = {alias.name for alias in node.names}
            if node.module == "multiprocessing" or names & _STARTERS:
                return True
        if isinstance(node, ast.Import) and any(alias.name == "multiprocessing" for alias in node.names):
            return True
    return False


def test_programs_are_started_in_known_places_only() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if _starts_programs(path)}

    assert found - STARTS.keys() == set(), "say in STARTS who may have made what is started there"
    assert STARTS.keys() - found == set()


def test_a_picture_ignores_settings_of_the_current_folder(tmp_path: Path) -> None:
    """A matplotlibrc there could have root run TeX on somebody's text."""
    pytest.importorskip("matplotlib")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfigure.facecolor: red\n")
    script = (
        "import os; from wslgpud.series.plots import figure_of; figure_of(1, 1); import matplotlib as m;"
        "print(m.rcParams['text.usetex'], m.rcParams['figure.facecolor'], os.getcwd())"
    )
    told = {"HOME": str(tmp_path), "MPLCONFIGDIR": str(tmp_path), "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=told, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["False", "white", str(tmp_path)]


@needs_root
def test_a_notification_is_shown_by_the_sessions_user_in_full(public: Path, monkeypatch) -> None:
    """With root's group and variables, what that user's desktop can read would be more than theirs."""
    from tests.alerts.test_channels import message  # it imports every channel
    from wslgpud.alerts.channels.programs import DesktopChannel

    shown = public / "shown"
    shown.touch()
    shown.chmod(0o666)
    program = public / "bin" / "notify-send"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n(id -u; id -G; env) >{shown}\n")
    program.chmod(0o755)
    (public / "run" / str(ALICE)).mkdir(parents=True)
    (public / "run" / str(ALICE) / "bus").touch()
    monkeypatch.setattr(run_as, "_PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    DesktopChannel({"WSLGPUD_ALERTS__URLS": "a secret", "PATH": os.environ["PATH"]}, public / "run").send(message())

    uid, groups, *variables = shown.read_text().splitlines()
    assert (uid, groups) == (str(ALICE), str(NOBODY))
    assert not any("secret" in line for line in variables)
