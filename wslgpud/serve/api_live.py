"""All that the page shows of this moment, rendered once a sample however many look."""

from __future__ import annotations

import gzip
import math
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from wslgpud.model import Reading
from wslgpud.serve.api_query import language_of
from wslgpud.serve.api_series import name_of
from wslgpud.serve.exposition import accepts_gzip
from wslgpud.serve.http import Request, Response, dumps
from wslgpud.serve.publisher import Publisher

#: shorter answers are not worth packing
_WORTH_ZIPPING_BYTES = 1400


class _Rendered(NamedTuple):
    sequence: int
    tag: str
    plain: bytes
    zipped: bytes


def values(readings: Iterable[Reading]) -> dict[str, float]:
    """Return series and their values; identities (info) and what is no finite number are left out."""
    return {
        name_of(spec.sample, zip(spec.labels, labels, strict=True)): value
        for spec, value, labels in readings
        if spec.kind != "info" and math.isfinite(value)
    }


def packed(request: Request, body: bytes) -> Response:
    """Answer with JSON, gzipped if the client takes that and it is worth the while."""
    headers = {"Vary": "Accept-Encoding"}
    if len(body) >= _WORTH_ZIPPING_BYTES and accepts_gzip(request.headers.get("accept-encoding", "")):
        # Level 1: a third of the time of level 6 for a fifth more bytes.
        body = gzip.compress(body, compresslevel=1, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(200, body, "application/json", headers)


class Live:
    """Answers ``/api/v1/live``; a client that has the last sample already gets an empty 304."""

    def __init__(self, publisher: Publisher, status: Callable[[str], Mapping[str, Any]]) -> None:
        """Serve ``status`` in a language (it must not block) and the values of the last snapshot."""
        self._publisher = publisher
        self._status = status
        #: of this life of the daemon: the page learns from it that there was a restart
        self._instance = secrets.token_hex(8)
        #: by language; one that nobody asks for costs nothing
        self._rendered: dict[str, _Rendered] = {}

    def answer(self, request: Request) -> Response:
        """Answer; runs on the server's thread, like a scrape."""
        known = self._current(language_of(request))
        # In a header, so that one text serves all; by the monotonic clock, because WSL's wall clock drifts
        # from that of the Windows browser that asks.
        headers = {
            "ETag": known.tag,
            "Vary": "Accept-Encoding",
            "Wslgpud-Age": f"{self._publisher.seconds_since_tick():.3f}",
        }
        if request.headers.get("if-none-match") == known.tag:
            return Response(304, b"", "", headers)
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(200, known.zipped, "application/json", {**headers, "Content-Encoding": "gzip"})
        return Response(200, known.plain, "application/json", headers)

    def _current(self, language: str) -> _Rendered:
        latest = self._publisher.latest
        sequence = -1 if latest is None else latest.sequence
        known = self._rendered.get(language)
        if known is None or known.sequence != sequence:
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
            plain = dumps(document)
            zipped = gzip.compress(plain, compresslevel=1, mtime=0)
            known = _Rendered(sequence, f'"{self._instance}-{sequence}-{language}"', plain, zipped)
            self._rendered[language] = known
        return known
