"""Network interfaces: bytes, packets, errors and drops."""

from __future__ import annotations

import re

from wslgpud.host import SourceError
from wslgpud.metrics import DEVICE_NAMES, counter
from wslgpud.model import Reading, Sample
from wslgpud.sources import Source, parse_uint, readings
from wslgpud.words import say

_MAX_INTERFACES = 8
#: Interfaces that repeat another's traffic or come and go with containers: each would be a series forever.
_IGNORED = re.compile(
    r"(lo|veth.*|br-.*|ifb\d*|tunl\d*|sit\d*|ip6.*|gre.*|erspan.*|cali.*|flannel.*|cni.*|"
    r"lxc.*|virbr.*|vnet.*|tap.*|dummy\d*|teql\d*)"
)


#: Column of /proc/net/dev -> metric, named as in node_exporter.
COLUMNS = {
    column: counter(f"network_{name}", text, "device", names=(DEVICE_NAMES,))
    for column, name, text in (
        (0, "receive_bytes", "Bytes received."),
        (1, "receive_packets", "Packets received."),
        (2, "receive_errs", "Packets that arrived broken; any steady rate is a fault."),
        (3, "receive_drop", "Packets dropped on arrival; many under load: too few buffers."),
        (8, "transmit_bytes", "Bytes sent."),
        (9, "transmit_packets", "Packets sent."),
        (10, "transmit_errs", "Packets that could not be sent; any steady rate is a fault."),
        (11, "transmit_drop", "Packets dropped before they were sent."),
    )
}


class NetworkSource(Source):
    """/proc/net/dev, without the interfaces of containers."""

    name = "network"
    metrics = tuple(COLUMNS.values())

    def read(self) -> Sample:
        """Return the counters of at most eight interfaces; SourceError for another form of the file."""
        return Sample(tuple(parse(self.host.read("/proc/net/dev"))))


def parse(text: str) -> list[Reading]:
    """Return the readings in /proc/net/dev; SourceError for an unknown heading."""
    if not text.startswith("Inter-|   Receive "):
        raise SourceError(say("/proc/net/dev is not in the known format"))
    found: list[Reading] = []
    seen: set[str] = set()
    for line in text.splitlines()[2:]:
        device, colon, rest = line.partition(":")
        device = device.strip()
        if not colon or device in seen or _IGNORED.fullmatch(device):
            continue
        if len(seen) == _MAX_INTERFACES:
            break
        seen.add(device)
        words = dict(enumerate(rest.split()))
        found += readings(((spec, parse_uint(words.get(column))) for column, spec in COLUMNS.items()), device)
    return found
