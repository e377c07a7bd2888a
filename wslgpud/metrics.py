"""Metrics: the specification of one, and the catalogue of all.

A metric is declared once, in the table of the source that reads it; the exporter, the database, the
table in ``serve/METRICS.md`` and the checks on dashboards and rules derive from that declaration.
Names follow https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

PREFIX = "wslgpud_"

Kind = Literal["gauge", "counter", "info"]
Unit = Literal["bytes_per_second", "bytes", "seconds", "ratio", "celsius", "watts", "joules", "hertz", ""]
_UNITS: tuple[Unit, ...] = get_args(Unit)
#: the end of a metric's name in the exposition, by kind
SUFFIXES: Mapping[Kind, str] = {"gauge": "", "counter": "_total", "info": "_info"}


@dataclass(frozen=True, slots=True)
class NameLimit:
    """The cardinality limit of a label whose values users choose: those that begin with ``prefix``.

    At most ``an_hour`` values of one ``kind``, over all metrics, become series; each keeps its place for an hour after
    it was last seen (see ``sampling.cardinality``). The others are summed up as ``OTHER`` if ``summed``, else omitted,
    as a sum of limits or levels means nothing.
    """

    kind: str
    label: str
    an_hour: int
    summed: bool = False
    prefix: str = ""

    def chosen(self, spec: MetricSpec, labels: tuple[str, ...]) -> str | None:
        """Return the user-chosen part of a label value; None where it has none."""
        value = labels[spec.labels.index(self.label)]
        return value[len(self.prefix) :] if value.startswith(self.prefix) and value != OTHER else None


#: the label value of all names without a slot
OTHER = "other"
PROGRAM_NAMES = NameLimit("program", "program", 128, summed=True)
CGROUP_NAMES = NameLimit("cgroup", "cgroup", 40)
#: of the risk engine's resources, only cgroups have user-chosen names
RESOURCE_NAMES = NameLimit("cgroup", "resource", CGROUP_NAMES.an_hour, prefix="cgroup:")
CULPRIT_NAMES = NameLimit("culprit", "who", 64, summed=True)
DEVICE_NAMES = NameLimit("network device", "device", 16)
#: series per machine and metric with user-chosen names that a history may hold
MAX_SERIES_OF_NAMES = 512


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family.

    ``name`` carries neither the prefix nor the ``_total``/``_info`` suffix, which follow from ``kind``. ``decimals`` is
    the precision to which the store keeps a value. ``stored`` is False for values without a useful history (identity,
    own health). ``names`` are the labels whose values unprivileged users choose. Sources declare metrics with
    ``gauge``, ``counter`` and ``info``.
    """

    name: str
    kind: Kind
    unit: Unit
    help: str
    labels: tuple[str, ...] = ()
    decimals: int = 0
    stored: bool = True
    names: tuple[NameLimit, ...] = ()

    @property
    def family(self) -> str:
        """Family name with prefix, as in ``# TYPE`` lines of OpenMetrics."""
        return PREFIX + self.name

    @property
    def exposed_name(self) -> str:
        """Name of the samples, as used in queries."""
        return self.family + SUFFIXES[self.kind]


def _declare(  # noqa: PLR0913 - a metric has that many facets
    kind: Kind,
    name: str,
    text: str,
    *labels: str,
    decimals: int = 0,
    stored: bool = True,
    names: tuple[NameLimit, ...] = (),
) -> MetricSpec:
    """Return a metric, its unit taken from the end of its name."""
    unit: Unit = next(unit for unit in _UNITS if name.endswith(unit))
    return MetricSpec(name, kind, unit, text, labels, decimals, stored, names)


gauge, counter = partial(_declare, "gauge"), partial(_declare, "counter")
info = partial(_declare, "info", stored=False)


class Catalogue:
    """All metric families of the program, in order, each name once."""

    def __init__(self, specs: Iterable[MetricSpec]) -> None:
        """Collect ``specs``; raise ValueError when two families would share a name."""
        self._specs: dict[str, MetricSpec] = {}
        for spec in specs:
            if spec.name in self._specs:
                raise ValueError(f"metric {spec.family} is declared twice")
            self._specs[spec.name] = spec

    def __iter__(self) -> Iterator[MetricSpec]:
        return iter(self._specs.values())

    def __getitem__(self, name: str) -> MetricSpec:
        return self._specs[name]

    def find(self, name: str) -> MetricSpec | None:
        """Return the family that ``name`` means, with or without prefix and suffix."""
        bare = name.removeprefix(PREFIX)
        for candidate in (bare, bare.removesuffix("_total"), bare.removesuffix("_info")):
            if candidate in self._specs:
                return self._specs[candidate]
        return None
