"""Every command speaks Chinese to somebody whose locale does, also when something is wrong."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.page.stage import Stage, nights, past_incidents
from tests.page.stories import three_groups
from tests.words.latin import latin_words
from wslgpud import words
from wslgpud.alerts.rules import OTHERS, RULES, runbook
from wslgpud.cli import app
from wslgpud.words import translator

pytestmark = pytest.mark.usefixtures("without_torch")

ROOT = Path(__file__).parents[2]
HOSTS, TRACES = ROOT / "tests/hosts", ROOT / "tests/traces"
#: what these machines and their owners call their own; values of options; what is printed for programs
NAMES = (
    "node",
    "batch size",
    "pt_main_thread",
    "debug",
    "panic",
    "auto",
    "off",
    "command",
    "json",
    "training",
    "inference",
    "desktop",
    "max",
    "lora",
    "train",
    "cpu",
    "gpu",
    "foo",
    "cert",
    "prometheus",
    "cicc",
    "wslc-cli-user",
    "vmmemwslc-cli-user",
    "level",
    "rule",
    *OTHERS,
    *(rule.name for rule in RULES),
)
#: a mark of half width after Chinese: punctuation that the code has put there itself
HALF_WIDTH = re.compile(r"[\u4e00-\u9fff][:;,](?: |$)", re.MULTILINE)

Shown = Callable[..., str]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A machine's history: nights of stress runs, what went wrong lately, two kills."""
    folder = tmp_path_factory.mktemp("state")
    stage = Stage(folder, database=folder / "wslgpud.db", name=socket.gethostname())
    nights(stage, 12)
    past_incidents(stage)
    three_groups(stage, folder)
    stage.store.flush()
    stage.close()
    return folder


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    """Run a command under a Chinese locale; return its output."""
    monkeypatch.chdir(tmp_path)
    environment = {
        "LANG": "zh_CN.UTF-8",
        "LC_ALL": None,
        "COLUMNS": "160",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }

    def run(*arguments: object) -> str:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.output

    yield run
    words.use("en")


def chinese(text: str, *names: str) -> None:
    """Hold that a text is Chinese, set as Chinese is."""
    assert latin_words(text, (*NAMES, socket.gethostname(), *names)) == [], text
    assert HALF_WIDTH.findall(text) == [], text


@pytest.mark.parametrize(
    "command",
    [
        "incidents --all",
        "alerts list",
        "alerts silence swap_thrash --for 2h",
        "alerts silence swap_thrash --for 0",
        "brake list",
        "brake release",
        "brake try",
        "alerts ack 99",
        "stress history",
        "stress compare",
        "stress compare 1 2",
        "db info",
        "db check",
        "db compact --dry-run",
        "db backup copy.db",
        "history ram",
        "history foo",
        "export ram.csv ram",
        "export x.txt",
        "replay --since 1h",
        "incidents 9999",
    ],
)
def test_a_history_is_told_in_chinese(state: Path, shown: Shown, command: str) -> None:
    if command == "db compact --dry-run":
        shutil.copytree(state, "own")
        state = Path("own")

    chinese(shown(*command.split(), "--state", state))


def test_an_incident_is_told_in_chinese_with_what_the_kernel_did(state: Path, shown: Shown) -> None:
    listed = json.loads(shown("incidents", "--all", "--json", "--state", state))
    told = [shown("incidents", one["id"], "--state", state) for one in listed]

    for text in told:
        chinese(text)
    assert any("内核终止了 python3 (pid 8932，2.9 GiB)" in text for text in told)


def test_a_stress_run_is_told_in_chinese(state: Path, shown: Shown) -> None:
    for run in json.loads(shown("stress", "history", "--json", "--state", state)):
        chinese(shown("stress", "show", run["id"], "--state", state))


@pytest.mark.parametrize("host", sorted(path.name for path in HOSTS.iterdir() if (path / "root").is_dir()))
def test_a_machine_is_told_in_chinese(shown: Shown, host: str) -> None:
    kernel = "misc dxg: dxgk: dxgkio_make_resident: Ioctl failed"
    for command in (["status"], ["monitor", "-o"], ["doctor", "--no-torch", "--all"]):
        chinese(shown(*command, "--host-root", HOSTS / host), kernel)


@pytest.mark.parametrize(
    "command",
    [
        "alerts explain clock_jump",
        "alerts test",
        "alerts silence foo",
        "config check",
        "config init own.toml",
        "fit 7B --usable 14GiB",
        "fit 7B --usable foo",
        "fit 7B --mode train --usable 14GiB",
        "sweep foo 1 2",
        "db info",
        "monitor -o --url http://127.0.0.1:9",
        "doctor --host-root .",
        "stress --quick --full",
        "wslconfig preset training --memory 64GB --processors 32 --file own.ini",
        "wslconfig keys",
        "stress history",
        "foo",
        "status foo",
        "guard --jobs foo -- true",
        "db check --help",
    ],
)
def test_without_a_history_and_with_mistakes_it_is_chinese_too(shown: Shown, command: str) -> None:
    chinese(shown(*command.split()))


def test_recordings_are_replayed_in_chinese(shown: Shown) -> None:
    leak = TRACES / "vm/vm-leak_linear-1300s-4096-noswap.jsonl.gz"

    chinese(shown("replay", leak), "vm-leak_linear")


@pytest.mark.parametrize(
    "lines", ["nonsense", "", '{"trace": 9}', '{"trace": 1, "host": {}}\n{"t": "a"}', '{"trace": 1}\n[]']
)
def test_what_is_wrong_with_a_recording_is_told_in_chinese(shown: Shown, lines: str) -> None:
    Path("own.jsonl").write_text(lines)

    chinese(shown("replay", "own.jsonl"), '{"trace": 1, "interval_s": 1.0, "host": {}}')


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("own.toml", "[alerts]\nfoo = 3\n"),
        ("own.toml", '[sampling]\ninterval_seconds = "x"\n'),
        ("own.toml", '[alerts]\nquiet_hours = "x"\n'),
        ("web.yml", "tls_server_config:\n  min_version: TLS13\n"),
        ("web.yml", "tls_server_config:\n  cert_file: a.pem\n  key_file: b.pem\n"),
        ("web.yml", "tls_server_config:\n  client_auth_type: RequireAnyClientCert\n"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_told_in_chinese(shown: Shown, name: str, settings: str) -> None:
    Path("own.toml").write_text('[server]\nweb_config_file = "web.yml"\n')
    Path(name).write_text(settings)

    chinese(shown("config", "check", "-c", "own.toml"))


@pytest.mark.parametrize(
    "alerts",
    ['command = ["/nonexistent/alert"]', 'command = ["/bin/false"]', 'alertmanager_urls = ["http://127.0.0.1:9"]'],
)
def test_why_a_channel_took_nothing_is_told_in_chinese(shown: Shown, alerts: str) -> None:
    Path("own.toml").write_text(f"[alerts]\n{alerts}\n")

    chinese(shown("alerts", "test", "-c", "own.toml"))


def test_the_test_message_is_in_the_language_of_who_gets_it(shown: Shown) -> None:
    Path("own.toml").write_text('[alerts]\nlanguage = "zh"\ncommand = ["/bin/sh", "-c", "cat > got.json"]\n')
    chinese(shown("alerts", "test", "-c", "own.toml"))
    got = json.loads(Path("got.json").read_text())

    chinese(got["headline"])
    chinese(got["evidence"])


def test_a_history_that_cannot_be_read_says_why_in_chinese(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "wslgpud.db").write_bytes(b"no database at all" * 300)

    for command in ("db info", "db check", "incidents", "history ram", "stress history"):
        chinese(shown(*command.split(), "--state", tmp_path))


def test_each_rule_of_the_runbook_reads_chinese_whatever_asks() -> None:

    for text in runbook(translator("zh")).values():
        chinese(text, "device not ready")


@pytest.mark.slow
def test_pictures_are_chinese_too(state: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs wslgpud[plots]")
    monkeypatch.setattr("wslgpud.series.plots._families", lambda: None)  # then an SVG has text and no shapes
    listed = json.loads(shown("incidents", "--json", "--state", state))
    shown("incidents", listed[1]["id"], "--plot", "incident.svg", "--state", state)
    shown("stress", "history", "--plot", "nights.svg", "--state", state)
    shown("replay", TRACES / "vm/vm-leak_linear-1300s-4096-noswap.jsonl.gz", "--plot", "leak.svg")

    for name in ("incident", "nights", "leak"):
        texts = re.findall(r"<text[^>]*>([^<]*)</text>", Path(f"{name}.svg").read_text())
        assert any(re.search("[\u4e00-\u9fff]", text) for text in texts), texts
        chinese("\n".join(texts), "vm-leak_linear", "RTX 5070 Ti", "gpu0")
