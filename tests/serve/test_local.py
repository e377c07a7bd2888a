"""``wslgpud status`` on the machine itself, where the server asks strangers for passwords."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path

import bcrypt
import pytest
import trustme

from tests.support.daemons import daemon, eventually, wslgpud
from wslgpud.client import DaemonClient, Unanswered, answering
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
        mode = stat.S_IMODE((running.state / "status.sock").stat().st_mode)
        running.end()

    assert document["url"].startswith("https://")
    assert mode == 0o600
    assert not (running.state / "status.sock").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_user_is_told_whom_to_ask() -> None:
    # The folders of pytest are closed to other users, and so may be this Python: it is forked, not started.
    state = Path("/dev/shm") / f"wslgpud-local-{os.getpid()}"
    state.mkdir()
    local = LocalApi(state, ())
    assert local.start()
    note = {"url": "https://127.0.0.1:9655", "socket": local.path.name}
    (state / "daemon.json").write_text(json.dumps(note))
    reading, writing = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            os.dup2(writing, 2)
            sys.stderr = os.fdopen(2, "w", buffering=1)
            os._exit(0 if answering([state], lambda text: sys.stderr.write(f"{text}\n")) is None else 1)
        os.close(writing)
        with os.fdopen(reading) as said:
            complaint = said.read()
        _, how = os.waitpid(child, 0)
    finally:
        local.close()
        shutil.rmtree(state, ignore_errors=True)

    assert how == 0
    assert complaint == "the daemon at https://127.0.0.1:9655 is another user's: use sudo\n"


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


def test_a_path_too_long_for_a_socket_does_not_stop_the_daemon(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()

    assert not LocalApi(folder, ()).start()
