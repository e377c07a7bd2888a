"""Network interfaces: bytes, packets, errors and drops."""

from __future__ import annotations

import re
from typing import ClassVar

from wslgpud.host import SourceError
from wslgpud.metrics import DEVICE_NAMES, MetricSpec
from wslgpud.model import Reading, Sample
from wslgpud.sources import Source
from wslgpud.sources.text import whole
from wslgpud.words import say

_MOST = 8
#: Interfaces that repeat another's traffic or come and go with containers: each would be a series for ever.
_IGNORED = re.compile(r"(lo|veth.*|br-.*|ifb\d*|tunl\d*|sit\d*|ip6.*|gre.*|erspan.*|cali.*|flannel.*|cni.*|"
                      r"lxc.*|virbr.*|vnet.*|tap.*|dummy\d*|teql\d*)")  # fmt: skip


def _counter(name: str, text: str, unit: bool = False) -> MetricSpec:  # noqa: FBT001, FBT002 - two call forms
    return MetricSpec(name, "counter", "bytes" if unit else "", text, ("device",), names=(DEVICE_NAMES,))


#: Column of /proc/net/dev -> metric, in node_exporter's words.
COLUMNS = {
    0: _counter("network_receive_bytes", "Bytes received.", unit=True),
    1: _counter("network_receive_packets", "Packets received."),
    2: _counter("network_receive_errs", "Packets that arrived broken; any steady rate is a fault."),
    3: _counter("network_receive_drop", "Packets dropped on arrival; many under load: too few buffers."),
    8: _counter("network_transmit_bytes", "Bytes sent.", unit=True),
    9: _counter("network_transmit_packets", "Packets sent."),
    10: _counter("network_transmit_errs", "Packets that could not be sent; any steady rate is a fault."),
    11: _counter("network_transmit_drop", "Packets dropped before they were sent."),
}


class NetworkSource(Source):
    """/proc/net/dev, without the interfaces of containers."""

    name: ClassVar[str] = "network"
    metrics: ClassVar[tuple[MetricSpec, ...]] = tuple(COLUMNS.values())

    def read(self) -> Sample:
        """Return the counters of at most eight interfaces.

        Raises:
            NoData: there is no /proc/net/dev.
            SourceError: it is not what it should be.
        """
        return Sample(tuple(parse(self.host.read("/proc/net/dev"))))


def parse(text: str) -> list[Reading]:
    """Return the readings in /proc/net/dev.

    Raises:
        SourceError: its heading is another one.
    """
    if not text.startswith("Inter-|   Receive "):
        raise SourceError(say("/proc/net/dev is not in the known format"))
    readings: list[Reading] = []
    seen: set[str] = set()
    for line in text.splitlines()[2:]:
        device, colon, rest = line.partition(":")
        device = device.strip()
        if not colon or device in seen or _IGNORED.fullmatch(device):
            continue
        if len(seen) == _MOST:
            break
        seen.add(device)
        words = rest.split()
        readings += [
            Reading(spec, value, (device,))
            for column, spec in COLUMNS.items()
            if column < len(words) and (value := whole(words[column])) is not None
        ]
    return readings
