"""What becomes of a guarded server whose web.config.file is emptied, cut short or spoiled while it runs."""

from __future__ import annotations

import base64
import os
import ssl
from pathlib import Path

import bcrypt
import pytest
import trustme

from tests.serve.conftest import serve
from tests.serve.support import issue, put, said_by_the_server
from wslgpud import config
from wslgpud.config import ConfigError
from wslgpud.serve.access import WebConfig, load, weaker

__all__ = ["serve"]

TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"
CLIENTS = "  client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n"
PASSWORD = "open sesame"
SALT = b"$2b$04$" + b"a" * 21 + b"e"  # the same in each process that collects these tests
USERS = f"basic_auth_users:\n  me: {bcrypt.hashpw(PASSWORD.encode(), SALT).decode()}\n"
OTHERS = f"basic_auth_users:\n  you: {bcrypt.hashpw(b'new', SALT).decode()}\n"
KNOWN = {"Authorization": "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def folder(authority: trustme.CA, tmp_path: Path) -> Path:
    issue(authority, tmp_path)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def loaded(folder: Path, text: str) -> WebConfig:
    put(folder / "web.yml", text)
    return load(folder / "web.yml")


@pytest.mark.parametrize(
    ("old", "new", "gone"),
    [
        (TLS + USERS, "", "TLS"),
        (TLS + USERS, USERS, "TLS"),
        (TLS + USERS, TLS, "passwords (basic_auth_users)"),
        (USERS, "", "passwords (basic_auth_users)"),
        (TLS + CLIENTS, TLS, "the demand for client certificates (client_auth_type)"),
        (
            TLS + CLIENTS,
            TLS + CLIENTS.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven"),
            "the demand for client certificates (client_auth_type)",
        ),
        (TLS + CLIENTS, TLS + USERS, "the demand for client certificates (client_auth_type)"),
        (TLS + USERS, TLS + OTHERS, ""),
        ("", TLS + USERS, ""),
        (USERS, TLS + USERS, ""),
    ],
    ids=map(str, range(10)),
)
def test_less_of_a_guard_is_told_from_another_guard(folder: Path, old: str, new: str, gone: str) -> None:
    assert weaker(loaded(folder, old), loaded(folder, new)) == gone


@pytest.mark.parametrize(
    "after",
    ["", "# nothing\n", "{}\n", TLS, TLS + "basic_auth_users:\n", TLS + "basic_auth_users: {}\n"],
    ids=["emptied", "a comment", "no keys", "cut short", "no users", "no users either"],
)
def test_a_public_server_stays_guarded_whatever_its_file_becomes(
    serve, folder: Path, trusting: ssl.SSLContext, caplog: pytest.LogCaptureFixture, after: str
) -> None:
    put(folder / "web.yml", TLS + USERS)
    everywhere = config.Server(address="0.0.0.0", port=0, web_config_file=str(folder / "web.yml"))
    running = serve(everywhere)
    put(folder / "web.yml", after)

    assert b"HTTP" not in running.raw(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", end=True)
    assert [running.ask("/metrics", context=trusting).status for _ in range(3)] == [401] * 3
    assert running.ask("/metrics", context=trusting, headers=KNOWN).status == 200
    (line,) = said_by_the_server(caplog)
    assert line.levelname == "ERROR"
    assert str(folder / "web.yml") in line.getMessage()
    assert "would be gone; put it back, or restart the daemon if you mean it" in line.getMessage()


def test_a_file_that_is_whole_again_holds_again(serve, folder: Path) -> None:
    put(folder / "web.yml", USERS)
    running = serve(config.Server(port=0, web_config_file=str(folder / "web.yml")))
    for spoiled in ("", "basic_auth_users: {", "\0"):
        put(folder / "web.yml", spoiled)
        assert running.ask("/metrics").status == 401
    (folder / "web.yml").unlink()
    assert running.ask("/metrics").status == 401
    put(folder / "web.yml", OTHERS)

    assert running.ask("/metrics", headers=KNOWN).status == 401
    you = {"Authorization": "Basic " + base64.b64encode(b"you:new").decode()}
    assert running.ask("/metrics", headers=you).status == 200


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(12)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB + "basic_auth_users: {me: *a12}\n",
        "[" * 20_000,
        "{a: " * 15_000,
        "- " * 20_000,
        "a: 2021-13-45",
        "!!int x",
        "!!bool x",
        "!!timestamp x",
        "!!int ''",
        "a: 1" + "0" * 5000,
        "&a [*a]",
        "!!python/object:os.system x",
        "x" * 70_000,
        "\0",
        "? [1]\n: 2",
        "basic_auth_users: {? {a: b} : c}",
    ],
    ids=lambda text: text[:12],
)
def test_yaml_bombs_are_one_line_and_the_server_goes_on(serve, folder: Path, text: str) -> None:
    put(folder / "web.yml", USERS)
    running = serve(config.Server(port=0, web_config_file=str(folder / "web.yml")))
    put(folder / "web.yml", text)

    assert running.ask("/metrics").status == 401
    assert running.ask("/metrics", headers=KNOWN).status == 200
    with pytest.raises(ConfigError) as caught:
        load(folder / "web.yml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["web.yml", "cert.pem", "ca.pem"])
def test_a_pipe_instead_of_a_file_keeps_nobody_waiting(
    serve, folder: Path, trusting: ssl.SSLContext, name: str
) -> None:
    put(folder / "web.yml", TLS + USERS)
    running = serve(config.Server(port=0, web_config_file=str(folder / "web.yml")))
    put(folder / "web.yml", TLS + CLIENTS + USERS)
    (folder / name).unlink()
    os.mkfifo(folder / name)

    assert running.ask("/metrics", context=trusting, headers=KNOWN).status == 200
    with pytest.raises(ConfigError, match="not a plain file"):
        load(folder / "web.yml")


def test_a_client_cannot_begin_handshakes_anew(folder: Path) -> None:
    web = loaded(folder, TLS)

    assert web.tls
    assert web.tls.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls_below_1_2_is_not_spoken(serve, folder: Path, trusting: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    put(folder / "web.yml", TLS)
    running = serve(config.Server(port=0, web_config_file=str(folder / "web.yml")))
    trusting.minimum_version = trusting.maximum_version = version
    trusting.set_ciphers("ALL:@SECLEVEL=0")

    with pytest.raises((ssl.SSLError, ConnectionError)):
        running.ask("/metrics", context=trusting)
    trusting.maximum_version = ssl.TLSVersion.TLSv1_3
    assert running.ask("/metrics", context=trusting).status == 200
