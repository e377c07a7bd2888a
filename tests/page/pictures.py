"""Pictures of every view in every state, for eyes to judge; one of them is the README's.

    python -m tests.page.pictures FOLDER [STATE ...]

``FOLDER/readme.png`` is what lies in deploy/pictures/page.png.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from tests.page.stage import Stage, nights, past_incidents, trace
from tests.page.stories import three_groups

VIEWS = ("overview", "history", "gpus", "processes", "incidents", "stress", "doctor", "daemon")
#: name -> what the browser is like
BROWSERS: dict[str, dict[str, Any]] = {
    "wide-light": {"width": 1400, "color_scheme": "light"},
    "wide-dark": {"width": 1400, "color_scheme": "dark"},
    "wide-zh": {"width": 1400, "locale": "zh-CN"},
    "tablet-light": {"width": 768, "color_scheme": "light"},
    "phone-light": {"width": 390, "color_scheme": "light"},
    "phone-dark": {"width": 390, "color_scheme": "dark"},
    "phone-zh": {"width": 390, "locale": "zh-CN", "color_scheme": "dark"},
}
SETTLE_MS = 1500


def calm(stage: Stage) -> None:
    past_incidents(stage)
    nights(stage)
    stage.host("h200-training")


def stale(stage: Stage) -> None:
    stage.host("h200-training")
    stage.clock.offset += 95


def killed(stage: Stage) -> None:
    """Three groups: one killed after a warning, one without, one that stops by itself."""
    with tempfile.TemporaryDirectory() as folder:
        three_groups(stage, Path(folder))


def work(stage: Stage) -> None:
    """A stress run on one card, a build under guard."""
    stage.running = [
        {
            "kind": "stress",
            "what": "GPU 0 RTX 4090",
            "pid": 7,
            "phase": "fill",
            "elapsed_seconds": 3.2,
            "done_ratio": 0.43,
            "left_seconds": 4.3,
        },
        {
            "kind": "guard",
            "what": "make -j8",
            "pid": 9,
            "phase": "waits",
            "elapsed_seconds": 192.0,
            "left_seconds": 1608.0,
            "peak_bytes": 11 << 30,
            "waiting": 2,
        },
    ]
    stage.host("two-gpus")


STATES: dict[str, Callable[[Stage], None]] = {
    "calm": calm,
    "warning": lambda stage: stage.play(trace("h200/h200-slow_leak-1"), 96),
    "emergency": lambda stage: stage.play(trace("ram-leak_linear-1"), 171),
    "full": lambda stage: stage.host("wsl2-vram-full", judged_seconds=20),
    "measured": lambda stage: stage.host("wsl2-vram-measured", judged_seconds=20),
    "critical": lambda stage: stage.play(trace("ram-leak_linear-1"), 160),
    "containers": lambda stage: stage.host("wsl3-containers"),
    "thrashing": lambda stage: stage.host("wsl2-swap-thrash"),
    "two-gpus": lambda stage: stage.host("two-gpus"),
    "gpu-lost": lambda stage: stage.host("gpu-lost"),
    "no-gpu": lambda stage: stage.host("no-gpu"),
    "killed": killed,
    "no-data": lambda _: None,
    "stale": stale,
    "work": work,
}


def take(browser: Browser, state: str, folder: Path) -> None:
    """Take all pictures of one state."""
    with tempfile.TemporaryDirectory() as scratch:
        stage = Stage(Path(scratch))
        STATES[state](stage)
        for name, kind in BROWSERS.items():
            options = dict(kind)
            page = browser.new_page(viewport={"width": options.pop("width"), "height": 900}, **options)
            for view in (*VIEWS, *single(stage)):
                page.goto("about:blank")
                if state != "stale":
                    stage.again()
                page.goto(f"{stage.url}/#/{view}")
                page.wait_for_timeout(SETTLE_MS)
                file = f"{state}-{view.replace('/', '-')}-{name}.png"
                page.screenshot(path=folder / file, full_page=True)
            page.close()
        stage.close()


def single(stage: Stage) -> Iterator[str]:
    """Return where the last incident and the last stress run are told at length."""
    stage.store.flush()
    opened = [incident.id for incident in stage.ledger.open.values()]
    if opened or (rows := stage.store.reader.transitions()):
        yield f"incidents/{opened[0] if opened else rows[0][0]}"
    if runs := stage.store.reader.stress_runs():
        yield f"stress/{runs[-1][0]}"


def readme(browser: Browser, path: Path) -> None:
    """Take the README's picture: the page while a training leaks on a real card."""
    with tempfile.TemporaryDirectory() as scratch:
        stage = Stage(Path(scratch))
        STATES["warning"](stage)
        page = browser.new_page(viewport={"width": 1120, "height": 760})
        page.goto(f"{stage.url}/")
        page.wait_for_timeout(SETTLE_MS)
        card = page.locator(".resource").first.bounding_box()
        assert card is not None
        height = card["y"] + card["height"] + 16
        page.screenshot(path=path, clip={"x": 0, "y": 0, "width": 1120, "height": height})
        stage.close()


def main() -> int:
    """Take those that were asked for."""
    folder, *states = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        readme(browser, Path(folder) / "readme.png")
        for state in states or STATES:
            take(browser, state, Path(folder))
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
