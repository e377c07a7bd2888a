"""``web.config.file``: files that other exporters accept are accepted, and mistakes are named."""

from __future__ import annotations

import logging
import ssl
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wslgpud.config import ConfigError
from wslgpud.serve.access import WebConfigFile, load

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"  # from exporter-toolkit's documentation


@pytest.fixture
def written(certificate):
    """Write a web configuration beside a certificate; return its path."""

    def write(text):
        path = certificate / "web.yml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def error_of(written):
    """Return the message with which a web configuration is refused, without the folder."""

    def refuse(text):
        path = written(text)
        with pytest.raises(ConfigError) as caught:
            load(path)
        message = str(caught.value)
        assert "\n" not in message
        return message.replace(f"{path.parent}/", "")

    return refuse


TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"


def test_no_file_means_plain_http_without_passwords():
    web = WebConfigFile("").current
    assert (web.tls, dict(web.users), web.guarded) == (None, {}, False)


@pytest.mark.parametrize("text", ["", "{}", "basic_auth_users:\n", "# only a comment\n"])
def test_an_empty_file_is_the_same(written, text):
    assert load(written(text)).tls is None


def test_certificates_authorities_and_users_are_taken(written, authority):
    authority.cert_pem.write_to_path(written("").parent / "ca.pem")
    policy = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"
    web = load(written(f"{TLS}{policy}basic_auth_users:\n  prometheus: {HASH}\n"))

    assert web.guarded
    assert web.tls.verify_mode is ssl.CERT_REQUIRED
    assert web.tls.minimum_version is ssl.TLSVersion.TLSv1_2
    assert web.users == {"prometheus": HASH}
    assert [f.name for f in web.files] == ["web.yml", "cert.pem", "key.pem", "ca.pem"]


@pytest.mark.parametrize(
    "text",
    [
        "rate_limit: {interval: 1s, burst: 2}\n",
        "http_server_config: {http2: true}\n",
        TLS + "  min_version: TLS13\n",
        TLS + "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n",
        TLS + "  client_allowed_sans: [scraper]\n",
    ],
)
def test_settings_of_other_exporters_are_refused_not_ignored(error_of, text):
    assert "unknown key" in error_of(text)


@pytest.mark.parametrize(
    ("policy", "mode"),
    [
        ("NoClientCert", ssl.CERT_NONE),
        ("RequestClientCert", ssl.CERT_NONE),
        ("VerifyClientCertIfGiven", ssl.CERT_OPTIONAL),
        ("RequireAndVerifyClientCert", ssl.CERT_REQUIRED),
    ],
)
def test_gos_policies_for_client_certificates_mean_the_same_here(written, authority, policy, mode):
    path = written(TLS + f"  client_auth_type: {policy}\n" + "  client_ca_file: ca.pem\n" * (policy != "NoClientCert"))
    authority.cert_pem.write_to_path(path.parent / "ca.pem")
    web = load(path)
    assert web.tls.verify_mode is mode
    assert web.guarded is (mode is ssl.CERT_REQUIRED)


def test_a_file_of_64_kib_is_read_and_not_a_byte_more(written, error_of):
    users = f"basic_auth_users: {{me: {HASH}}}\n#"

    assert load(written(users.ljust(1 << 16, "x"))).users == {"me": HASH}
    assert "not valid YAML" not in error_of(users.ljust((1 << 16) + 1, "x"))


def test_a_certificate_of_a_mebibyte_is_read_and_not_a_byte_more(written, certificate, error_of):
    text = (certificate / "cert.pem").read_text()
    (certificate / "cert.pem").write_text(text.ljust(1 << 20, "\n"))
    assert load(written(TLS)).tls

    (certificate / "cert.pem").write_text(text.ljust((1 << 20) + 1, "\n"))
    assert error_of(TLS).startswith("web.yml: tls_server_config: cert_file: cert.pem: ")


def test_a_reload_of_the_file_is_logged_once_and_not_at_start(written, caplog):
    caplog.set_level(logging.INFO)
    path = written("")
    file = WebConfigFile(str(path))
    file.refresh()
    assert caplog.messages == []

    path.write_text(f"basic_auth_users: {{me: {HASH}}}\n")
    assert file.refresh().users == file.refresh().users == {"me": HASH}
    assert caplog.messages == [f"{path} was read again"]


def test_a_file_that_may_be_read_now_is_read(written, caplog):
    caplog.set_level(logging.INFO)
    path = written("")
    file = WebConfigFile(str(path))
    file.refresh()
    time.sleep(0.05)  # the clock of file systems stands still for some milliseconds
    path.chmod(0o640)

    file.refresh()
    assert caplog.messages == [f"{path} was read again"]


def test_a_certificate_that_comes_after_its_name_is_used(written, certificate, caplog):
    caplog.set_level(logging.INFO)
    path = written(TLS)
    file = WebConfigFile(str(path))
    file.refresh()
    path.write_text(TLS.replace("cert.pem", "new.pem"))
    assert [f.name for f in (file.refresh(), file.refresh())[1].files] == ["web.yml", "cert.pem", "key.pem"]
    (certificate / "new.pem").write_bytes((certificate / "cert.pem").read_bytes())

    assert [f.name for f in file.refresh().files] == ["web.yml", "new.pem", "key.pem"]
    missing, read = caplog.messages
    assert "new.pem: No such file" in missing
    assert read == f"{path} was read again"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls_server_confg: {}", "unknown key tls_server_confg; did you mean tls_server_config?"),
        ("rate_limit: {burst: 1}", "unknown key rate_limit; known are tls_server_config, basic_auth_users"),
        ("- a list", "must be keys and values"),
        ("tls_server_config: on", "tls_server_config: must be keys and values"),
        ("a: b: c", "web.yml:1: not valid YAML: mapping values are not allowed here"),
        ("basic_auth_users: [me]", "basic_auth_users: must be names and texts"),
        ("basic_auth_users: []", "basic_auth_users: must be names and texts"),
        ("tls_server_config: {cert_file: cert.pem}", "tls_server_config: key_file is missing"),
        ("tls_server_config: {cert_file: 3, key_file: key.pem}", "tls_server_config: must be names and texts"),
        (
            "tls_server_config: {cert_file: no.pem, key_file: key.pem}",
            "tls_server_config: cert_file: no.pem: No such file or directory",
        ),
        (
            "tls_server_config: {cert_file: cert.pem, key_file: cert.pem}",
            "tls_server_config: certificates and key cannot be used: ",
        ),
    ],
)
def test_what_is_wrong_is_named_in_one_line(error_of, text, message):
    assert error_of(text).startswith(("web.yml: " + message, message))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("client_ca_fil: ca.pem", "unknown key client_ca_fil; did you mean client_ca_file?"),
        (
            "client_auth_type: Sometimes",
            "client_auth_type: Sometimes is unknown; it may be NoClientCert, RequestClientCert, ",
        ),
        (
            "client_auth_type: RequireAnyClientCert",
            "client_auth_type: RequireAnyClientCert is unknown; it may be NoClientCert, RequestClientCert, ",
        ),
        ("client_auth_type: RequireAndVerifyClientCert", "client_auth_type and client_ca_file need each other"),
        ("client_ca_file: cert.pem", "client_auth_type and client_ca_file need each other"),
        ("client_auth_type: VerifyClientCertIfGiven\nclient_ca_file: key.pem", "certificates and key cannot be used: "),
    ],
)
def test_what_is_wrong_about_tls_is_named_in_one_line(error_of, lines, message):
    text = TLS + "".join(f"  {line}\n" for line in lines.split("\n"))
    assert error_of(text).startswith("web.yml: tls_server_config: " + message)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"^server\.web_config_file: /no/where\.yml: No such file"):
        WebConfigFile("/no/where.yml")


def test_an_unhashed_password_is_refused_and_never_repeated(error_of):
    message = error_of("basic_auth_users: {me: hunter2}")
    assert "the password of me is not a bcrypt hash" in message
    assert "htpasswd -nBC 10" in message
    assert "hunter2" not in message


def test_broken_yaml_is_not_quoted_for_it_may_hold_secrets(error_of):
    assert "hunter2" not in error_of("basic_auth_users:\n  me: 'hunter2\n")


def test_a_key_with_a_pass_phrase_is_refused_without_a_prompt(error_of, certificate):
    from cryptography.hazmat.primitives import serialization  # comes with trustme

    key = serialization.load_pem_private_key((certificate / "key.pem").read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"phrase")
    )
    (certificate / "key.pem").write_bytes(locked)
    assert error_of(TLS).endswith("certificates and key cannot be used: the key has a pass phrase; give one without")


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(st.text())
def test_any_file_content_is_loaded_or_refused_in_one_line(written, text):
    path = written("")
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load(path)
    except ConfigError as error:
        assert "\n" not in str(error)


def test_a_file_that_every_user_can_write_is_warned_of(written, caplog):
    path = written("")
    path.chmod(0o646)
    WebConfigFile(str(path))

    assert "every user can write it" in caplog.text
