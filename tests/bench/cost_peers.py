"""Alternatives to wslgpud for ``bench_cost``: how they are downloaded and started.

They are kept outside the repository, in ``~/.cache/wslgpud-peers``: Debian's packages, unpacked instead of installed
(installed services would start at boot), and a Python environment for packages from PyPI.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import UNPACKED, free_port

FOLDER = Path.home() / ".cache" / "wslgpud-peers"
DEBIAN = (
    "prometheus-node-exporter",
    "prometheus",
    "earlyoom",
    "netdata-core",
    "netdata-plugins-bash",
    "netdata-web",
    "libjson-c5",
    "libmnl0",
    "libnetfilter-acct1",
    "libuv1",
)
PYPI = ("glances[gpu]", "prometheus-client", "nvitop-exporter")


@dataclass(frozen=True)
class Started:
    """A program to run: the command, its URL for scraping (or none), additional environment variables."""

    command: list[str]
    url: str = ""
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def version(self) -> str:
        """Return the version that a program reports."""
        option = "-V" if self.command[0].endswith("/netdata") else "--version"
        environment = {**os.environ, **dict(self.variables)}
        asked = subprocess.run([*self._program, option], env=environment, capture_output=True, text=True, check=False)
        found = re.search(r"\d+\.\d[\d.]*", asked.stdout + asked.stderr)
        return found[0] if found else ""

    @property
    def _program(self) -> list[str]:
        return self.command[:3] if self.command[1] == "-m" else self.command[:1]


def fetch() -> None:
    """Download and unpack the alternatives; takes a minute and 300 MB."""
    packages = FOLDER / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *DEBIAN], cwd=packages, check=True)
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, FOLDER / "debian"], check=True)
    subprocess.run([sys.executable, "-m", "venv", FOLDER / "python"], check=True)
    subprocess.run([FOLDER / "python" / "bin" / "pip", "install", "--quiet", *PYPI], check=True)


def found(name: str) -> str | None:
    """Return a program of a Debian package: unpacked here or by ./tests/run, or installed."""
    places = [FOLDER / "debian" / "usr" / "bin" / name, FOLDER / "debian" / "usr" / "sbin" / name]
    places += UNPACKED.glob(f"*/usr/bin/{name}")
    return next((str(place) for place in places if place.exists()), shutil.which(name))


def python_module(module: str) -> list[str] | None:
    """Return the command that runs a module in the alternatives' Python, if installed."""
    python = FOLDER / "python" / "bin" / "python"
    installed = list((FOLDER / "python").glob(f"lib/python*/site-packages/{module}"))
    return [str(python), "-m", module] if installed else None


def floor(folder: Path) -> Started | None:
    port, here = free_port(), (("PYTHONPATH", str(Path(__file__).parents[2])),)
    command = [sys.executable, "-m", "tests.bench.cost_floor", str(port), str(folder / "floor.db")]
    return Started(command, f"http://127.0.0.1:{port}/metrics", here)


def node_exporter(_: Path) -> Started | None:
    program, port = found("prometheus-node-exporter"), free_port()
    options = [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    return Started([program, *options], f"http://127.0.0.1:{port}/metrics") if program else None


def nvitop_exporter(_: Path) -> Started | None:
    command, port = python_module("nvitop_exporter"), free_port()
    options = ["--bind-address", "127.0.0.1", "--port", str(port), "--interval", "1"]
    return Started([*command, *options], f"http://127.0.0.1:{port}/metrics") if command else None


def earlyoom(_: Path) -> Started | None:
    program = found("earlyoom")
    return Started([program, "--dryrun", "-r", "3600"]) if program else None


def glances(folder: Path) -> Started | None:
    command, port = python_module("glances"), free_port()
    settings = folder / "glances.conf"
    settings.write_text(f"[prometheus]\nhost=127.0.0.1\nport={port}\nprefix=glances\n")
    options = ["-C", str(settings), "-q", "-t", "1", "--export", "prometheus", "--disable-check-update"]
    return Started([*command, *options], f"http://127.0.0.1:{port}/metrics") if command else None


def netdata(folder: Path) -> Started | None:
    program, port, debian = found("netdata"), free_port(), FOLDER / "debian"
    if program is None or not (debian / "usr/lib/netdata").exists():
        return None
    for name in ("lib", "cache", "log", "etc"):
        (folder / name).mkdir()
    (folder / "etc" / ".opt-out-from-anonymous-statistics").touch()
    stock = debian / "usr/lib/netdata"
    settings = folder / "netdata.conf"
    settings.write_text(
        f"[global]\n run as user = root\n"
        f"[directories]\n config = {folder}/etc\n stock config = {stock}/conf.d\n"
        f" plugins = {stock}/plugins.d\n web = {debian}/usr/share/netdata/web\n lib = {folder}/lib\n"
        f" cache = {folder}/cache\n log = {folder}/log\n"
        f"[web]\n bind to = 127.0.0.1:{port}\n[cloud]\n enabled = no\n"
    )
    libraries = (("LD_LIBRARY_PATH", f"{debian}/usr/lib/x86_64-linux-gnu"),)
    url = f"http://127.0.0.1:{port}/api/v1/allmetrics?format=prometheus"
    return Started([program, "-D", "-c", str(settings)], url, libraries)


def prometheus(folder: Path, targets: list[str]) -> Started | None:
    """Return a Prometheus that scrapes ``targets`` once per second."""
    program, port = found("prometheus"), free_port()
    hosts = ", ".join(f"'{url.split('/')[2]}'" for url in targets)
    settings = folder / "prometheus.yml"
    settings.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n  - job_name: all\n"
        f"    static_configs: [{{targets: [{hosts}]}}]\n"
    )
    options = [f"--config.file={settings}", f"--storage.tsdb.path={folder / 'tsdb'}", "--log.level=error"]
    return Started([program, *options, f"--web.listen-address=127.0.0.1:{port}"]) if program else None
