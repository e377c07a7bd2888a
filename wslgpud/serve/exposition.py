"""From readings to the text Prometheus reads: families, formats, negotiation. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest as classic_text
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text

from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading


class Format(NamedTuple):
    """A text format and the media type that announces it."""

    content_type: str
    openmetrics: bool = False


# https://prometheus.io/docs/instrumenting/content_negotiation/
CLASSIC = Format("text/plain; version=0.0.4; charset=utf-8")
CLASSIC_1 = Format("text/plain; version=1.0.0; escaping=underscores; charset=utf-8")
OPENMETRICS = Format("application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics=True)

_BY_MEDIA_TYPE = {
    ("application/openmetrics-text", "1.0.0"): OPENMETRICS,
    ("application/openmetrics-text", ""): OPENMETRICS,
    ("text/plain", "1.0.0"): CLASSIC_1,
    ("text/plain", "0.0.4"): CLASSIC,
    ("text/plain", ""): CLASSIC,
}


def negotiate(accept: str) -> Format:
    """Return the format that an Accept header likes best; the classic one when it likes none of ours."""
    best, best_quality = CLASSIC, 0.0
    for media_range in accept.split(","):
        media, *parameters = (part.strip().lower() for part in media_range.split(";"))
        values = dict(p.partition("=")[::2] for p in parameters)
        offered = _BY_MEDIA_TYPE.get((media, values.get("version", "")))
        quality = _quality(values.get("q", "1"))
        if offered and quality > best_quality:
            best, best_quality = offered, quality
    return best


def accepts_gzip(accept_encoding: str) -> bool:
    """Tell whether an Accept-Encoding header allows gzip."""
    for coding in accept_encoding.lower().split(","):
        name, _, quality = coding.partition(";")
        if name.strip() in ("gzip", "*"):
            return _quality(quality.strip().removeprefix("q=") or "1") > 0
    return False


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0


def families(readings: Iterable[Reading], order: Mapping[str, int]) -> list[Metric]:
    """Group readings into families, each once, in the order of the catalogue.

    A series that two sources read is exposed once, with the last value: Prometheus drops a whole scrape
    that holds a duplicate. What is not a finite number is not known, hence absent. Families that
    ``order`` (name -> rank) does not know come last, by name.

    Raises:
        ValueError: a reading has not one value for each label its metric declares.
    """
    grouped: dict[str, tuple[MetricSpec, dict[tuple[str, ...], float]]] = {}
    for spec, value, labels in readings:
        if math.isfinite(value):
            grouped.setdefault(spec.name, (spec, {}))[1][tuple(map(_clean, labels))] = value
    names = sorted(grouped, key=lambda name: (order.get(name, len(order)), name))
    return [_family(*grouped[name]) for name in names]


def _family(spec: MetricSpec, series: Mapping[tuple[str, ...], float]) -> Metric:
    family = Metric(spec.family, spec.help, spec.kind, spec.unit)
    for labels, value in series.items():
        try:
            named = {k: _clean(v) for k, v in zip(spec.labels, labels, strict=True)}
        except ValueError as error:
            raise ValueError(f"{spec.family} declares labels {spec.labels}, a reading has {labels}") from error
        family.add_sample(spec.exposed_name, named, value)
    return family


def _clean(label: str) -> str:
    """Return ``label`` as text that any parser takes: file names may hold bytes that are not UTF-8.

    One such value would otherwise cost the whole scrape; and some lexers take NUL for the end.
    """
    if label.isascii() and "\0" not in label:
        return label
    return label.encode("utf-8", "backslashreplace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def encode(metrics: Iterable[Metric], text_format: Format) -> bytes:
    """Write families as text.

    Our names hold no character that needs escaping; ALLOWUTF8 then gives the same text as the default
    scheme and spares OpenMetrics half its time (it walks every name character by character otherwise).
    """
    write = openmetrics_text if text_format.openmetrics else classic_text
    registry: Any = SimpleNamespace(collect=lambda: metrics)
    return bytes(write(registry, escaping=ALLOWUTF8))
