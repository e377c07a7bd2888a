"""What the API may ask of the past: the store's history, and the incidents that its rows make up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from wslgpud.alerts.incidents import fold
from wslgpud.alerts.message import iso
from wslgpud.alerts.report import report, summary
from wslgpud.alerts.texts import compose
from wslgpud.model import Level, Number, StressResult
from wslgpud.store import Bucket, ProcessPoint, Reader, SeriesRef


class Archive:
    """Read-only and slow by nature: every method may wait for the disk."""

    def __init__(self, reader: Callable[[], Reader], host: str, language: str) -> None:
        """Look into what ``reader`` returns, at the series of ``host``; ``language`` is that of texts."""
        self._reader = reader
        self._host = host
        self._language = language

    def series(self, host: str | None = None) -> list[SeriesRef]:
        """Return the series of a machine, this one if none is named."""
        return self._reader().series(host=host or self._host)

    def hosts(self) -> list[str]:
        """Return the machines whose history lies in the same database."""
        return self._reader().hosts()

    def columns(self, ref: SeriesRef, start: float, end: float) -> tuple[list[float], list[Number]]:
        """Return times and values as sampled."""
        return self._reader().columns(ref, start, end)

    def summaries(self, ref: SeriesRef, start: float, end: float, step: float) -> Sequence[Bucket]:
        """Return summaries over steps."""
        return self._reader().summaries(ref, start, end, step)

    def processes(self, start: float, end: float) -> Sequence[ProcessPoint]:
        """Return the processes recorded between two moments."""
        return self._reader().processes(start, end)

    def incidents(self, least: str, language: str | None) -> list[dict[str, Any]]:
        """Return the incidents that became at least as bad as ``least``, the newest first."""
        found = [i for i in fold(self._reader().transitions()) if i.worst >= Level[least.upper()]]
        tongue = language or self._language
        if tongue == "en":  # the rows have the words of the time, with facts that rows do not keep
            return [summary(i) for i in reversed(found)]
        worst = (max(i.transitions, key=lambda t: t.new) for i in reversed(found))
        return [
            {**summary(i), "headline": compose(t, tongue).headline}
            for i, t in zip(reversed(found), worst, strict=True)
        ]

    def incident(self, number: int, language: str | None) -> dict[str, Any] | None:
        """Return the report of one incident; None when there is none of that number."""
        found = report(self._reader(), number, language or self._language)
        if found is None:
            return None
        levels = {c.resource: [int(level) for _, _, level in c.points] for c in found.curves}
        curves = [{**c, "levels": levels[c["resource"]]} for c in found.document.get("headroom", ())]
        return {**found.document, "headroom": curves}

    def stress_runs(self) -> list[dict[str, Any]]:
        """Return the stress runs, the newest first."""
        return [_run(number, result) for number, result in reversed(self._reader().stress_runs())]


def _run(number: int, result: StressResult) -> dict[str, Any]:
    plain = {**asdict(result), "findings": [finding._asdict() for finding in result.findings]}
    return {"id": number, "at": iso(plain.pop("wall")), **plain}
