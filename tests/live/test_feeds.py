"""Which machine the live view shows, where its history comes from, and how the history screen asks for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.app import App

from tests.live.test_app import comes_about
from tests.live.test_past_screen import GIB, NOW, curve
from tests.support.documents import calm
from wslgpud.advise.live_sample import CurveKey, LiveSample, RecentSeries
from wslgpud.cli.live import feed as feeds
from wslgpud.cli.live import series_view
from wslgpud.cli.live.feed import DaemonFeed, DriveWatch, OwnFeed, feed_of, looked
from wslgpud.cli.live.past import Drawn, Past, api_past
from wslgpud.cli.live.series_view import History, SeriesWindow, history
from wslgpud.client import DaemonClient
from wslgpud.config import Config
from wslgpud.host import RecordedHost
from wslgpud.sources.memory import MEMINFO

HOSTS = Path(__file__).parent.parent / "hosts"
DAEMON = DaemonClient("http://127.0.0.1:9")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The user's own folder and the service's, in which no daemon has left a note."""
    found = [tmp_path / "own", tmp_path / "service"]
    monkeypatch.setattr(feeds, "daemon_folders", lambda _: found)
    (tmp_path / "no.toml").touch()
    return found


def test_without_a_daemon_there_is_no_history(tmp_path: Path, folders: list[Path]) -> None:
    feed = feed_of(tmp_path / "no.toml", None, None)
    feed.close()

    assert feed.past() is None


def test_a_running_daemon_is_asked_unless_a_recording_is_named(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(feeds, "answering", lambda where, _: asked.append(where) or (DAEMON, {}))
    running = feed_of(tmp_path / "no.toml", None, None)
    recorded = feed_of(tmp_path / "no.toml", None, HOSTS / "two-gpus")
    seen_by = recorded.look().seen_by

    assert isinstance(running, DaemonFeed)
    assert isinstance(recorded, OwnFeed)
    assert (seen_by, asked) == ("recording", [folders])
    assert running.past().where == f"from {DAEMON.url}"


def test_training_on_a_windows_drive_is_sought_every_10_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, now = OwnFeed(Config(), RecordedHost(HOSTS / "wsl2-vram-full"), "recording"), [0.0]
    document = feed.look().document
    feed.close()
    monkeypatch.setattr("wslgpud.advise.live_sample.time", SimpleNamespace(monotonic=lambda: now[0]))
    watch = DriveWatch(RecordedHost(HOSTS / "wsl2-vram-full"))
    found = watch.slow_reader(document)

    assert found == ("pt_main_thread (pid 9309)", "/mnt/c/data/train-00017.tar")
    now[0] = 9.9
    assert watch.slow_reader({"processes": []}) == found
    now[0] = 10.0
    assert watch.slow_reader({"processes": []}) is None


def test_the_drives_of_another_machine_are_not_looked_for_here(monkeypatch: pytest.MonkeyPatch) -> None:
    latest = {"values": {}, "age_seconds": 0.5, "interval_seconds": 1}
    answers = {"/api/v1/status": calm(at="2026-11-21T03:30:00Z"), "/api/v1/latest": latest}
    monkeypatch.setattr(DaemonClient, "ask", lambda _, path, **__: answers[path])
    monkeypatch.setattr(DriveWatch, "slow_reader", lambda *_: ("python3", "/mnt/c/data"))
    here, elsewhere = (DaemonFeed(DAEMON, here=is_here).look() for is_here in (True, False))

    assert (here.on_windows, elsewhere.on_windows) == (("python3", "/mnt/c/data"), None)
    assert (here.age_seconds, here.interval_seconds, here.where) == (0.5, 1.0, DAEMON.url)


class Looks:
    """A feed that counts how often it is looked at."""

    def __init__(self, seen_by: str) -> None:
        self.seen_by, self.count = seen_by, 0

    def look(self) -> LiveSample:
        self.count += 1
        return LiveSample(float(self.count), calm(at=f"2026-11-21T03:30:0{self.count}Z"), {}, self.seen_by)


@pytest.mark.parametrize(("seen_by", "looks"), [("own look", 2), ("daemon", 1), ("recording", 1)])
def test_rates_need_two_looks_of_our_own_and_later_one(
    seen_by: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    feed, trail = Looks(seen_by), RecentSeries()

    assert looked(feed, trail).mono == looks  # type: ignore[arg-type]
    assert waited == [1.0] * (looks - 1)
    assert looked(feed, trail).mono == looks + 1  # type: ignore[arg-type]
    assert len(trail.points(CurveKey("used", "ram"))) == looks + 1


@pytest.mark.parametrize(("asked", "points"), [(5, 10), (10, 10), (1200, 1200), (1201, 1200)])
def test_a_daemon_is_asked_for_as_many_points_as_it_gives(
    asked: int, points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[dict[str, Any]] = []
    metric = MEMINFO["MemAvailable"].exposed_name
    answers = {"/api/v1/series": {"series": [{"name": "x", "metric": metric}]}}
    monkeypatch.setattr(
        DaemonClient,
        "ask",
        lambda _, path, **query: answers.get(path) or queries.append(query) or {"step": 0, "series": []},
    )
    past = api_past(DAEMON)

    assert past.drawn("ram", 0.0, 1.0, asked).curves == []
    assert (past.words(), queries) == (["ram"], [])
    assert past.drawn("ram", 0.0, 1.0, asked).step_seconds == 1.0
    assert queries == [{"series": ["x"], "start": 0.0, "end": 1.0, "points": points}]


def test_the_choice_is_marked_and_trouble_stands_out() -> None:
    shown = history(SeriesWindow(("ram", "vram"), 1, 0), None, ("here", "no answer"), (78, 16), NOW)
    quiet = history(SeriesWindow(("ram", "vram"), 1, 0), None, ("here", ""), (78, 16), NOW)
    words, spans, _, trouble = shown.renderables  # type: ignore[union-attr]

    assert [str(span.style) for span in words.spans] == ["bright_black", "bold reverse"]
    assert [str(span.style) for span in spans.spans] == ["bold reverse", *["bright_black"] * 9]
    assert [(text.plain, text.style) for text in (trouble, quiet.renderables[3])] == [  # type: ignore[union-attr]
        ("  no answer", "yellow"),
        ("  looking ...", "bright_black"),
    ]


class Archive:
    """A history that notes what it is asked, and answers only while it is open."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float, float, int]] = []
        self.open = threading.Event()
        self.open.set()

    def drawn(self, word: str, start: float, end: float, points: int) -> Drawn:
        self.asked.append((word, end - start, time.time() - end, points))
        self.open.wait()
        return Drawn([curve(word, *[4 * GIB] * 6)], 10.0)


def played(
    archive: Archive,
    script: Callable[[Any, History], Any],
    columns: int = 100,
    words: Sequence[str] = ("used", "ram", "headroom"),
) -> None:
    async def play() -> None:
        app: App[None] = App()
        async with app.run_test(size=(columns, 30)) as pilot:
            screen = History(Past("here", lambda: words, archive.drawn))
            app.push_screen(screen)
            await comes_about(lambda: screen._drawn is not None)
            await script(pilot, screen)
            archive.open.set()

    asyncio.run(play())


def text_of(screen: History) -> str:
    pictures = screen.query("#history")
    return "\n".join(picture.render_line(y).text for picture in pictures for y in range(picture.size.height))


@pytest.mark.parametrize(("columns", "points"), [(100, 176), (32, 40), (33, 42)])
def test_it_begins_with_headroom_in_two_points_a_column(columns: int, points: int) -> None:
    async def nothing(*_: Any) -> None:
        pass

    archive = Archive()
    played(archive, nothing, columns)

    ((word, seconds, ago, asked),) = archive.asked
    assert (word, seconds, round(ago), asked) == ("headroom", 900, 0, points)


def test_without_headroom_the_view_begins_with_the_first_word() -> None:
    async def nothing(*_: Any) -> None:
        pass

    archive = Archive()
    played(archive, nothing, words=("cpu", "ram"))

    assert [word for word, *_ in archive.asked] == ["cpu"]


def test_only_a_window_that_ends_now_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_view, "FRESH_SECONDS", 0.01)
    archive = Archive()

    async def script(pilot: Any, _: History) -> None:
        await comes_about(lambda: len(archive.asked) >= 3)
        await pilot.press("left")
        await comes_about(lambda: archive.asked[-1][2] > 400)
        await asyncio.sleep(0.1)
        earlier = [ago for _, _, ago, _ in archive.asked if ago > 400]
        assert len(earlier) == 1
        await pilot.press("0")
        await comes_about(lambda: [ago < 1 for _, _, ago, _ in archive.asked[-2:]] == [True, True])

    played(archive, script)


def test_a_history_slower_than_its_refresh_is_shown_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_view, "FRESH_SECONDS", 0.01)
    archive = Archive()

    async def script(_: Any, screen: History) -> None:
        archive.open.clear()
        before = len(archive.asked)
        await asyncio.sleep(0.3)
        assert len(archive.asked) <= before + 1, "one is under way at most"
        archive.open.set()
        await comes_about(lambda: len(archive.asked) > before + 1)
        assert "4.0 GiB" in text_of(screen)

    played(archive, script)


def test_another_range_shows_the_old_curve_until_it_is_read() -> None:
    archive = Archive()

    async def script(pilot: Any, screen: History) -> None:
        await comes_about(lambda: "4.0 GiB" in text_of(screen))
        archive.open.clear()
        await pilot.press("plus")
        await comes_about(lambda: len(archive.asked) == 2)
        assert "looking ..." not in text_of(screen)
        await pilot.press("down")
        await comes_about(lambda: "looking ..." in text_of(screen))

    played(archive, script)

    assert [(word, seconds) for word, seconds, *_ in archive.asked] == [
        ("headroom", 900),
        ("headroom", 3600),
        ("used", 3600),
    ]
