"""Secrets are planted wherever people have them; whatever the program prints, serves or writes has none."""

from __future__ import annotations

import base64
import http.client
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from tests.support.daemons import Running, daemon, eventually, wslgpud

#: In every secret, so that one search finds them all, each with a letter of its own behind it.
MARK = "pl4nted"
PAGES = (
    "/metrics", "/", "/plain", "/-/healthy", "/-/ready", "/api/v1/status", "/api/v1/live", "/api/v1/latest",
    "/api/v1/series", "/api/v1/processes", "/api/v1/incidents", "/api/v1/stress", "/api/v1/doctor",
    "/api/v1/self", "/api/v1/openapi.json", f"/metrics?token={MARK}-query", f"/no/{MARK}-path",
)  # fmt: skip
COMMANDS = (
    ("config", "show"), ("config", "show", "--json"), ("status",), ("status", "--json"), ("alerts", "test"),
    ("alerts", "list"), ("incidents",), ("history",), ("monitor", "-o"), ("doctor", "--json"),
)  # fmt: skip
PROGRAM = "import sys; held = bytearray(300 << 20); print('up', flush=True); sys.stdin.read()"


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
        f'[server]\nweb_config_file = "{web}"\n'
        f'[otlp]\nendpoint = "http://127.0.0.1:1/v1/metrics"\nheaders = ["authorization=Bearer {MARK}-d"]\n'
        'interval_seconds = 0.2\n[log]\nlevel = "debug"\n'
    )
    return {
        "WSLGPUD_ALERTS__ALERTMANAGER_URLS": f"http://user:{MARK}-e@127.0.0.1:1",
        "HF_TOKEN": f"{MARK}-f",
        "AWS_SECRET_ACCESS_KEY": f"{MARK}-g",
    }


@pytest.fixture
def training(tmp_path: Path) -> Iterator[int]:
    """Run what is big enough to be watched, with secrets on its command line and in its environment."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), f"--api-key={MARK}-h", "--password", f"{MARK}-i"]
    environment = {**os.environ, "WANDB_API_KEY": f"{MARK}-j"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        yield program.pid
        program.kill()


def body(running: Running, path: str, password: str) -> str:
    """Return a page with its status and headers, asked for with a password."""
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=180)
    pair = base64.b64encode(f"watcher:{password}".encode()).decode()
    connection.request("GET", path, headers={"Authorization": f"Basic {pair}"})
    answer = connection.getresponse()
    said = f"{answer.status}\n{answer.headers}\n{answer.read().decode()}"
    connection.close()
    return said


def test_none_of_them_is_anywhere(tmp_path: Path, settings: dict[str, str], training: int) -> None:
    outputs: dict[str, str] = {}
    with daemon(tmp_path, settings=settings) as running:
        outputs["greeting"] = "".join(running.said)
        eventually(lambda: "200\n" in body(running, "/-/ready", f"{MARK}-b"), "readiness")
        eventually(lambda: str(training) in body(running, "/api/v1/processes", f"{MARK}-b"), "its row")
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
            ("doctor", "--bundle", str(bundle), *state), ("capture", str(tmp_path / "captured")),
            ("record", str(trace), "--seconds", "2"), ("export", str(tmp_path / "history.csv"), *state),
        ):  # fmt: skip
            done = wslgpud(*command, home=tmp_path, settings=settings)
            outputs[" ".join(command)] = done.stdout + done.stderr
        _, outputs["log"] = running.end()
    with tarfile.open(bundle) as packed:
        for member in packed:
            if (content := packed.extractfile(member)) is not None:
                outputs[f"bundle: {member.name}"] = content.read().decode("latin-1")
    files = [trace, tmp_path / "history.csv"]
    for folder in ("state", "captured"):
        files += [file for file in (tmp_path / folder).rglob("*") if file.is_file()]
    outputs |= {str(file): file.read_bytes().decode("latin-1") for file in files}

    assert len(outputs) > 60, "pages, commands, captures and bundles: dozens of each"
    assert not [where for where, text in outputs.items() if text.startswith("Usage:")]
    assert outputs["/metrics"].startswith("200\n")
    assert outputs["/metrics, wrong password"].startswith("401\n")
    assert "127.0.0.1:1" in outputs["alerts test"], "channels that fail are named"
    assert not {where: around(text) for where, text in outputs.items() if MARK in text}


def around(text: str, mark: str = MARK) -> str:
    place = text.index(mark)
    return text[max(0, place - 60) : place + 40]
