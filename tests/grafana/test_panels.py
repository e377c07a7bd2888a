"""Every panel shows something, or is listed with the reason: a real Prometheus scrapes the real daemon."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.grafana import history
from tests.grafana.machines import CARDS, watched
from tests.grafana.panels import ANNOTATIONS, QUERIES, Query
from tests.support.servers import Prometheus, program, prometheus

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("panels")]

HOSTS = ("wsl2-vram-full", "two-gpus", "h200-training", "bare-linux")
GROWTH = "a recorded machine stands still, so nothing grows"
NO_FAILURE = "no allocation has failed yet"
NO_GPU = "this machine has no GPU"
TRAININGS = (
    *("Memory after each step", "Growth per step", "Time until the training is full"),
    *("Step time", "Steps per second", "Steps until the training is full", "Allocator out of room"),
    *("Largest batch that fits", "Missing for the longest sequences", "Tokens per second", "Pinned host memory"),
    *("Model servers: cache and requests", "Model servers: loaded models"),
)
#: (dashboard, panel, query; "" stands for all) that have nothing to show, and why
STILL = {
    ("wslgpud-overview", "Chance of exhaustion", ""): GROWTH,
    **{("wslgpud-overview", panel, ""): "on a recorded machine no program tells of itself" for panel in TRAININGS},
    ("wslgpud-overview", "Open incidents", "B"): "nothing is open on these machines",
    ("wslgpud-overview", "Kills", "C"): "neither systemd-oomd nor earlyoom runs on these machines",
}
PAUSING = ("Paused jobs", "Memory of paused jobs", "Time to pause")
OFF = "the brake is off unless somebody turns it on"
STILL = STILL | dict.fromkeys((("wslgpud-overview", name, "") for name in PAUSING), OFF)
EMPTY = STILL | {
    (board, "VRAM by layer", ref): why
    for board in ("wslgpud-overview", "wslgpud-gpu")
    for ref, why in (("E", GROWTH), ("F", NO_FAILURE))
}
NO_ECC = {("wslgpud-stress", "Last complete run", "A"): "these runs count no ECC errors: no tile"}
CONSUMER = {("wslgpud-gpu", "Health", ref): "a consumer card has none: no tile" for ref in "BCDEG"} | NO_ECC
#: of single machines
ALONE = {
    "wsl2-vram-full": {
        ("wslgpud-overview", "Windows memory", "C"): "no container of WSL runs on this machine",
        ("wslgpud-overview", "VRAM as Windows sees it", "C"): "its kernel does not tell the VRAM of each process",
    }
    | CONSUMER,
    "two-gpus": {("wslgpud-overview", "Kills", "B"): "the kernel's log cannot be read on this machine"} | CONSUMER,
    "h200-training": {("wslgpud-gpu", "Health", "A"): "it has no fan: no tile"} | NO_ECC,
}
NO_WINDOWS = "this machine does not run under WSL"
WINDOWS = {
    ("wslgpud-overview", "Windows memory", ""): NO_WINDOWS,
    ("wslgpud-overview", "Windows memory left", ""): NO_WINDOWS,
    ("wslgpud-overview", "VRAM as Windows sees it", ""): NO_WINDOWS,
    ("wslgpud-overview", "VRAM of Windows' programs", ""): NO_WINDOWS,
}
EMPTY_WITHOUT_GPU = STILL | {
    ("wslgpud-gpu", "", ""): NO_GPU,
    ("wslgpud-stress", "", ""): NO_GPU,
    ("wslgpud-overview", "VRAM by layer", ""): NO_GPU,
    ("wslgpud-overview", "GPU load", ""): NO_GPU,
    ("wslgpud-overview", "GPU temperature", ""): NO_GPU,
    ("wslgpud-overview", "GPU power", ""): NO_GPU,
    ("wslgpud-fleet", "VRAM in use", ""): NO_GPU,
    ("wslgpud-fleet", "GPU load by machine", ""): NO_GPU,
    ("wslgpud-fleet", "GPU power by machine", ""): NO_GPU,
    ("wslgpud-daemon", "Failed NVML calls", ""): NO_GPU,
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    with watched(tmp_path_factory.mktemp("watched"), HOSTS) as (server, instances):
        yield server, instances


def reason(query: Query, host: str) -> str | None:
    known = EMPTY if host in CARDS else EMPTY_WITHOUT_GPU
    if "wsl" not in host:
        known = known | WINDOWS
    known = known | ALONE.get(host, {})
    ways = ((query.panel, query.ref), (query.panel, ""), ("", ""))
    return next((known[k] for way in ways if (k := (query.dashboard, *way)) in known), None)


def answers(server: Prometheus, query: Query, instance: str, host: str) -> int:
    """Return how many series a query finds; Prometheus' own words when it cannot be read."""
    return len(server.query(query.asked(instance, CARDS.get(host, ".+"))))


@pytest.mark.parametrize("host", HOSTS)
def test_every_query_has_data_or_a_reason_for_having_none(seen, host):
    server, instances = seen
    found = {query: answers(server, query, instances[host], host) for query in QUERIES}

    missing = [query for query, series in found.items() if not series and reason(query, host) is None]
    assert [(query.dashboard, query.panel, query.ref) for query in missing] == []
    if host in CARDS:  # what is on the list has really nothing, else the list grows old
        assert [query for query, series in found.items() if series and reason(query, host)] == []


def test_a_machine_that_is_gone_shows_no_data_and_never_calm(seen):
    server, _ = seen
    found = {query: answers(server, query, "nobody:9655", "") for query in QUERIES}

    assert [(query.dashboard, query.panel, query.ref) for query, series in found.items() if series] == []


def test_annotations_can_be_asked_for(seen):
    server, instances = seen
    for query in ANNOTATIONS:
        answers(server, query, instances["wsl2-vram-full"], "wsl2-vram-full")


@pytest.mark.parametrize(
    ("uptime", "boot", "told"),
    [("15+15x4", "0 0 3600 3600 3600", 0), ("15 30 45 5 20", "0+0x4", 1)],
    ids=["the clock is set", "a restart"],
)
def test_a_restart_is_drawn_and_a_clock_that_is_set_is_not(tmp_path, uptime, boot, told):
    of_one = '{job="wslgpud", instance="pc"}'
    series = {f"uptime_seconds{of_one}": uptime, f"boot_time_seconds{of_one}": boot}
    expressions = {q.asked("pc", step="1m") for q in ANNOTATIONS if q.ref == "Restarts of the machine"}

    assert expressions
    for expression in expressions:
        computes(tmp_path, series, expression, "1m", [{"labels": of_one, "value": 1}] * told)


def test_a_kill_by_a_daemon_is_drawn_beside_the_kernels(tmp_path):
    kills = f'oom_daemon_kills_total{{job="wslgpud", instance="{history.PC}", daemon="earlyoom"}}'
    expression = of("wslgpud-overview", "Kills", "C")

    computes(tmp_path, {kills: "0 0 1 1 1"}, expression, "1m", [{"labels": '{daemon="earlyoom"}', "value": 1}])


def test_an_incidents_beginning_is_a_link_in_milliseconds(tmp_path):
    labels = 'rule="blind", resource="ram"'
    opened = f'alert_opened_timestamp_seconds{{job="wslgpud", instance="{history.PC}", {labels}}}'
    began = [{"labels": f'{{job="wslgpud", instance="{history.PC}", {labels}}}', "value": 1_800_000_000_000}]

    computes(tmp_path, {opened: "1800000000.25x9"}, of("wslgpud-overview", "Open incidents", "B"), "1m", began)


@pytest.mark.parametrize(
    ("panel", "ref", "series", "labels", "value"),
    [
        ("Paused jobs", "A", "held_jobs{%s}", "{}", 1),
        ("Paused jobs", "B", "ready{%s}", "{}", 1),
        ("Paused jobs", "C", "pauses_total{%s}", "{}", 4),
        ("Paused jobs", "D", 'spared_total{%s, reason="user"}', '{reason="user"}', 4),
        ("Paused jobs", "E", 'ends_total{%s, how="room"}', '{how="room"}', 4),
        ("Memory of paused jobs", "A", "held_bytes{%s}", "{}", 1),
        ("Time to pause", "A", "pause_seconds{%s}", "{}", 1),
    ],
)
def test_what_the_brake_does_is_drawn(tmp_path, panel, ref, series, labels, value):
    name = "brake_" + series % f'job="wslgpud", instance="{history.PC}"'
    values = "0+1x40" if "_total" in name else "1x40"

    computes(tmp_path, {name: values}, of("wslgpud-overview", panel, ref), "5m", [{"labels": labels, "value": value}])


def computes(folder: Path, series: Mapping[str, str], expression: str, when: str, answer: list[dict[str, object]]):
    """Let promtool compute an expression over made-up series of samples every 15 s."""
    test = {
        "interval": "15s",
        "input_series": [{"series": f"wslgpud_{name}", "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, "eval_time": when, "exp_samples": answer}],
    }
    (folder / "tests.yml").write_text(json.dumps({"tests": [test]}))
    promtool = [program("prometheus", "promtool"), "test", "rules", "tests.yml"]
    done = subprocess.run(promtool, cwd=folder, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """Ask of minutes in which a model fills the card: recorded machines stand too still for that."""
    end, folder = 1.8e9, tmp_path_factory.mktemp("grown")
    start = end - history.EVENING
    evening = history.evening("wsl2-vram-full", 1, end, leaks=True, last=2700)
    history.backfill_part(folder, [(history.PC, evening)])
    options = ("--storage.tsdb.retention.time=100y", "--query.lookback-delta=20s")
    with prometheus(folder, "{}", *options) as server:

        def ask(expression: str) -> list[dict[float, float]]:
            answer = server.ask("query_range", query=expression, start=str(start), end=str(start + 2700), step="15")
            return [{float(at) - start: float(v) for at, v in one["values"]} for one in answer["result"]]

        yield ask


def of(board: str, panel: str, ref: str) -> str:
    (query,) = (q for q in QUERIES if (q.dashboard, q.panel, q.ref) == (board, panel, ref))
    return query.asked(history.PC, CARDS["wsl2-vram-full"])


def test_the_vram_forecast_is_drawn_while_a_model_fills_the_card(grown):
    (drawn,) = grown(of("wslgpud-overview", "VRAM by layer", "E"))
    (size,) = grown("max(wslgpud_gpu_memory_total_bytes)")

    assert 2400 <= min(drawn) <= 2500  # it loads from 2400 s on
    assert max(drawn.values()) == max(size.values())  # never beyond the card


def test_a_past_failed_allocation_is_a_line_across_the_layers(grown):
    (drawn,) = grown(of("wslgpud-gpu", "VRAM by layer", "F"))
    (reserved,) = grown("max(wslgpud_gpu_memory_reserved_bytes)")

    assert set(drawn.values()) == {int(14.6 * history.GIB) + reserved[0]}


def test_exhaustion_chance_rises_while_a_model_fills_the_card(grown):
    soon, later = (grown(of("wslgpud-overview", "Chance of exhaustion", ref)) for ref in "AB")

    assert 0 < max(max(one.values()) for one in soon) <= 1
    assert max(max(one.values()) for one in later) >= max(max(one.values()) for one in soon)


@pytest.mark.parametrize("panel", TRAININGS)
def test_a_training_that_keeps_more_with_each_step_is_drawn(grown, panel):
    queries = [query.asked(history.PC, CARDS["wsl2-vram-full"]) for query in QUERIES if query.panel == panel]

    assert queries
    assert all(max(grown(query)[0].values()) >= 0 for query in queries)


def test_queries_recorded_machines_cannot_fill_are_all_tried():
    tried = {("VRAM by layer", "E"), ("VRAM by layer", "F"), ("Chance of exhaustion", ""), ("Kills", "C")}
    tried.add(("Open incidents", "B"))
    tried |= {(panel, "") for panel in (*TRAININGS, *PAUSING)}

    assert {(panel, ref) for _, panel, ref in EMPTY} == tried
