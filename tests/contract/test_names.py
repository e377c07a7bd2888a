"""Names are a contract: people's queries, alerts, bookmarks and configuration files hold on to them.

``names.json`` has every name of the last release with what must not change about it; README.md here says
how a release freezes them, and how to take one away all the same.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import yaml

from tests.grafana.panels import DASHBOARDS
from wslgpud.advise.doctor.checking import CHECKS
from wslgpud.alerts.rules import OTHERS, RULES
from wslgpud.app.catalogue import catalogue
from wslgpud.config import ConfigKey, declared_keys
from wslgpud.metrics import MetricSpec

ROOT = Path(__file__).parent.parent.parent
FILE = Path(__file__).parent / "names.json"
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
Names = dict[str, dict[str, str]]


def names() -> Names:
    """Return every name that users hold on to, by kind, with what must not change about it."""
    document = yaml.safe_load((ROOT / "deploy/prometheus/wslgpud.rules.yml").read_text())
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    return {
        "metric": {spec.exposed_name: _precision(spec) for spec in catalogue()},
        "alert": dict.fromkeys((*(rule.name for rule in RULES), *OTHERS), ""),
        "Prometheus alert": {rule["alert"]: "" for rule in rules if "alert" in rule},
        "recorded series": {rule["record"]: "" for rule in rules if "record" in rule},
        # In bookmarks a variable is as much a name as the uid: /d/wslgpud-gpu?var-gpu=...
        "dashboard": {
            uid: ", ".join(variable["name"] for variable in board["templating"].get("list") or [])
            for uid, board in DASHBOARDS.items()
        },
        "doctor's check": dict.fromkeys((check.id for check in CHECKS), ""),
        "configuration key": {key.path: _meaning(key) for key in declared_keys()},
    }


def _precision(spec: MetricSpec) -> str:
    """Return a metric's kind and labels, and how precisely its history is kept, if at all."""
    history = f", {spec.decimals} decimals" * bool(spec.decimals) + ", not stored" * (not spec.stored)
    return f"{spec.kind}{{{', '.join(spec.labels)}}}{history}"


def _meaning(key: ConfigKey) -> str:
    """Return a key's type, default and limits: a valid file stays valid, what it leaves out stays the same."""
    kind = str(key.type).removeprefix("<class '").removesuffix("'>")
    limits = "" if key.low is None else f" from {key.low}" + ("" if key.high is None else f" to {key.high}")
    return f"{kind} = {key.default!r}{limits}"


def frozen() -> tuple[str | None, Names]:
    """Return the release of which the list is (None: there was none yet), and its names."""
    document = json.loads(FILE.read_text())
    return document.pop("release"), document


def newest_release(changelog: str) -> str | None:
    """Return the version of the first release in a changelog; None before there is one."""
    found = re.search(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE)
    return found and found[1]


def given_up(changelog: str) -> set[str]:
    """Return the names with which the items of the next release's Removed and Changed begin."""
    unreleased = changelog.partition("## [Unreleased]")[2].partition("\n## ")[0]
    sections = re.findall(r"^### (?:Removed|Changed)\n(.*?)(?=^### |\Z)", unreleased, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^- `([^`]+)`", "".join(sections), re.MULTILINE))


def broken(released: Names, now: Names, said: set[str]) -> list[str]:
    """Say what somebody's query, bookmark or configuration would stumble over without having been told."""
    return [
        f"{kind} {name} is gone; users hold on to it"
        if name not in now[kind]
        else f"{kind} {name} was {meaning} and is {now[kind][name]}"
        for kind, known in released.items()
        for name, meaning in known.items()
        if now[kind].get(name) != meaning and name not in said
    ]


def test_no_name_of_the_last_release_is_gone_or_changes_meaning() -> None:
    now, (_, released) = names(), frozen()

    assert broken(released, now, given_up(CHANGELOG)) == [], "see tests/contract/README.md"
    if os.environ.get("WSLGPUD_RENEW"):
        document = {"release": newest_release(CHANGELOG), **now}
        FILE.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def test_a_release_has_frozen_its_names() -> None:
    """Fails between the new heading in CHANGELOG.md and ./tests/renew."""
    release, known = frozen()

    assert release == newest_release(CHANGELOG), "./tests/renew freezes the names of the new release"
    assert known.keys() == names().keys()


def test_a_name_that_goes_and_a_label_that_comes_are_told_of() -> None:
    released = {"metric": {"a_total": "counter{}", "b": "gauge{gpu}", "c": "gauge{}"}, "dashboard": {"x": ""}}
    now = {"metric": {"b": "gauge{gpu, uuid}", "c": "gauge{}", "d": "gauge{}"}, "dashboard": {"x": ""}}

    assert broken(released, now, set()) == [
        "metric a_total is gone; users hold on to it",
        "metric b was gauge{gpu} and is gauge{gpu, uuid}",
    ]
    assert broken(released, now, {"a_total", "b"}) == []


def test_only_what_the_next_release_says_it_takes_away_may_go() -> None:
    changelog = """# Changelog
## [Unreleased]
### Added
- `new_one` beside `a_total`.
### Removed
- `a_total`, which counted twice; `new_one` does not.
### Changed
- `b` has the label `uuid`.
## [0.2.0] - 2027-02-01
### Removed
- `long_ago`
## [0.1.0] - 2026-12-01
"""
    assert given_up(changelog) == {"a_total", "b"}
    assert newest_release(changelog) == "0.2.0"
    assert newest_release("## [Unreleased]\n") is None
