"""History in the live view: from a daemon's API, and only from there."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.live.test_app import Feed, comes_about, sample_of, shows, text_of
from tests.page.stage import Stage, spec_named, year
from tests.support.daemons import PATIENCE_SECONDS, daemon, eventually
from wslgpud.advise.live_sample import CurveKey, RecentSeries, hints
from wslgpud.cli.console import Console
from wslgpud.cli.live.app import LiveApp
from wslgpud.cli.live.feed import DaemonFeed, DriveWatch, OwnFeed
from wslgpud.cli.live.past import Drawn, Past, api_past, before
from wslgpud.cli.live.series_view import SPANS, History, SeriesWindow, history
from wslgpud.client import DaemonClient
from wslgpud.config import Config
from wslgpud.host import RecordedHost
from wslgpud.model import Reading, Sample, Snapshot, SourceReport
from wslgpud.series.curves import Curve
from wslgpud.sources.memory import MEMINFO
from wslgpud.store import SeriesRef
from wslgpud.words import MessageError

HOSTS = Path(__file__).parent.parent / "hosts"
DAY = 86400.0


@pytest.fixture
def stage(tmp_path):
    made = Stage(tmp_path)
    yield made
    made.close()


def remember(stage: Stage, count: int = 60) -> float:
    """Record a minute of RAM and of a counter; return its end."""
    now, mono = stage.clock.wall(), stage.clock.mono()
    for ago in range(count, -1, -1):
        readings = (
            Reading(MEMINFO["MemAvailable"], (100 + ago) << 20),
            Reading(spec_named("disk_read_bytes"), (1000 - ago) << 20, ("sda",)),
        )
        report = SourceReport("memory", "ok", Sample(readings), mono - ago, 0.0)
        stage.store.append(Snapshot(now - ago, mono - ago, count - ago, (report,)))
    stage.store.flush()
    return now


def api_of(stage: Stage) -> Past:
    return api_past(DaemonClient(stage.url))


def test_the_daemon_tells_what_it_has_recorded(stage: Stage) -> None:
    now = remember(stage)
    past = api_of(stage)

    assert past.where == f"from {stage.url}"
    assert past.words() == ["ram", "disk"]
    for word, value in (("ram", 100 << 20), ("disk", 1 << 20)):
        drawn = past.drawn(word, now - 120, now + 1, 200)
        (curve,) = drawn.curves
        assert (drawn.step_seconds, curve.rate, len(curve.points) > 50) == (1, word == "disk", True)
        assert curve.points[-1][2] == pytest.approx(value)


@pytest.mark.slow
def test_a_year_comes_in_few_points_from_the_hours(stage: Stage) -> None:
    stage.server.stop()
    stage.store.close()
    year(stage.database, stage.clock.wall())
    stage.reopen()
    past, now = api_of(stage), stage.clock.wall()
    past.words()
    drawn = past.drawn("ram", now - 365 * DAY, now, 200)

    (curve,) = drawn.curves
    assert 100 < len(curve.points) <= 200
    assert drawn.step_seconds >= DAY


def test_a_daemon_that_does_not_answer_is_said_so(stage: Stage) -> None:
    past = api_of(stage)
    stage.server.stop()

    with pytest.raises(match="does not answer"):
        past.words()


METRIC = MEMINFO["MemAvailable"].exposed_name
GOOD = {"metric": METRIC, "kind": "gauge", "labels": {}, "time": [1.0, 2.0], "value": [3, 4]}


@pytest.mark.parametrize(
    "series",
    [
        GOOD | {"time": "now"},
        GOOD | {"value": [3, None]},
        GOOD | {"value": [3]},
        GOOD | {"labels": {"sda": []}},
        GOOD | {"min": 5},
        {k: v for k, v in GOOD.items() if k != "kind"},
        GOOD | {"kind": "counter", "time": [1.0, 1.0]},
        7,
    ],
)
def test_an_answer_that_makes_no_sense_is_said_so(monkeypatch: pytest.MonkeyPatch, series: object) -> None:
    answers = {"/api/v1/series": {"series": [{"name": "x", "metric": METRIC}]}}
    answers["/api/v1/range"] = {"step": 1, "series": [series]}
    monkeypatch.setattr(DaemonClient, "ask", lambda _, path, **__: answers[path])
    past = api_past(DaemonClient("http://elsewhere"))

    assert past.words() == ["ram"]
    with pytest.raises(MessageError, match="is not wslgpud"):
        past.drawn("ram", 0.0, 10.0, 100)
    answers["/api/v1/range"] = {"step": 1, "series": [GOOD, GOOD | {"metric": "of_another_version"}]}
    assert [len(curve.points) for curve in past.drawn("ram", 0.0, 10.0, 100).curves] == [2]
    answers["/api/v1/series"] = {"series": [{"name": "x"}]}
    with pytest.raises(MessageError, match="is not wslgpud"):
        past.words()


def drawn_of(count: int, *points: tuple[float, float, float, float]) -> Drawn:
    return Drawn([Curve(SeriesRef(f"m{n}"), "bytes", rate=False, points=points) for n in range(count)], 10.0)


@given(
    st.integers(0, 12),
    st.integers(60, 220),
    st.integers(12, 60),
    st.integers(0, len(SPANS) - 1),
    st.sampled_from(["", "no answer"]),
)
def test_it_fits_every_terminal(count: int, width: int, height: int, span: int, trouble: str) -> None:
    now = 1_795_253_531.0
    points = [(now - 100 + 10 * n, 1e9, 2e9 + n * 1e8, 3e9 + n * 1e8) for n in range(10)]
    view = SeriesWindow(("ram", "vram", "headroom"), 1, span)
    console = Console(width=width, file=io.StringIO())
    console.print(history(view, drawn_of(count, *points), ("here", trouble), (width, height), now))
    lines = console.file.getvalue().splitlines()

    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    assert trouble in "\n".join(lines)


def test_keys_choose_what_how_long_and_when() -> None:
    view = SeriesWindow(("ram", "vram"), 0, 2)

    assert view.other(1).word == view.other(-1).word == "vram"
    assert view.longer(99).seconds == 365 * DAY
    assert view.longer(-99).seconds == 60
    assert view.moved(-1).moved(-1).back_seconds == view.seconds
    assert view.moved(1) == view


def test_h_opens_it_and_leads_back(stage: Stage) -> None:
    remember(stage)

    class WithPast(Feed):
        def past(self) -> Past:
            return api_of(stage)

    async def play() -> None:
        feed = WithPast()
        live = LiveApp(feed, 0.2)
        async with live.run_test(size=(120, 40)) as pilot:
            await shows(live, "memory")
            await pilot.press("h")
            await drawn(live, "memory_available_bytes")
            await pilot.press("plus", "down")
            await drawn(live, "disk_read_bytes:rate")
            assert live.screen.view.seconds == 3600
            await pilot.press("left")
            await comes_about(lambda: live.screen.view.back_seconds == 1800)
            await pilot.press("0", "q")
            await comes_about(lambda: not isinstance(live.screen, History))
            assert "memory" in text_of(live)
        feed.close()

    async def drawn(live: LiveApp, what: str) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            if isinstance(live.screen, History):
                picture = live.screen.query_one("#history")
                text = "\n".join(picture.render_line(y).text for y in range(picture.size.height))
                if what in text:
                    return
            assert time.monotonic() < end, what
            await asyncio.sleep(0.02)

    asyncio.run(play())


def test_without_a_daemon_h_says_where_history_is() -> None:
    async def play() -> None:
        live = LiveApp(Feed(), 0.2)
        async with live.run_test(size=(120, 40), notifications=True) as pilot:
            await shows(live, "memory")
            await pilot.press("h")
            await comes_about(lambda: any("wslgpud history" in one.message for one in live._notifications))
            assert not isinstance(live.screen, History)

    asyncio.run(play())


def words_of(feed: DaemonFeed) -> Sequence[str]:
    """Return what can be asked of a history that may be about to be."""
    try:
        return feed.past().words()
    except MessageError:
        return ()


def test_a_daemon_with_a_password_still_answers_its_own_machine(tmp_path: Path) -> None:
    web = tmp_path / "web.yml"
    hashed = bcrypt.hashpw(b"sesame", bcrypt.gensalt(4)).decode()
    web.write_text(f"basic_auth_users:\n  me: {hashed}\n")
    settings = {"WSLGPUD_SERVER__WEB_CONFIG_FILE": str(web)}
    with daemon(tmp_path, "--host-root", str(HOSTS / "wsl2-idle"), settings=settings) as running:
        found = eventually(lambda: DaemonClient.of(running.state), "the daemon's socket")
        feed = DaemonFeed(found, here=True)

        look = eventually(lambda: sample_of(feed), "a sample")
        assert look.value("memory_total_bytes") == look.document["ram"]["total"]
        assert eventually(lambda: words_of(feed), "a history")


def test_a_training_that_reads_from_a_windows_drive_is_told_so() -> None:
    feed = OwnFeed(Config(), RecordedHost(HOSTS / "wsl2-vram-full"), "recording")
    try:
        look = feed.look()
    finally:
        feed.close()

    (hint,) = [h for h in hints(look, RecentSeries()) if "dataset" in str(h.text)]
    assert "/mnt/c/data/train-00017.tar" in str(hint.evidence)
    assert not [h for h in hints(replace(look, on_windows=None), RecentSeries()) if "dataset" in str(h.text)]


def test_without_a_mounted_windows_drive_no_reader_is_sought() -> None:
    assert DriveWatch(RecordedHost(HOSTS / "bare-linux")).slow_reader({"processes": []}) is None


def test_sparklines_begin_with_the_past_the_daemon_has_seen(stage: Stage) -> None:
    stage.host("two-gpus", past_seconds=300)
    feed = DaemonFeed(DaemonClient(stage.url))
    look, trail = feed.look(), RecentSeries()
    for key, points in before(feed.past(), look):
        trail.seed(key, points)

    ram = next(f for f in look.document["forecasts"] if f["resource"] == "ram")
    busy = look.document["gpus"][0]["utilization_ratio"]
    used = 1 - ram["headroom_bytes"] / ram["capacity_bytes"]
    for key, value in ((CurveKey("used", "ram"), used), (CurveKey("busy", "0"), busy)):
        points = trail.points(key)
        assert points[0][0] == pytest.approx(look.mono - 300, abs=10)
        assert points[-1][0] < look.mono
        assert {round(v, 2) for _, v in points} == {round(value, 2)}
