"""The live view's own samples as history, and history as its samples."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median_high

from wslgpud.advise.live_sample import CurveKey, LiveSample, RecentSeries, busy_share
from wslgpud.app.catalogue import catalogue
from wslgpud.series.curves import Curve
from wslgpud.series.past import Drawn, Past, database_past
from wslgpud.store import SeriesRef, StoreError
from wslgpud.words import t

#: history loaded for sparklines, in steps that leave no column blank
SEED_SECONDS = 600.0
SEED_POINTS = 300

#: series recorded by the view itself, by word: curves of ``RecentSeries``, whether shares or bytes per second
_SEEN: Mapping[str, tuple[tuple[str, ...], str]] = {
    "used": (("used",), "ratio"),
    "gpu": (("busy",), "ratio"),
    "cpu": (("cpu",), "ratio"),
    "pressure": (("waiting",), "ratio"),
    "disk": (("disk read", "disk write"), "bytes_per_second"),
    "network": (("received", "sent"), "bytes_per_second"),
    "swap": (("swap in", "swap out"), "bytes_per_second"),
}


def trail_past(trail: RecentSeries) -> Past:
    """Return the view's own samples since its start: all there is without a daemon."""

    def words() -> Sequence[str]:
        seen = {key.what for key in trail.known()}
        return [word for word, (what, _) in _SEEN.items() if seen.intersection(what)]

    def drawn(word: str, start: float, end: float, points: int) -> Drawn:
        (what, unit), shift, curves = _SEEN[word], time.time() - time.monotonic(), []
        for key in (key for key in trail.known() if key.what in what):
            seen = ((mono + shift, value) for mono, value in trail.points(key))
            if inside := [(wall, v, v, v) for wall, v in seen if start <= wall <= end]:
                ref = SeriesRef(key.what, (("of", key.which),) if key.which else ())
                curves.append(Curve(ref, unit, rate=False, points=inside))
        steps = [b[0] - a[0] for curve in curves for a, b in pairwise(curve.points)]
        return Drawn(curves, max(median_high(steps or [0.0]), (end - start) / points))

    return Past(t("no daemon keeps a history here: only samples of this view"), words, drawn, earlier=False)


def before(past: Past, look: LiveSample) -> list[tuple[CurveKey, list[tuple[float, float]]]]:
    """Return the history of the minutes before a sample, as ``RecentSeries`` would have recorded it."""
    if not past.earlier:
        return []
    now, known = datetime.fromisoformat(look.document["at"]).timestamp(), past.words()

    def curves(word: str) -> Iterator[tuple[Mapping[str, str], list[tuple[float, float]]]]:
        if word not in known:
            return
        drawn = past.drawn(word, now - SEED_SECONDS, now, SEED_POINTS).curves
        if len({curve.ref.host for curve in drawn}) > 1:
            return  # a database of many machines does not say which is ours
        for drawn_curve in drawn:
            points = [(look.mono + w - now, v) for w, _, v, _ in drawn_curve.points if w < now]
            yield dict(drawn_curve.ref.labels), points

    capacities = {f["resource"]: f["capacity_bytes"] for f in look.document["forecasts"]}
    seeds = [
        (CurveKey("used", labels["resource"]), [(mono, 1 - left / capacity) for mono, left in points])
        for labels, points in curves("headroom")
        if (capacity := capacities.get(labels["resource"]))
    ]
    seeds += [(CurveKey("busy", labels["gpu"]), points) for labels, points in curves("gpu")]
    spent: dict[float, dict[str, float]] = {}
    for labels, points in curves("cpu"):
        for mono, share in points:
            spent.setdefault(mono, {})[labels["mode"]] = share
    cpu = [(mono, busy) for mono, modes in spent.items() if (busy := busy_share(modes)) is not None]
    return [*seeds, (CurveKey("cpu"), cpu)]


def past_of(database: Path | None, trail: RecentSeries) -> Past:
    """Return the history in a database, else ``trail``."""
    if database is not None:
        with contextlib.suppress(StoreError):  # gone, another user's, or damaged: 'wslgpud history' reports which
            return database_past(database, catalogue())
    return trail_past(trail)
