"""TLS with real certificates: who is let in, and certificates that are renewed while the daemon runs."""

from __future__ import annotations

import socket
import ssl

import pytest
import trustme

from tests.serve.support import IMPATIENT, is_cut, issue, put, wait_until
from wslgpud import config
from wslgpud.serve import listener
from wslgpud.serve.listener import Deadlines

TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"
CLIENTS = TLS + "  client_ca_file: ca.pem\n  client_auth_type: "


@pytest.fixture
def serve_tls(serve, certificate, authority):
    """Serve with this web configuration."""

    def start(text=TLS, **options):
        authority.cert_pem.write_to_path(certificate / "ca.pem")
        (certificate / "web.yml").write_text(text)
        settings = config.Server(port=0, web_config_file=str(certificate / "web.yml"))
        return serve(settings, **options)

    return start


def with_certificate(authority, context, name="scraper"):
    authority.issue_cert(name).configure_cert(context)
    return context


def test_metrics_come_over_tls(serve_tls, trusting):
    running = serve_tls()
    assert running.ask("/metrics", context=trusting).status == 200
    assert running.server.url.startswith("https://")


def test_plain_http_gets_nothing_from_a_tls_server(serve_tls, trusting):
    running = serve_tls()
    assert b"HTTP" not in running.raw(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", end=True)
    assert running.ask("/metrics", context=trusting).status == 200


def test_a_client_that_begins_no_handshake_is_cut(serve_tls, trusting):
    running = serve_tls(deadlines=IMPATIENT)
    with running.connect() as silent:
        assert is_cut(silent)
    assert running.ask("/metrics", context=trusting).status == 200


def test_who_begins_no_handshake_leaves_his_place_to_who_comes(serve_tls, trusting, monkeypatch):
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 2)
    running = serve_tls(deadlines=Deadlines(3600, 3600, 3600))
    with running.connect(), running.connect():
        wait_until(lambda: running.server._listener.connections == 2)
        assert [one.unread_bytes for one in tuple(running.server._listener._connections)] == [0, 0]
        assert running.ask("/metrics", context=trusting).status == 200


def test_a_certificate_is_required_and_verified_by_policy(serve_tls, authority, trusting):
    running = serve_tls(CLIENTS + "RequireAndVerifyClientCert\n")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        running.ask("/metrics", context=trusting)
    assert running.ask("/metrics", context=with_certificate(authority, trusting)).status == 200


def test_a_certificate_of_another_authority_is_refused(serve_tls, trusting):
    running = serve_tls(CLIENTS + "RequireAndVerifyClientCert\n")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        running.ask("/metrics", context=with_certificate(trustme.CA(), trusting))


def test_a_certificate_is_welcome_and_verified_but_not_demanded(serve_tls, authority, trusting):
    running = serve_tls(CLIENTS + "VerifyClientCertIfGiven\n")
    assert running.ask("/metrics", context=trusting).status == 200
    assert running.ask("/metrics", context=with_certificate(authority, trusting)).status == 200


def test_tls_and_client_certificates_guard_a_public_address(serve, serve_tls, certificate):
    serve_tls(CLIENTS + "RequireAndVerifyClientCert\n")
    everywhere = config.Server(address="0.0.0.0", port=0, web_config_file=str(certificate / "web.yml"))
    assert serve(everywhere).port > 0


def shown(running, context):
    """Return the certificate a new connection is shown."""
    with (
        socket.create_connection(("127.0.0.1", running.port), timeout=30) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as tls,
    ):
        return ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True)).strip()


def test_a_renewed_certificate_is_shown_to_the_next_client(serve_tls, certificate, authority, trusting):
    running = serve_tls()
    old = shown(running, trusting)
    new = issue(authority, certificate)
    assert old != new
    assert shown(running, trusting) == new


def test_a_half_done_renewal_leaves_the_old_certificate_in_use(serve_tls, certificate, authority, trusting, caplog):
    running = serve_tls()
    old = shown(running, trusting)
    put(certificate / "key.pem", "half a k")
    assert [shown(running, trusting) for _ in range(3)] == [old] * 3
    assert sum("keeping the configuration read before" in r.getMessage() for r in caplog.records) == 1
    new = issue(authority, certificate)
    assert shown(running, trusting) == new


def test_new_settings_hold_for_the_next_client(serve_tls, certificate, trusting):
    running = serve_tls()
    put(certificate / "web.yml", CLIENTS + "RequireAndVerifyClientCert\n")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        running.ask("/metrics", context=trusting)


def test_handshakes_that_fail_leave_no_connection_behind(serve_tls, trusting):
    running = serve_tls()
    for _ in range(20):
        running.raw(b"this is not TLS\r\n\r\n", end=True)
    wait_until(lambda: b"wslgpud_http_connections 1.0" in running.ask("/metrics", context=trusting).data)
