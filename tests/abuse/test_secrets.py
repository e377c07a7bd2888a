"""Secrets are planted wherever people have them; whatever the program prints, serves or writes has none."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from tests.support.daemons import WSLGPUD, Running, daemon, eventually, wslgpud
from wslgpud.config import declared_keys

#: In every secret, so that one search finds them all, each with a letter of its own behind it.
MARK = "pl4nted"
PAGES = (
    "/metrics",
    "/",
    "/-/healthy",
    "/-/ready",
    "/api/v1/status",
    "/api/v1/live",
    "/api/v1/latest",
    "/api/v1/series",
    "/api/v1/processes",
    "/api/v1/incidents",
    "/api/v1/stress",
    "/api/v1/doctor",
    "/api/v1/self",
    "/api/v1/openapi.json",
    f"/metrics?token={MARK}-query",
    f"/no/{MARK}-path",
)
COMMANDS = (
    ("config", "show"),
    ("config", "show", "--json"),
    ("status",),
    ("status", "--json"),
    ("alerts", "test"),
    ("alerts", "list"),
    ("incidents",),
    ("history",),
    ("monitor", "-o"),
    ("doctor", "--json"),
)
PROGRAM = "import sys; held = bytearray(300 << 20); print('up', flush=True); sys.stdin.read()"
#: As setproctitle does: one string over all arguments. /proc/self/stat names their place, proc_pid_stat(5).
TITLE = f"trainer: epoch 1 --api-key={MARK}-k --password {MARK}-l sk-{MARK}0123456789abcdef01234"
RETITLED = f"""
words = open("/proc/self/stat").read().rpartition(")")[2].split()
begin, end = int(words[45]), int(words[46])
with open("/proc/self/mem", "r+b", buffering=0) as memory:
    memory.seek(begin)
    memory.write({TITLE!r}.encode().ljust(end - begin, b"\\0")[: end - begin])
{PROGRAM}
"""
#: what quotes its arguments when it fails
COMMAND = ["-c", "import sys; sys.exit(' '.join(sys.argv))", f"{MARK}-m", f"https://hooks.example/{MARK}-n"]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    urls = tmp_path / "urls"
    urls.write_text(f"json://user:{MARK}-a@127.0.0.1:1/hook\n")
    web = tmp_path / "web.yml"
    hashed = bcrypt.hashpw(f"{MARK}-b".encode(), bcrypt.gensalt(4)).decode()
    web.write_text(f"basic_auth_users:\n  watcher: {hashed}\n")
    file = tmp_path / ".config" / "wslgpud" / "wslgpud.toml"
    file.parent.mkdir(parents=True)
    file.write_text(
        f'[alerts]\nurls = ["ntfy://{MARK}-c@127.0.0.1:1/topic"]\nurls_file = "{urls}"\n'
        f"command = {json.dumps([sys.executable, *COMMAND])}\n"
        f'[server]\nweb_config_file = "{web}"\n'
        f'[otlp]\nendpoint = "http://me:pa@{MARK}-o@127.0.0.1:1/v1/{MARK}-p?token={MARK}-q#{MARK}-r"\n'
        f'headers = ["authorization=Bearer {MARK}-d"]\ninterval_seconds = 0.2\n'
        f'[windows]\nexporter_url = "http://127.0.0.1:1/{MARK}-s?key={MARK}-t"\n'
        f'[sampling]\nmodel_servers = ["http://me:pa@{MARK}-w@127.0.0.1:1/{MARK}-x?key={MARK}-y"]\n'
        '[log]\nlevel = "debug"\n'
    )
    return {
        "WSLGPUD_ALERTS__ALERTMANAGER_URLS": f"http://user:pa@{MARK}-e@127.0.0.1:1/{MARK}-u?x={MARK}-v",
        "HF_TOKEN": f"{MARK}-f",
        "AWS_SECRET_ACCESS_KEY": f"{MARK}-g",
    }


@pytest.fixture
def training(tmp_path: Path) -> Iterator[list[int]]:
    """Run programs big enough to be watched, with secrets on their command line and in their environment.

    The second has made a title of them, the third is held by a guard, which tells everybody what it runs.
    """
    arguments = [f"--api-key={MARK}-h", "--password", f"{MARK}-i"]
    environment = {**os.environ, "WANDB_API_KEY": f"{MARK}-j"}
    commands = []
    for name, text in (("train.py", PROGRAM), ("titled.py", RETITLED), ("guarded.py", PROGRAM)):
        script = tmp_path / name
        script.write_text(text)
        commands.append([sys.executable, str(script), *arguments])
    # Room for the title.
    commands[1] += ["x" * len(TITLE)]
    guard = [*WSLGPUD, "guard", "--log", str(tmp_path / "log"), "--state", str(tmp_path / "guard"), "--"]
    commands[2] = [*guard, *commands[2]]
    with contextlib.ExitStack() as stack:
        programs = []
        for command in commands:
            program = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            )
            stack.callback(program.kill)
            assert program.stdout is not None
            assert program.stdout.readline() == b"up\n"
            programs.append(program.pid)
        yield programs


def body(running: Running, path: str, password: str) -> str:
    """Return a page with its status and headers, asked for with a password."""
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=180)
    pair = base64.b64encode(f"watcher:{password}".encode()).decode()
    connection.request("GET", path, headers={"Authorization": f"Basic {pair}"})
    answer = connection.getresponse()
    said = f"{answer.status}\n{answer.headers}\n{answer.read().decode()}"
    connection.close()
    return said


@pytest.mark.slow
def test_none_of_them_is_anywhere(tmp_path: Path, settings: dict[str, str], training: list[int]) -> None:
    outputs: dict[str, str] = {}
    with daemon(tmp_path, settings=settings) as running:
        outputs["greeting"] = "".join(running.said)
        eventually(lambda: "200\n" in body(running, "/-/ready", f"{MARK}-b"), "readiness")
        for pid in training[:2]:
            eventually(lambda: str(pid) in body(running, "/api/v1/processes", f"{MARK}-b"), "its row")  # noqa: B023 - called at once
        eventually(lambda: "guarded.py" in body(running, "/api/v1/status", f"{MARK}-b"), "what runs")
        for path in PAGES:
            outputs[path] = body(running, path, f"{MARK}-b")
            outputs[f"{path}, wrong password"] = body(running, path, f"{MARK}-wrong")
        state = ("--state", str(running.state))
        for command in COMMANDS:
            place = () if command[0] == "config" or command[-1] == "test" else state
            done = wslgpud(*command, *place, home=tmp_path, settings=settings)
            outputs[" ".join(command)] = done.stdout + done.stderr
        bundle, trace = tmp_path / "bundle.tar.gz", tmp_path / "trace.jsonl"
        for command in (
            ("doctor", "--bundle", str(bundle), *state),
            ("capture", str(tmp_path / "captured")),
            ("record", str(trace), "--for", "2s"),
            ("export", str(tmp_path / "history.csv"), *state),
        ):
            done = wslgpud(*command, home=tmp_path, settings=settings)
            outputs[" ".join(command)] = done.stdout + done.stderr
        _, outputs["log"] = running.end()
    with tarfile.open(bundle) as packed:
        for member in packed:
            if (content := packed.extractfile(member)) is not None:
                outputs[f"bundle: {member.name}"] = content.read().decode("latin-1")
    files = [trace, tmp_path / "history.csv"]
    for folder in ("state", "captured", "guard"):
        files += [file for file in (tmp_path / folder).rglob("*") if file.is_file()]
    outputs |= {str(file): file.read_bytes().decode("latin-1") for file in files}

    assert len(outputs) > 60, "pages, commands, captures and bundles: dozens of each"
    assert not [where for where, text in outputs.items() if text.startswith("Usage:")]
    assert outputs["/metrics"].startswith("200\n")
    assert outputs["/metrics, wrong password"].startswith("401\n")
    assert "127.0.0.1:1" in outputs["alerts test"], "channels that fail are named"
    assert "command                       failed" in outputs["alerts test"]
    assert re.search('"command": ?"trainer"', outputs["/api/v1/status"]), "of a title its program"
    assert "windows_exporter at http://127.0.0.1:1 cannot be read" in outputs["/api/v1/status"]
    assert not {where: around(text) for where, text in outputs.items() if MARK in text}


def around(text: str, mark: str = MARK) -> str:
    place = text.index(mark)
    return text[max(0, place - 60) : place + 40]


POSTGRESQL = "postgresql+psycopg"
#: A value that cannot be used, and the command that says so.
WRONG = (
    ({"WSLGPUD_OTLP__HEADERS": MARK, "WSLGPUD_OTLP__ENDPOINT": "http://127.0.0.1:1"}, ("config", "check")),
    ({"WSLGPUD_ALERTS__ALERTMANAGER_URLS": f"{MARK}://me:pa@{MARK}@127.0.0.1:x/{MARK}"}, ("config", "check")),
    ({"WSLGPUD_ALERTS__URLS": f"nonsense://me:pa@{MARK}@127.0.0.1/{MARK}?token={MARK}"}, ("config", "check")),
    ({"WSLGPUD_ALERTS__URLS": f"nonsense://me:pa@{MARK}@127.0.0.1/{MARK}?token={MARK}"}, ("alerts", "test")),
    ({"WSLGPUD_ALERTS__QUIET_HOURS": f"http://me:pa@{MARK}@127.0.0.1/?token={MARK}"}, ("config", "check")),
    ({"WSLGPUD_STORE__PATH": f"{POSTGRESQL}://me:pa@{MARK}@127.0.0.1:1/db?password={MARK}"}, ("db", "info")),
    ({"WSLGPUD_STORE__PATH": f"{POSTGRESQL}://me:pa/{MARK}@127.0.0.1:1/db"}, ("history",)),
    ({"WSLGPUD_STORE__PATH": f"nonsense://me:pa@{MARK}@127.0.0.1:1/db?password={MARK}"}, ("history",)),
)


@pytest.mark.parametrize(("settings", "command"), WRONG)
def test_no_error_quotes_a_secret(settings: dict[str, str], command: tuple[str, ...], tmp_path: Path) -> None:
    done = wslgpud(*command, home=tmp_path, settings=settings)
    said = done.stdout + done.stderr

    assert done.returncode == 2, said
    assert "Traceback" not in said
    assert MARK not in said


SHOWN = {
    "store.path": ("postgresql+psycopg://me:pa@{}@db.example/history?password={}", "postgresql+psycopg://db.example"),
    "otlp.endpoint": ("https://me:{}@collector:4318/v1/{}?token={}#{}", "https://collector:4318"),
    "windows.exporter_url": ("http://mypc:9182/metrics?key={}", "http://mypc:9182"),
    "sampling.model_servers": ("http://me:pa@{}@vllm:8000/{}?x={}", ["http://vllm:8000"]),
    "alerts.alertmanager_urls": ("http://me:pa@{}@am:9093/{}?x={}", ["http://am:9093"]),
    "alerts.urls": ("tgram://{}/{}", "(secret)"),
    "otlp.headers": ("authorization=Bearer {}", "(secret)"),
    "alerts.command": ("/usr/bin/warn,--token,{}", ["/usr/bin/warn", "(secret)"]),
}


def test_config_show_says_where_things_go_and_nothing_else(tmp_path: Path) -> None:
    settings = {
        f"WSLGPUD_{key.replace('.', '__').upper()}": value.replace("{}", MARK) for key, (value, _) in SHOWN.items()
    }
    done = wslgpud("config", "show", "--json", home=tmp_path, settings=settings)
    table = wslgpud("config", "show", home=tmp_path, settings=settings)
    shown = json.loads(done.stdout)

    assert {key: shown[key]["value"] for key in SHOWN} == {key: text for key, (_, text) in SHOWN.items()}
    assert MARK not in done.stdout + done.stderr + table.stdout + table.stderr


def test_every_key_that_can_hold_a_secret_declares_so() -> None:
    telling = re.compile(r"url|endpoint|header|command|password|token|path$")
    silent = {
        key.path
        for key in declared_keys()
        if telling.search(key.path) and key.shows == "all" and key.type not in (int, float)
    }

    assert silent == {"alerts.urls_file"}, "it names a file"
