"""A real server on loopback, and certificates for it."""

from __future__ import annotations

import ssl

import pytest
import trustme

from tests.serve.support import CATALOGUE, Running, document_of, issue
from wslgpud import config
from wslgpud.serve import HttpServer, Publisher, base_routes


@pytest.fixture
def serve():
    """Start servers; end them when the test ends."""
    started = []

    def start(settings=None, *, publisher=None, extra_routes=(), status=None, **options):
        publisher = publisher or Publisher(CATALOGUE)
        settings = settings or config.Server(port=0)
        said = status or (lambda language: document_of(publisher.latest, language))
        table = [*base_routes(publisher, said), *extra_routes]
        server = HttpServer(settings, publisher, table, **options)
        port = server.start()
        started.append(server)
        return Running(server, publisher, port)

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def authority():
    return trustme.CA()


@pytest.fixture
def certificate(authority, tmp_path):
    """A certificate for this machine, as cert.pem and key.pem in the test's folder."""
    issue(authority, tmp_path)
    return tmp_path


@pytest.fixture
def trusting(authority):
    """A client's TLS context that trusts the test's authority and brings no certificate."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context
