"""Real servers of Debian's for tests, on loopback."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.daemons import PATIENCE_SECONDS, eventually

UNPACKED = Path(__file__).parent.parent.parent / ".cache" / "debian"


def program(package: str, name: str) -> str:
    """Return the path of a program that ./tests/run has unpacked or the machine has; skip without it."""
    unpacked = UNPACKED / package / "usr" / "bin" / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing; ./tests/run fetches it (Debian package {package})")
    return found


def free_port() -> int:
    """Return a port for a server that is started later, or again.

    Not one of those that the kernel gives away: somebody's connection could have it by then.
    """
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    outside = [*range(10_000, low), *range(high + 1, 65_536)] or [0]
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", secrets.choice(outside))) as server:
            return int(server.getsockname()[1])


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.pid = url, pid

    def ask(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=PATIENCE_SECONDS) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an instant query: a list of {metric, value}."""
        result: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return result

    def targets(self) -> list[dict[str, Any]]:
        targets: list[dict[str, Any]] = self.ask("targets")["activeTargets"]
        return targets


@contextmanager
def prometheus(folder: Path, config: str, *options: str) -> Iterator[Prometheus]:
    """Run Prometheus with ``config`` and its data in ``folder``; ``options`` are further command line options."""
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    command = [
        program("prometheus", "prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        *options,
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    try:
        eventually(ready, "Prometheus' readiness")
        yield Prometheus(url, process.pid)
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


class PostgreSQL(NamedTuple):
    """A running PostgreSQL."""

    #: without the name of a database
    url: str
    #: of the process above all others
    pid: int
    data: Path


@contextmanager
def postgresql(*settings: str, port: int = 0) -> Iterator[PostgreSQL]:
    """Run PostgreSQL with ``settings`` (name=value) beside Debian's; skip without it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    programs = found[-1].parent if found else None
    if programs is None:
        pytest.skip("needs Debian's postgresql")
    pytest.importorskip("psycopg")
    folder = Path(tempfile.mkdtemp(prefix="wslgpud-postgresql-"))
    data, port = folder / "data", port or free_port()
    somebody: list[str] = []
    if os.geteuid() == 0:  # it refuses to run as root
        shutil.chown(folder, "postgres")
        somebody = ["runuser", "-u", "postgres", "--"]

    def run(*command: object) -> None:
        whole = [*somebody, *map(str, command)]
        subprocess.run(whole, check=True, capture_output=True, text=True, cwd=folder)

    ours = ("listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", *settings)
    options = " ".join([f"-p {port}", *(f"-c {setting}" for setting in ours)])
    run(programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
    run(programs / "pg_ctl", "-D", data, "-w", "-t", "300", "-l", folder / "log", "-o", options, "start")
    try:
        pid = int((data / "postmaster.pid").read_text().split()[0])
        yield PostgreSQL(f"postgresql+psycopg://postgres@127.0.0.1:{port}", pid, data)
    finally:
        run(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder)


class Alertmanager:
    """A running Alertmanager, and the notifications sent to its receiver."""

    def __init__(self, url: str) -> None:
        self.url = url

    def alerts(self) -> list[dict[str, Any]]:
        """Return its firing alerts."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=PATIENCE_SECONDS) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found


def _with_templates() -> list[str]:
    """Return what to put before Alertmanager: Debian's looks for its templates in /usr/share alone."""
    if Path("/usr/share/prometheus/alertmanager/default.tmpl").exists():
        return []
    mounts = 'mount -t tmpfs none /usr/share && cp -r "$0/usr/share/prometheus" /usr/share && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("Alertmanager's templates are not installed and a mount namespace cannot be had")
    return [*command, mounts, str(UNPACKED / "prometheus-alertmanager")]


@contextmanager
def alertmanager(folder: Path, receiver: str, port: int = 0) -> Iterator[Alertmanager]:
    """Run Alertmanager with its data in ``folder``; it notifies ``receiver`` of what fires and resolves."""
    config = {
        "route": {"receiver": "test", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "test", "webhook_configs": [{"url": receiver, "send_resolved": True}]}],
    }
    (folder / "alertmanager.yml").write_text(json.dumps(config))
    url = f"http://127.0.0.1:{port or free_port()}"
    command = [
        *_with_templates(),
        program("prometheus-alertmanager", "prometheus-alertmanager"),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
    with (folder / "alertmanager.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def ready() -> bool:
        assert process.poll() is None, (folder / "alertmanager.log").read_text()
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    try:
        eventually(ready, "Alertmanager's readiness")
        yield Alertmanager(url)
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
