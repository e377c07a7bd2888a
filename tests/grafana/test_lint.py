"""The rules of Grafana's dashboard-linter, and the common mistakes of bad dashboards.

https://github.com/grafana/dashboard-linter/tree/main/docs/rules has the rules that are named here.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest

from tests.grafana.panels import ANNOTATIONS, DASHBOARDS, QUERIES, Query, panels
from wslgpud.app.catalogue import catalogue
from wslgpud.risk.settings import RiskSettings

SHOWING = {uid: board for uid, board in DASHBOARDS.items() if uid != "wslgpud-runbook"}
BOARDS = pytest.mark.parametrize("uid", SHOWING)
OWN = re.compile(r"\b(wslgpud_\w+|up|process_\w+)\b(?=\{)")
#: these show words, or have a unit for each column or cell
NO_UNIT = ("table", "state-timeline", "heatmap")
#: these show a counter as it stands: how often since the daemon or the driver was started
SINCE_START = (
    "Clock jumps",
    "NVML process",
    "Wrong words",
    "Alert deliveries",
    "Warned in time",
    "Missed",
    "False alarms",
    "Health",
    "Dropped samples",
    "Failed writes",
    "Rejected values",
    "Runs",
)


def variables(board: Any) -> dict[str, Any]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


@BOARDS
def test_it_can_be_provisioned_and_imported_alike(uid: str) -> None:
    board = SHOWING[uid]
    assert board["schemaVersion"] in (41, 42)
    assert (board["id"], board["editable"], board["graphTooltip"]) == (None, False, 1)
    assert not {"__inputs", "__elements"} & board.keys()
    assert "wslgpud" in board["tags"]
    assert re.search(r"DS_\w+", json.dumps(board)) is None


@BOARDS
def test_variables_narrow_from_data_source_to_machine(uid: str) -> None:
    """template-datasource, template-job, template-instance, template-on-time-change-reload."""
    found = variables(SHOWING[uid])
    assert list(found)[:3] == ["datasource", "job", "instance"]
    assert (found["datasource"]["type"], found["datasource"]["query"]) == ("datasource", "prometheus")
    assert found["datasource"]["label"] == "Data source"
    for name in list(found)[1:]:
        variable = found[name]
        assert (variable["datasource"]["uid"], variable["refresh"]) == ("${datasource}", 2)
        assert not variable["multi"] or variable["allValue"] == ".+"
    # One machine at a time where the verdict is about one: several would be mixed into one figure.
    assert found["instance"]["multi"] == (uid == "wslgpud-fleet")
    assert found["job"]["multi"]


@BOARDS
def test_every_panel_states_its_content_its_unit_and_its_source(uid: str) -> None:
    """panel-title-description, panel-units, panel-datasource, panel-no-targets."""
    for panel in panels(SHOWING[uid]):
        title = panel["title"]
        assert re.fullmatch(r"[A-Z].*[a-zA-Z?.'/]", title), title
        assert re.fullmatch(r"(?s)[A-Z0-9].+[.?]", panel["description"]), title
        assert panel["datasource"]["uid"] == "${datasource}", title
        assert panel["targets"], title
        assert panel["type"] in ("table", "state-timeline", "heatmap") or panel["fieldConfig"]["defaults"]["unit"], (
            title
        )
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}", title
    titles = [panel["title"] for panel in panels(SHOWING[uid])]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_panels_have_ids_of_their_own_and_do_not_overlap(uid: str) -> None:
    board = DASHBOARDS[uid]
    everything = [*board["panels"], *(p for row in board["panels"] for p in row.get("panels") or [])]
    assert len({panel["id"] for panel in everything}) == len(everything)
    places = [panel["gridPos"] for panel in board["panels"]]
    for place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    for a, b in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or below, (a, b)


@pytest.mark.parametrize("query", [*QUERIES, *ANNOTATIONS], ids=lambda q: f"{q.dashboard}-{q.panel}-{q.ref}")
def test_a_query_names_real_metrics_of_the_chosen_machines(query: Query) -> None:
    """target-job, target-instance, target-rate-interval, target-counter-agg."""
    expression = query.expression
    known = {spec.exposed_name: spec for spec in catalogue()}
    for name in OWN.findall(expression):
        assert name in known or not name.startswith("wslgpud_"), name
    for selector in re.findall(r"\b(?:wslgpud_|process_|up\b)\w*(\{[^}]*\})?", expression):
        assert 'job=~"$job"' in selector
        assert 'instance=~"$instance"' in selector
    for window in re.findall(r"rate\([^[]*\[([^]]+)\]", expression):
        # 5m: a figure that must not tremble; the range: a mean over the time shown
        assert window in ("$__rate_interval", "5m", "$__range"), window
    for counter in re.findall(r"(\w*\(?)(wslgpud_\w+_total)\b", expression):
        assert counter[0].endswith(("rate(", "increase(")) or query.panel in SINCE_START, counter


#: what no panel shows, and why; whatever else the daemon says has a place where people find it
NOT_SHOWN = {
    "wslgpud_boot_time_seconds": "it moves when the clock is set; a restart is where uptime begins anew",
    "wslgpud_gpu_memory_ceiling_bytes": "where it is known, the headroom of all panels counts it",
    "wslgpud_gpu_memory_free_bytes": "VRAM by layer shows what of it is really usable",
    "wslgpud_memory_compressible_bytes": "there only where swap is on zram; the headroom of all panels counts it",
    "wslgpud_memory_pinned_names_bytes": "a few MiB on most machines; the headroom of all panels leaves it out",
    "wslgpud_memory_zfs_reclaimable_bytes": "there only with ZFS; the headroom of all panels counts it",
    "wslgpud_network_receive_packets_total": "bytes, faults and drops say more",
    "wslgpud_network_transmit_packets_total": "bytes, faults and drops say more",
    "wslgpud_processes": "how many there are says nothing of what they do",
    "wslgpud_risk_culprit_info": "the verdict and the incidents name it; alerts take the name from it",
    "wslgpud_store_replication_queue_ticks": "there only where the history is copied to a database server",
    "wslgpud_windows_returned_cache_bytes_total": "only with windows.return_cache; an alert says each time how much",
    "wslgpud_swap_zram_free_bytes": "there only where swap is on zram, beside the swap of all panels",
    "wslgpud_swap_zram_total_bytes": "there only where swap is on zram, beside the swap of all panels",
    "wslgpud_source_last_success_timestamp_seconds": "the age of values says the same; alerts use it",
}


def test_every_metric_is_on_a_dashboard_or_excused_with_a_reason() -> None:
    shown = {name for query in [*QUERIES, *ANNOTATIONS] for name in re.findall(r"\bwslgpud_\w+", query.expression)}

    assert {spec.exposed_name for spec in catalogue()} - shown == NOT_SHOWN.keys()


def test_time_left_changes_colour_where_levels_change() -> None:
    settings = RiskSettings()
    wanted = {
        "Headroom": [],  # how bad it is says the level, which has no share of its own
        "Headroom by machine": [],
        "Time left": [settings.critical_eta_seconds, settings.warn_eta_seconds],
    }
    seen = set()
    for board in SHOWING.values():
        for panel in panels(board):
            if panel["title"] in wanted:
                steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
                assert [step["value"] for step in steps[1:]] == wanted[panel["title"]]
                seen.add(panel["title"])
    assert seen == set(wanted)


def test_a_figure_that_may_be_missing_tells_why() -> None:
    """Not on this card is -1, in words; no data stays "No data": nobody may mistake it for calm."""
    for board in SHOWING.values():
        for panel in panels(board):
            assert "noValue" not in json.dumps(panel["fieldConfig"]), panel["title"]
            for target in panel["targets"]:
                if re.search(r"(\* 0|== 0\)) - 1", target["expr"]):
                    column = f"Value #{target['refId']}"
                    assert '"-1"' in json.dumps(meanings(panel, column)), f"{panel['title']} {target['refId']}"


def meanings(panel: Any, column: str) -> Any:
    """Return the words for values of a panel, or of the column that a query fills."""
    names = {}
    for step in panel.get("transformations", []):
        names |= step["options"].get("renameByName", {})
    for rule in panel["fieldConfig"]["overrides"]:
        if rule["matcher"]["options"] == names.get(column):
            return [p["value"] for p in rule["properties"] if p["id"] == "mappings"]
    return panel["fieldConfig"]["defaults"]["mappings"]
