"""The daemon as somebody runs it: started by hand, scraped, stopped, killed, misconfigured."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from datetime import datetime
from pathlib import Path
from time import time as now

import pytest

from tests.support.daemons import PATIENCE_SECONDS, daemon, eventually, wslgpud
from tests.support.terminals import Terminal
from wslgpud import __version__
from wslgpud.app.daemon import Daemon
from wslgpud.client import SOCKET
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.store import Reader, StoreError

HOSTS = Path(__file__).parent.parent / "hosts"


def test_it_says_where_its_page_and_its_data_are(tmp_path: Path) -> None:
    with daemon(tmp_path) as running:
        assert running.said[0].startswith(f"wslgpud {__version__} watches GPU, RAM and swap")
        assert re.fullmatch(r"page     http://127\.0\.0\.1:\d+/\n", running.said[1])
        assert running.database.exists()
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
        assert "<html" in running.get("/")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (Debian package)")
def test_on_a_terminal_it_says_what_to_type_next(tmp_path: Path) -> None:
    program = [str(Path(sys.executable).with_name("wslgpud")), "run", "--state", str(tmp_path / "state")]
    with tempfile.NamedTemporaryFile() as urls:  # where all come to, unlike tmp_path
        Path(urls.name).chmod(0o644)
        settings = {"WSLGPUD_ALERTS__URLS_FILE": urls.name, "WSLGPUD_SERVER__PORT": "0"}
        with Terminal(program, tmp_path, (200, 40), settings) as terminal:
            lines = terminal.until("says what to do").splitlines()
    with daemon(tmp_path) as running:
        running.process.terminate()
        told_a_file, _ = running.process.communicate(timeout=PATIENCE_SECONDS)

    told = [line for line in lines if line.startswith(("metrics", "page", "data", "next"))]
    assert [line.split()[0] for line in told] == ["page", "metrics", "data", "next"]
    assert told[3].endswith("wslgpud monitor   (in another terminal)")
    assert any(line.startswith("✗") and f"every user can read {urls.name}" in line for line in lines)
    assert lines[-1].endswith("wslgpud doctor says what to do.")
    assert told_a_file == ""


def test_the_figures_it_serves_are_those_of_this_machine(tmp_path: Path) -> None:
    total = int(re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    with daemon(tmp_path) as running:
        success = 'wslgpud_source_success{source="memory"}'
        eventually(lambda: running.samples().get(success) == 1, "a look at the memory")
        samples = eventually(lambda: (s := running.samples()).get("wslgpud_memory_total_bytes") and s, "its figures")

    assert samples["wslgpud_memory_total_bytes"] == total
    assert 0 < samples["wslgpud_memory_available_bytes"] < total
    assert samples['wslgpud_risk_level{resource="ram"}'] in range(5)  # others may take it all meanwhile


def test_the_password_of_a_database_server_is_never_shown(tmp_path: Path) -> None:
    address = "postgresql+psycopg://watcher:sekret@127.0.0.1:1/history"
    settings = {"WSLGPUD_STORE__PATH": address}
    with daemon(tmp_path, "--host-root", str(HOSTS / "bare-linux"), settings=settings) as running:
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
        failing = eventually(lambda: running.samples().get("wslgpud_store_failing"), "a failure to write")
        status = running.status()
        _, complaints = running.end()
    shown = wslgpud("config", "show", "--json", home=tmp_path, settings=settings).stdout

    assert "//127.0.0.1:1/history" in running.said[3]
    assert "sekret" not in running.said[2] + complaints + shown
    assert "\n\t" not in complaints  # one line each
    assert failing == 1
    assert (status["level"], status["recent"]) == ("ok", [])
    assert not list(tmp_path.rglob("postgresql*"))


def test_the_disk_that_the_state_lies_on_is_watched(tmp_path: Path) -> None:
    shared_memory = Path("/dev/shm") / f"wslgpud-{os.getpid()}"
    try:
        with daemon(shared_memory, settings={"HOME": str(tmp_path)}) as running:
            eventually(lambda: any('mountpoint="/dev/shm"' in name for name in running.samples()), "the disk")
    finally:
        shutil.rmtree(shared_memory, ignore_errors=True)


def test_it_stops_at_once_with_everything_written(tmp_path: Path) -> None:
    a_minute = {"WSLGPUD_SAMPLING__INTERVAL_SECONDS": "60", "WSLGPUD_SAMPLING__FASTEST_SECONDS": "60"}
    with daemon(tmp_path, settings={**a_minute, "WSLGPUD_STORE__COMMIT_SECONDS": "300"}) as running:
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
        code, _ = running.end(signal.SIGTERM)
        with closing(sqlite3.connect(running.database)) as database:
            (clean,) = database.execute("select clean from daemon_run").fetchone()

    assert code == 0
    assert len(samples_in(running.database)) == 1
    assert clean == 1
    assert not (running.state / SOCKET).exists()


def test_a_second_signal_amid_the_first_does_not_hang_the_end(tmp_path: Path) -> None:
    stopping = Daemon(Config(), Host(), tmp_path, {})

    def stop_amid_stop() -> None:
        # A handler may run between any two instructions of another: here at each call that it makes.
        sys.setprofile(lambda _frame, event, _: stopping.stop() if event == "call" else None)
        stopping.stop()
        sys.setprofile(None)

    handler = threading.Thread(target=stop_amid_stop, daemon=True)
    handler.start()
    handler.join(PATIENCE_SECONDS)

    assert not handler.is_alive()
    stopping.run()  # it ends at once, without a tick: nothing is open


@pytest.mark.slow
def test_kill_9_loses_no_written_sample_and_is_noticed_later(tmp_path: Path) -> None:
    settings = {"WSLGPUD_STORE__COMMIT_SECONDS": "1", "WSLGPUD_SAMPLING__INTERVAL_SECONDS": "0.1"}
    with daemon(tmp_path, settings=settings) as running:
        written = eventually(
            lambda: len(found := samples_in(running.database)) >= 10 and found, "ten samples, in batches"
        )
        running.end(signal.SIGKILL)
    with daemon(tmp_path, settings=settings) as running:
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
        running.end()
    with closing(sqlite3.connect(running.database)) as database:
        runs = database.execute("select clean from daemon_run order by id").fetchall()

    assert samples_in(running.database)[: len(written)] == written
    assert runs == [(0,), (1,)]


def samples_in(database: Path) -> list[float]:
    """Return the times of the samples in a database, none before the first batch."""
    try:
        reader = Reader(str(database))
    except StoreError:
        return []
    with reader:
        series = reader.series("memory_available_bytes")
        return [time for one in series for time in reader.columns(one, 0.0, now() + 60)[0]]


def test_systemd_hears_of_readiness_life_and_stopping(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(PATIENCE_SECONDS)
        with daemon(tmp_path, settings={"NOTIFY_SOCKET": str(address)}) as running:
            first = manager.recv(4096).decode()
            # A look at the memory that comes too late is no sign of life.
            while not (second := manager.recv(4096).decode()).startswith("WATCHDOG"):
                pass
            code, _ = running.end()
            rest = ""
            while "STOPPING=1" not in rest:
                rest = manager.recv(4096).decode()

    assert (first, code) == ("READY=1", 0)
    # What other tests do to this machine meanwhile may be worth a warning.
    assert re.match(r"WATCHDOG=1\nSTATUS=(ram [\d.]+ GiB left|[a-z]+: .+)", second)


def test_the_systemd_watchdog_allows_for_rare_samples(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    rare = {"WSLGPUD_SAMPLING__INTERVAL_SECONDS": "60", "WATCHDOG_USEC": "60000000"}  # as the unit has it
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(PATIENCE_SECONDS)
        with daemon(tmp_path, settings={"NOTIFY_SOCKET": str(address), **rare}):
            first = manager.recv(4096).decode()

    assert first == "READY=1\nWATCHDOG_USEC=300000000"


@pytest.mark.slow
def test_status_takes_its_own_sample_without_a_daemon(tmp_path: Path) -> None:
    with daemon(tmp_path) as running:
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")

        def asked() -> bool:  # a busy machine may take longer to answer than status waits
            done = wslgpud("status", "--json", "--state", str(running.state), home=tmp_path)
            return json.loads(done.stdout)["seen_by"] == "daemon"

        eventually(asked, "the daemon's own answer")
        running.end()
    alone = wslgpud("status", "--json", "--state", str(running.state), home=tmp_path)
    screen = wslgpud("status", "--state", str(running.state), home=tmp_path)

    assert json.loads(alone.stdout)["seen_by"] == "own look"
    assert json.loads(alone.stdout)["ram"]["total"] > 0
    assert "RAM" in screen.stdout
    assert "no daemon answers here" in screen.stdout


@pytest.mark.slow
def test_status_tells_a_daemon_that_does_not_answer_from_none(tmp_path: Path) -> None:
    with daemon(tmp_path) as running:
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
        running.end(signal.SIGKILL)
    asked = wslgpud("status", "--state", str(running.state), home=tmp_path)

    assert f"the daemon at {running.state / SOCKET} does not answer" in asked.stderr
    assert "no daemon answers here" in asked.stdout
    assert asked.returncode == 3, "nobody would warn"


@pytest.mark.slow
def test_a_recorded_trace_can_be_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "live.jsonl.gz"
    recorded = wslgpud("record", str(trace), "--for", "2.5s", home=tmp_path)
    replayed = wslgpud("replay", "--json", str(trace), home=tmp_path)

    assert re.match(r"\d+ samples in ", recorded.stdout), recorded.stderr
    assert (replayed.returncode, replayed.stderr) == (0, "")


@pytest.mark.slow
def test_ones_own_history_can_be_replayed(tmp_path: Path) -> None:
    settings = {"WSLGPUD_SAMPLING__INTERVAL_SECONDS": "0.1"}
    with daemon(tmp_path, settings=settings) as running:
        eventually(lambda: running.samples().get("wslgpud_ticks_total", 0) >= 30, "thirty ticks")
        running.end()
    kept = len(samples_in(running.database))
    replayed = wslgpud("replay", "--since", "1h", "--state", str(running.state), home=tmp_path)
    nothing = wslgpud(
        "replay", "--since", "2020-01-01", "--until", "2020-01-02", "--state", str(running.state), home=tmp_path
    )

    found = re.match(r"history: (\d+) samples", replayed.stdout)
    assert found, replayed.stderr
    assert int(found[1]) >= kept > 0
    assert "RAM" in replayed.stdout
    assert (nothing.returncode, "holds no samples between" in nothing.stderr) == (2, True)


def test_version_is_the_packages(tmp_path: Path) -> None:
    assert wslgpud("--version", home=tmp_path).stdout == f"wslgpud {__version__}\n"


class TestAFaultIsOneLineAndExitStatusTwo:
    def complaint(self, home: Path, *arguments: str, **settings: str) -> str:
        done = wslgpud(*arguments, home=home, settings=settings)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stdout == ""
        return done.stderr

    def run(self, home: Path, **settings: str) -> str:
        return self.complaint(home, "run", "--state", str(home / "state"), **settings)

    def test_unknown_key(self, tmp_path: Path) -> None:
        assert "did you mean server.port?" in self.run(tmp_path, WSLGPUD_SERVER__PROT="1")

    def test_missing_configuration(self, tmp_path: Path) -> None:
        assert "No such file" in self.complaint(tmp_path, "run", "--config", str(tmp_path / "none.toml"))

    def test_busy_port(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in self.run(
                tmp_path, WSLGPUD_SERVER__PORT=port
            )

    def test_other_address_without_protection(self, tmp_path: Path) -> None:
        assert "can be reached by others" in self.run(tmp_path, WSLGPUD_SERVER__ADDRESS="0.0.0.0")

    def test_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "state").write_text("a file, not a folder")
        assert "choose another with --state" in self.run(tmp_path)

    def test_database_of_a_newer_version(self, tmp_path: Path) -> None:
        (tmp_path / "state").mkdir()
        with daemon(tmp_path) as running:
            eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
            running.end()
        with closing(sqlite3.connect(running.database)) as database, database:
            database.execute("insert into schema_migration values (999, 'future', 0)")
        assert "newer" in self.run(tmp_path)

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "notes.txt").write_text("dear diary" * 1000)
        assert "notes.txt" in self.run(tmp_path, WSLGPUD_STORE__PATH=str(tmp_path / "state" / "notes.txt"))
        assert (tmp_path / "state" / "notes.txt").read_text() == "dear diary" * 1000

    def test_a_second_daemon_in_the_same_folder(self, tmp_path: Path) -> None:
        with daemon(tmp_path):
            assert "another wslgpud is writing" in self.run(tmp_path)

    def test_a_recording_that_is_none(self, tmp_path: Path) -> None:
        assert "is not a machine recorded by" in self.complaint(tmp_path, "status", "--host-root", str(tmp_path))


def first_of(warnings: Path, resource: str) -> dict[str, str] | None:
    """Return the first warning about a resource; others may be short of memory meanwhile."""
    lines = warnings.read_text().splitlines() if warnings.exists() else []
    return next((w for line in lines if line and (w := json.loads(line))["resource"] == resource), None)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to limit the memory of a cgroup")
def test_a_real_memory_hog_is_warned_of_before_it_is_killed(tmp_path: Path) -> None:
    group = Path("/sys/fs/cgroup/memory") / f"wslgpud-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(256 << 20))
        (group / "memory.swappiness").write_text("0")
    except OSError as error:
        pytest.skip(f"no writable cgroup v1 memory controller here ({error.strerror}); the VM tests do this too")
    out = tmp_path / "warnings"
    command = tmp_path / "on-warning"
    command.write_text(f"#!/bin/sh\ncat >> {out}; echo >> {out}\n")
    command.chmod(0o755)
    settings = {"WSLGPUD_ALERTS__COMMAND": str(command)}
    hog = (
        "import sys, time\nsys.stdin.readline()\nkept = []\n"
        "while True:\n    kept.append(bytearray(4 << 20)); time.sleep(0.5)\n"
    )
    try:
        with daemon(tmp_path, settings=settings) as running:
            eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
            with subprocess.Popen([sys.executable, "-c", hog], stdin=subprocess.PIPE, text=True) as eater:
                (group / "cgroup.procs").write_text(str(eater.pid))
                eater.communicate("go\n", timeout=120)
            died = now()
            assert eater.returncode == -signal.SIGKILL
            resource = f"cgroup:/{group.name}"
            first = eventually(lambda: first_of(out, resource), "a warning")
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text(), "an empty cgroup")
        group.rmdir()

    assert first["level"] in ("warning", "critical", "emergency")
    assert datetime.fromisoformat(first["at"]).timestamp() < died - 2
