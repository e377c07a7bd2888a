"""The client asks the daemon exactly what its caller wants to know."""

from __future__ import annotations

import pytest

from tests.support.hostile import answers, hostile
from wslgpud.client import DaemonClient


@pytest.mark.parametrize(
    ("query", "target"),
    [({}, "/api/v1/status"), ({"lang": "de", "metric": ["a b", "c"]}, "/api/v1/status?lang=de&metric=a+b&metric=c")],
)
def test_a_path_is_asked_for_with_its_query_if_there_is_one(query: dict[str, object], target: str) -> None:
    with hostile(answers("200 OK", b'{"at": 5}')) as server:
        assert DaemonClient(server.url).ask("/api/v1/status", **query) == {"at": 5}
        assert server.asked[0].startswith(f"GET {target} HTTP/1.1\r\n".encode())
