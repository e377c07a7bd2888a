"""A program eats memory; the rule fires, Alertmanager tells somebody; it ends, and they are told so."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.prometheus import generate
from tests.support.daemons import daemon, eventually
from tests.support.receivers import Webhook, webhook
from tests.support.servers import alertmanager, prometheus

pytestmark = pytest.mark.servers

HOG = "import time\nkept = []\nwhile True:\n    kept.append(bytearray(4 << 20)); time.sleep(0.4)\n"
#: Where all of this is slow, one may be killed before anybody could be told of it: then another.
HOGS = f"import subprocess, sys\nwhile True:\n    subprocess.run([sys.executable, '-c', {HOG!r}])\n"
#: Joined before anything starts: moved in later, it could have a child outside already, which no limit ends.
JOIN = ("/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"')


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of processes that may use 256 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to limit the memory of a cgroup")
    root = Path("/sys/fs/cgroup/memory")
    limit = "memory.limit_in_bytes"
    if not root.is_dir():
        root, limit = Path("/sys/fs/cgroup"), "memory.max"
    folder = root / f"wslgpud-rules-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(256 << 20))
        if (folder / "memory.swappiness").exists():
            (folder / "memory.swappiness").write_text("0")
        else:
            (folder / "memory.swap.max").write_text("0")
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no writable memory controller here ({error.strerror})")
    yield folder
    if folder.exists():
        remove(folder)


def remove(group: Path) -> None:
    eventually(lambda: not (group / "cgroup.procs").read_text(), "an empty cgroup")
    group.rmdir()


def rules(folder: Path) -> Path:
    """Return the shipped rules, looked at each second."""
    document = yaml.safe_load(generate.FILE.read_text())
    for one in document["groups"]:
        one["interval"] = "1s"
    file = folder / "rules.yml"
    file.write_text(yaml.safe_dump(document))
    return file


def told(receiver: Webhook, status: str, name: str, resource: str) -> dict[str, Any] | None:
    """Return the first alert of this name, about this resource, that somebody was told of."""
    for message in list(receiver.got):
        for alert in message["alerts"]:
            labels = alert["labels"]
            if (alert["status"], labels["alertname"], labels.get("resource")) == (status, name, resource):
                return alert
    return None


def test_a_memory_hog_is_told_of_and_its_end_too(tmp_path: Path, group: Path) -> None:
    resource, name = f"cgroup:/{group.name}", "WslgpudMemoryExhaustion"
    managed = tmp_path / "alertmanager"
    managed.mkdir()
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(daemon(tmp_path))
        receiver = stack.enter_context(webhook())
        manager = stack.enter_context(alertmanager(managed, receiver.url))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules(tmp_path))],
            "scrape_configs": [
                {"job_name": "wslgpud", "static_configs": [{"targets": [running.url.removeprefix("http://")]}]}
            ],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.url.removeprefix("http://")]}]}]},
        }
        server = stack.enter_context(prometheus(tmp_path, yaml.safe_dump(config)))
        eventually(lambda: server.query('up{job="wslgpud"} == 1'), "a scrape")
        with subprocess.Popen([*JOIN, str(group), sys.executable, "-c", HOGS], start_new_session=True) as hogs:
            try:
                firing = eventually(lambda: told(receiver, "firing", name, resource), "a message")
            finally:
                os.killpg(hogs.pid, signal.SIGKILL)
        remove(group)
        eventually(lambda: told(receiver, "resolved", name, resource), "the message that it is over")
        runbook, _, rule = firing["annotations"]["runbook_url"].partition("#")
        assert runbook == f"{running.url}/runbook"
        assert f'<section id="{rule}"' in running.get("/runbook")
        watchdog = server.query('ALERTS{alertname="WslgpudWatchdog", alertstate="firing"}')

    assert firing["labels"]["severity"] in ("warning", "critical")
    assert f"{resource} on" in firing["annotations"]["description"]
    assert "B left" in firing["annotations"]["description"]
    assert "<error" not in str(firing)
    assert "/d/wslgpud-overview" in firing["annotations"]["dashboard"]
    assert watchdog
