"""The live view as somebody uses it: keys, a daemon that goes and comes back, a real terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from textual.widgets import Static

from tests.support import daemons
from tests.support.daemons import PATIENCE_SECONDS, WSLGPUD, clean_environment, daemon, eventually, wslgpud
from tests.support.servers import free_port
from wslgpud.advise.live_sample import CurveKey, LiveSample
from wslgpud.cli.live.app import LiveApp
from wslgpud.cli.live.feed import DaemonFeed, OwnFeed
from wslgpud.cli.live.past import Drawn, Past
from wslgpud.client import DaemonClient, Unanswered
from wslgpud.config import Config
from wslgpud.host import RecordedHost
from wslgpud.series.curves import Curve
from wslgpud.store import SeriesRef

HOSTS = Path(__file__).parent.parent / "hosts"


class Feed:
    """A recorded machine; ``trouble`` makes it fall silent."""

    def __init__(self) -> None:
        self._own = OwnFeed(Config(), RecordedHost(HOSTS / "two-gpus"), "recording")
        self.trouble = ""

    def look(self) -> LiveSample:
        if self.trouble:
            raise Unanswered(self.trouble)
        return self._own.look()

    def past(self) -> Past | None:
        return None

    def close(self) -> None:
        self._own.close()


def played(script: Callable[[LiveApp, Feed], Awaitable[None]], size: tuple[int, int] = (120, 40)) -> None:
    async def play() -> None:
        feed = Feed()
        live = LiveApp(feed, 0.2)
        async with live.run_test(size=size) as pilot:
            live.pilot = pilot  # type: ignore[attr-defined]
            await shows(live, "memory")
            await script(live, feed)
        feed.close()

    asyncio.run(play())


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """Yield the address of a program that says the same to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):  # closed
                while True:
                    client, _ = listener.accept()
                    with client:
                        client.recv(4096)
                        client.sendall(answer)

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        server.join()


def sample_of(feed: DaemonFeed) -> LiveSample | None:
    """Look at a daemon that may have taken no sample yet, none with a memory in it, or its time to answer."""
    try:
        look = feed.look()
    except Unanswered:
        return None
    return look if "ram" in look.document else None


def text_of(live: LiveApp) -> str:
    view = live.screen_stack[0].query_one("#view", Static)
    return "\n".join(view.render_line(y).text.rstrip() for y in range(view.size.height)).rstrip()


async def comes_about(look: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def shows(live: LiveApp, what: str, *, not_: bool = False) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while (what in text_of(live)) == not_:
        assert time.monotonic() < end, f"{what!r} in:\n{text_of(live)}"
        await asyncio.sleep(0.02)


def test_a_timer_firing_during_teardown_leaves_no_traceback() -> None:
    async def script(live: LiveApp, _: Feed) -> None:
        await live.screen.remove_children()
        live._draw()

    played(script)


def test_s_sorts_and_a_word_chooses_and_escape_brings_all_back() -> None:
    async def script(live: LiveApp, _: Feed) -> None:
        await live.pilot.press("s")
        await shows(live, "by VRAM")
        await live.pilot.press("slash", *"train")
        await shows(live, 'with "train"')
        await shows(live, "init", not_=True)
        await live.pilot.press("enter", "s")
        await shows(live, 'by growth, with "train"')
        await live.pilot.press("escape")
        await shows(live, "init")

    played(script)


def test_plus_and_minus_choose_how_far_back_and_p_stands_still() -> None:
    async def script(live: LiveApp, feed: Feed) -> None:
        await live.pilot.press("plus")
        await shows(live, "last 15 min")
        await live.pilot.press("minus", "minus", "minus")
        await shows(live, "last 60 s")
        await live.pilot.press("p")
        await shows(live, "paused")
        await live.pilot.press("p")
        await shows(live, "paused", not_=True)

    played(script)


def test_it_ends_at_once_however_seldom_it_looks() -> None:
    async def play() -> float:
        feed = Feed()
        live = LiveApp(feed, PATIENCE_SECONDS)
        async with live.run_test(size=(120, 40)):
            await shows(live, "memory")
        feed.close()
        return time.monotonic()

    left = asyncio.run(play())
    assert time.monotonic() - left < PATIENCE_SECONDS / 2


def test_a_silent_machine_is_reported_and_so_is_its_return() -> None:
    async def script(live: LiveApp, feed: Feed) -> None:
        feed.trouble = "connection refused"
        await shows(live, "connection refused")
        assert "train.py" in text_of(live)
        feed.trouble = ""
        await shows(live, "NO ANSWER", not_=True)

    played(script)


def test_the_first_sample_fills_sparklines_once_with_the_past() -> None:
    asked: list[str] = []

    class WithPast(Feed):
        looks = 0

        def look(self) -> LiveSample:
            self.looks += 1
            return super().look()

        def past(self) -> Past:
            def drawn(word: str, start: float, end: float, points: int) -> Drawn:
                asked.append(word)
                before = [(end - 60 + n, 0.5, 0.5, 0.5) for n in range(50)]
                modes = (SeriesRef("cpu_seconds", (("mode", mode),)) for mode in ("idle", "user"))
                return Drawn([Curve(ref, "ratio", rate=True, points=before) for ref in modes], 1.0)

            return Past("a test", lambda: ["cpu"], drawn)

    async def play() -> None:
        feed = WithPast()
        feed.trouble = "not yet"
        live = LiveApp(feed, 0.1)
        async with live.run_test(size=(120, 40)):
            await shows(live, "not yet")
            assert asked == []
            feed.trouble = ""
            await comes_about(lambda: len(live._trail.points(CurveKey("cpu"))) >= 50)
            end = feed.looks + 3
            await comes_about(lambda: feed.looks >= end)
        feed.close()

    asyncio.run(play())
    assert asked == ["cpu"]


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"at":1}',
    ],
    ids=["another program", "cut off", "a page", "other JSON", "no metrics"],
)
def test_whoever_else_answers_is_said_to_be_no_daemon(answer: bytes, tmp_path: Path) -> None:
    with saying(answer) as url, pytest.raises(Unanswered, match=url):
        DaemonFeed(DaemonClient(url)).look()


def test_status_of_a_daemon_that_has_taken_no_sample_says_so(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9655"
    with daemons.saying(tmp_path, {"url": url, "version": "1", "waiting": "for the first sample"}):
        shown = wslgpud("status", "--state", str(tmp_path), home=tmp_path)

    said = f"the daemon at {url} has just started and waits for its first sample\n"
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, said, "")


def test_a_reason_with_brackets_is_shown_as_it_is() -> None:
    class Silent(Feed):
        trouble = "no answer: [/x] [bold]"

    async def play() -> None:
        feed = Silent()
        feed.trouble = Silent.trouble
        async with LiveApp(feed, 0.2).run_test() as pilot:
            await shows(pilot.app, feed.trouble)
        feed.close()

    asyncio.run(play())


def test_it_fits_after_the_terminal_changes_its_size() -> None:
    async def script(live: LiveApp, _: Feed) -> None:
        await live.pilot.resize_terminal(80, 24)
        await shows(live, "─" * 100, not_=True)
        assert len(text_of(live).splitlines()) <= 23

    played(script, (200, 60))


@pytest.mark.slow
def test_a_daemon_that_ends_and_starts_again_is_followed(tmp_path: Path) -> None:
    always_there = {"WSLGPUD_SERVER__PORT": str(free_port())}
    with daemon(tmp_path, settings=always_there) as first:
        feed = DaemonFeed(DaemonClient(first.url))
        assert eventually(lambda: sample_of(feed), "a sample")
    with pytest.raises(Unanswered, match="does not answer"):
        feed.look()
    with daemon(tmp_path, settings=always_there):
        assert eventually(lambda: sample_of(feed), "a sample")


@pytest.mark.slow
@pytest.mark.parametrize("colour", [{}, {"NO_COLOR": "1"}], ids=["colour", "none"])
def test_in_a_real_terminal_it_draws_leaves_on_q_and_tidies_up(tmp_path: Path, colour: dict[str, str]) -> None:
    ours, its = pty.openpty()
    environment = {**clean_environment(tmp_path), "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        [*WSLGPUD, "monitor", "--host-root", str(HOSTS / "wsl2-idle")],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**environment, **colour},
        start_new_session=True,
    )
    os.close(its)
    said = b""

    def until(pattern: bytes) -> None:
        nonlocal said
        end = time.monotonic() + PATIENCE_SECONDS
        while not re.search(pattern, said) and time.monotonic() < end:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    said += os.read(ours, 65536)
                except OSError:  # the other end is closed
                    break
        assert re.search(pattern, said), said[-2000:]

    try:
        until(rb"RAM \+ swap")
        drawn = len(said)
        for order in (b"VRAM", b"growth", b"pid"):
            os.write(ours, b"s")
            until(rb"by [^\n]*" + order)
        assert not re.search(rb"\x1b\[[0-3]?J", said[drawn:]), "it flickers: the screen is cleared"
        os.write(ours, b"q")
        until(rb"\x1b\[\?1049l")  # back from the alternate screen
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.poll() is not None or os.killpg(process.pid, signal.SIGKILL)
        os.close(ours)


def test_without_a_terminal_it_looks_once_and_prints(tmp_path: Path) -> None:
    command = [*WSLGPUD, "monitor", "--host-root", str(HOSTS / "two-gpus")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment(tmp_path))

    assert "GPU 1" in result.stdout
    assert "a recorded machine" in result.stdout
    assert "\x1b" not in result.stdout


def test_without_a_keyboard_the_monitor_does_not_stay_open(tmp_path: Path) -> None:
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [*WSLGPUD, "monitor", "--host-root", str(HOSTS / "two-gpus")],
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        env=clean_environment(tmp_path),
    )
    os.close(its)
    too_long = threading.Timer(PATIENCE_SECONDS, process.kill)
    too_long.start()
    said = b""
    with suppress(OSError):  # how the end of a terminal reads
        while chunk := os.read(ours, 65536):
            said += chunk
    too_long.cancel()
    os.close(ours)

    assert process.wait(PATIENCE_SECONDS) == 0
    assert b"GPU 1" in said
    assert b"\x1b[?1049h" not in said
