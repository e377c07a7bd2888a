"""The read-only JSON API below ``/api/v1/``, what holds now; ``static/openapi.json`` documents it."""

from __future__ import annotations

import dataclasses
import math
import platform
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from wslgpud import __version__
from wslgpud.advise.checkups import Findings
from wslgpud.model import Reading
from wslgpud.series.curves import name_of
from wslgpud.serve.api_query import Query, language_of
from wslgpud.serve.exposition import Publisher
from wslgpud.serve.http import Document, Problem, Request, Response, Route, dumps, packed
from wslgpud.store import StoreStats
from wslgpud.words import translator

OPENAPI = Path(__file__).with_name("static") / "openapi.json"


def routes(
    publisher: Publisher,
    status: Callable[[str], Mapping[str, Any]],
    store: Callable[[], StoreStats],
    doctor: Callable[[], tuple[float, Findings] | None],
) -> list[Route]:
    """Return the paths of what holds now but ``status``, which is worded in a language and must not wait.

    ``doctor``, which may take seconds, is ``Checkups.last``.
    """

    def checked(request: Request) -> Response:
        words = translator(language_of(request))
        try:
            known = doctor()
        except TimeoutError as error:
            raise Problem(503, "the doctor is looking at the machine; try again in a moment") from error
        if known is None:
            raise Problem(503, "the doctor could not look at the machine; the daemon's log says why")
        findings = [{name: words.text(said) for name, said in finding.items()} for finding in known[1]]
        return packed(request, dumps({"wall": known[0], "findings": findings}))

    return [
        Route("/api/v1/live", Live(publisher, status).answer),
        Route("/api/v1/latest", lambda request: _latest(request, publisher)),
        Route("/api/v1/doctor", checked, waits=True),
        Route("/api/v1/self", lambda request: _own(request, publisher, store()), waits=True),
        Route("/api/v1/openapi.json", lambda request: packed(request, OPENAPI.read_bytes())),
    ]


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


def values(readings: Iterable[Reading]) -> dict[str, float]:
    """Return series and their values; identities (info) and what is no finite number are left out."""
    return {
        name_of(spec.exposed_name, zip(spec.labels, labels, strict=True)): value
        for spec, value, labels in readings
        if spec.kind != "info" and math.isfinite(value)
    }


def _latest(request: Request, publisher: Publisher) -> Response:
    """Answer with every value of the last sample."""
    matches = Query(request.query, ("match",)).pattern("match")
    snapshot = publisher.latest
    if snapshot is None:
        raise Problem(503, "there is no sample yet; try again in a second")
    known = values(snapshot.readings())
    document = {
        "wall": round(snapshot.wall, 3),
        "age_seconds": round(publisher.seconds_since_tick(), 3),
        "interval_seconds": round(snapshot.interval_seconds, 3),
        "values": {name: known[name] for name in sorted(known) if matches(name)},
    }
    return packed(request, dumps(document))


def _own(request: Request, publisher: Publisher, store: StoreStats) -> Response:
    """Answer with what the daemon itself costs."""
    Query(request.query, ())
    document = {
        "version": __version__,
        "python": platform.python_version(),
        "uptime_seconds": round(publisher.uptime_seconds(), 1),
        "processes": _processes(),
        "store": {k: v for k, v in dataclasses.asdict(store).items() if v not in (None, "")},
    }
    return packed(request, dumps(document))


def _processes() -> list[dict[str, Any]]:
    """Return pid, name, processor seconds and memory (its share of what it shares) of us and our children."""
    import psutil  # only who asks pays for it

    found: list[dict[str, Any]] = []
    own = psutil.Process()
    for process in (own, *own.children()):
        with suppress(psutil.Error), process.oneshot():  # a child that ends meanwhile is omitted
            used = process.cpu_times()
            seconds = round(used.user + used.system, 2)
            found.append({"pid": process.pid, "name": process.name(), "cpu_seconds": seconds})
            found[-1]["pss_bytes"] = process.memory_full_info().pss  # omitted where the kernel does not say
    return found
