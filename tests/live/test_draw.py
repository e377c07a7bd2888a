"""What the live view shows of a machine: everything that fits, nothing that is not so."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.live.test_app import sample_of
from tests.page.stage import PATIENT
from tests.support.daemons import daemon, eventually
from wslgpud.cli.console import Console
from wslgpud.cli.live.app import HELP
from wslgpud.cli.live.draw import Shown, cycled, screen, spark
from wslgpud.cli.live.hints import hints
from wslgpud.cli.live.looks import DaemonFeed, Look, OwnFeed
from wslgpud.cli.live.trail import Key, Trail
from wslgpud.cli.screen import print_status
from wslgpud.host import RecordedHost

HOSTS = Path(__file__).parent.parent / "hosts"
NAMES = sorted(folder.name for folder in HOSTS.iterdir() if (folder / "host.json").exists())
WARNING = json.loads((HOSTS.parent / "gpu/status-warning.json").read_text())


def seen(name: str) -> Look:
    feed = OwnFeed(PATIENT, RecordedHost(HOSTS / name), "recording")
    try:
        return feed.look()
    finally:
        feed.close()


def drawn(look: Look, trail: Trail | None = None, shown: Shown | None = None, size=(120, 40)) -> str:
    console = Console(width=size[0], file=io.StringIO())
    now = datetime.fromisoformat(look.document["at"]).timestamp()
    console.print(screen(look, trail or Trail(), shown or Shown(), *size, now))
    return console.file.getvalue()


def training(cpu: float = 0.4, gpu: float = 0.4, **more: float) -> tuple[Look, Trail]:
    """A minute of a training on a machine of eight cores."""
    document = {
        "at": "2026-11-21T12:00:00+00:00", "level": "ok", "forecasts": [], "sources": [],
        "gpus": [{"index": 0, "name": "NVIDIA GeForce RTX 5070 Ti", "processes": []}],
        "processes": [{"pid": 7, "roles": ["gpu", "training"], "rss_bytes": 1 << 30, "swap_bytes": 0,
                       "command": "python train.py"}],
    }  # fmt: skip
    trail = Trail()
    for key, value in {
        Key("cpu"): cpu,
        Key("busy", "0"): gpu,
        **{Key(k): v for k, v in more.items()},
    }.items():
        trail.seed(key, [(float(t), value) for t in range(60)])
    return Look(59.0, document, {"wslgpud_cpus": [({}, 8.0)]}, "daemon"), trail


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(80, 24), (100, 30), (220, 60)], ids=str)
def test_every_machine_fits_every_terminal(name: str, size: tuple[int, int]) -> None:
    lines = drawn(seen(name), size=size).splitlines()

    assert len(lines) <= size[1]
    assert max(map(cell_len, lines)) <= size[0]


def test_a_warning_comes_first_with_who_and_when() -> None:
    look = Look(0.0, WARNING, {}, "daemon", "http://127.0.0.1:9655")
    first, second, *_ = drawn(look).splitlines()

    assert first.startswith(f" {WARNING['level'].upper()} ")
    assert WARNING["headline"] in first
    assert second.strip().startswith(WARNING["verdict"][:40])


def test_what_wsl_does_not_tell_of_a_program_is_said_to_be_unknown() -> None:
    (line,) = [line for line in drawn(seen("wsl2-vram-full")).splitlines() if "train.py" in line]

    assert "n/a" in line.split()


def test_what_linux_tells_of_a_program_is_shown() -> None:
    (line,) = [line for line in drawn(seen("two-gpus")).splitlines() if "train.py" in line]

    assert "18 GiB" in line


def test_a_machine_without_a_gpu_has_no_empty_table_of_gpus() -> None:
    assert "── gpu" not in drawn(seen("no-gpu"))


def test_a_source_that_fails_is_named_with_its_error() -> None:
    look = seen("driver-mismatch")
    failed = [s for s in look.document["sources"] if s["health"] == "failed"]

    assert failed, "else this machine shows nothing"
    assert all(f"! {s['name']}: {s['error'][:30]}" in drawn(look) for s in failed)


def test_when_nobody_answers_the_last_look_stays_and_says_how_old_it_is() -> None:
    look = Look(0.0, WARNING, {}, "daemon")
    console = Console(width=120, file=io.StringIO())
    now = datetime.fromisoformat(WARNING["at"]).timestamp() + 42
    console.print(screen(look, Trail(), Shown(trouble="connection refused"), 120, 40, now))

    assert "NO ANSWER  for 42 s: connection refused" in console.file.getvalue()
    assert WARNING["headline"] in console.file.getvalue()


def test_a_daemon_that_answers_and_does_not_sample_is_said_to() -> None:
    look, trail = Look(0.0, WARNING, {}, "daemon"), Trail()
    trail.add(look)

    assert "STALE" not in drawn(replace(look, mono=9.0), trail)
    first, second, *_ = drawn(replace(look, mono=75.0), trail).splitlines()
    assert "STALE  no sample for 75 s" in first
    assert second.startswith("what follows is old:")
    assert WARNING["headline"] in second
    rarely = {"wslgpud_tick_interval_seconds": [({}, 30.0)]}  # as configured: nothing is wrong with it
    assert "STALE" not in drawn(replace(look, mono=75.0, values=rarely), trail)


def test_what_runs_and_what_else_is_wrong_are_shown() -> None:
    extra = {
        "running": [{"kind": "stress", "what": "GPU 0", "pid": 1, "phase": "fill", "elapsed_seconds": 3.0,
                     "done_ratio": 0.5, "headline": "stress run of GPU 0: filling, 50 % done, for 3 s"}],
        "incidents": [{"id": 9, "rule": "disk_full", "level": "warning", "headline": "Disk / will be full"}],
        "stress": [{"at": "2026-11-21T03:00:00+00:00", "gpu": 0, "uuid": "u", "verdict": "passed",
                    "headline": "GPU 0: passed, 2026-11-21 03:00:00"}],
    }  # fmt: skip
    text = drawn(Look(0.0, WARNING | extra, {}, "daemon"))

    assert "▶ ━━━━━━────── stress run of GPU 0: filling, 50 % done, for 3 s" in text
    assert "warning   Disk / will be full  (incident 9)" in text
    assert "stress run: GPU 0: passed, 2026-11-21 03:00:00" in text


def test_markup_in_the_name_of_a_program_is_text() -> None:
    look = seen("two-gpus")
    process = {**look.document["processes"][0], "command": "[bold red]x[/] {evil}"}

    assert "[bold red]x[/] {evil}" in drawn(replace(look, document={**look.document, "processes": [process]}))


def test_markup_in_the_names_of_programs_is_text_in_status_too() -> None:
    document = {**seen("two-gpus").document, "seen_by": "recording"}
    process = document["processes"][0]
    named = [{**process, "command": command} for command in ("node [slug].js", "python -m [/x]")]
    recent = [{"at": document["at"], "level": "warning", "headline": "[id].py grows"}]
    console = Console(width=120, file=io.StringIO())
    print_status({**document, "processes": named, "recent": recent}, console)
    text = console.file.getvalue()

    assert all(name in text for name in ("node [slug].js", "python -m [/x]", "[id].py grows"))


def test_programs_are_sorted_and_chosen_as_asked() -> None:
    look, shown = seen("two-gpus"), Shown(sort="pid")
    pids = [int(line.split()[0]) for line in drawn(look, shown=shown).splitlines()[-2:]]

    assert pids == sorted(pids)
    assert "init" not in drawn(look, shown=Shown(filter="TRAIN"))
    assert {cycled(cycled(cycled(cycled(shown)))).sort} == {"pid"}


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 1)), max_size=200),
    st.integers(0, 60),
    st.sampled_from([60.0, 300.0, 3600.0]),
)
def test_a_sparkline_is_as_wide_as_asked_and_blank_where_nobody_looked(points, width, span) -> None:
    line = spark(sorted(points), 1000.0, span, width, 1.0)

    assert len(line) == width
    inside = any(1000.0 - mono < span for mono, _ in points)
    assert bool(line.strip()) == bool(inside and width)


def test_growth_of_a_program_is_known_after_half_a_minute_and_forgotten_with_it() -> None:
    look, _ = training()
    trail = Trail()
    for second in range(40):
        process = {**look.document["processes"][0], "rss_bytes": second << 20}
        at = datetime.fromtimestamp(second, timezone.utc).isoformat()
        trail.add(
            replace(look, mono=float(second), document={**look.document, "at": at, "processes": [process]})
        )
        known = trail.growth(Key("rss", "7"))
        assert (known is not None) == (second >= 30)
    assert known == pytest.approx(1 << 20)

    trail.add(replace(look, mono=41.0, document={**look.document, "at": "later", "processes": []}))
    assert trail.points(Key("rss", "7")) == ()


def test_a_look_that_shows_the_same_sample_again_counts_once() -> None:
    look = seen("two-gpus")
    trail = Trail()
    trail.add(look)
    trail.add(replace(look, mono=look.mono + 0.2))

    assert len(trail.points(Key("used", "ram"))) == 1


def test_a_counter_that_begins_anew_gives_no_rate() -> None:
    look = seen("bare-linux")
    later = {**look.document, "at": "later"}
    less = {name: [(labels, value / 2) for labels, value in series] for name, series in look.values.items()}
    trail = Trail()
    trail.add(look)
    trail.add(replace(look, mono=look.mono + 1, document=later, values=less))

    assert trail.points(Key("disk read")) == ()
    assert trail.points(Key("cpu")) == ()


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
def test_a_card_that_waits_is_told_for_what(seconds: tuple[Look, Trail], says: str | None) -> None:
    found = hints(*seconds)

    assert [hint.text for hint in found if hint.act] == ([] if says is None else [h.text for h in found])
    assert (says is None) == (not found)
    assert says is None or (says in found[0].text and "GPU 0 40% busy" in found[0].evidence)


def test_a_card_in_a_stress_run_is_shown_full_and_nobody_is_told_to_feed_it() -> None:
    look, trail = training(cpu=1.05 / 8)
    run = {"kind": "stress", "what": "GPU 0", "pid": 1, "phase": "soak", "elapsed_seconds": 3.0,
           "headline": "stress run of GPU 0: soaking, for 3 s"}  # fmt: skip
    card = {**look.document["gpus"][0], "used_bytes": 15 << 30, "total_bytes": 16 << 30}
    look = replace(look, document={**look.document, "running": [run], "gpus": [card]})

    assert re.search(
        r"GPU 0 +━+─* +94% +1\.0 GiB of 16 GiB left +no forecast during a stress run", drawn(look)
    )
    assert hints(look, trail) == []


def test_a_full_card_that_stays_full_is_called_fine() -> None:
    look, trail = training(gpu=0.95)
    forecast = {"resource": "gpu0", "level": "ok", "headroom_bytes": 1 << 30, "capacity_bytes": 16 << 30}
    trail.seed(Key("used", "gpu0"), [(float(t), 0.91) for t in range(60)])
    (hint,) = hints(replace(look, document={**look.document, "forecasts": [forecast]}), trail)

    assert not hint.act
    assert "91%" in hint.evidence


def test_the_daemon_and_our_own_look_tell_the_same(tmp_path: Path) -> None:
    with daemon(tmp_path, "--host-root", str(HOSTS / "wsl2-idle")) as running:
        feed = DaemonFeed(running.url)
        theirs = eventually(lambda: (s := sample_of(feed)) and s.document["gpus"] and s, "a sample")
        ours = seen("wsl2-idle")

    for name in ("memory_total_bytes", "gpu_memory_used_bytes", "pressure_waiting_seconds", "cpus"):
        assert list(theirs.series(name)) == list(ours.series(name)) != []
    assert {f["resource"] for f in theirs.document["forecasts"]} == {
        f["resource"] for f in ours.document["forecasts"]
    }
    assert time.monotonic() >= theirs.mono


def test_a_memory_of_which_nothing_new_comes_shows_how_old_it_is() -> None:
    look = seen("two-gpus")
    held = [f | {"age_seconds": 42.0} if f["resource"] == "gpu0" else f for f in look.document["forecasts"]]
    lines = drawn(replace(look, document={**look.document, "forecasts": held})).splitlines()

    assert [line.split()[:2] for line in lines if "42 s old" in line] == [["GPU", "0"]]


def test_help_fits_the_smallest_terminal() -> None:
    # 80 columns, less a border and two of padding on each side
    assert max(map(len, HELP.splitlines())) <= 74
