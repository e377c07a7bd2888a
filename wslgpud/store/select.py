"""Which series somebody means: a metric, a shell pattern, or both with labels, as one types it."""

from __future__ import annotations

import re
from collections.abc import Callable

from wslgpud.metrics import PREFIX
from wslgpud.patterns import shell_pattern
from wslgpud.store.records import SeriesRef

_SELECTOR = re.compile(r"([^{}]*)\{(.*)\}")
_LABEL = re.compile(r"\s*([a-z][a-z0-9_]*)\s*=\s*(\"[^\"]*\"|[^\",]*)\s*(?:,|$)")


def matcher(pattern: str) -> Callable[[SeriesRef], bool]:
    """Return a test of series against a pattern.

    ``gpu_*`` is a shell pattern for the metric; ``gpu_memory_used_bytes{gpu="0"}`` asks for labels too (those
    named; quotes may be left out, their values be patterns). Prometheus' prefix and suffix may be there.
    """
    bare = pattern.removeprefix(PREFIX)
    metric, wanted = bare, {}
    if selector := _SELECTOR.fullmatch(bare):
        metric, inside = selector[1] or "*", selector[2]
        wanted = {name: value.strip('"').strip() for name, value in _LABEL.findall(inside)}
        if _LABEL.sub("", inside).strip():
            return lambda _: False
    whole = shell_pattern(bare)
    names = [shell_pattern(name) for name in {metric, metric.removesuffix("_total")}]
    values = {label: shell_pattern(value) for label, value in wanted.items()}

    def matches(ref: SeriesRef) -> bool:
        if whole(str(ref)):
            return True
        labels = dict(ref.labels)
        return any(name(ref.metric) for name in names) and all(
            label in labels and value(labels[label]) for label, value in values.items()
        )

    return matches
