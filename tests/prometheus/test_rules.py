"""The rules for Prometheus: made of the daemon's own, each tried on what must make it fire and what not."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from deploy.prometheus import generate
from deploy.prometheus.expressions import WATCHES
from tests.grafana.panels import DASHBOARDS, panels
from tests.prometheus.cases import CASES, MEASURED, TICK, Case
from tests.support.servers import program
from wslgpud.alerts.rules import RULES, rule_named, runbook
from wslgpud.app.catalogue import catalogue
from wslgpud.words import BLANK, without_unknown

FOLDER = Path(generate.__file__).parent
DOCUMENT = yaml.safe_load(generate.FILE.read_text())
ALERTS = [rule for group in DOCUMENT["groups"] for rule in group["rules"] if "alert" in rule]
RECORDINGS = {r["record"]: r["expr"] for g in DOCUMENT["groups"] for r in g["rules"] if "record" in r}

pytestmark = pytest.mark.servers


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [program("prometheus", "promtool"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_file_is_what_the_daemons_rules_make() -> None:
    """After a change: ./tests/renew."""
    if os.environ.get("WSLGPUD_RENEW"):
        generate.FILE.write_text(generate.text())

    assert generate.FILE.read_text() == generate.text()


def test_promtool_has_nothing_to_say() -> None:
    for command in (("check", "rules", "--lint-fatal", generate.FILE.name), ("check", "config", "scrape.yml")):
        done = promtool(*command, folder=FOLDER)
        assert done.returncode == 0, done.stdout + done.stderr


def test_alertmanager_takes_the_example() -> None:
    amtool = program("prometheus-alertmanager", "amtool")
    done = subprocess.run(
        [amtool, "check-config", FOLDER / "alertmanager.yml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_the_rules_are_exactly_those_of_the_daemon() -> None:
    names = {generate.alert_name(name) for name in (*(r.name for r in RULES), *generate.LEVELS)}
    own = {case.condition["alert"] for case in generate.ALERTS}

    assert {alert["alert"] for alert in ALERTS} == names | own
    assert set(WATCHES) - set(generate.LEVELS) == set(MEASURED)
    assert max(Counter((a["alert"], a["labels"]["severity"]) for a in ALERTS).values()) == 1


def test_every_alert_is_tested_both_firing_and_quiet() -> None:
    tried = {(case.alert, case.labels.get("severity", case.severity), case.fires) for case in CASES}
    every = {(alert["alert"], alert["labels"]["severity"]) for alert in ALERTS}

    assert {(*which, True) for which in every} <= tried
    assert {(*which, False) for which in every} - tried == {("WslgpudWatchdog", "none", False)}  # it never is


def expected(case: Case) -> list[dict[str, object]]:
    """Return what promtool must find: this alert alone is in the file of the case."""
    where = {} if case.alert in ("WslgpudWatchdog", "WslgpudAbsent") else {"job": "wslgpud", "instance": "pc"}
    return [{"exp_labels": where | case.labels}] if case.fires else []


def unit_tests(cases: list[Case], file: str) -> dict[str, object]:
    """Return promtool's document; each case sees one alert of one severity."""
    return {
        "rule_files": [file],
        "evaluation_interval": f"{TICK}s",
        "tests": [
            {
                "name": f"{case.alert} {case.severity}: {case.title}",
                "interval": f"{TICK}s",
                "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
                "alert_rule_test": [
                    {"eval_time": f"{case.seconds}s", "alertname": case.alert, "exp_alerts": expected(case)}
                ],
            }
            for case in cases
        ],
    }


@pytest.mark.parametrize("severity", ["info", "warning", "critical", "none"])
def test_alerts_fire_when_they_should_and_only_then(severity: str, tmp_path: Path) -> None:
    """Annotations are looked at elsewhere: here they would hide in long texts whether an alert fires."""
    bare = [{k: v for k, v in a.items() if k != "annotations"} for a in ALERTS if a["labels"]["severity"] == severity]
    groups = [{"name": "bare", "interval": f"{TICK}s", "rules": bare}]
    (tmp_path / "bare.yml").write_text(yaml.safe_dump({"groups": groups}))
    cases = [case for case in CASES if case.severity == severity]
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(unit_tests(cases, "bare.yml")))
    done = promtool("test", "rules", "tests.yml", folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def rendered(tmp_path: Path, cases: list[Case]) -> str:
    """Return what promtool says of alerts with texts that it was not told to expect."""
    (tmp_path / "tests.yml").write_text(json.dumps(unit_tests(cases, str(generate.FILE))))
    done = promtool("test", "rules", "tests.yml", folder=tmp_path)
    return done.stdout + done.stderr


def test_texts_come_out_whole(tmp_path: Path) -> None:
    seen: set[tuple[str, str]] = set()
    fires = [c for c in CASES if c.fires and not ((c.alert, c.severity) in seen or seen.add((c.alert, c.severity)))]
    said = rendered(tmp_path, fires)

    assert sorted(set(re.findall(r'alertname="(\w+)"', said))) == sorted({alert["alert"] for alert in ALERTS})
    assert "<error expanding template" not in said
    assert "<no value>" not in said
    assert "{{" not in said


def test_a_warning_says_how_much_is_left_how_long_and_who_grows(tmp_path: Path) -> None:
    where = 'job="wslgpud", instance="pc", resource="ram"'
    series = {
        f"wslgpud_risk_level{{{where}}}": "2x9",
        f"wslgpud_headroom_bytes{{{where}}}": f"{6 << 30}x9",
        f'wslgpud_time_to_exhaustion_seconds{{{where}, estimate="middle"}}': "90x9",
        f'wslgpud_risk_culprit_info{{{where}, who="python (train.py)", kind="", cause="steps"}}': "1x9",
    }
    said = rendered(tmp_path, [Case("", "WslgpudMemoryExhaustion", series, TICK, "warning", True, {})])

    assert "ram on pc: 6GiB left, gone in about 1m 30s, growing: python (train.py). Save your work" in said.replace(
        "Gi ", "Gi"
    )


def test_each_alert_says_what_it_is_what_to_do_and_where_to_look() -> None:
    boards = {(uid, str(panel["id"])): panel["title"] for uid, board in DASHBOARDS.items() for panel in panels(board)}
    titles = {generate.alert_name(n): n for n in (*(r.name for r in RULES), *generate.LEVELS)}
    for alert in ALERTS:
        texts, name = alert["annotations"], alert["alert"]
        assert not re.search(r"\$value|\d", texts["summary"].replace("{{ $labels", "")), name
        rule = titles.get(name)
        if rule and rule != generate.MEMORY:
            assert BLANK.sub("ID", without_unknown(generate.TEXTS[rule]["advice"], ())) in texts["description"]
        uid, panel = re.fullmatch(r"http://localhost:3000/d/([\w-]+)\?.*viewPanel=(\d+)", texts["dashboard"]).groups()
        assert (uid, panel) in boards, name
        if rule:
            assert texts["runbook_url"] == f"http://{{{{ $labels.instance }}}}/runbook#{rule}"
            assert rule in runbook()
        else:  # about the daemon, which may be gone: Grafana has these
            (book,) = re.findall(r"^http://localhost:3000/d/wslgpud-runbook\?viewPanel=(\d+)$", texts["runbook_url"])
            assert boards["wslgpud-runbook", book] == re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def test_links_use_the_given_addresses_of_grafana_and_the_daemon() -> None:
    text = generate.text("https://grafana.example/", "https://pc.example:9655/")

    assert set(re.findall(r"https?://\S+/d/", text)) == {"https://grafana.example/d/"}
    assert set(re.findall(r"https?://\S+/runbook", text)) == {"https://pc.example:9655/runbook"}


def test_rules_name_only_what_the_daemon_says() -> None:
    known = {spec.exposed_name for spec in catalogue()} | {"wslgpud"}
    for expression in (*(a["expr"] for a in ALERTS), *RECORDINGS.values()):
        assert set(re.findall(r"\bwslgpud\w*", expression)) <= known, expression


def test_recorded_series_are_what_they_are_called(tmp_path: Path) -> None:
    where = 'job="wslgpud", instance="pc"'
    card = f'{where}, gpu="0", uuid="u"'
    series = {
        f'wslgpud_risk_level{{{where}, resource="ram"}}': "1x9",
        f'wslgpud_risk_level{{{where}, resource="gpu0"}}': "0x9",
        f'wslgpud_alert_level{{{where}, rule="oom_kill", resource="ram"}}': "3x9",
        f"wslgpud_verdict_level{{{where}}}": "3x9",
        f'wslgpud_time_to_exhaustion_seconds{{{where}, resource="ram", estimate="middle"}}': "90x9",
        f'wslgpud_time_to_exhaustion_seconds{{{where}, resource="gpu0", estimate="middle"}}': "60x9",
        f"wslgpud_memory_available_bytes{{{where}}}": "30x9",
        f"wslgpud_memory_total_bytes{{{where}}}": "60x9",
        f"wslgpud_swap_free_bytes{{{where}}}": "20x9",
        f"wslgpud_swap_total_bytes{{{where}}}": "40x9",
        f'wslgpud_cpu_seconds_total{{{where}, mode="idle"}}': "0+45x9",
        f'wslgpud_cpu_seconds_total{{{where}, mode="user"}}': "0+15x9",
        f"wslgpud_swap_in_bytes_total{{{where}}}": "0+60x9",
        f"wslgpud_swap_out_bytes_total{{{where}}}": "0+120x9",
        f"wslgpud_gpu_memory_used_bytes{{{card}}}": "12x9",
        f"wslgpud_gpu_memory_total_bytes{{{card}}}": "16x9",
        f"wslgpud_gpu_utilization_ratio{{{card}}}": "0.5x9",
    }
    wanted = {
        "instance:wslgpud_risk_level:max": (where, 3),
        "instance:wslgpud_time_to_exhaustion_seconds:min": (where, 60),
        "instance:wslgpud_memory_used:ratio": (where, 0.5),
        "instance:wslgpud_cpu_busy:ratio_rate5m": (where, 0.25),
        "instance:wslgpud_swap_bytes:rate5m": (where, 3),
        "instance_gpu:wslgpud_gpu_memory_used:ratio": (card, 0.75),
        "instance_gpu:wslgpud_gpu_utilization:avg5m": (card, 0.5),
    }
    document = {
        "rule_files": [str(generate.FILE)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": n, "values": v} for n, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": name,
                        "eval_time": "8m",
                        "exp_samples": [{"labels": f"{name}{{{labels}}}", "value": value}],
                    }
                    for name, (labels, value) in wanted.items()
                ],
            }
        ],
    }
    (tmp_path / "tests.yml").write_text(json.dumps(document))
    done = promtool("test", "rules", "tests.yml", folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert set(wanted) == set(RECORDINGS)


def test_dashboards_change_colour_where_alerts_fire() -> None:
    """The figures in the rules file, read back from its PromQL, against those in the dashboards' JSON."""
    shown = {
        "swap_thrash": ("wslgpud-overview", "Pressure"),
        "windows_disk_full": ("wslgpud-overview", "Disks"),
        "windows_memory_low": ("wslgpud-overview", "Windows memory left"),
    }
    for name, place in shown.items():
        fired = [float(a["expr"].split()[-1]) for a in ALERTS if a["alert"] == generate.alert_name(name)]
        (panel,) = (p for p in panels(DASHBOARDS[place[0]]) if p["title"] == place[1])
        steps = [s["value"] for s in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]
        assert sorted(steps) == sorted(fired) == sorted(step.value for step in rule_named(name).thresholds)
    (silent,) = (float(a["expr"].split()[-1]) for a in ALERTS if a["alert"] == "WslgpudNotSampling")
    (age,) = (p for p in panels(DASHBOARDS["wslgpud-daemon"]) if p["title"] == "Last sample")
    assert age["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"] == silent
