"""The page in a real browser, before machines in all kinds of states."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace
from datetime import datetime

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.page.stage import moved, nights, past_incidents, snapshot_of, trace, year
from tests.page.stories import three_groups
from tests.page.test_api import ask
from tests.support.daemons import eventually
from tests.words.latin import latin_words
from wslgpud.app.catalogue import catalogue
from wslgpud.model import (
    Forecast,
    GpuProcess,
    GpuSample,
    Level,
    Observation,
    ProcessSample,
    RamState,
    Reading,
    Sample,
    Snapshot,
    SourceReport,
    Transition,
)
from wslgpud.sources.memory import MEMINFO
from wslgpud.words import ENGLISH, Message

# one browser for all of them
pytestmark = pytest.mark.xdist_group("browser")

VIEWS = ("overview", "history", "gpus", "processes", "incidents", "stress", "doctor", "daemon")
GIB = 1 << 30
LEAK = "python3 leak.py (pid 194)"


def ready(page):
    """Wait until a view has all that it asked for."""
    expect(page.locator("nav [aria-current]")).to_be_visible()
    expect(page.locator(".pulse")).not_to_have_class(re.compile("waiting"))
    expect(page.get_by_text("Loading …")).to_have_count(0)


def ready_in(page, loading):
    """Wait as ``ready`` does, on a page of another language."""
    expect(page.locator("nav [aria-current]")).to_be_visible()
    expect(page.locator(".pulse")).not_to_have_class(re.compile("waiting"))
    expect(page.get_by_text(loading)).to_have_count(0)


def machine(stage, *, available=20 * GIB, gpus=(), processes=(), error="", up=()):
    """Show a machine of 32 GiB with these cards and processes."""
    known = catalogue()
    memory = (Reading(MEMINFO["MemTotal"], 32 * GIB), Reading(MEMINFO["MemAvailable"], available))
    cards = tuple(Reading(known["gpu_up"], value, labels) for labels, value in up)
    health = "ok" if gpus or up else "absent"
    mono = stage.clock.mono()
    reports = (
        SourceReport("memory", "ok", Sample(memory), mono, 0.001),
        SourceReport("gpu", health, Sample(cards, gpus=tuple(gpus)), mono, 0.001, error),
        SourceReport("processes", "ok", Sample(processes=tuple(processes)), mono, 0.001),
    )
    stage.number = getattr(stage, "number", 0) + 1
    snapshot = Snapshot(stage.clock.wall(), mono, stage.number, reports)
    stage.publish(snapshot, Observation(mono, processes=tuple(processes), gpus=tuple(gpus)))
    return snapshot


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (320, "dark")])
def test_each_view_fits_is_accessible_and_contacts_no_other_site(stage, look, view, width, scheme):
    past_incidents(stage)
    nights(stage, 4)
    stage.host("wsl2-vram-full", past_seconds=120)
    looking = look(width, color_scheme=scheme, has_touch=width < 400)

    page = looking.go(view)
    ready(page)

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert looking.complaints == []
    assert looking.strangers == []


@pytest.mark.parametrize("secure", [True, False], ids=["here", "over plain HTTP from elsewhere"])
def test_a_remedy_of_the_doctor_is_copied_with_one_click(stage, look, secure):
    stage.host("wsl2-vram-full", past_seconds=120)
    looking = look()
    if not secure:  # browsers hide it there
        looking.page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    looking.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = looking.go("doctor")
    ready(page)
    remedy = page.locator("li:has(button)").first
    wanted = remedy.locator("code").inner_text()
    remedy.get_by_role("button").click()

    expect(remedy.get_by_role("button")).to_have_text("Copied")
    box = looking.page.context.new_page()
    box.goto(page.url)
    assert box.evaluate("navigator.clipboard.readText()") == wanted
    expect(remedy.get_by_role("button")).to_have_text("Copied")  # still, whatever samples have come
    assert looking.complaints == []


NOON = "2026-11-21T12:40:03+00:00"


def alarmed(stage):
    """Play a leak, with a daemon's messages about it."""
    stage.play(trace("ram-leak_linear-1"), 150)
    stage.verdict = {
        "en": {
            "level": "critical",
            "headline": "RAM is full in about 43 s",
            "who": LEAK,
            "byline": LEAK,
            "pid": 194,
            "advice": "Save your work and stop it.",
            "incident": 7,
            "also": 2,
            "more": "and 2 more are open",
        },
        "zh": {"level": "critical", "headline": "内存约 43 秒后耗尽", "who": LEAK, "pid": 194},
    }


def test_it_says_first_what_the_daemon_decided_in_its_words(stage, look):
    alarmed(stage)

    page = look().go()

    verdict = page.locator(".verdict")
    expect(verdict).to_have_class(re.compile("critical"))
    expect(verdict.locator("h1")).to_have_text("critical: RAM is full in about 43 s")
    expect(verdict).to_contain_text(f"{LEAK} · Save your work and stop it. · Incident 7 · and 2 more are open")
    expect(verdict.get_by_role("link", name="Incident 7")).to_have_attribute("href", "#/incidents/7")
    expect(verdict.get_by_role("link", name="2 more")).to_have_attribute("href", "#/incidents")
    expect(page).to_have_title(re.compile("^critical . Overview . wslgpud"))


def test_a_lost_job_stays_on_top_until_it_is_seen(stage, look):
    alarmed(stage)
    lost = {"incident": 9, "headline": "train.py was killed at 12:40:03, not warned", "at": NOON, "seen": "ack 9"}
    calm = {"level": "ok", "state": "killed", "headline": "Memory is fine", "lost": lost}
    stage.verdict = {"en": calm, "zh": calm}
    looking = look()

    page = looking.go()

    first, second = page.locator(".verdict").nth(0), page.locator(".verdict").nth(1)
    expect(first).to_contain_text("killed: train.py was killed at 12:40:03, not warned")
    expect(second).to_contain_text("Memory is fine")
    expect(page).to_have_title(re.compile("^killed . Overview . wslgpud"))
    expect(page.locator("#icon")).to_have_attribute("href", "/static/icon-killed.svg")
    first.get_by_role("button", name="Seen").click()
    expect(page.locator(".verdict.killed")).to_have_count(0)
    assert stage.seen == [9]
    assert looking.complaints == []


def test_why_a_lost_job_cannot_be_noted_as_seen_is_said(stage, look):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stage.see = full
    stage.server.stop()
    stage.serve(stage.port)
    machine(stage)
    lost = {"incident": 9, "headline": "train.py was killed", "at": NOON, "seen": "ack 9"}
    stage.verdict = {"en": {"level": "ok", "state": "killed", "headline": "Memory is fine", "lost": lost}}
    page = look().go()
    with page.expect_response("**/api/v1/seen/9"):
        page.get_by_role("button", name="Seen").click()
    machine(stage)

    expect(page.locator(".verdict.killed")).to_contain_text("that cannot be kept: No space left on device")


def test_in_a_crisis_no_card_changes_its_place(stage, look):
    alarmed(stage)
    for said in stage.verdict.values():
        said["subject"] = "cgroup:/user.slice/user-1000.slice/train.scope"
    known = stage.known
    name = ENGLISH.resource(said["subject"])
    forecast = known("en")["forecasts"][0] | {"resource": said["subject"], "name": name}
    forecast |= {"cause": "blind", "outlook": "no reading for 42 s", "level": "warning"}
    many = [forecast | {"resource": f"cgroup:/other{n}", "level": "ok"} for n in range(20)]
    many[-1] |= {"level": "emergency", "resource": "cgroup:/worse", "name": "cgroup /worse"}
    stage.known = lambda language: known(language) | {"forecasts": [*many, forecast]}
    page = look().go()

    card = page.locator(".grid .resource.subject")
    expect(card.locator("h2")).to_have_text("cgroup …/train.scope")
    expect(card.locator(".outlook")).to_have_text("no reading for 42 s")
    expect(card.locator(".big")).to_contain_text("were used")
    expect(card.locator(".head .chip")).to_contain_text("warning")
    cards = page.locator(".grid .resource h2")
    expect(cards).to_have_count(12)
    expect(cards.first).to_have_attribute("title", "/other0")
    expect(cards.nth(10)).to_have_text("cgroup /worse")


def test_the_culprit_is_the_first_of_the_processes_and_marked(stage, look):
    alarmed(stage)
    looking = look()
    for view in ("overview", "processes"):
        page = looking.go(view)
        row = page.locator("tr.culprit")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("culprit")
        expect(row).to_contain_text("194")

    expect(looking.go().locator("tbody tr").first).to_have_class("culprit")


def test_a_card_shows_use_remaining_memory_and_how_it_goes_on(stage, look):
    alarmed(stage)
    known = stage.known
    told = {"outlook": "about 43 s left", "who": LEAK}
    stage.known = lambda code: (d := known(code)) | {"forecasts": [f | told for f in d["forecasts"]]}

    card = look().go().locator(".resource").first

    expect(card).to_contain_text(re.compile(r"of 1\.2 GiB used, \d+ MiB left"))
    expect(card).to_contain_text("about 43 s left")
    expect(card).to_contain_text(LEAK)
    expect(card.locator("svg.layers")).to_have_attribute("aria-label", re.compile("^used "))
    expect(card.locator("canvas")).to_be_visible()
    expect(card.locator(".chart")).to_have_attribute("aria-label", re.compile("of 1.2 GiB used. about 43 s left$"))


#: Where a curve begins and ends, as shares of its canvas; None where there is none.
_EXTENT = """canvas => {
    const [red, green, blue] = getComputedStyle(document.documentElement).getPropertyValue("--headroom").trim()
        .match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
    const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const columns = [];
    for (let at = 0; at < data.length; at += 4)
        if (data[at] === red && data[at + 1] === green && data[at + 2] === blue && data[at + 3] === 255)
            columns.push(at / 4 % width);
    return columns.length ? [Math.min(...columns) / width, Math.max(...columns) / width] : null;
}"""


def test_a_silent_card_still_has_its_recorded_curve_on_page_load(stage, look):
    """200 s were recorded, then nothing for 300 s; the chart begins where they do."""
    past = [o for o in trace("gpu-leak_outputs-1") if o.t <= 200]
    stage.play(past, 200, thin=4)
    stage.clock.offset += 300
    last = Forecast("gpu0", Level.WARNING, 5 * GIB, 16 * GIB, cause="blind", age_seconds=300.0)
    now = replace(past[-1], t=0.0, gpus=())
    stage.publish(snapshot_of(now, [last], stage.clock.wall(), stage.clock.mono(), 9999), now, [last])

    card = look().go().locator('.resource[data-key="r-gpu0"]')
    expect(card.locator(".outlook")).to_contain_text("no reading")
    canvas = card.locator("canvas")
    begin, end = eventually(lambda: canvas.evaluate(_EXTENT), "the curve")

    assert begin < 0.2
    assert 0.3 < end < 0.6


def test_the_first_chart_is_drawn_before_anything_is_stored(stage, look):
    """Ten samples at most: the first commit comes after ten seconds."""

    def shrink(left_gib):
        room = Forecast("ram", Level.OK, left_gib * GIB, 16 * GIB)
        now = Observation(0.0, RamState(16 * GIB, left_gib * GIB))
        stage.clock.offset += 1.0
        stage.publish(
            snapshot_of(now, [room], stage.clock.wall(), stage.clock.mono(), 16 - left_gib), now, [room], keep=False
        )

    shrink(15)
    card = look().go().locator('.resource[data-key="r-ram"]')
    for left_gib in range(14, 5, -1):
        shrink(left_gib)
        expect(card).to_contain_text(f"{left_gib}{'.0' if left_gib < 10 else ''} GiB left")
    begin, end = card.locator("canvas").evaluate(_EXTENT)

    assert end - begin > 0.3
    assert stage.store.reader.series() == []


def test_new_samples_show_by_themselves(stage, look):
    machine(stage, processes=[ProcessSample(7, 1, "train", 2 * GIB, 0)])
    page = look().go("processes")
    expect(page.locator("tbody").first).to_contain_text("2.0 GiB")

    machine(stage, processes=[ProcessSample(7, 1, "train", 3 * GIB, 0)])

    expect(page.locator("tbody").first).to_contain_text("3.0 GiB")


def test_programs_of_another_namespace_stay_apart_despite_pid_0(stage, look):
    programs = tuple(GpuProcess(0, name, None) for name in ("Xwayland", "weston"))
    card = GpuSample(0, "GPU-a", "RTX 5070 Ti", 16 * GIB, 4 * GIB, processes=programs)
    machine(stage, gpus=[card])
    page = look().go("gpus")
    ready(page)
    machine(stage, gpus=[replace(card, used_bytes=5 * GIB)])
    expect(page.locator("main")).to_contain_text("5.0 GiB")

    for name in ("Xwayland", "weston"):
        expect(page.locator("main li", has_text=name)).to_have_count(1)


def test_vram_unknown_on_one_card_is_not_counted_as_none(stage, look):
    cards = [
        GpuSample(n, f"GPU-{n}", "RTX 5070 Ti", 16 * GIB, 4 * GIB, processes=(GpuProcess(7, "train", used),))
        for n, used in enumerate((2 * GIB, None))
    ]
    machine(stage, gpus=cards, processes=[ProcessSample(7, 1, "train", GIB, 0)])
    page = look().go("processes")

    expect(page.locator("tbody tr", has_text="train").first).to_contain_text("N/A")


def test_what_the_reader_does_survives_a_new_sample(stage, look):
    machine(stage, processes=[ProcessSample(n, 1, f"train{n}", n * GIB, 0) for n in (1, 2)])
    page = look().go("processes")
    page.get_by_role("searchbox").fill("train2")
    page.get_by_role("button", name="PID").click()
    page.get_by_role("searchbox").focus()

    machine(stage, processes=[ProcessSample(n, 1, f"train{n}", 9 * GIB, 0) for n in (1, 2)])

    expect(page.locator("tbody").first).to_contain_text("9.0 GiB")
    expect(page.locator("tbody").first.locator("tr")).to_have_count(1)
    expect(page.get_by_role("searchbox")).to_be_focused()
    expect(page.locator("th[aria-sort]")).to_have_text("PID")


def test_nobody_is_asked_while_the_page_is_hidden(stage, look):
    machine(stage)
    page = look().go()
    ready(page)
    page.evaluate(
        "() => { const ask = fetch; window.askedHidden = 0;"
        " window.fetch = (...what) => { window.askedHidden += document.hidden; return ask(...what); }; }"
    )
    hide = "h => { Object.defineProperty(document, 'hidden', {value: h, configurable: true});"
    hide += " document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    page.wait_for_timeout(2500)  # two samples would have come

    assert page.evaluate("window.askedHidden") == 0
    with page.expect_request("**/api/v1/live?*"):
        page.evaluate(hide, False)


def test_a_daemon_that_stops_is_seen_and_so_is_its_return(stage, look):
    machine(stage)
    page = look().go()
    ready(page)
    port = stage.port

    stage.server.stop()
    expect(page.locator("#notice")).to_contain_text("has not answered since")
    expect(page.locator(".pulse")).to_contain_text("no connection")
    expect(page.locator("h1")).to_contain_text("is not known")
    # It is said for some seconds, in which a busy machine may not look.
    page.evaluate("""() => {
        const notice = document.getElementById("notice");
        const note = () => (document.documentElement.dataset.noticed += notice.textContent);
        new MutationObserver(note).observe(notice, {childList: true, characterData: true, subtree: true});
    }""")
    stage.serve(port)
    machine(stage)

    expect(page.locator("html")).to_have_attribute("data-noticed", re.compile("it was restarted"))
    expect(page.locator("h1")).not_to_contain_text("is not known")


def test_a_sample_that_is_old_is_shown_as_old(stage, look):
    machine(stage)
    page = look().go()
    ready(page)

    stage.clock.offset += 75

    expect(page.locator("#notice")).to_contain_text(re.compile(r"No new sample for \d+ s: the daemon answers but"))
    expect(page.locator("h1")).to_contain_text("is not known")
    expect(page.locator("body")).to_have_class("old")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_no_sample_no_gpu_silence_and_a_lost_card_are_told_apart(stage, look):
    page = look().go("gpus")
    expect(page.locator("main")).to_contain_text("no data yet")

    machine(stage, error="libnvidia-ml.so.1 not found")
    expect(page.locator("main")).to_contain_text("No NVIDIA GPU here")
    expect(page.locator("main")).to_contain_text("libnvidia-ml.so.1 not found")

    card = GpuSample(0, "GPU-a", "RTX 5070 Ti", 16 * GIB, 4 * GIB)
    there = machine(stage, gpus=[card], up=[(("0", "GPU-a"), 1)])
    expect(page.locator("main")).to_contain_text("RTX 5070 Ti")
    expect(page.locator("dl")).to_contain_text("N/A")

    machine(stage, up=[(("0", "GPU-a"), 0)])
    expect(page.locator("main")).to_contain_text("GPU 0 is lost")
    expect(page.locator("main")).not_to_contain_text("RTX 5070 Ti")

    silent = replace(there.reports[1], health="late", sample=Sample(), error="no answer for 9.0 s")
    after = replace(there, sequence=99, reports=(there.reports[0], silent))
    stage.publish(after, Observation(0.0))
    expect(page.locator("main")).to_contain_text("The GPU driver does not answer")


EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'`${7*7}"


def test_names_that_are_markup_stay_text(stage, look):
    process = ProcessSample(66, 1, EVIL, GIB, 0, roles=frozenset({"gpu"}), command=EVIL)
    card = GpuSample(0, EVIL, EVIL, 16 * GIB, 4 * GIB, processes=(GpuProcess(66, EVIL, None),))
    stage.say(Transition(stage.clock.wall(), 0.0, f"cgroup:/{EVIL}", EVIL, Level.OK, Level.WARNING, Message(EVIL)))
    number = next(iter(stage.ledger.open.values())).id
    machine(stage, gpus=[card], processes=[process], error=EVIL)
    spec = catalogue()["program_resident_bytes"]
    kept = SourceReport("memory", "ok", Sample((Reading(spec, 7, (EVIL,)),)), stage.clock.mono(), 0.0)
    stage.store.append(Snapshot(stage.clock.wall(), stage.clock.mono(), 7, (kept,)))
    stage.store.flush()
    looking = look()
    for view in (
        "overview",
        "gpus",
        "processes",
        "incidents",
        f"incidents/{number}",
        "daemon",
        "history?board=programs",
    ):
        page = looking.go("none")
        page = looking.go(view)
        ready(page)
        expect(page.locator("main")).to_contain_text("<img src=x" if view != "daemon" else "gpu")

        assert page.locator("main img, main script").count() == 0
    assert looking.complaints == []
    assert looking.strangers == []


def test_a_year_is_one_answer_and_zooming_in_brings_more_detail(look, stage):
    stage.server.stop()
    stage.store.close()
    year(stage.database, stage.clock.wall())
    stage.reopen()
    looking = look()

    page = looking.go("history?board=memory&last=31536000")
    panel = page.locator(".panels .card").first
    expect(panel).to_contain_text("hour summaries")
    box = panel.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.92 * box["width"], box["y"] + 30, steps=4)
    page.mouse.up()

    expect(panel).to_contain_text("minute summaries")
    expect(page).to_have_url(re.compile("from=.*to="))
    page.locator(".panels .u-over").first.dblclick()
    expect(panel).to_contain_text("hour summaries")
    assert looking.complaints == []


def test_history_can_be_walked_by_keyboard_alone(stage, look):
    stage.host("no-gpu", past_seconds=600)
    page = look().go("history?board=memory&last=900")
    ready(page)
    page.get_by_role("button", name="Zoom in").focus()

    page.keyboard.press("+")
    expect(page).to_have_url(re.compile("last=450"))
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(re.compile("from="))
    page.keyboard.press("0")
    expect(page).to_have_url(re.compile("last=450"))


def test_series_are_found_and_chosen(stage, look):
    stage.host("no-gpu", past_seconds=60)
    page = look().go("history")
    ready(page)
    page.get_by_text("Choose series").click()
    page.get_by_role("searchbox").fill("load average over 5")
    expect(page.get_by_role("checkbox")).to_have_count(1)
    page.get_by_role("checkbox").check()

    expect(page.get_by_role("heading", name="load5")).to_be_visible()
    expect(page).to_have_url(re.compile("s=wslgpud_load5"))
    expect(page.get_by_role("checkbox")).to_be_checked()


def test_series_that_begin_later_are_listed_on_return(stage, look):
    machine(stage)
    looking = look()
    page = looking.go("history")
    ready(page)
    card = (Reading(catalogue()["gpu_up"], 1, ("0", "GPU-new")),)
    report = SourceReport("gpu", "ok", Sample(card), stage.clock.mono(), 0.001)
    stage.publish(Snapshot(stage.clock.wall(), stage.clock.mono(), 99, (report,)), Observation(0.0))
    page.get_by_role("link", name="Daemon").click()
    page.get_by_role("link", name="History").click()
    page.get_by_text("Choose series").click()
    page.get_by_label("Search all series").fill("gpu_up")

    expect(page.locator(".picker label")).to_have_count(1)


def test_a_view_that_was_left_does_not_change_the_address(stage, look):
    machine(stage)
    page = look().go()
    ready(page)
    held = []
    page.route("**/api/v1/series*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright takes no method
    with page.expect_request("**/api/v1/series*"):
        page.get_by_role("link", name="History").click()
    page.get_by_role("link", name="Daemon").click()
    eventually(lambda: page.evaluate("1") and held, "the request")
    with page.expect_response("**/api/v1/series*"):
        held[0].continue_()
    page.evaluate("() => new Promise((done) => setTimeout(done, 200))")

    expect(page).to_have_url(re.compile("#/daemon$"))


def test_an_incident_shows_the_minutes_before_it(stage, look):
    stage.play(trace("ram-leak_linear-1"), 171)
    page = look().go("incidents")
    page.get_by_role("link", name=re.compile("RAM full in")).first.click()

    expect(page.locator("canvas").first).to_be_visible()
    expect(page.locator("main")).to_contain_text("RAM: used of")
    expect(page.locator("main")).to_contain_text("still open")
    expect(page.locator("main")).to_contain_text("Who grew")
    expect(page.locator("main")).to_contain_text("python3")
    advice = page.get_by_role("link", name="memory running out")
    expect(advice).to_have_attribute("href", "/runbook?lang=en#memory_exhaustion")
    page.get_by_role("link", name="Back to the list").click()
    expect(page.get_by_role("columnheader", name="Story")).to_be_visible()


def test_a_past_incident_tells_its_story_to_the_end(stage, look, tmp_path):
    three_groups(stage, tmp_path)
    page = look().go("incidents")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.filter(has_text="train.py")).to_contain_text(re.compile(r"killed [\d:]+, warned \d+ s before"))
    expect(rows.filter(has_text="load.py")).to_contain_text(re.compile(r"killed [\d:]+, not warned"))
    expect(rows.filter(has_text="load.py")).to_contain_text("cgroup /user.slice/load.scope")
    expect(rows.filter(has_text="load.py").locator(".chip").first).to_have_class(re.compile("past"))
    page.get_by_role("link", name=re.compile("train.py")).click()

    main = page.locator("main")
    expect(main.locator(".chart.large canvas")).to_be_visible()
    expect(main).to_contain_text("forecast at the time of the warning")
    expect(main).not_to_contain_text("load")
    ram = main.get_by_role("img", name=re.compile("RAM: used of"))
    expect(ram).to_be_hidden()
    main.get_by_text("Other resources meanwhile").click()
    expect(ram).to_be_visible()
    left, right = (
        box["x"] + box["width"] for box in (canvas.bounding_box() for canvas in main.locator("canvas").all())
    )
    assert abs(left - right) < 30, "one axis of time"


def test_a_thinned_curve_keeps_each_peak_and_each_drop(stage, look):
    page = look().go()
    drawn = page.evaluate(
        "one => import('/static/charts.js').then(m => m.extremes(one))",
        {"time": [0, 5, 10], "value": [9, 5, 2], "min": [9, 1, 2], "max": [9, 9, 2]},
    )

    assert [value for _, value in drawn] == [9, 9, 1, 2]
    assert [wall for wall, _ in drawn] == sorted({wall for wall, _ in drawn})


def test_an_open_incident_shows_the_present_and_the_forecast(stage, look):
    stage.play(trace("ram-leak_linear-1"), 150)
    number = min(i.id for i in stage.ledger.open.values())
    known = stage.known
    open_one = known("en")["incidents"][0] | {"id": number, "headline": "RAM is so now", "level": "info"}
    stage.known = lambda language: known(language) | {"incidents": [open_one]}
    looking = look()

    page = looking.go(f"incidents/{number}")

    expect(page.locator("main h1")).to_have_text("RAM is so now")
    expect(page.locator("main .chip").first).to_have_text("info")
    expect(page.locator("main")).to_contain_text("Probability that it runs out")
    found = ask(stage, f"incidents/{number}")[2]
    late = found["forecast"]["eta_seconds"]["late"]
    seconds = [datetime.fromisoformat(found[key]).timestamp() for key in ("warned", "end", "start")]
    assert seconds[1] >= seconds[0] + late - 1
    assert seconds[2] == pytest.approx(found["headroom"][0]["points"][0][0], abs=0.01), "no empty beginning"
    expect(looking.go("incidents").locator("tbody tr").filter(has_text="RAM is so now")).to_have_count(1)


def test_a_chinese_reader_gets_chinese_and_can_switch_languages(stage, look):
    alarmed(stage)
    page = look(locale="zh-CN").go("processes")
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    expect(page.locator("nav [aria-current]")).to_have_text("进程")
    page.get_by_role("searchbox").fill("python3")
    page.evaluate("window.same = true")

    page.get_by_role("button", name="English").click()

    expect(page.locator("html")).to_have_attribute("lang", "en")
    expect(page.locator("nav [aria-current]")).to_have_text("Processes")
    expect(page.get_by_role("searchbox")).to_have_value("python3")
    page.get_by_role("link", name="Overview").click()
    expect(page.locator("h1")).to_have_text("critical: RAM is full in about 43 s")
    page.get_by_role("button", name="中文").click()
    expect(page.locator("h1")).to_have_text("严重: 内存约 43 秒后耗尽")
    assert page.evaluate("window.same")
    page.reload()
    expect(page.locator("h1")).to_have_text("严重: 内存约 43 秒后耗尽")


def test_a_daemon_that_cannot_give_the_words_is_asked_again(stage, look):
    machine(stage)
    looking = look(locale="zh-CN")
    looking.page.route("**/api/v1/words?*", lambda route: route.abort(), times=1)
    page = looking.go()

    expect(page.locator("nav [aria-current]")).to_have_text("总览")


def test_a_slow_daemon_is_waited_for_without_a_complaint(stage, look):
    machine(stage)
    looking, held = look(), []
    looking.page.clock.install()

    def hold(route):
        held.append(route)

    looking.page.route("**/api/v1/words?*", hold)
    with looking.page.expect_request("**/api/v1/words?*"):
        looking.go()
    looking.page.clock.run_for(5_000)

    held.pop().continue_()

    expect(looking.page.locator("nav [aria-current]")).to_have_text("Overview")
    expect(looking.page.locator(".pulse")).to_contain_text("live")
    assert looking.complaints == []


#: what a reader sees as text of the page: neither names nor what is marked as another language
_TEXTS = """() => {
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const marked = '[lang="en"], [translate="no"], code, script, noscript';
  while (walk.nextNode()) {
    if (!walk.currentNode.parentElement.closest(marked)) found.push(walk.currentNode.data);
  }
  for (const one of document.querySelectorAll("[aria-label], [title], [placeholder]")) {
    if (one.closest(marked)) continue;
    for (const name of ["aria-label", "title", "placeholder"]) found.push(one.getAttribute(name) ?? "");
  }
  return found;
}"""


@pytest.mark.parametrize("view", [*VIEWS, "incidents/1", "stress/1"])
def test_in_chinese_every_view_is_fully_translated_except_names(stage, look, view):
    past_incidents(stage)
    nights(stage, 4)
    running = {"pid": 7, "elapsed_seconds": 3.2, "left_seconds": 60.0}
    stage.running = [
        {**running, "kind": "stress", "what": "GPU 0 RTX", "phase": "fill", "done_ratio": 0.4},
        {**running, "kind": "guard", "what": "make", "phase": "runs"},
    ]
    stage.host("wsl2-vram-full", past_seconds=120)
    if view.endswith("/1"):
        kind = view.partition("/")[0]
        rows = stage.store.reader.stress_runs() if kind == "stress" else stage.store.reader.transitions()
        view = f"{kind}/{rows[0][0]}" if kind == "incidents" else f"{kind}/{rows[1][0]}"
    page = look(locale="zh-CN").go(view)
    ready_in(page, "加载中…")

    names = {"MIT", "OpenAPI", "PSS", "uPlot", "WAL", "misc dxg: dxgk: dxgkio_make_resident: Ioctl failed"}
    english = [text for text in page.evaluate(_TEXTS) if latin_words(text, names)]
    assert english == []


def test_what_runs_is_shown_with_how_far_it_is(stage, look):
    nights(stage, 3)
    stage.running = [
        {
            "kind": "stress",
            "what": "GPU 0 RTX 5070 Ti",
            "pid": 7,
            "phase": "patterns",
            "elapsed_seconds": 3.2,
            "done_ratio": 0.43,
            "left_seconds": 4.0,
        }
    ]
    stage.host("two-gpus", past_seconds=5)
    looking = look()
    for view in ("overview", "stress"):
        page = looking.go(view)
        card = page.locator("section", has=page.get_by_role("heading", name="Running now"))
        expect(card).to_contain_text("stress run of GPU 0 RTX 5070 Ti: checking data, 43 % done, for 3 s")
        expect(card.get_by_role("progressbar")).to_have_attribute("value", "0.430")
    page = looking.go("overview")
    expect(page.locator("main")).to_contain_text("Last stress run")

    stage.running = []
    stage.host("two-gpus", past_seconds=5)
    stage.again()
    expect(page.get_by_text("Running now")).to_have_count(0)
    assert looking.complaints == []


def test_a_run_that_ends_while_its_list_is_open_is_added(stage, look):
    machine(stage)
    page = look().go("stress")
    expect(page.locator("main")).to_contain_text("No stress run so far.")

    nights(stage, 1)
    stage.store.flush()
    machine(stage)

    expect(page.locator("tbody tr")).to_have_count(1)


def test_memory_bandwidth_is_drawn_in_bytes_per_second(stage, look):
    nights(stage, 3)
    stage.store.flush()
    number = stage.store.reader.stress_runs()[-1][0]
    page = look().go(f"stress/{number}")
    expect(page.locator('[data-key="chunks"] canvas')).to_be_visible()
    run = {"detail": {"chunks": [{"bytes": 1 << 28, "write": 0.001, "change": 0.002, "read": 0.0005}]}}
    (chunk,) = page.evaluate("run => import('/static/stress.js').then(m => m.chunksOf(run))", run)

    assert chunk == {"write": (1 << 28) / 0.001, "read": (1 << 28) / 0.0005}


def test_light_or_dark_can_be_chosen_and_is_remembered(stage, look):
    machine(stage)
    page = look(color_scheme="dark").go()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_the_first_tab_leads_past_the_head(stage, look):
    machine(stage)
    page = look().go("daemon")
    ready(page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page.locator("nav [aria-current]")).to_have_text("Daemon")


def test_a_clock_that_was_set_back_does_no_harm(stage, look):
    stage.host("no-gpu", past_seconds=60)
    looking = look()
    page = looking.go()
    ready(page)
    back = moved(stage.publisher.latest, stage.clock.wall() - 7200, stage.clock.mono(), 10_000)
    stage.publisher.publish(back)
    with page.expect_response("**/api/v1/live?*"):
        pass
    ready(page)

    assert looking.complaints == []
