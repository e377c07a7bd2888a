"""A real Prometheus scrapes the real daemon, and its answers are the machine's figures."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.daemons import daemon, eventually
from tests.support.servers import program, prometheus

pytestmark = pytest.mark.servers

CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: wslgpud
    static_configs: [{{targets: ['{target}']}}]
"""


def test_prometheus_scrapes_the_daemon_and_answers_queries(tmp_path: Path) -> None:
    total = int(re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    with (
        daemon(tmp_path) as running,
        prometheus(tmp_path, CONFIG.format(target=running.url.removeprefix("http://"))) as server,
    ):
        eventually(lambda: server.query("rate(wslgpud_cpu_seconds_total[30s])"), "a rate over two scrapes")
        (up,) = server.query("up")
        (memory,) = server.query("wslgpud_memory_total_bytes")
        (risk,) = server.query('wslgpud_risk_level{resource="ram"}')
        (target,) = server.targets()
        metadata = server.ask("metadata")

    assert up["value"][1] == "1"
    assert int(memory["value"][1]) == total
    assert risk["metric"]["resource"] == "ram"
    assert target["lastError"] == ""
    assert metadata["wslgpud_memory_total_bytes"][0]["type"] == "gauge"


def test_promtool_has_nothing_to_say_about_the_names(tmp_path: Path) -> None:
    promtool = program("prometheus", "promtool")
    with daemon(tmp_path) as running:
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
        text = running.get("/metrics")
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
