"""Readings in Prometheus' text formats, written by prometheus_client, with unchanged parts cached.

Between two scrapes most of the text stays the same: the head of each family, the name and labels of each series, and
often the value. So prometheus_client renders each head and name once, and a family with unchanged values keeps its
text.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest as classic_text
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.utils import floatToGoString

from wslgpud.metrics import MetricSpec
from wslgpud.model import Number, Reading
from wslgpud.serve.negotiation import Format

Labels = tuple[str, ...]
_number: Callable[[Number], str] = floatToGoString  # untyped
_END = b"# EOF\n"
#: process_*: names shared by all Prometheus clients
PROCESS = ProcessCollector(registry=None)
#: cached cleaned label sets: several times the number of series of a machine
_REMEMBERED = 4096


class MetricFamily(NamedTuple):
    """The values of one metric by their labels."""

    spec: MetricSpec
    series: dict[Labels, Number]

    def metric(self) -> Metric:
        """Return it as a metric of prometheus_client.

        Raises ValueError: a series does not have exactly one value for each declared label.
        """
        spec = self.spec
        metric = Metric(spec.family, spec.help, spec.kind, spec.unit)
        for labels, value in self.series.items():
            try:
                named = dict(zip(spec.labels, labels, strict=True))
            except ValueError as error:
                raise ValueError(f"{spec.family} declares labels {spec.labels}, a reading has {labels}") from error
            metric.add_sample(spec.exposed_name, named, value)
        return metric


def families(readings: Iterable[Reading], order: Mapping[str, int]) -> list[MetricFamily]:
    """Group readings into families, each once, in the order of the catalogue.

    A series from two sources is exposed once, with the last value: Prometheus drops a scrape that contains a duplicate.
    Non-finite numbers are unknown, hence absent. Families that ``order`` (name -> rank) does not know come last, by
    name.
    """
    grouped: dict[str, MetricFamily] = {}
    for spec, value, labels in readings:
        if math.isfinite(value):
            family = grouped.get(spec.name)
            if family is None:
                family = grouped[spec.name] = MetricFamily(spec, {})
            family.series[_clean(labels)] = value
    names = sorted(grouped, key=lambda name: (order.get(name, len(order)), name))
    return [grouped[name] for name in names]


@functools.lru_cache(_REMEMBERED)
def _clean(labels: Labels) -> Labels:
    """Return labels that any parser accepts: file names may contain bytes that are not UTF-8.

    One such value would otherwise cost the whole scrape; and some lexers take NUL for the end.
    """
    return tuple(
        label.encode("utf-8", "backslashreplace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
        for label in labels
    )


def encode(metrics: Iterable[Metric], text_format: Format) -> bytes:
    """Write metrics as text.

    Our names contain no character that needs escaping; ALLOWUTF8 then gives the same text as the default scheme and
    halves OpenMetrics' time (which otherwise checks every name character by character).
    """
    write = openmetrics_text if text_format.openmetrics else classic_text
    registry: Any = SimpleNamespace(collect=lambda: metrics)
    return bytes(write(registry, escaping=ALLOWUTF8))


class MetricsText:
    """Renders one format repeatedly; not thread-safe."""

    def __init__(self, text_format: Format) -> None:
        self._format = text_format
        self._texts: dict[str, _FamilyText] = {}

    def of(self, families: Iterable[MetricFamily], others: Iterable[Metric] = ()) -> bytes:
        """Return the complete text of families, then of ``others``: identical to ``encode`` for all of them."""
        return b"".join((*map(self._text, families), encode(others, self._format)))

    def _text(self, family: MetricFamily) -> bytes:
        cached = self._texts.get(family.spec.name)
        if cached is None:
            cached = self._texts[family.spec.name] = _FamilyText(family.spec, self._format)
        return cached.of(family.series)


class _FamilyText:
    """The cached text of a family."""

    def __init__(self, spec: MetricSpec, text_format: Format) -> None:
        self._spec, self._format = spec, text_format
        self._head = self._encoded({})
        self._names: dict[Labels, str] = {}
        self._series: dict[Labels, Number] = {}
        self._text = b""

    def of(self, series: dict[Labels, Number]) -> bytes:
        if not self._text or series != self._series or list(series) != list(self._series):
            if series.keys() != self._names.keys():
                self._names = {labels: self._names.get(labels) or self._name(labels) for labels in series}
            names = self._names
            lines = (f"{names[labels]} {_number(value)}\n" for labels, value in series.items())
            self._text = f"{self._head}{''.join(lines)}".encode()
            self._series = series
        return self._text

    def _name(self, labels: Labels) -> str:
        """Return the text before a series' value."""
        return self._encoded({labels: 0})[len(self._head) :].rpartition(" ")[0]

    def _encoded(self, series: dict[Labels, Number]) -> str:
        return encode([MetricFamily(self._spec, series).metric()], self._format).removesuffix(_END).decode()
