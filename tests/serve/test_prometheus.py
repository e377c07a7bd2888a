"""A real Prometheus reads the real server, through TLS, client certificates and a password."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request

import bcrypt
import pytest

from tests.serve.support import snapshot, wait_until
from tests.support.servers import program
from wslgpud import config

pytestmark = pytest.mark.servers


@pytest.fixture
def prometheus(tmp_path):
    """Start Prometheus with this scrape configuration; return a way to ask it for one value."""
    server = program("prometheus", "prometheus")
    started = []

    def start(scrape):
        settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}
        (tmp_path / "prometheus.yml").write_text(json.dumps(settings))  # YAML that any JSON is
        options = {
            "config.file": tmp_path / "prometheus.yml",
            "storage.tsdb.path": tmp_path / "data",
            "web.listen-address": "127.0.0.1:0",
        }
        log_file = tmp_path / "prometheus.log"
        with log_file.open("wb") as log:
            command = [server, *(f"--{name}={value}" for name, value in options.items())]
            started.append(subprocess.Popen(command, stdout=log, stderr=log))

        def says(text):
            """Look in its log, the only place where it names the port it chose."""
            return re.search(text, log_file.read_text())

        wait_until(lambda: says("Server is ready to receive web requests") or started[-1].poll() is not None)
        address = says(r'msg="Listening on" address=(\S+)')[1]

        def value(expression):
            """Return the value of the first series that answers, as text."""
            query = urllib.parse.urlencode({"query": expression})
            with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}") as answer:
                found = json.load(answer)["data"]["result"]
            return found[0]["value"][1] if found else None

        return value

    yield start
    for process in started:
        process.terminate()
        process.wait()


def test_prometheus_reads_every_series_through_mutual_tls(serve, certificate, authority, prometheus):
    password = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()
    authority.cert_pem.write_to_path(certificate / "ca.pem")
    authority.issue_cert("scraper").private_key_and_cert_chain_pem.write_to_path(certificate / "client.pem")
    (certificate / "web.yml").write_text(
        "tls_server_config: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem,"
        f" client_auth_type: RequireAndVerifyClientCert}}\nbasic_auth_users: {{prometheus: {password}}}\n"
    )
    running = serve(config.Server(port=0, web_config_file=str(certificate / "web.yml")))
    running.publisher.publish(snapshot(available=123_456_789))
    value = prometheus(
        {
            "job_name": "wslgpud",
            "scheme": "https",
            "static_configs": [{"targets": [f"localhost:{running.port}"]}],
            "basic_auth": {"username": "prometheus", "password": "open sesame"},
            "tls_config": {
                "ca_file": str(certificate / "ca.pem"),
                "cert_file": str(certificate / "client.pem"),
                "key_file": str(certificate / "client.pem"),
            },
        }
    )
    # Each waits: on a busy machine a scrape may miss its second, and the series of one scrape with it.
    for expression, expected in (
        ("wslgpud_memory_available_bytes", "123456789"),
        ('wslgpud_gpu_info{name="RTX 5070 Ti"}', "1"),
        ('wslgpud_http_requests_total{path="/metrics",code="200"} > bool 1', "1"),
        ("up", "1"),
    ):
        wait_until(lambda e=expression, x=expected: value(e) == x)
    assert value('count(wslgpud_http_requests_total{code!="200"})') is None
