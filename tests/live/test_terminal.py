"""The live view in a real terminal (tmux): every state is captured and compared with an approved screen.

``WSLGPUD_RENEW=1`` writes the screens anew; look at them before they are committed.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.page.pictures import work
from tests.page.stage import Stage, nights, trace
from tests.support.daemons import PATIENCE_SECONDS, WSLGPUD, eventually
from tests.support.terminals import Terminal
from wslgpud.alerts.incidents import IncidentLedger

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (Debian package)")
SCREENS = Path(__file__).parent / "screens"
HOSTS = Path(__file__).parents[1] / "hosts"
IGNORING = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
SIZE = (100, 30)

#: what is another one at each look: clocks, ages, ports, rates, and curves that move on with time
_CHANGING = (
    (r"\d\d:\d\d(:\d\d)?", "TIME"),
    (r"[A-Z][a-z][a-z] \d\d TIME", "TIME"),
    (r"\d{4}-\d\d-\d\d", "DATE"),
    (r"127\.0\.0\.1:\d+", "HOST"),
    (r" +\d+ (s|min) old", ""),
    (r"NO ANSWER  for \d+ \w+: .*", "NO ANSWER"),
    (r"[▁▂▃▄▅▆▇█\u2801-\u28ff]", " "),
    # Rates come with the second sample, and where the line breaks depends on them.
    (r"(disk read|/ [\d.]+ GiB free)[^─]*(?=──)", "MACHINE\n"),
    (r"TIME( +TIME)+", "TIME"),
    (r"  +", "  "),
    (r"CPU .*", "CPU"),
    (r"(disk r/w) .*?/s .*?/s", r"\1"),
    (r"(net in/out) .*?/s .*?/s", r"\1"),
    (r"(disk r/w|net in/out) n/a n/a", r"\1"),
)
#: dots of a curve, and its line in the legend
HISTORY = (r"[\u2801-\u28ff]{5}", r"━━ +headroom_bytes\{resource=\"gpu0\"\} +1\.3 GiB .* 8\.0 GiB")


def shows(terminal: Terminal, name: str, *words: str, of: Callable[[str], str] = str) -> None:
    """Wait until the screen is as it was found good: for a moment half of it is still of the one before."""
    file = SCREENS / f"{name}.txt"
    if os.environ.get("WSLGPUD_RENEW"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(plain(of(terminal.until(*words))))
    end = time.monotonic() + PATIENCE_SECONDS
    while (seen := plain(of(terminal.until(*words)))) != file.read_text() and time.monotonic() < end:
        time.sleep(0.1)
    assert seen == file.read_text(), name


def plain(screen: str) -> str:
    for pattern, word in _CHANGING:
        screen = re.sub(pattern, word, screen)
    # The figures are the risk engine's, which has tests of its own.
    screen = re.sub(r"\d+(\.\d+)?", "N", screen).replace("╍", "─")
    lines = "\n".join(line.rstrip() for line in screen.splitlines()).strip()
    return re.sub(r"\n{3,}", "\n\n", lines) + "\n"


@pytest.fixture
def stage(tmp_path):
    made = Stage(tmp_path)
    made.ticking = True
    yield made
    made.close()


def fresh(stage: Stage) -> None:
    """Forget what went wrong before."""
    stage.ledger, stage.said, stage.running = IncidentLedger((), 0.0, 0.0), [], []


@pytest.mark.slow
def test_each_state_looks_as_it_was_found_good(stage: Stage, tmp_path: Path) -> None:
    with Terminal([*WSLGPUD, "monitor", "--url", stage.url], tmp_path, SIZE) as terminal:
        shows(terminal, "no-data", "first sample", "history")
        stage.host("no-gpu", past_seconds=60)
        shows(terminal, "no-gpu", "Memory is fine", "processes", "RAM used", "disk read")
        nights(stage, 5)
        work(stage)
        shows(terminal, "work", "RTX 4090", "compilers wait", "stress run of")
        fresh(stage)
        stage.play(trace("h200/h200-slow_leak-1"), 96)
        shows(terminal, "warning", "WARNING", "GPU 0")
        terminal.keys("h")
        terminal.until("headroom", "a point every", "esc back")
        terminal.keys("-")
        terminal.until("a point every 2 s")
        eventually(lambda: all(re.search(what, terminal.text()) for what in HISTORY), "the history")
        terminal.keys("Escape")
        terminal.until("── memory")
        fresh(stage)
        stage.play(trace("ram-leak_linear-1"), 171)
        shows(terminal, "emergency", "EMERGENCY", "swap")
        stage.server.stop()
        shows(terminal, "no-answer", "NO ANSWER", "the data below is old")
        stage.serve(stage.port)
        stage.host("no-gpu", past_seconds=60)
        terminal.until("Memory is fine")

        for width, height in ((80, 24), (200, 50), (81, 25)):
            terminal.resize(width, height)
            terminal.until_match(rf"(?m)^── memory ─.{{{width - 11}}}$")
            assert len(terminal.text().splitlines()) <= height
        terminal.keys("q")
        terminal.until("ended with status 0")


def test_without_colour_there_is_none(stage: Stage, tmp_path: Path) -> None:
    stage.play(trace("ram-leak_linear-1"), 171)
    command = [*WSLGPUD, "monitor", "--url", stage.url]
    with Terminal(command, tmp_path, SIZE, {"NO_COLOR": "1"}) as terminal:
        terminal.until("EMERGENCY", "history")
        drawn = terminal.coloured()

    for codes in re.findall(r"\x1b\[([\d;]*)m", drawn):
        for code in map(int, filter(None, codes.split(";")[:1])):
            assert code < 30 or code in (39, 49), f"colour {codes} in {drawn!r}"


@pytest.mark.slow
def test_a_closed_terminal_ends_it_even_if_the_signal_is_ignored() -> None:
    """As under nohup: it would draw on for ever, with a whole processor core."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    live = subprocess.Popen(
        [sys.executable, "-c", IGNORING, *WSLGPUD, "monitor", "--host-root", str(HOSTS / "no-gpu")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
    )
    os.close(theirs)
    drawn = b""
    while b"processes" not in drawn:
        drawn += os.read(ours, 1 << 16)
    os.close(ours)

    assert live.wait() == 0
