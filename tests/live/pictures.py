"""Pictures of the live view in every state, in a real terminal, for eyes to judge.

python -m tests.live.pictures FOLDER [STATE ...]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.page.pictures import STATES
from tests.page.stage import Stage
from tests.support.daemons import WSLGPUD
from tests.support.terminals import Terminal

SIZES = {"small": (80, 24), "usual": (120, 36), "wide": (200, 50)}


def main() -> int:
    """Take those that were asked for."""
    folder, *states = sys.argv[1:]
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for state in states or STATES:
        with tempfile.TemporaryDirectory() as scratch:
            stage = Stage(Path(scratch))
            STATES[state](stage)
            for name, size in SIZES.items():
                if state != "stale":
                    stage.again()
                command = [*WSLGPUD, "monitor", "--url", stage.url]
                with Terminal(command, Path(scratch), size) as terminal:
                    terminal.until("help")
                    terminal.until("memory" if state != "no-data" else "waiting")
                    (out / f"{state}-{name}.svg").write_text(terminal.picture(f"{state} {name}"))
                    if state == "warning":
                        terminal.keys("h")
                        terminal.until("headroom", "a point every")
                        (out / f"{state}-{name}-history.svg").write_text(terminal.picture("history"))
            stage.close()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for file in sorted(out.glob("*.svg")):
            page = browser.new_page()
            page.goto(file.as_uri())
            box = "document.documentElement.viewBox.baseVal"
            width, height = (int(page.evaluate(f"{box}.{side}")) for side in ("width", "height"))
            page.set_viewport_size({"width": width, "height": height})
            page.screenshot(path=file.with_suffix(".png"))
            page.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
