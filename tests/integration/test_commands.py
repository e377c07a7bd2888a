"""The smaller commands, as somebody types them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import PATIENCE_SECONDS, WSLGPUD, clean_environment, eventually, wslgpud
from wslgpud.cli.common import daemon_folders
from wslgpud.config import SYSTEM_STATE, declared_keys
from wslgpud.host import RecordedHost

HOSTS = Path(__file__).parent.parent / "hosts"


@pytest.mark.slow
def test_config_init_writes_a_valid_file_and_never_overwrites(tmp_path: Path) -> None:
    file = tmp_path / "new" / "wslgpud.toml"
    written = wslgpud("config", "init", str(file), home=tmp_path)
    checked = wslgpud("config", "check", "--config", str(file), home=tmp_path)
    file.write_text("[server]\nport = 1234\n")
    again = wslgpud("config", "init", str(file), home=tmp_path)

    assert written.stdout == f"wrote {file}\n"
    assert checked.stdout == f"{file}: good\n"
    assert (again.returncode, file.read_text()) == (2, "[server]\nport = 1234\n")
    assert "exists already" in again.stderr


def test_root_asks_a_hanging_service_daemon_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(SYSTEM_STATE))

    assert daemon_folders(None) == [SYSTEM_STATE]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alerts.quiet_hours", "10pm"),
        ("alerts.channel_levels", "command"),
        ("alerts.urls_file", "/no/urls"),
        ("alerts.alertmanager_urls", "localhost"),
        ("server.address", "0.0.0.0"),
        ("server.web_config_file", "/no/web.yml"),
        ("stress.schedule", "30 3"),
    ],
)
def test_config_check_refuses_what_the_daemon_would_refuse(tmp_path: Path, key: str, value: str) -> None:
    settings = {f"WSLGPUD_{key.replace('.', '__').upper()}": value}
    checked = wslgpud("config", "check", home=tmp_path, settings=settings)
    started = wslgpud("run", "--state", str(tmp_path / "state"), home=tmp_path, settings=settings)

    assert (checked.returncode, checked.stdout) == (2, "")
    assert checked.stderr.startswith(f"wslgpud: {key}")
    assert started.returncode == 2
    assert started.stderr.endswith(checked.stderr)


def test_config_show_names_every_key_with_its_value_and_origin(tmp_path: Path) -> None:
    done = wslgpud("config", "show", "--json", home=tmp_path, settings={"WSLGPUD_LOG__LEVEL": "debug"})
    shown = json.loads(done.stdout)

    assert list(shown) == [key.path for key in declared_keys()]
    assert (shown["log.level"]["value"], shown["log.level"]["origin"]) == ("debug", "WSLGPUD_LOG__LEVEL")
    assert shown["sampling.interval_seconds"]["origin"] == "default"


def test_config_show_explains_each_key_its_value_and_its_origin(tmp_path: Path) -> None:
    shown = wslgpud("config", "show", home=tmp_path, settings={"WSLGPUD_LOG__LEVEL": "debug"}).stdout

    assert shown.splitlines()[0] == "sampling.interval_seconds = 1.0"
    assert 'log.level = "debug"\n    from WSLGPUD_LOG__LEVEL\n    lowest level of log messages\n' in shown


def test_config_show_takes_brackets_for_text(tmp_path: Path) -> None:
    shown = wslgpud("config", "show", home=tmp_path, settings={"WSLGPUD_ALERTS__URLS_FILE": "/[x]/[/y]"})

    assert '"/[x]/[/y]"' in shown.stdout


@pytest.mark.parametrize("command", [("status",), ("monitor", "--once")], ids=" ".join)
def test_a_terminal_without_utf_8_is_shown_what_it_can_show(tmp_path: Path, command: tuple[str, ...]) -> None:
    recorded = ("--host-root", str(HOSTS / "wsl2-vram-full"))
    shown = wslgpud(*command, *recorded, home=tmp_path, settings={"PYTHONIOENCODING": "ascii"})

    assert (shown.returncode, shown.stderr) == (0, "")
    assert "RTX 5070 Ti" in shown.stdout


def test_status_of_a_recorded_machine_shows_card_and_training(tmp_path: Path) -> None:
    shown = wslgpud("status", "--host-root", str(HOSTS / "wsl2-vram-full"), home=tmp_path).stdout

    assert "NVIDIA GeForce RTX 5070 Ti" in shown
    assert "GPU, training" in shown
    assert "a recorded machine" in shown


def test_status_does_not_call_a_full_card_fine(tmp_path: Path) -> None:
    seen = wslgpud("status", "--host-root", str(HOSTS / "wsl2-vram-full"), home=tmp_path).stdout

    assert "GPU 0 is full" in seen
    assert "Memory is fine" not in seen
    assert "steady" not in seen  # one look cannot know


@pytest.mark.slow
def test_capture_writes_a_machine_that_can_be_looked_at_again(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    done = wslgpud("capture", str(folder), home=tmp_path)
    again = wslgpud("capture", str(folder), home=tmp_path)

    assert "review them before you share them" in done.stdout
    assert "MemTotal" in RecordedHost(folder).read("/proc/meminfo")
    assert (again.returncode, len(again.stderr.splitlines())) == (2, 1)


@pytest.mark.slow
def test_record_writes_a_header_and_samples_and_never_overwrites(tmp_path: Path) -> None:
    trace = tmp_path / "live.jsonl.gz"
    done = wslgpud("record", str(trace), "--for", "1.5s", home=tmp_path)
    header, first, *_ = gzip.decompress(trace.read_bytes()).decode().splitlines()
    again = wslgpud("record", str(trace), "--for", "1s", home=tmp_path)

    assert done.stderr == ""
    assert json.loads(header)["trace"] == 1
    assert json.loads(first)["t"] == 0
    assert json.loads(first)["ram"]["total"] > 0
    assert "exists already" in again.stderr


def test_a_recording_that_is_told_to_end_can_be_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "live.jsonl.gz"
    recording = subprocess.Popen([*WSLGPUD, "record", str(trace)], env=clean_environment(tmp_path))
    eventually(lambda: trace.exists() and trace.stat().st_size > 300, "the first samples")
    recording.terminate()

    assert recording.wait(PATIENCE_SECONDS) == 0
    assert wslgpud("replay", str(trace), home=tmp_path).stderr == ""


def test_a_recording_that_the_disk_refuses_ends_in_one_line(tmp_path: Path) -> None:
    """A limit on the size of files makes the write fail, as a full disk would."""
    command = f'ulimit -f 1; exec "{sys.executable}" -m wslgpud record "{tmp_path / "live.jsonl"}"'
    done = subprocess.run(
        ["bash", "-c", command], env=clean_environment(tmp_path), capture_output=True, text=True, check=False
    )

    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "File too large" in done.stderr
