"""Network: the interfaces that carry this machine's own traffic."""

from __future__ import annotations

import pytest

from wslgpud.config import Config
from wslgpud.host import SourceError
from wslgpud.sources.network import NetworkSource

HEAD = "Inter-|   Receive   |  Transmit\n face |bytes packets errs drop fifo ...|bytes packets ...\n"
LINE = "{:>6}: 408850230 11442 1 2 0 0 0 0 756784 8562 3 4 0 0 0 0\n"


def test_each_column_has_its_metric(machine, values):
    text = HEAD + LINE.format("eth0") + LINE.format("lo") + LINE.format("veth12ab")
    assert values(NetworkSource(machine({"/proc/net/dev": text}), Config()).read()) == {
        "network_receive_bytes_total{eth0}": 408850230,
        "network_receive_packets_total{eth0}": 11442,
        "network_receive_errs_total{eth0}": 1,
        "network_receive_drop_total{eth0}": 2,
        "network_transmit_bytes_total{eth0}": 756784,
        "network_transmit_packets_total{eth0}": 8562,
        "network_transmit_errs_total{eth0}": 3,
        "network_transmit_drop_total{eth0}": 4,
    }


def test_a_hundred_interfaces_do_not_flood_the_database(machine):
    text = HEAD + "".join(LINE.format(f"eth{i}") for i in range(100))
    sample = NetworkSource(machine({"/proc/net/dev": text}), Config()).read()
    assert len({r.labels for r in sample.readings}) == 8


def test_another_heading_is_an_error_not_wrong_numbers(machine):
    with pytest.raises(SourceError, match="/proc/net/dev"):
        NetworkSource(machine({"/proc/net/dev": "bytes first\n"}), Config()).read()
