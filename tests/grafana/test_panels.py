"""Every panel shows something, or is listed with the reason: a real Prometheus scrapes the real daemon."""

from __future__ import annotations

import pytest

from tests.grafana.machines import CARDS, watched
from tests.grafana.panels import ANNOTATIONS, QUERIES, Query
from tests.support.servers import Prometheus

pytestmark = pytest.mark.servers

HOSTS = ("wsl2-vram-full", "two-gpus", "h200-training", "bare-linux")
GROWTH = "a recorded machine stands still, so nothing grows"
NO_GPU = "this machine has no GPU"
#: (dashboard, panel, query; "" stands for all) that have nothing to show, and why
EMPTY = {
    ("wslgpud-overview", "VRAM by layer", "E"): GROWTH,
    ("wslgpud-gpu", "VRAM by layer", "E"): GROWTH,
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
