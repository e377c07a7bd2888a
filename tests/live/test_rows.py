"""Rows on the screens: everything that fits, nothing untrue, the same everywhere."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import RenderableType

from tests.live.test_app import sample_of
from tests.page.stage import PATIENT
from tests.support.daemons import daemon, eventually
from tests.support.documents import GIB, WHO, WORDS, calm, leak
from tests.support.screens import print_status
from wslgpud import words
from wslgpud.advise.live_sample import CurveKey, LiveSample, RecentSeries, hints
from wslgpud.cli.chart import spark
from wslgpud.cli.console import Console
from wslgpud.cli.live.feed import DaemonFeed, OwnFeed
from wslgpud.cli.live.rows import RowContext, Shown
from wslgpud.cli.live.screen import Screen
from wslgpud.client import DaemonClient
from wslgpud.host import RecordedHost
from wslgpud.words import ENGLISH, TEMPLATES

HOSTS = Path(__file__).parent.parent / "hosts"
NAMES = sorted(folder.name for folder in HOSTS.iterdir() if (folder / "host.json").exists())
URL = "http://127.0.0.1:9655"


def seen(name: str) -> LiveSample:
    feed = OwnFeed(PATIENT, RecordedHost(HOSTS / name), "recording")
    try:
        return feed.look()
    finally:
        feed.close()


def printed(what: RenderableType, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(what)
    return console.file.getvalue()


def drawn(
    look: LiveSample, trail: RecentSeries | None = None, shown: Shown | None = None, size=(120, 40), mono=None
) -> str:
    return printed(Screen(look, trail or RecentSeries(), shown, mono=mono, height=size[1]), size[0])


def looked(document: dict[str, Any]) -> LiveSample:
    return LiveSample(0.0, document, {}, "daemon", URL)


def printed_status(document: dict[str, Any], width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO())
    print_status(document, console)
    return console.file.getvalue()


@pytest.fixture(params=["en", "zh"])
def language(request: pytest.FixtureRequest):
    """Each language, spoken."""
    words.use(request.param)
    yield request.param
    words.use("en")


def training(cpu: float = 0.4, gpu: float = 0.4, **more: float) -> tuple[LiveSample, RecentSeries]:
    """A minute of a training on a machine of eight cores."""
    document = {
        "at": "2026-11-21T12:00:00+00:00",
        "verdict": {"level": "ok", "headline": "memory is fine"},
        "forecasts": [],
        "sources": [],
        "gpus": [{"index": 0, "name": "NVIDIA GeForce RTX 5070 Ti", "processes": []}],
        "processes": [
            {
                "pid": 7,
                "roles": ["gpu", "training"],
                "rss_bytes": 1 << 30,
                "swap_bytes": 0,
                "command": "python train.py",
            }
        ],
    }
    trail = RecentSeries()
    for key, value in {
        CurveKey("cpu"): cpu,
        CurveKey("busy", "0"): gpu,
        **{CurveKey(k): v for k, v in more.items()},
    }.items():
        trail.seed(key, [(float(t), value) for t in range(60)])
    return LiveSample(59.0, document, {"wslgpud_cpus": [({}, 8.0)]}, "daemon"), trail


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(80, 24), (100, 30), (220, 60)], ids=str)
def test_every_machine_fits_every_terminal(name: str, size: tuple[int, int]) -> None:
    lines = drawn(seen(name), size=size).splitlines()

    assert len(lines) <= size[1]
    assert max(map(cell_len, lines)) <= size[0]


def everywhere(document: dict[str, Any], size: tuple[int, int]) -> list[str]:
    """Return the live view of a document, what ``monitor -o`` prints into a pipe, and ``status``."""
    width, height = size
    look = looked(document)
    once = printed(Screen(look, RecentSeries()), width)
    return [drawn(look, size=(width, height)), once, printed_status(document, width)]


def unfolded(text: str) -> str:
    """Return a text with its line breaks undone."""
    return "".join(text.split())


@pytest.mark.parametrize("size", [(60, 24), (80, 24), (120, 36), (200, 50)], ids=str)
@pytest.mark.parametrize("level", list(TEMPLATES["label"]["level"]))
def test_every_screen_gives_the_same_level_headline_and_culprit(
    language: str, level: str, size: tuple[int, int]
) -> None:
    said = WORDS[language]
    badge = words.current().label("level", level).upper()
    for text in everywhere(leak(language, level), size):
        assert text.startswith(f" {badge} ")
        for what in (said["headline"], said["advice"], WHO, said["outlook"]):
            assert unfolded(what) in unfolded(text)


@pytest.mark.parametrize(("level", "state", "order"), [("ok", "killed", (0, 1)), ("critical", "critical", (1, 0))])
def test_every_screen_tells_a_lost_job(level: str, state: str, order: tuple[int, int]) -> None:
    document = leak("en", level)
    lost = {"incident": 9, "headline": "eval.py was killed at 12:40:03", "at": document["at"], "seen": "alerts ack 9"}
    document["verdict"] |= {"state": state, "lost": lost}
    for text in everywhere(document, (120, 36)):
        lines = text.splitlines()
        assert lines[order[0]].startswith(" KILLED  eval.py was killed at 12:40:03  incident 9, seen: alerts ack 9")
        assert lines[order[1]].startswith(f" {level.upper()}  {WORDS['en']['headline']}")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_narrowest_screen_keeps_time_left_and_culprit(width: int) -> None:
    said = WORDS["en"]
    for text in everywhere(leak(), (width, 24)):
        whole = set(text.split())
        for what in (said["headline"], said["advice"], said["outlook"], WHO):
            assert set(what.split()) <= whole
        assert max(map(cell_len, text.splitlines())) <= width


def test_what_is_piped_is_never_wrapped(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    advice = " ".join(f"word{n}" for n in range(100))
    document = leak()
    document["verdict"]["advice"] = advice
    print_status({"seen_by": "daemon", **document})

    assert f"{advice}\n" in capsys.readouterr().out


def test_growing_processes_come_first_and_the_culprit_is_marked() -> None:
    calmly, growing = drawn(looked(calm())).splitlines(), drawn(looked(leak())).splitlines()

    assert [line.split()[0] for line in calmly[-2:]] == ["4000", "8932"]
    assert "by RAM" in "\n".join(calmly)
    assert [line.split()[:2] for line in growing[-2:]] == [["▶", "8932"], ["4000", "9.0"]]
    assert "by growth" in "\n".join(growing)
    assert "by pid" in drawn(looked(leak()), shown=Shown(sort="pid"))


def test_vram_growth_is_shown_per_program_where_it_is_known() -> None:
    trail = RecentSeries()
    trail.seed(CurveKey("vram", "8932"), [(float(t), t * GIB / 60) for t in range(60)])
    trail.seed(CurveKey("rss", "8932"), [(float(t), t * (1 << 20)) for t in range(60)])
    (line,) = [line for line in drawn(looked(leak()), trail).splitlines() if line.startswith("▶")]

    assert "+60 MiB/min" in line
    assert "+1.0 GiB/min" in line
    assert "VRAM grows" in drawn(looked(leak()), trail)
    assert "VRAM grows" not in drawn(looked(leak()))  # no empty column where it is not told


def test_the_forecast_is_drawn_to_its_end_where_there_is_room() -> None:
    text = drawn(looked(leak()), size=(120, 36))

    assert "RAM used, and its forecast" in text
    assert re.search(r"[\u2801-\u28ff]{20}", text), "no curve"
    assert "forecast ──" not in drawn(looked(calm()), size=(120, 36))
    assert "RAM used" not in drawn(looked(leak()), size=(80, 16))


def test_the_curve_is_that_of_the_memory_in_which_a_job_was_lost() -> None:
    rooms = [
        {"resource": name, "headroom_bytes": left, "capacity_bytes": 9} for name, left in (("ram", 5), ("gpu0", 1))
    ]
    document = {"forecasts": rooms, "verdict": {"level": "ok"}}
    view = RowContext(looked(document), RecentSeries(), Shown(), 120, 0.0)

    assert view.subject == rooms[1]  # the fullest
    document["verdict"]["lost"] = {"resource": "ram"}
    assert view.subject == rooms[0]


def test_an_advice_is_one_line_and_the_incident_has_the_rest() -> None:
    document = leak()
    document["verdict"] |= {"advice": "Stop it. Or wait: it may stop by itself.", "incident": 3}
    lines = drawn(looked(document)).splitlines()

    assert lines[1].rstrip() == "Stop it.  more in incident 3"
    del document["verdict"]["incident"]
    assert drawn(looked(document)).splitlines()[1].rstrip() == "Stop it. Or wait: it may stop by itself."


def test_bars_say_what_they_show() -> None:
    (line,) = [line for line in drawn(looked(leak())).splitlines() if line.startswith("RAM + swap")]

    assert re.search(r"━{5,}.* 88 % used +3\.0 of 24 GiB left", line)


def test_other_open_incidents_are_listed_once() -> None:
    text = drawn(looked(leak()))

    assert "disk / is full in 3 h  (incident 9)" in text
    assert "and 1 more is open" in text
    assert "incident 12" not in text


def test_the_warning_tally_is_shown_only_while_all_is_well() -> None:
    tally = {"tally": "12 d watched: 1 memory warning, 0 needless"}
    calm, alarmed = seen("wsl2-idle"), looked(leak())

    assert "12 d watched: 1 memory warning, 0 needless" in drawn(replace(calm, document={**calm.document, **tally}))
    assert "watched" not in drawn(replace(alarmed, document={**alarmed.document, **tally}))


def test_what_wsl_does_not_tell_of_a_program_is_shown_as_unknown() -> None:
    (line,) = [line for line in drawn(seen("wsl2-vram-full")).splitlines() if "train.py" in line]

    assert "n/a" in line.split()


def test_what_linux_tells_of_a_program_is_shown() -> None:
    (line,) = [line for line in drawn(seen("two-gpus")).splitlines() if "train.py" in line]

    assert "18 GiB" in line


def test_a_machine_without_a_gpu_has_no_empty_table_of_gpus() -> None:
    assert "── gpu" not in drawn(seen("no-gpu"))


@pytest.mark.parametrize(("count", "says"), [(1.0, "CPU 40 % of 1 core "), (8.0, "CPU 40 % of 8 cores ")])
def test_cores_are_counted_in_plain_english(count: float, says: str) -> None:
    look, trail = training()

    assert says in drawn(replace(look, values={"wslgpud_cpus": [({}, count)]}), trail)


def test_a_source_that_fails_is_named_with_its_error() -> None:
    look = seen("driver-mismatch")
    failed = [s for s in look.document["sources"] if s["health"] == "failed"]

    assert failed, "else this machine shows nothing"
    assert all(f"! {s['name']}: {s['error'][:30]}" in drawn(look) for s in failed)


def test_when_nobody_answers_the_last_view_stays_with_its_age() -> None:
    text = drawn(looked(leak()), shown=Shown(trouble="connection refused"), mono=42.0)
    first, second, *_ = text.splitlines()

    assert first == " NO ANSWER  42 s: connection refused"
    assert second.startswith("the data below is old:  CRITICAL  RAM full")


def test_a_daemon_that_answers_and_does_not_sample_is_said_to() -> None:
    look = replace(looked(leak()), age_seconds=75.0, interval_seconds=1.0)
    first, second, *_ = drawn(look).splitlines()

    assert first == " STALE  75 s: the daemon answers but takes no samples"
    assert second.startswith("the data below is old:")
    assert "STALE" not in drawn(replace(look, age_seconds=9.0))
    assert "STALE" not in drawn(replace(look, interval_seconds=30.0))  # as configured: nothing is wrong


def test_running_work_and_the_last_night_are_shown() -> None:
    document = calm(
        running=[{"kind": "stress", "elapsed_seconds": 3.0, "done_ratio": 0.5, "headline": "filling"}],
        stress=[{"at": "2026-11-21T03:00:00+00:00", "verdict": "passed", "headline": "GPU 0 passed"}],
    )
    for text in everywhere(document, (120, 40)):
        assert " ▶ ━━━━━━────── filling" in text
        assert "GPU 0 passed" in text


def test_markup_in_the_name_of_a_program_is_text() -> None:
    look = seen("two-gpus")
    process = {**look.document["processes"][0], "command": "[bold red]x[/] {evil}"}

    assert "[bold red]x[/] {evil}" in drawn(replace(look, document={**look.document, "processes": [process]}))


def test_markup_in_the_names_of_programs_is_text_in_status_too() -> None:
    document = calm()
    process = document["processes"][0]
    named = [{**process, "command": command} for command in ("node [slug].js", "python -m [/x]")]
    recent = [{"at": document["at"], "previous_level": "ok", "level": "warning", "headline": "[id].py grows"}]
    text = printed_status({**document, "processes": named, "recent": recent})

    assert all(name in text for name in ("node [slug].js", "python -m [/x]", "[id].py grows"))


def test_programs_are_sorted_and_chosen_as_asked() -> None:
    look, shown = seen("two-gpus"), Shown(sort="pid")
    pids = [int(line.split()[0]) for line in drawn(look, shown=shown).splitlines()[-2:]]

    assert pids == sorted(pids)
    assert "init" not in drawn(look, shown=Shown(filter="TRAIN"))
    assert {shown.cycled().cycled().cycled().cycled().sort} == {"pid"}


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 1)), max_size=200),
    st.integers(0, 60),
    st.sampled_from([60.0, 300.0, 3600.0]),
)
def test_a_sparkline_has_the_given_width_and_blanks_for_gaps(points, width, span) -> None:
    line = spark(sorted(points), 1000.0, span, width, 1.0)

    assert len(line) == width
    inside = any(1000.0 - mono < span for mono, _ in points)
    assert bool(line.strip()) == bool(inside and width)


def test_growth_of_a_program_is_known_after_ten_seconds() -> None:
    look, _ = training()
    trail = RecentSeries()
    for second in range(40):
        process = {**look.document["processes"][0], "rss_bytes": second << 20}
        at = datetime.fromtimestamp(second, timezone.utc).isoformat()
        trail.add(replace(look, mono=float(second), document={**look.document, "at": at, "processes": [process]}))
        known = trail.growth(CurveKey("rss", "7"))
        assert (known is not None) == (second >= 10)
    assert known == pytest.approx(1 << 20)

    trail.add(replace(look, mono=41.0, document={**look.document, "at": "later", "processes": []}))
    assert trail.points(CurveKey("rss", "7")) == ()


def test_a_look_that_shows_the_same_sample_again_counts_once() -> None:
    look = seen("two-gpus")
    trail = RecentSeries()
    trail.add(look)
    trail.add(replace(look, mono=look.mono + 0.2))

    assert len(trail.points(CurveKey("used", "ram"))) == 1


def test_a_counter_that_begins_anew_gives_no_rate() -> None:
    look = seen("bare-linux")
    later = {**look.document, "at": "later"}
    less = {name: [(labels, value / 2) for labels, value in series] for name, series in look.values.items()}
    trail = RecentSeries()
    trail.add(look)
    trail.add(replace(look, mono=look.mono + 1, document=later, values=less))

    assert trail.points(CurveKey("disk read")) == ()
    assert trail.points(CurveKey("cpu")) == ()


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (training(cpu=1.05 / 8), "num_workers"),
        (training(cpu=0.95), "augmentation"),
        (training(cpu=0.3), None),
        (training(cpu=1.05 / 8, gpu=0.95), None),
        (training(cpu=1.05 / 8, gpu=0.0), None),
    ],
    ids=["one thread", "all cores", "cannot tell", "card is busy", "card is not used"],
)
def test_a_card_that_waits_is_told_for_what(seconds: tuple[LiveSample, RecentSeries], says: str | None) -> None:
    found = hints(*seconds)

    assert [hint.text for hint in found if hint.act] == ([] if says is None else [h.text for h in found])
    assert (says is None) == (not found)
    assert says is None or (says in str(found[0].text) and "GPU 0 40 % busy" in str(found[0].evidence))


@pytest.mark.parametrize(
    ("share", "says"), [(0.2, []), (0.4, ["GPU 0 40 % busy, programs wait for the disk 40 % of the time"])]
)
def test_a_disk_that_is_waited_for_is_what_slows_a_training_down(share: float, says: list[str]) -> None:
    look, trail = training(cpu=0.3)
    trail.seed(CurveKey("waiting", "io"), [(float(second), share) for second in range(60)])

    assert [str(hint.evidence) for hint in hints(look, trail)] == says


def test_a_card_under_stress_is_shown_full_and_without_advice() -> None:
    look, trail = training(cpu=1.05 / 8)
    run = {"kind": "stress", "what": "GPU 0", "pid": 1, "headline": "soak", "elapsed_seconds": 3.0}
    card = {**look.document["gpus"][0], "used_bytes": 15 << 30, "total_bytes": 16 << 30}
    look = replace(look, document={**look.document, "running": [run], "gpus": [card]})

    assert re.search(r"GPU 0 +━+─* +94 % used +1\.0 of 16 GiB left +no forecast during a stress run", drawn(look))
    assert hints(look, trail) == []


def test_a_full_card_that_stays_full_is_called_fine() -> None:
    look, trail = training(gpu=0.95)
    forecast = {"resource": "gpu0", "level": "ok", "headroom_bytes": 1 << 30, "capacity_bytes": 16 << 30}
    trail.seed(CurveKey("used", "gpu0"), [(float(t), 0.91) for t in range(60)])
    (hint,) = hints(replace(look, document={**look.document, "forecasts": [forecast]}), trail)

    assert not hint.act
    assert str(hint.evidence) == "GPU 0 VRAM 91 %"


def test_the_daemon_and_our_own_look_tell_the_same(tmp_path: Path) -> None:
    with daemon(tmp_path, "--host-root", str(HOSTS / "wsl2-idle")) as running:
        feed = DaemonFeed(DaemonClient(running.url))
        theirs = eventually(lambda: (s := sample_of(feed)) and s.document["gpus"] and s, "a sample")
        ours = seen("wsl2-idle")

    for name in ("memory_total_bytes", "gpu_memory_used_bytes", "pressure_waiting_seconds", "cpus"):
        told, found = (sorted(look.series(name), key=str) for look in (theirs, ours))
        assert told == found != []
    assert {f["resource"] for f in theirs.document["forecasts"]} == {f["resource"] for f in ours.document["forecasts"]}
    assert time.monotonic() >= theirs.mono


def test_a_memory_no_longer_read_shows_its_last_figures_as_such() -> None:
    look = seen("two-gpus")
    unread = {"cause": "blind", "outlook": "no reading for 42 s", "level": "warning"}
    held = [f | unread if f["resource"] == "gpu0" else f for f in look.document["forecasts"]]
    lines = drawn(replace(look, document={**look.document, "forecasts": held})).splitlines()

    (line,) = (line for line in lines if "no reading for 42 s" in line)
    assert line.split()[:2] == ["GPU", "0"]
    assert "GiB were left" in line


@pytest.mark.parametrize("width", [60, 80, 120])
def test_groups_are_told_apart_however_narrow_it_is(width: int) -> None:
    look = seen("two-gpus")
    paths = [f"/system.slice/build/kernel-{letter}.scope" for letter in "ab"]
    named = [{"resource": f"cgroup:{path}", "name": ENGLISH.resource(f"cgroup:{path}")} for path in paths]
    groups = [{**look.document["forecasts"][0], **one} for one in named]
    text = drawn(replace(look, document={**look.document, "forecasts": groups}), size=(width, 40))

    assert [len(re.findall(rf"/kernel-{letter}\.scope ", text)) for letter in "ab"] == [1, 1]
    assert ("% used" in text) == (width > 60)
