"""All that the page shows of this moment, rendered once a sample however many look."""

from __future__ import annotations

import math
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wslgpud.model import Reading
from wslgpud.series.curves import name_of
from wslgpud.serve.api_query import language_of
from wslgpud.serve.exposition import Publisher
from wslgpud.serve.http import Document, Request, Response, dumps


def values(readings: Iterable[Reading]) -> dict[str, float]:
    """Return series and their values; identities (info) and what is no finite number are left out."""
    return {
        name_of(spec.exposed_name, zip(spec.labels, labels, strict=True)): value
        for spec, value, labels in readings
        if spec.kind != "info" and math.isfinite(value)
    }


class Live:
    """Answers ``/api/v1/live``: the status in a language (which must not block), and the last snapshot's values."""

    def __init__(self, publisher: Publisher, status: Callable[[str], Mapping[str, Any]]) -> None:
        self._publisher = publisher
        self._status = status
        #: of this life of the daemon: the page learns from it that there was a restart
        self._instance = secrets.token_hex(8)
        #: by language, with the sequence of its sample; one that nobody asks for costs nothing
        self._rendered: dict[str, tuple[int, Document]] = {}

    def answer(self, request: Request) -> Response:
        """Answer; runs on the server's thread, like a scrape."""
        # The age is in a header, so that one text serves all; by the monotonic clock, because WSL's wall clock
        # drifts from that of the Windows browser that asks.
        age = {"Wslgpud-Age": f"{self._publisher.seconds_since_tick():.3f}"}
        return self._current(language_of(request)).answer(request, age)

    def _current(self, language: str) -> Document:
        latest = self._publisher.latest
        sequence = -1 if latest is None else latest.sequence
        known = self._rendered.get(language)
        if known is None or known[0] != sequence:
            document: dict[str, Any] = {
                "instance": self._instance,
                "host": socket.gethostname(),
                "status": self._status(language),
            }
            if latest is not None:
                document |= {
                    "sequence": latest.sequence,
                    "wall": round(latest.wall, 3),
                    "interval_seconds": round(latest.interval_seconds, 3),
                    "values": values(latest.readings()),
                }
            body = Document(dumps(document), "application/json", f"{self._instance}-{sequence}-{language}")
            known = self._rendered[language] = (sequence, body)
        return known[1]
