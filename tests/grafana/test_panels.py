"""Every panel shows something, or is listed with the reason: a real Prometheus scrapes the real daemon."""

from __future__ import annotations

import pytest

from tests.grafana import history
from tests.grafana.machines import CARDS, watched
from tests.grafana.panels import ANNOTATIONS, QUERIES, Query
from tests.support.servers import Prometheus, prometheus

pytestmark = pytest.mark.servers

HOSTS = ("wsl2-vram-full", "two-gpus", "h200-training", "bare-linux")
GROWTH = "a recorded machine stands still, so nothing grows"
NO_GPU = "this machine has no GPU"
#: (dashboard, panel, query; "" stands for all) that have nothing to show, and why
EMPTY = {
    ("wslgpud-overview", "VRAM by layer", "E"): GROWTH,
    ("wslgpud-gpu", "VRAM by layer", "E"): GROWTH,
}
NO_WINDOWS = "this machine does not run under WSL"
WINDOWS = {
    ("wslgpud-overview", "Memory of Windows", ""): NO_WINDOWS,
    ("wslgpud-overview", "Windows' memory left", ""): NO_WINDOWS,
    ("wslgpud-overview", "VRAM as Windows sees it", ""): NO_WINDOWS,
}
EMPTY_WITHOUT_GPU = {
    ("wslgpud-gpu", "", ""): NO_GPU,
    ("wslgpud-stress", "", ""): NO_GPU,
    ("wslgpud-overview", "VRAM by layer", ""): NO_GPU,
    ("wslgpud-overview", "GPU load", ""): NO_GPU,
    ("wslgpud-overview", "GPU temperature", ""): NO_GPU,
    ("wslgpud-overview", "GPU power", ""): NO_GPU,
    ("wslgpud-fleet", "VRAM in use", ""): NO_GPU,
    ("wslgpud-fleet", "GPU load by machine", ""): NO_GPU,
    ("wslgpud-fleet", "GPU power by machine", ""): NO_GPU,
    ("wslgpud-daemon", "Calls that failed", ""): NO_GPU,
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    with watched(tmp_path_factory.mktemp("watched"), HOSTS) as (server, instances):
        yield server, instances


def reason(query: Query, host: str) -> str | None:
    known = EMPTY if host in CARDS else EMPTY_WITHOUT_GPU
    if "wsl" not in host:
        known = known | WINDOWS
    ways = ((query.panel, query.ref), (query.panel, ""), ("", ""))
    return next((known[k] for way in ways if (k := (query.dashboard, *way)) in known), None)


def answers(server: Prometheus, query: Query, instance: str, host: str) -> int:
    """Return how many series a query finds; Prometheus' own words when it cannot be read."""
    return len(server.query(query.asked(instance, CARDS.get(host, ".+"))))


@pytest.mark.parametrize("host", HOSTS)
def test_every_query_has_data_or_a_reason_for_having_none(seen, host):
    server, instances = seen
    found = {query: answers(server, query, instances[host], host) for query in QUERIES}

    assert [query for query, series in found.items() if not series and reason(query, host) is None] == []
    if host in CARDS:  # what is on the list has really nothing, else the list grows old
        assert [query for query, series in found.items() if series and reason(query, host)] == []


def test_annotations_can_be_asked_for(seen):
    server, instances = seen
    for query in ANNOTATIONS:
        answers(server, query, instances["wsl2-vram-full"], "wsl2-vram-full")


def test_the_forecast_of_vram_is_drawn_while_a_model_fills_the_card(tmp_path):
    """What recorded machines cannot show because they stand still: minutes of history in which use grows."""
    end = 1.8e9
    history.backfill_part(
        tmp_path, [(history.PC, history.evening("wsl2-vram-full", 1, end, leaks=True, last=2700))]
    )
    options = ("--storage.tsdb.retention.time=100y", "--query.lookback-delta=20s")
    with prometheus(tmp_path, "{}", *options) as server:
        wanted = ("wslgpud-overview", "VRAM by layer", "E")
        (query,) = (q for q in QUERIES if (q.dashboard, q.panel, q.ref) == wanted)
        asked = query.asked(history.PC, CARDS["wsl2-vram-full"])
        start = end - history.EVENING
        answer = server.ask("query_range", query=asked, start=str(start), end=str(start + 2700), step="15")
        size = server.ask("query", query="wslgpud_gpu_memory_total_bytes", time=str(start + 2700))
    drawn = {float(at) - start: float(value) for at, value in answer["result"][0]["values"]}

    assert 2400 <= min(drawn) <= 2500  # it loads from 2400 s on
    assert max(drawn.values()) == float(size["result"][0]["value"][1])  # never beyond the card
