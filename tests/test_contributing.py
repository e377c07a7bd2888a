"""What CONTRIBUTING.md says about adding things is true: made in a copy, its changes arrive everywhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import clean_environment, daemon, eventually

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
#: Evaluates the new rule on two ticks a minute apart.
HANG = """
from tests.alerts.ticks import tick
from wslgpud.alerts.rules import RuleEngine
from wslgpud.alerts.messages import compose
from wslgpud.model import Reading
from wslgpud.sources.cpu import BLOCKED
engine = RuleEngine()
rows = [row for t in (0, 61) for row in engine.observe(tick(t, Reading(BLOCKED, 30)))]
print([(row.rule, row.new.name, str(compose(row).headline)) for row in rows])
"""
METRICS = "from tests.docs.tables import metrics_table; print(metrics_table())"


class Copy:
    """A copy of the repository with every change that the page shows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "copy"
        for name in ("wslgpud", "deploy", "grafana", "tests"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        changes = "\n".join(re.findall(r"```diff\n(.*?)\n```", PAGE, re.DOTALL)) + "\n"
        done = subprocess.run(
            ["git", "apply", "-"],
            cwd=self.folder,
            input=changes,
            text=True,
            # Else git would look for the repository that a temporary folder may lie in.
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder)},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def python(self, *arguments: str, home: Path) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env={**clean_environment(home), "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert not done.stderr, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("contributing"))


@pytest.mark.slow
def test_a_metric_is_exported_kept_and_documented(
    changed: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(changed.folder)  # python -m takes the program from where it is started
    with daemon(tmp_path, "--host-root", "tests/hosts/no-gpu", settings={"WSLGPUD_STORE__COMMIT_SECONDS": "1"}) as one:
        eventually(lambda: one.samples().get("wslgpud_memory_percpu_bytes"), "the metric")
        one.end()
    series = changed.python("-m", "wslgpud", "history", "--json", "--state", str(tmp_path / "state"), home=tmp_path)

    assert [row["value"] for row in json.loads(series) if row["series"] == "memory_percpu_bytes"] != []
    assert "`wslgpud_memory_percpu_bytes`" in changed.python("-c", METRICS, home=tmp_path)


def test_a_check_is_part_of_the_report(changed: Copy, tmp_path: Path) -> None:
    ask = ("-m", "wslgpud", "doctor", "--no-torch", "--all", "--json", "--host-root", "tests/hosts/no-gpu")
    found = {finding["id"]: finding for finding in json.loads(changed.python(*ask, home=tmp_path))}

    assert found["memory.hugepages"]["title"] == "Huge pages"


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Grafana's SDK needs Python 3.11")
def test_a_new_rule_alerts_is_explained_and_reaches_prometheus(changed: Copy, tmp_path: Path) -> None:
    changed.python("-m", "grafana.source", home=tmp_path)  # the runbook is a dashboard, to which alerts link
    changed.python("-m", "deploy.prometheus.generate", home=tmp_path)

    assert changed.python("-c", HANG, home=tmp_path) == (
        "[('programs_hang', 'WARNING', '30 programs wait for a disk')]\n"
    )
    assert "12 without a translation" in changed.python("-m", "tests.words.catalogue", home=tmp_path)
    assert "does not answer" in changed.python("-m", "wslgpud", "alerts", "explain", "programs_hang", home=tmp_path)
    assert "programs_hang" in (changed.folder / "deploy/prometheus/wslgpud.rules.yml").read_text()


def test_a_channel_takes_messages(changed: Copy, tmp_path: Path) -> None:
    file = tmp_path / "messages"
    config = tmp_path / "wslgpud.toml"
    config.write_text(f'[alerts]\nfile = "{file}"\n')
    said = changed.python("-m", "wslgpud", "alerts", "test", "--config", str(config), home=tmp_path)

    assert "file" in said
    assert json.loads(file.read_text())["headline"]
