"""What the API may ask of the past: the store's history, and the incidents that its rows make up."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from wslgpud.alerts.incidents import Incident, grouped
from wslgpud.alerts.messages import iso
from wslgpud.alerts.report import report, summaries
from wslgpud.model import Level, StressResult
from wslgpud.store import Reader, SeriesRef
from wslgpud.words import translator


class Archive:
    """Read-only and slow by nature: every method may wait for the disk."""

    def __init__(self, reader: Callable[[], Reader], host: str, language: str) -> None:
        """Look into what ``reader`` returns, at the series of ``host``; ``language`` is that of texts."""
        self.reader, self._host, self._language = reader, host, language

    def series(self, host: str | None = None) -> list[SeriesRef]:
        """Return the series of a machine, this one if none is named."""
        return self.reader().series(host=host or self._host)

    def incidents(
        self, least: str, language: str | None, before: int | None, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the newest incidents that became at least as bad as ``least``, and how many there are.

        At most ``limit`` with a number below ``before``; in the configured language unless another is named.
        """
        reader, total = self.reader(), 0

        def asked() -> Iterator[Incident]:
            nonlocal total
            for incident in grouped(reader.changes(brief=True)):
                if incident.worst >= Level[least.upper()]:
                    total += 1
                    if before is None or incident.id < before:
                        yield incident

        found = heapq.nlargest(limit, asked(), key=lambda incident: incident.id)
        return list(summaries(reader, found, translator(language or self._language))), total

    def incident(self, number: int, language: str | None) -> dict[str, Any] | None:
        """Return the report of one incident; None when there is none of that number."""
        found = report(self.reader(), number, translator(language or self._language))
        if found is None:
            return None
        levels = {c.resource: [int(level) for _, _, level in c.points] for c in found.curves}
        curves = [{**c, "levels": levels[c["resource"]]} for c in found.document.get("headroom", ())]
        return {**found.document, "headroom": curves}

    def stress_runs(self, language: str, before: int | None, limit: int) -> tuple[list[dict[str, Any]], int]:
        """Return the newest stress runs without the rows behind their figures, and how many there are."""
        reader = self.reader()
        found = reader.stress_runs(brief=True, before=before, newest=limit)
        plain = [_run(number, result, language) for number, result in reversed(found)]
        return [{k: v for k, v in run.items() if k != "detail"} for run in plain], reader.count_stress_runs()

    def stress_run(self, number: int, language: str) -> dict[str, Any] | None:
        """Return one stress run with all its rows; None when there is none of that number."""
        found = self.reader().stress_run(number)
        return None if found is None else _run(number, found, language)


def _run(number: int, result: StressResult, language: str) -> dict[str, Any]:
    word = translator(language).text
    findings = [{**finding._asdict(), "text": word(finding.text)} for finding in result.findings]
    plain = {**asdict(result), "findings": findings, "reason": word(result.reason)}
    return {"id": number, "at": iso(plain.pop("wall")), **plain}
