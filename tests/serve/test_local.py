"""``wslgpud status`` on the machine itself, where the server asks strangers for passwords."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path

import bcrypt
import pytest
import trustme

from tests.support.daemons import daemon, eventually, saying, wslgpud
from wslgpud.client import SOCKET, DaemonClient, Unanswered
from wslgpud.serve.router import Response, Route, dumps
from wslgpud.serve.server import LocalApi


@pytest.fixture
def guarded(tmp_path: Path) -> dict[str, str]:
    """Settings of a server with TLS and a password."""
    certificate = trustme.CA().issue_cert("localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    password = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(
        f"tls_server_config: {{cert_file: cert.pem, key_file: key.pem}}\nbasic_auth_users: {{prometheus: {password}}}\n"
    )
    return {"WSLGPUD_SERVER__WEB_CONFIG_FILE": str(tmp_path / "web.yml")}


def test_status_needs_neither_password_nor_certificate(tmp_path: Path, guarded: dict[str, str]) -> None:
    with daemon(tmp_path, settings=guarded) as running:

        def look() -> dict | None:
            done = wslgpud("status", "--json", "--state", str(running.state), home=tmp_path)
            document = json.loads(done.stdout)
            return document if document["seen_by"] == "daemon" and "ram" in document else None

        document = eventually(look, "the daemon's own answer")
        running.end()

    assert document["url"].startswith("https://")
    assert not (running.state / SOCKET).exists()


def test_a_client_that_never_reads_blocks_nobody_forever(tmp_path: Path) -> None:
    much = Route("/api/v1/status", lambda _: Response(200, dumps({"much": "x" * 5_000_000}), "application/json"))
    local = LocalApi(tmp_path, [much], timeout_seconds=0.5)
    assert local.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(str(local.path))
        silent.sendall(b"GET /api/v1/status HTTP/1.0\r\n\r\n")

        def whole() -> bool:  # who is slow on a busy machine is not heard out either
            with suppress(Unanswered):
                return DaemonClient("", local.path).ask("/api/v1/status")["much"].startswith("x")
            return False

        eventually(whole, "an answer to somebody else")
    local.close()


def test_a_path_may_be_longer_than_an_address_of_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with saying(folder, {"level": "ok"}):
        daemon = DaemonClient.of(folder)
        assert daemon is not None
        assert daemon.status()["level"] == "ok"
        assert daemon.pid() == os.getpid()
