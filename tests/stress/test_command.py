"""``wslgpud stress`` and its history."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest
from click.testing import CliRunner

from tests.stress.support import night
from wslgpud.cli import app
from wslgpud.cli.stress import print_history, print_run
from wslgpud.config import StoreSettings
from wslgpud.store import Store
from wslgpud.stress.separate import set_by_signals
from wslgpud.words import say

BUSY = say("the GPU is busy: {busy_ratio} in the last {past_seconds}", busy_ratio=0.93, past_seconds=30)
NIGHTS = [
    night(1),
    night(2, verdict="skipped", reason=BUSY),
    night(3, driver="581.15", write_median=790e9, usable_bytes=13790 << 20),
    night(4, driver="581.15", verdict="findings", findings=[("errors", "3 wrong words: weak cells")], errors=3),
]


@pytest.fixture
def ask(tmp_path):
    with Store(tmp_path / "wslgpud.db", StoreSettings()) as store:
        for run in NIGHTS:
            store.record_stress(run)

    def do(*arguments):
        done = CliRunner().invoke(app, ["stress", *arguments, "--state", str(tmp_path)], env={"COLUMNS": "200"})
        return done.exit_code, done.output

    return do


def test_history_keeps_every_figure(ask):
    status, text = ask("history", "--json")
    runs = json.loads(text)

    assert status == 0
    assert [run["verdict"] for run in runs] == ["passed", "skipped", "passed", "findings"]
    assert runs[2]["values"]["usable_bytes"] == 13790 << 20
    assert runs[1]["reason"] == "the GPU is busy: 93 % in the last 30 s"
    assert runs[3]["findings"] == [{"kind": "errors", "text": "3 wrong words: weak cells"}]


def test_history_is_one_line_a_night_with_remarks_below(ask):
    _, text = ask("history")
    lines = [line.rstrip() for line in text.splitlines()]

    assert len(lines) == 2 + len(NIGHTS) + 2
    assert any(line.endswith("  the GPU is busy: 93 % in the last 30 s") for line in lines)
    assert any(line.split()[-6:] == ["13.47", "99.31%", "790", "780", "760", "581.15"] for line in lines)


def test_history_fits_a_terminal_of_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    print_history([(4321, night(1, driver="581.15.01"))])

    row = next(line for line in capsys.readouterr().out.splitlines() if "4321" in line)
    assert row.split()[-7:] == ["passed", "13.67", "99.31%", "800", "780", "760", "581.15.01"]


def test_one_night_can_be_looked_at(ask):
    runs = json.loads(ask("history", "--json")[1])
    status, text = ask("show", str(runs[3]["id"]))

    assert status == 0
    assert "findings" in text
    assert "3 wrong words: weak cells" in text
    assert ask("show", "999")[0] == ask("show", "9" * 20)[0] == 2


def test_drivers_are_compared_without_being_named(ask):
    status, text = ask("compare", "--json")
    table = json.loads(text)

    assert status == 0
    assert table["columns"] == ["gpu0 576.88 torch 2.13.0", "gpu0 581.15 torch 2.13.0"]
    assert {row["name"]: round(row["change"], 4) for row in table["rows"]}["write bandwidth"] < 0


def test_without_a_run_one_line_says_there_is_nothing_to_compare(tmp_path):
    Store(tmp_path / "wslgpud.db", StoreSettings()).close()
    done = CliRunner().invoke(app, ["stress", "compare", "--state", str(tmp_path)])

    assert (done.exit_code, done.output) == (
        0,
        "nothing to compare: no stress run is complete yet; wslgpud stress does one\n",
    )


def test_a_picture_can_be_drawn(ask, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "nights.png"

    assert ask("history", "--plot", str(picture))[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_a_gpu_there_is_nothing_to_test(tmp_path):
    done = CliRunner().invoke(
        app, ["stress", "--state", str(tmp_path)], env={"WSLGPUD_SAMPLING__NVML_LIBRARY": "/no/such/library"}
    )

    assert done.exit_code == 2
    assert "sampling.nvml_library: there is no /no/such/library" in done.output


def test_a_verdict_can_be_read_aloud(capsys):
    print_run(NIGHTS[0])

    said = capsys.readouterr().out
    assert "passed" in said
    assert "every byte was read back as written" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_at_any_moment(number):
    stop = threading.Event()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        set_by_signals(stop)
        with stop._cond:  # as in the middle of its wait()
            os.kill(os.getpid(), number)
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)

    assert stop.wait(60)
