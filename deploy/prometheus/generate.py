"""Rules for Prometheus, generated from the daemon's own by ``python -m deploy.prometheus.generate``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from deploy.prometheus.expressions import WATCHES, Watch
from deploy.prometheus.own_health import ALERTS, RECORDINGS
from wslgpud.alerts.channels.alertmanager import alert_name
from wslgpud.alerts.messages import RULES as TEXTS
from wslgpud.alerts.rules import BRAKE, MEMORY, RULES, UNCLEAN_END, VRAM_STRESS, Rule, runbook
from wslgpud.model import Level
from wslgpud.risk.forecast_messages import ADVICE
from wslgpud.serve.routes import RUNBOOK_PATH
from wslgpud.words import BLANK, without_unknown

ROOT = Path(__file__).parent.parent.parent
FILE = Path(__file__).parent / "wslgpud.rules.yml"
GRAFANA = "http://localhost:3000"
#: the daemon that was scraped serves the runbook of its own version, without the internet
DAEMON = "http://{{ $labels.instance }}"
HEADER = """\
# Generated from wslgpud's own rules by: python -m deploy.prometheus.generate [--grafana URL] [--daemon URL]
# Do not edit; warning and critical share a name, and alertmanager.yml lets the one silence the other.
"""

#: levels of alerts that other engines than the rules' decide
LEVELS = {
    MEMORY: (Level.WARNING, Level.CRITICAL),
    VRAM_STRESS: (Level.WARNING, Level.CRITICAL),
    UNCLEAN_END: (Level.INFO, Level.WARNING),
    BRAKE: (Level.CRITICAL,),
}
#: dashboard and panel that show a rule best; the others are on the overview's list of incidents
PANELS = {
    MEMORY: ("wslgpud-overview", "Level"),
    VRAM_STRESS: ("wslgpud-stress", "Last run"),
    BRAKE: ("wslgpud-overview", "Paused jobs"),
    "swap_thrash": ("wslgpud-overview", "Pressure"),
    "gpu_throttled": ("wslgpud-gpu", "Throttled"),
    "gpu_lost": ("wslgpud-gpu", "State"),
    "gpu_driver_gone": ("wslgpud-daemon", "Sources"),
    "blind": ("wslgpud-daemon", "Sources"),
    "source_stale": ("wslgpud-daemon", "Sources"),
    "store_failing": ("wslgpud-daemon", "Database"),
    "windows_disk_full": ("wslgpud-overview", "Disks"),
    "windows_memory_low": ("wslgpud-overview", "Windows memory left"),
    "vram_spill": ("wslgpud-overview", "VRAM as Windows sees it"),
}
RUNBOOK = "wslgpud-runbook"
ELSEWHERE = ("wslgpud-overview", "Open incidents")


class Links:
    """Finds dashboards by title of panel in the committed JSON, and pages of runbooks by rule."""

    def __init__(self, grafana: str, daemon: str) -> None:
        """Read the dashboards."""
        self._grafana, self._daemon = grafana.rstrip("/"), daemon.rstrip("/")
        self._served = runbook()
        self._panels: dict[tuple[str, str], int] = {}
        for file in sorted((ROOT / "grafana" / "dashboards").glob("*.json")):
            document = json.loads(file.read_text())
            rows = (panel.get("panels", []) for panel in document["panels"])
            for panel in [*document["panels"], *(inner for row in rows for inner in row)]:
                self._panels[document["uid"], panel.get("title", "")] = panel["id"]

    def to(self, uid: str, title: str) -> str:
        """Return the address of one panel, for the machine that the alert is about.

        Raises:
            KeyError: no dashboard has it.
        """
        number = self._panels[uid, title]
        where = "?var-job={{ $labels.job | urlquery }}&var-instance={{ $labels.instance | urlquery }}"
        return f"{self._grafana}/d/{uid}{where}&viewPanel={number}"

    def annotations(self, rule: str, panel: tuple[str, str], summary: str, description: str) -> dict[str, str]:
        """Return the annotations of an alert."""
        return {
            "summary": summary,
            "description": description,
            "dashboard": self.to(*panel),
            "runbook_url": self._runbook(rule),
        }

    def _runbook(self, rule: str) -> str:
        # Faults of the daemon itself are not looked up there: it may be gone.
        if rule in self._served:
            return f"{self._daemon}{RUNBOOK_PATH}#{rule}"
        return f"{self._grafana}/d/{RUNBOOK}?viewPanel={self._panels[RUNBOOK, rule]}"


def duration(seconds: float) -> str:
    """Write a duration as Prometheus reads it."""
    return f"{seconds:g}s" if seconds % 60 or not seconds else f"{seconds / 60:g}m"


def _asked(metric: str, shown: str, more: str = "") -> str:
    """Return template text that appears only where ``metric`` is known for the labels of the alert."""
    query = f"{metric}{{job=%q, instance=%q, resource=%q{more}}}"
    labels = "$labels.job $labels.instance $labels.resource"
    return f"{{{{ with printf {json.dumps(query)} {labels} | query }}}}{shown}{{{{ end }}}}"


def _memory_description() -> str:
    left = _asked("wslgpud_headroom_bytes", "{{ . | first | value | humanize1024 }}B left")
    when = _asked(
        "wslgpud_time_to_exhaustion_seconds",
        ", gone in about {{ . | first | value | humanizeDuration }}",
        ', estimate="middle"',
    )
    who = _asked("wslgpud_risk_culprit_info", ", growing: {{ . | first | label `who` }}")
    kinds = (
        f"{{{{ if match `^gpu` $labels.resource }}}}{ADVICE['gpu']}"
        f"{{{{ else if match `^cgroup:` $labels.resource }}}}{ADVICE['cgroup']}"
        f"{{{{ else }}}}{ADVICE['ram']}{{{{ end }}}}"
    )
    return f"{{{{ $labels.resource }}}} on {{{{ $labels.instance }}}}: {left}{when}{who}. {kinds}"


def _alerts_of(name: str, rule: Rule | None, links: Links) -> Iterator[dict[str, Any]]:
    """Yield one alert for each level at which the daemon itself would warn."""
    text = {part: BLANK.sub("ID", without_unknown(said, ())) for part, said in TEXTS[name].items()}
    watch = WATCHES.get(name)
    summary = f"{text['title'][0].upper()}{text['title'][1:]}: {{{{ $labels.resource }}}} on {{{{ $labels.instance }}}}"
    if name == MEMORY:
        description = _memory_description()
    elif watch is not None:
        description = f"{watch.shown} {text['advice']}"
    else:
        description = f"The daemon has seen it; `wslgpud incidents` there tells when and who. {text['advice']}"
    annotations = links.annotations(name, PANELS.get(name, ELSEWHERE), summary, description)
    for level, condition in _conditions(name, rule, watch):
        yield {"alert": alert_name(name), **condition, "labels": {"severity": level.label}, "annotations": annotations}


def _conditions(name: str, rule: Rule | None, watch: Watch | None) -> Iterator[tuple[Level, dict[str, Any]]]:
    """Yield each level with expr, for and keep_firing_for."""
    if rule is None or watch is None:
        verdict = f'wslgpud_alert_level{{rule="{name}"}}' if watch is None else watch.expression
        for level in LEVELS[name] if rule is None else [threshold.level for threshold in rule.thresholds]:
            yield level, {"expr": f"{verdict} >= {int(level)}"}
        return
    for threshold in rule.thresholds:
        seconds = threshold.value if watch.silence else threshold.for_seconds
        expression = watch.expression
        if not watch.silence:
            expression += f" {'<=' if rule.falling else '>='} {threshold.value:.10g}"
        condition: dict[str, Any] = {"expr": expression, "for": duration(seconds)}
        if rule.clear_seconds:
            condition["keep_firing_for"] = duration(rule.clear_seconds)
        yield threshold.level, condition


def document(grafana: str = GRAFANA, daemon: str = DAEMON) -> dict[str, Any]:
    """Return all rules as Prometheus reads them.

    Args:
        grafana: address of Grafana, for the links in alerts.
        daemon: address at which they reach the daemon that an alert is about.
    """
    links = Links(grafana, daemon)
    known = {rule.name: rule for rule in RULES}
    names = [MEMORY, *known, *(name for name in LEVELS if name != MEMORY)]
    own = [
        {**alert.condition, "annotations": links.annotations(*alert.place, alert.summary, alert.description)}
        for alert in ALERTS
    ]
    return {
        "groups": [
            {"name": "wslgpud-recordings", "rules": [{"record": n, "expr": e} for n, e in RECORDINGS.items()]},
            {
                "name": "wslgpud",
                "interval": "15s",
                "rules": [alert for n in names for alert in _alerts_of(n, known.get(n), links)],
            },
            {"name": "wslgpud-health", "rules": own},
        ]
    }


class _Plain(yaml.SafeDumper):
    """Repeats equal values instead of writing anchors: people read and copy single rules."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def text(grafana: str = GRAFANA, daemon: str = DAEMON) -> str:
    """Return the file."""
    return HEADER + yaml.dump(document(grafana, daemon), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grafana", default=GRAFANA, metavar="URL", help="address of Grafana")
    parser.add_argument(
        "--daemon",
        default=DAEMON,
        metavar="URL",
        help="address of the daemon's page, which serves the runbook (%(default)s: as Prometheus does)",
    )
    asked = parser.parse_args()
    FILE.write_text(text(asked.grafana, asked.daemon))


if __name__ == "__main__":
    main()
