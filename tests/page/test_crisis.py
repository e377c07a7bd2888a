"""The page while memory runs out, on a phone, offline, and installed."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.page.stage import trace
from tests.page.test_api import ask
from tests.page.test_browser import _EXTENT, GIB, alarmed, machine, ready
from tests.support.daemons import eventually
from wslgpud.colors import LEVELS
from wslgpud.model import Forecast, GpuSample, Level, Observation
from wslgpud.serve.routes import ICONS

pytestmark = pytest.mark.xdist_group("browser")
ADVICE = "Use a smaller batch. Nothing fails, it only crawls."


def colour_of(locator, what):
    found = locator.evaluate(f"one => getComputedStyle(one).{what}")
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", found)[:3])


def spilled(stage):
    """A full card of which a part lies in Windows' RAM: critical."""
    card = GpuSample(0, "GPU-a", "RTX 5070 Ti", 16 * GIB, 16 * GIB, 0)
    snapshot = machine(stage, gpus=[card])
    full = Forecast("gpu0", Level.CRITICAL, 0, 16 * GIB, cause="full", spilled_bytes=3 * GIB)
    stage.publish(snapshot, Observation(0.0, gpus=(card,)), [full])


def test_a_state_has_one_colour_and_spill_stands_in_its_card(stage, look):
    spilled(stage)
    page = look().go()
    card = page.locator(".resource.subject")

    expect(card).to_contain_text("3.0 GiB has spilled into Windows RAM")
    critical = LEVELS[Level.CRITICAL].fill
    assert colour_of(page.locator(".verdict"), "backgroundColor") == critical
    assert colour_of(card.locator(".chip"), "backgroundColor") == critical
    assert colour_of(card.locator("rect.a"), "fill") == critical
    expect(page.locator("#icon")).to_have_attribute("href", "/static/icon-critical.svg")


def test_a_full_card_without_alarm_has_the_colour_of_the_verdict(stage):
    card = GpuSample(0, "GPU-a", "RTX 5070 Ti", 16 * GIB, 16 * GIB, 0)
    snapshot = machine(stage, gpus=[card])
    stage.publish(snapshot, Observation(0.0, gpus=(card,)), [Forecast("gpu0", Level.OK, 0, 16 * GIB)])
    found = ask(stage, "status")[2]

    assert found["verdict"]["level"] == found["forecasts"][0]["level"] == "info"


def test_advice_is_one_line_and_one_command_the_rest_is_folded(stage, look):
    alarmed(stage)
    stage.verdict["en"] |= {"advice": ADVICE, "command": "kill -INT 194"}
    looking = look()
    looking.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    verdict = looking.go().locator(".verdict")

    expect(verdict.get_by_text("it only crawls")).to_be_hidden()
    expect(verdict).to_contain_text("Use a smaller batch.")
    verdict.get_by_role("button").click()
    expect(verdict.get_by_role("button")).to_have_text("Copied")
    assert looking.page.evaluate("navigator.clipboard.readText()") == "kill -INT 194"
    verdict.get_by_text("More", exact=True).click()
    expect(verdict.get_by_text("it only crawls")).to_be_visible()


def test_a_command_of_several_lines_keeps_its_lines(stage, look):
    alarmed(stage)
    stage.verdict["en"] |= {"command": "sudo swapoff -a\nsudo swapon -a"}
    page = look().go()

    assert page.locator(".verdict code").inner_text() == "sudo swapoff -a\nsudo swapon -a"


def test_the_card_of_a_missing_gpu_is_the_last(stage, look):
    stage.play(trace("ram-leak_linear-1"), 150)
    page = look().go()
    cards = page.locator(".grid > .card")

    expect(cards.last).to_contain_text("No NVIDIA GPU here")
    expect(cards.first).to_contain_text("RAM")


def test_cards_keep_their_height_from_calm_to_alarm(stage, look):
    page, heights = look().page, []
    for second in (40, 150):
        stage.play(trace("ram-leak_linear-1"), second)
        page.goto(f"{stage.url}/#/overview")
        page.reload()
        expect(page.locator(".resource canvas")).to_be_visible()
        box = page.locator(".resource").first.bounding_box()
        heights.append((box["y"], box["height"]))
        stage.said.clear()

    assert heights[0] == pytest.approx(heights[1], abs=1)


def test_a_young_history_fills_its_chart(stage, look):
    stage.play(trace("ram-leak_linear-1"), 40)
    page = look().go()
    canvas = page.locator('[data-key="fan-ram"] canvas')
    begin, end = eventually(lambda: canvas.evaluate(_EXTENT), "the curve")

    assert begin < 0.2
    assert end > 0.8


@pytest.mark.parametrize("width", [390, 320])
def test_on_a_phone_the_head_is_one_line_with_the_active_tab(stage, look, width):
    machine(stage)
    page = look(width).go("daemon")
    ready(page)

    assert page.locator(".bar").bounding_box()["height"] < 45
    tab = page.locator("nav [aria-current]").bounding_box()
    assert tab["x"] >= 0
    assert tab["x"] + tab["width"] <= width


def test_the_page_can_be_installed(stage, look):
    machine(stage)
    page = look().go()
    ready(page)
    session = page.context.new_cdp_session(page)
    found = session.send("Page.getAppManifest")

    assert found["url"].endswith("/static/page.webmanifest")
    assert found["errors"] == []
    # A window without a profile installs nothing: all else must be in order.
    errors = session.send("Page.getInstallabilityErrors")["installabilityErrors"]
    assert {one["errorId"] for one in errors} <= {"in-incognito"}


def test_tab_and_icon_say_that_the_daemon_does_not_answer(stage, look):
    alarmed(stage)
    page = look().go()
    expect(page).to_have_title(re.compile("^critical"))
    stage.server.stop()

    expect(page).to_have_title(re.compile("^no answer"))
    expect(page.locator("#icon")).to_have_attribute("href", "/static/icon-unknown.svg")
    page.get_by_role("link", name="Incidents", exact=True).click()
    expect(page.locator("main")).to_contain_text("the daemon does not answer")
    expect(page.locator("main")).not_to_contain_text("Failed to fetch")


def test_each_icon_is_served(stage, look):
    page = look().page
    for level in ICONS:
        assert page.request.get(f"{stage.url}/static/icon-{level}.svg").ok


def test_back_after_zooming_returns_to_the_chart(stage, look):
    stage.host("no-gpu", past_seconds=600)
    page = look().go("history?board=memory&last=900")
    ready(page)
    page.get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile("last=450"))
    page.go_back()

    expect(page).to_have_url(re.compile("last=900"))
    expect(page.locator(".panels canvas").first).to_be_visible()


def test_history_has_titles_for_people(stage, look):
    stage.host("no-gpu", past_seconds=60)
    page = look().go("history?board=memory&last=900")
    ready(page)

    expect(page.get_by_role("heading", name="RAM left", exact=True)).to_be_visible()
    expect(page.locator(".panels")).to_contain_text("memory_available_bytes")
