"""Names are a contract: people's queries, alerts, bookmarks and configuration files hold on to them.

``names.json`` has every name of the last release with what it means. What is in it must stay; what is new
joins it by ./tests/renew. To take a name away all the same: a line in CHANGELOG.md under "Removed", then its
line there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import yaml

from tests.grafana.panels import DASHBOARDS
from wslgpud.advise.doctor.diagnosis import CHECKS
from wslgpud.alerts.rules import MEMORY, RULES, UNCLEAN_END, VRAM_STRESS
from wslgpud.catalogue import catalogue
from wslgpud.config import declared_keys

ROOT = Path(__file__).parent.parent.parent
FILE = Path(__file__).parent / "names.json"


def names() -> dict[str, dict[str, str]]:
    """Return every name that users hold on to, by kind, with what must not change about it."""
    document = yaml.safe_load((ROOT / "deploy/prometheus/wslgpud.rules.yml").read_text())
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    return {
        "metric": {spec.sample: f"{spec.kind}{{{', '.join(spec.labels)}}}" for spec in catalogue()},
        "alert": dict.fromkeys((*(rule.name for rule in RULES), MEMORY, UNCLEAN_END, VRAM_STRESS), ""),
        "Prometheus alert": {rule["alert"]: "" for rule in rules if "alert" in rule},
        "recorded series": {rule["record"]: "" for rule in rules if "record" in rule},
        "dashboard": dict.fromkeys(DASHBOARDS, ""),
        "doctor's check": dict.fromkeys((check.id for check in CHECKS), ""),
        "configuration key": {
            key.path: str(key.type).removeprefix("<class '").removesuffix("'>") for key in declared_keys()
        },
    }


def broken(released: dict[str, dict[str, str]], now: dict[str, dict[str, str]]) -> list[str]:
    """Say what somebody's query, bookmark or configuration would stumble over."""
    return [
        f"{kind} {name} is gone; users hold on to it"
        if name not in now[kind]
        else f"{kind} {name} was {meaning} and is {now[kind][name]}"
        for kind, known in released.items()
        for name, meaning in known.items()
        if now[kind].get(name) != meaning
    ]


def test_no_name_of_the_last_release_is_gone_or_means_something_else() -> None:
    released = json.loads(FILE.read_text()) if FILE.exists() else {}
    now = names()
    assert broken(released, now) == [], "see the top of tests/contract/test_names.py"
    if os.environ.get("WSLGPUD_RENEW"):
        FILE.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")


def test_a_name_that_goes_and_a_label_that_comes_are_told_of() -> None:
    released = {"metric": {"a_total": "counter{}", "b": "gauge{gpu}", "c": "gauge{}"}, "dashboard": {"x": ""}}
    now = {"metric": {"b": "gauge{gpu, uuid}", "c": "gauge{}", "d": "gauge{}"}, "dashboard": {"x": ""}}

    assert broken(released, now) == [
        "metric a_total is gone; users hold on to it",
        "metric b was gauge{gpu} and is gauge{gpu, uuid}",
    ]
