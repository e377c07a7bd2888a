"""DNS rebinding: a web page that points its own name at this machine reads nothing."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud import config
from wslgpud.serve.access import HostRule, host_name, is_loopback

LOCAL = HostRule("127.0.0.1", "trainbox.lan", ["gpu.example"])


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:9655", "127.0.0.1", "127.0.0.1:1", "127.8.8.8", "[::1]:9655", "[::1]", "localhost."],
)
def test_loopback_is_answered_by_any_of_its_names_and_any_port(host):
    assert LOCAL.allows(host)


@pytest.mark.parametrize("host", ["trainbox.lan:9655", "TRAINBOX", "gpu.example", "gpu.example:443"])
def test_this_machines_names_and_allowed_ones_are_answered(host):
    assert LOCAL.allows(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:9655",
        "localhost.evil.example",
        "gpu.example.evil",
        "192.168.1.2",
        "[2001:db8::1]",
        "localhost@evil.example",
        "localhost/",
        "localhost:9655:9655",
        "local host",
        "[::1",
        "localhost:port",
        "[::]",
    ],
)
def test_other_names_are_not(host):
    assert not LOCAL.allows(host)


def test_listening_everywhere_accepts_any_address_not_any_name():
    everywhere = HostRule("0.0.0.0", "trainbox", [])
    assert everywhere.allows("192.168.1.2:9655")
    assert everywhere.allows("[2001:db8::1]")
    assert not everywhere.allows("evil.example")


def test_listening_on_one_address_that_one_will_do():
    one = HostRule("192.168.1.2", "trainbox", [])
    assert one.allows("192.168.1.2:9655")
    assert not one.allows("192.168.1.3:9655")


@given(st.text())
def test_no_host_header_breaks_the_rule(header):
    assert LOCAL.allows(header) in (True, False)


@given(st.from_regex(r"[a-z]{1,10}(\.[a-z]{1,10}){0,3}", fullmatch=True), st.integers(0, 65535))
def test_the_port_does_not_matter(name, port):
    assert host_name(f"{name}:{port}") == name


@pytest.mark.parametrize(
    ("address", "expected"), [("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("x", False)]
)
def test_loopback_is_what_only_this_machine_reaches(address, expected):
    assert is_loopback(address) is expected


@pytest.mark.parametrize("path", ["/", "/metrics", "/-/healthy", "/nothing-here"])
def test_a_rebound_name_is_told_it_has_the_wrong_server(serve, path):
    answer = serve().ask(path, headers={"Host": "evil.example"})
    assert answer.status == 421
    assert b"server.allowed_hosts" in answer.data


def test_a_name_from_the_configuration_is_answered(serve):
    running = serve(config.Server(port=0, allowed_hosts=("metrics.example",)))
    assert running.ask("/metrics", headers={"Host": "metrics.example:443"}).status == 200
    assert running.ask("/metrics", headers={"Host": socket.gethostname()}).status == 200
