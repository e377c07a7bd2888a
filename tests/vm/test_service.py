"""The service under a real systemd: installed, watched, upgraded, removed; and when memory or power goes.

One machine, from the first installation to the last trace, in the order of the tests: under emulation each
start of the daemon takes ten seconds and more, so each of the few there are serves several tests.
"""

from __future__ import annotations

import json
import re
import signal
from datetime import datetime
from pathlib import Path

import pytest

from .conftest import REPOSITORY, BootMachine, slow
from .service import (
    ANOTHER_RELEASE,
    AS_WHOM,
    CONFIGURATION,
    CONFIGURATION_FILE,
    DROP_INS,
    LOCK,
    LOOK_AROUND,
    MAY,
    METRIC,
    NEWER_SOURCE,
    ON_WARNING,
    OWN_RELEASE,
    PATIENCE_SECONDS,
    PATIENT,
    PYTHON,
    READY,
    SOMEBODY,
    SOURCE,
    TAKE_ALL_MEMORY,
    UNITS,
    WARNINGS,
    WORKER,
    Service,
    eventually,
    fake_nvml,
    install,
)

#: asks for a stress test as the daemon does, and prints the answer
ASK = """
import socket
with socket.socket(socket.AF_UNIX) as unit:
    unit.connect("/run/wslgpud-stress.sock")
    unit.sendall(b'{"gpu": 0, "mode": "nightly"}\\n')
    print(unit.makefile().read())
"""
ASKING, ANSWER = "/usr/local/lib/ask.py", "/var/lib/wslgpud/answer.json"

pytestmark = [
    pytest.mark.vm,
    pytest.mark.xdist_group("vm-service"),
    pytest.mark.timeout(1800),
    # test_story.py, which always runs, has the installation, the kill, the power cut and the removal.
    slow,
]


@pytest.fixture(scope="module")
def installed(module_machine: BootMachine) -> Service:
    machine = module_machine(program=True, memory_mib=384, swap_mib=128)
    machine.copy_in(REPOSITORY / "deploy", f"{SOURCE}/deploy")
    machine.run("useradd", "--create-home", SOMEBODY)
    machine.run("sh", "-euc", OWN_RELEASE)
    machine.run("rm", "/opt/wslgpud")  # all is there but what the test is about
    for kind in ("system", "user"):
        machine.write(f"/usr/local/lib/systemd/{kind}/wslgpud.service.d/00-patient.conf", PATIENT)
    machine.write("/usr/local/bin/on-warning", ON_WARNING, mode=0o755)
    machine.write(CONFIGURATION_FILE, CONFIGURATION)
    machine.run("sync")  # what is not the daemon's must survive the power cut to come
    return Service(machine)


@pytest.fixture
def service(installed: Service) -> Service:
    """The service, running; without effect where the last test left it so: a start takes its time."""
    installed.ctl("start", "wslgpud")
    return installed


def test_a_dry_run_shows_what_it_would_do_and_does_nothing(installed: Service) -> None:
    said = install(installed, "--dry-run").stdout

    assert f"write {UNITS}/wslgpud.service" in said
    assert "systemctl restart wslgpud.service" in said
    for made in (f"{UNITS}/wslgpud.service", "/opt/wslgpud", "/usr/local/bin/wslgpud"):
        assert installed.machine.run("test", "-e", made, check=False).returncode == 1
    assert installed.machine.run("id", "wslgpud", check=False).returncode == 1


def test_install_returns_once_the_page_can_show_a_sample(installed: Service) -> None:
    said = install(installed).stdout

    assert re.search(r"page +http://127\.0\.0\.1:9655/ ", said)
    assert "WSL" not in said
    assert installed.machine.python(READY).stdout == "200\n"
    assert installed.ctl("is-active", "wslgpud.service", "wslgpud-stress.socket") == "active\nactive"
    assert installed.ctl("is-enabled", "wslgpud.service", "wslgpud-stress.socket") == "enabled\nenabled"
    assert installed.machine.read(CONFIGURATION_FILE).decode() == CONFIGURATION


def test_a_second_install_changes_nothing(service: Service) -> None:
    pid = service.property("MainPID")

    assert install(service, "--dry-run").stdout == "would do:\n  nothing: everything is up to date\n"
    assert service.property("MainPID") == pid


def test_systemd_finds_nothing_wrong_and_little_exposed(service: Service) -> None:
    units = ("wslgpud.service", "wslgpud-stress.socket", "wslgpud-stress@.service")
    verified = service.machine.run("systemd-analyze", "verify", "--recursive-errors=yes", *units)

    assert verified.stdout + verified.stderr == ""
    service.machine.run("systemd-analyze", "security", "--threshold=20", "wslgpud.service")
    service.machine.run("systemd-analyze", "security", "--threshold=40", "wslgpud-stress@1.service")


def test_the_sandbox_allows_only_what_monitoring_needs(service: Service) -> None:
    service.machine.write("/usr/local/lib/look_around.py", LOOK_AROUND)
    service.machine.run("cp", f"{UNITS}/wslgpud.service", "/run/systemd/system/sandbox.service")
    once = "[Service]\nType=oneshot\nRestart=no\nWatchdogSec=0\nExecStart=\n"
    service.machine.write(
        "/run/systemd/system/sandbox.service.d/once.conf",
        f"{once}ExecStart=/usr/bin/python3 /usr/local/lib/look_around.py\n",
    )
    service.ctl("daemon-reload")
    service.ctl("start", "sandbox")
    (said,) = (line["MESSAGE"] for line in service.journal("-u", "sandbox") if line["MESSAGE"].startswith("{"))

    assert {deed for deed, outcome in json.loads(said).items() if outcome == "may"} == MAY


def test_it_sees_no_less_than_root_does(service: Service) -> None:
    """A sandbox that blinded a source would show as its failure, or as a disk that looks read-only."""

    def metric(name: str) -> list[str]:
        return service.machine.python(METRIC, name).stdout.split()

    # In a machine that stands still for a while a source may be late once.
    eventually(lambda: set(metric("wslgpud_source_success{")) == {"1.0"}, "all sources at once")
    assert metric('wslgpud_source_available{source="kernel_log"}') == ["1.0"]
    assert metric("wslgpud_filesystem_readonly{") == ["0.0"]


def test_systemctl_status_says_how_things_stand(service: Service) -> None:
    said = eventually(lambda: service.property("StatusText"), "a status")

    assert re.match(r"ok: Memory is fine: RAM [\d.]+ of [\d.]+ MiB left", said)


def test_status_finds_the_service_for_whoever_asks(service: Service) -> None:
    as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]

    def seen_by() -> str:
        said = service.machine.run(*as_nobody, "/usr/local/bin/wslgpud", "status", "--json", check=False).stdout
        return str(json.loads(said)["seen_by"])

    # A busy emulated machine may take longer to answer than status waits.
    eventually(lambda: seen_by() == "daemon", "an answer of the daemon")


def test_only_the_user_who_installed_it_may_read_the_history(service: Service) -> None:
    as_somebody = ["setpriv", "--reuid", SOMEBODY, "--regid", SOMEBODY, "--init-groups"]
    database = service.machine.run("stat", "-c", "%U %G %a", "/var/lib/wslgpud/wslgpud.db").stdout

    listed = service.machine.run(*as_somebody, "wslgpud", "incidents", "--json").stdout
    assert isinstance(json.loads(listed), list)
    assert database == "wslgpud wslgpud 640\n"


def test_the_daemon_is_the_last_to_be_killed_for_memory(service: Service) -> None:
    pid = service.property("MainPID")

    assert service.machine.read(f"/proc/{pid}/oom_score_adj") == b"-500\n"
    assert service.machine.python(METRIC, "wslgpud_oom_score_adjust ").stdout == "-500.0\n"


def test_what_is_killed_comes_back_and_what_hangs_is_replaced(service: Service) -> None:
    # Counts from the next start on, even after a reload.
    service.machine.write(f"{DROP_INS}/impatient.conf", "[Service]\nWatchdogSec=15\n")
    service.ctl("daemon-reload")
    first = service.property("MainPID")

    service.ctl("kill", "--signal=KILL", "wslgpud")
    second = service.replaced(first)
    service.ctl("kill", "--signal=STOP", "wslgpud")
    service.replaced(second)

    said = [line["MESSAGE"] for line in service.journal("-u", "wslgpud")]
    assert any("Watchdog timeout" in line for line in said)
    assert {clean for (clean,) in service.query("select clean from daemon_run")} == {0}
    service.without_drop_ins()


def test_a_stress_run_has_its_own_unit_and_yields_to_a_training(service: Service, tmp_path: Path) -> None:
    library = "/usr/local/lib/nvml.so.1"
    service.machine.copy_in(fake_nvml(tmp_path), library)
    service.machine.write(f"{library}.settings", "utilization 0\n")
    service.machine.write(PYTHON, WORKER, mode=0o755)
    service.machine.run("chown", "-R", f"{SOMEBODY}:", f"/home/{SOMEBODY}/bin")
    service.machine.run("chmod", "700", f"/home/{SOMEBODY}")
    service.machine.write(
        CONFIGURATION_FILE,
        f'{CONFIGURATION}[sampling]\nnvml_library = "{library}"\n[stress]\npython = "{PYTHON}"\nsettle_seconds = 10\n',
    )

    as_the_service = ["setpriv", "--reuid=wslgpud", "--regid=wslgpud", "--clear-groups"]
    service.machine.write(ASKING, ASK)
    service.machine.run(*as_the_service, "sh", "-c", f"python3 {ASKING} >{ANSWER} 2>&1 </dev/null &")

    def there(path: str) -> str:
        return service.machine.run(*as_the_service, "cat", path, check=False).stdout

    def what_it_said() -> str:
        return service.machine.run("journalctl", "-b", "-u", "wslgpud-stress@*", check=False).stdout

    assert eventually(lambda: there(AS_WHOM), "a run", what_it_said) == f"{SOMEBODY} 800 0\n"
    train = f"flock --shared {LOCK} echo trains"
    training = service.machine.run("runuser", "-u", SOMEBODY, "--", *train.split())
    answer = json.loads(eventually(lambda: there(ANSWER), "an answer", what_it_said))

    assert training.stdout == "trains\n"
    assert answer.get("fault") is None
    assert (answer["verdict"], answer["reason"]["template"]) == ("left", "a program is waiting for the GPU's lock file")
    service.machine.write(CONFIGURATION_FILE, CONFIGURATION)


def test_a_stop_commits_everything_and_ends_a_stress_run(service: Service) -> None:
    endless = "[Service]\nExecStart=\nExecStart=/bin/sleep infinity\nStandardInput=null\n"
    service.machine.write("/run/systemd/system/wslgpud-stress@.service.d/endless.conf", endless)
    service.ctl("daemon-reload")
    service.ctl("start", "wslgpud-stress@1")
    shown = float(service.machine.python(METRIC, "wslgpud_last_tick_timestamp_seconds ").stdout)
    service.ctl("stop", "wslgpud")
    (newest,) = service.query("select clean, stopped_ms from daemon_run order by id desc limit 1")
    stored = service.machine.run("wslgpud", "history", "memory_available_bytes", "--since", "1h", "--json").stdout
    last_tick = json.loads(stored)["series"][0]["points"][-1][0]

    assert service.property("Result") == "success"  # else systemd had to kill it
    assert newest[0] == 1
    assert last_tick > shown - 0.01  # the batch that was open then
    stress = service.ctl("is-active", "wslgpud-stress.socket", "wslgpud-stress@1", check=False)
    assert stress == "inactive\ninactive"


def test_a_configuration_error_is_logged_once_and_fails_the_unit(installed: Service) -> None:
    installed.machine.write(CONFIGURATION_FILE, "[server]\nprot = 1\n")
    installed.ctl("restart", "wslgpud", check=False)

    line = f"wslgpud: {CONFIGURATION_FILE}: unknown key server.prot; did you mean server.port?"
    errors = [entry["MESSAGE"] for entry in installed.journal("-u", "wslgpud", "-p", "3..3")]
    assert errors.count(line) == 1
    assert installed.property("ActiveState") == "failed"
    assert installed.property("ExecMainStatus") == "2"
    assert installed.property("NRestarts") == "0"

    installed.machine.write(CONFIGURATION_FILE, CONFIGURATION)
    # To be there after the power cut to come; only this, for what the daemon writes must survive by itself.
    installed.machine.run("sync", CONFIGURATION_FILE)
    installed.ctl("reset-failed", "wslgpud")


def test_a_crash_loop_ends(installed: Service) -> None:
    installed.machine.write(f"{DROP_INS}/crash.conf", "[Service]\nExecStart=\nExecStart=/bin/false\nRestartSec=0\n")
    installed.ctl("daemon-reload")
    installed.ctl("start", "wslgpud", check=False)

    eventually(lambda: installed.property("ActiveState") == "failed", "an end")
    assert int(installed.property("NRestarts")) < 20
    installed.without_drop_ins()
    installed.ctl("reset-failed", "wslgpud")


def test_an_upgrade_keeps_configuration_and_data(installed: Service) -> None:
    runs = installed.query("select id from daemon_run")
    new = installed.machine.run("sh", "-euc", ANOTHER_RELEASE).stdout.strip()
    install(installed, source=NEWER_SOURCE)

    assert installed.machine.run("readlink", "/opt/wslgpud").stdout.strip() == new
    assert installed.machine.run("ls", "/opt/wslgpud.releases").stdout == new.rpartition("/")[2] + "\n"
    running = json.loads(installed.machine.run("wslgpud", "status", "--json").stdout)
    assert running["version"] == "9.9.9"
    assert installed.machine.read(CONFIGURATION_FILE).decode() == CONFIGURATION
    assert installed.query("select id from daemon_run")[: len(runs)] == runs
    assert installed.query("select clean from daemon_run order by id")[-2:] == [[1], [0]]


def test_it_warns_before_the_kernel_kills_a_memory_hog(service: Service) -> None:
    pid = service.property("MainPID")
    hog = service.machine.python(TAKE_ALL_MEMORY, WARNINGS, check=False, timeout_seconds=600)
    kill, *_ = service.journal("-k", "--grep", r"^Out of memory: Killed process \d+ \(python3\)")
    warning, *_ = service.journal("-u", "wslgpud", "-p", "warning", "--grep", "^(warning|critical|emergency): ")
    handed_over = json.loads(service.machine.read(WARNINGS).splitlines()[0])

    assert hog.returncode == -signal.SIGKILL
    assert int(warning["__MONOTONIC_TIMESTAMP"]) < int(kill["__MONOTONIC_TIMESTAMP"])
    assert warning["PRIORITY"] == {"warning": "4", "critical": "3", "emergency": "2"}[handed_over["level"]]
    assert handed_over["resource"] == "ram"
    # The service's capabilities are for the service, not for a program of the user's.
    assert service.machine.read(f"{WARNINGS}.capabilities") == b"CapEff:\t0000000000000000\n"
    assert datetime.fromisoformat(handed_over["at"]).timestamp() < int(kill["__REALTIME_TIMESTAMP"]) / 1e6
    assert service.property("MainPID") == pid
    assert service.machine.python(READY).stdout == "200\n"


def test_a_power_cut_loses_no_warning_and_is_noticed_at_start(service: Service) -> None:
    transitions = service.query("select id, message from transition order by id")
    before = float(service.machine.python("import time; print(time.time())").stdout)
    boot_id = service.boot_id()

    service.lose_power()

    assert service.boot_id() != boot_id
    assert service.query("pragma integrity_check") == [["ok"]]
    assert service.query("select id, message from transition order by id")[: len(transitions)] == transitions
    clean, stopped_ms = service.last_run_of(boot_id)
    assert not clean
    assert stopped_ms / 1000 > before - 120  # what was not synced lives as long in the kernel: dirty_expire


def test_uninstall_keeps_data_and_configuration_unless_told(service: Service) -> None:
    left = ("/opt/wslgpud", "/opt/wslgpud.releases", "/usr/local/bin/wslgpud", f"{UNITS}/wslgpud.service", DROP_INS)

    def there(*paths: str) -> set[str]:
        return {p for p in paths if service.machine.run("test", "-e", p, check=False).returncode == 0}

    kept = service.machine.run(f"{SOURCE}/deploy/uninstall").stdout
    assert there(*left) == set()
    assert len(there(CONFIGURATION_FILE, "/var/lib/wslgpud/wslgpud.db")) == 2
    assert "kept: /var/lib/wslgpud" in kept
    assert service.ctl("list-units", "--all", "--no-legend", "wslgpud*") == ""

    service.machine.run(f"{SOURCE}/deploy/uninstall", "--purge")
    assert there("/etc/wslgpud", "/var/lib/wslgpud") == set()
    for account in ("wslgpud", "wslgpud-stress"):
        assert service.machine.run("id", account, check=False).returncode == 1


def test_a_user_without_root_gets_a_service_that_outlives_logout(installed: Service) -> None:
    machine = installed.machine
    home, uid = f"/home/{SOMEBODY}", machine.run("id", "-u", SOMEBODY).stdout.strip()
    # What a login sets up and lingering keeps.
    machine.run("loginctl", "enable-linger", SOMEBODY)
    machine.run("systemctl", "start", f"user@{uid}")

    def as_somebody(*command: str) -> str:
        session = ["env", f"HOME={home}", f"XDG_RUNTIME_DIR=/run/user/{uid}"]
        return machine.run(
            "runuser", "-u", SOMEBODY, "--", *session, *command, timeout_seconds=2 * PATIENCE_SECONDS
        ).stdout

    def show(name: str) -> str:
        return as_somebody("systemctl", "--user", "show", "-P", name, "wslgpud").strip()

    said = as_somebody(f"{SOURCE}/deploy/install", "--user")

    assert re.search(r"page +http://127\.0\.0\.1:9655/ ", said)
    assert "will end when you log out" not in said
    assert machine.python(READY).stdout == "200\n"
    assert [show(name) for name in ("ActiveState", "UnitFileState")] == ["active", "enabled"]
    assert eventually(lambda: show("StatusText"), "a status").startswith("ram ")
    assert machine.run("stat", "-c", "%U", f"/proc/{show('MainPID')}").stdout == f"{SOMEBODY}\n"

    as_somebody(f"{SOURCE}/deploy/uninstall", "--user")
    assert show("LoadState") == "not-found"
    assert machine.run("test", "-s", f"{home}/.local/state/wslgpud/wslgpud.db").returncode == 0
