"""What alerts look like as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from wslgpud.alerts import score
from wslgpud.alerts.incidents import Incident
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading

LEVEL = MetricSpec(
    "alert_level", "gauge", "",
    "Level of each open incident: 1 info, 2 warning, 3 critical, 4 emergency; absent when it is closed.",
    ("rule", "resource"), stored=False,
)  # fmt: skip
DELIVERIES = MetricSpec(
    "alert_deliveries", "counter", "",
    "Messages by channel and outcome: sent, failed (tried again); given up: refused, "
    "expired, or dropped (too many waited).",
    ("channel", "outcome"), stored=False,
)  # fmt: skip
WAITING = MetricSpec(
    "alert_deliveries_waiting", "gauge", "",
    "Messages that wait for a channel; many of them: it is down, or quiet hours.", ("channel",), stored=False,
)  # fmt: skip
METRICS = (LEVEL, DELIVERIES, WAITING, *score.METRICS)


def readings(
    open_ones: Iterable[Incident], counts: Mapping[tuple[str, str], int], waiting: Mapping[str, int]
) -> Iterator[Reading]:
    """Turn open incidents and the state of delivery into readings."""
    for incident in open_ones:
        for rule, level in incident.levels.items():
            yield Reading(LEVEL, int(level), (rule, incident.resource))
    for labels, count in counts.items():
        yield Reading(DELIVERIES, count, labels)
    for channel, number in waiting.items():
        yield Reading(WAITING, number, (channel,))
