"""The compose file and what it mounts, as strictly as can be without Docker and without Grafana's server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.grafana.panels import DASHBOARDS, FOLDER
from tests.support.daemons import eventually
from tests.support.servers import Prometheus, free_port, program

GRAFANA = FOLDER.parent
FILE = GRAFANA / "compose.yml"
SERVICES = yaml.safe_load(FILE.read_text())["services"]
PROVISIONING = GRAFANA / "provisioning"
#: https://grafana.com/docs/grafana/latest/administration/provisioning/
PROVIDER_KEYS = {
    "name",
    "orgId",
    "folder",
    "folderUid",
    "type",
    "disableDeletion",
    "updateIntervalSeconds",
    "allowUiUpdates",
    "options",
}
SOURCE_KEYS = {
    "name",
    "type",
    "access",
    "orgId",
    "uid",
    "url",
    "user",
    "database",
    "basicAuth",
    "basicAuthUser",
    "withCredentials",
    "isDefault",
    "jsonData",
    "secureJsonData",
    "version",
    "editable",
}


def mounts(service: str) -> dict[str, Path]:
    """Return the repository's files that a service sees, by their path inside it."""
    split = (volume.split(":") for volume in SERVICES[service]["volumes"])
    return {inside: (GRAFANA / outside).resolve() for outside, inside, *_ in split if outside.startswith(".")}


def outside(service: str, path: str) -> Path:
    """Return the file of the repository that a path in a container means."""
    for inside, folder in mounts(service).items():
        if path == inside or path.startswith(f"{inside}/"):
            return folder / path.removeprefix(inside).lstrip("/")
    raise AssertionError(f"{service}: nothing is mounted at {path}")


def test_it_is_what_the_compose_specification_allows(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="needs Python 3.11")
    wrong = tmp_path / "compose.yml"
    wrong.write_text(FILE.read_text().replace("restart:", "restarts:", 1))

    def check(file: Path) -> int:
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert (check(FILE), check(wrong)) == (0, 1)


def test_images_are_pinned_and_mounts_exist_and_are_read_only() -> None:
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert all(path.exists() for path in mounts(name).values()), name
        kept = [v for v in service["volumes"] if not v.startswith(".")]
        assert all(v.endswith(":ro") for v in service["volumes"] if v not in kept), name
        assert {v.split(":")[0] for v in kept} <= yaml.safe_load(FILE.read_text())["volumes"].keys()


def test_nothing_can_be_reached_from_other_machines() -> None:
    """All share the machine's network, so each must keep to its loopback by itself."""
    for name in ("prometheus", "alertmanager"):
        (address,) = (a for a in SERVICES[name]["command"] if a.startswith("--web.listen-address="))
        assert "=127.0.0.1:" in address
    assert SERVICES["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def command_here(service: str, folder: Path, port: int) -> list[str]:
    """Return a service's own arguments with this machine's paths and a free port."""
    arguments = []
    for argument in SERVICES[service]["command"]:
        name, _, value = argument.partition("=")
        if name == "--config.file":
            value = str(outside(service, value))
        elif name == "--web.listen-address":
            value = f"127.0.0.1:{port}"
        elif name.endswith(".path"):
            assert f"{service}:{value}" in SERVICES[service]["volumes"], "data outlive the container"
            value = str(folder)
        arguments.append(f"{name}={value}")
    return arguments


@pytest.mark.servers
def test_prometheus_starts_with_these_arguments_and_rules(tmp_path: Path) -> None:
    port = free_port()
    command = [program("prometheus", "prometheus"), *command_here("prometheus", tmp_path, port)]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        server = Prometheus(f"http://127.0.0.1:{port}", process.pid)

        def rules() -> list[dict[str, object]]:
            assert process.poll() is None, (tmp_path / "log").read_text()
            try:
                found: list[dict[str, object]] = server.ask("rules")["groups"]
            except OSError:
                return []
            return found

        try:
            names = [group["name"] for group in eventually(rules, "rules in Prometheus")]
            targets = [target["scrapeUrl"] for target in eventually(server.targets, "a target")]
            managers = eventually(lambda: server.ask("alertmanagers")["activeAlertmanagers"], "Alertmanager")
        finally:
            process.terminate()

    assert sorted(names) == ["wslgpud", "wslgpud-health", "wslgpud-recordings"]
    assert targets == ["http://127.0.0.1:9655/metrics"]
    (address,) = (a.partition("=")[2] for a in SERVICES["alertmanager"]["command"] if "web.listen" in a)
    assert [manager["url"] for manager in managers] == [f"http://{address}/api/v2/alerts"]


@pytest.mark.servers
def test_alertmanager_knows_these_very_arguments(tmp_path: Path) -> None:
    """It refuses unknown keys before doing anything; its configuration is tested elsewhere."""
    own = program("prometheus-alertmanager", "prometheus-alertmanager")
    command = [own, *command_here("alertmanager", tmp_path, free_port())]

    def said(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more, "--version"], capture_output=True, text=True, check=False)

    assert said().returncode == 0, said().stderr
    assert "no-such-flag" in said("--no-such-flag").stderr


def test_provisioning_says_only_what_grafana_documents() -> None:
    boards = yaml.safe_load((PROVISIONING / "dashboards/wslgpud.yml").read_text())
    sources = yaml.safe_load((PROVISIONING / "datasources/wslgpud.yml").read_text())
    (provider,), (source,) = boards["providers"], sources["datasources"]

    assert (boards.keys(), boards["apiVersion"]) == ({"apiVersion", "providers"}, 1)
    assert (sources.keys(), sources["apiVersion"]) == ({"apiVersion", "datasources"}, 1)
    assert provider.keys() <= PROVIDER_KEYS
    assert source.keys() <= SOURCE_KEYS
    assert {"name", "type", "access"} <= source.keys(), "required"


def test_grafana_finds_its_dashboards_and_prometheus() -> None:
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards/wslgpud.yml").read_text())["providers"]
    (source,) = yaml.safe_load((PROVISIONING / "datasources/wslgpud.yml").read_text())["datasources"]
    scrape = yaml.safe_load((GRAFANA.parent / "deploy/prometheus/scrape.yml").read_text())
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]

    assert outside("grafana", "/etc/grafana/provisioning") == PROVISIONING
    assert outside("grafana", provider["options"]["path"]) == FOLDER
    assert outside("grafana", home) == FOLDER / "overview.json"
    assert len(DASHBOARDS) == len(list(FOLDER.glob("*.json")))
    (listens,) = (a.partition("=")[2] for a in SERVICES["prometheus"]["command"] if "web.listen" in a)
    assert (source["type"], source["url"]) == ("prometheus", f"http://{listens}")
    # Without it short windows are empty: Grafana takes 15 s for granted.
    assert source["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
