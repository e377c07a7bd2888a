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

#: what opens over the view, and by which words it is known to be there
SCREENS = {"h": ("headroom", "a point every")}
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
                stage.ticking = state != "stale"
                command = [*WSLGPUD, "monitor", "--url", stage.url]
                with Terminal(command, Path(scratch), size) as terminal:
                    terminal.until("quit")
                    terminal.until("memory" if state != "no-data" else "first sample")
                    if state == "stale":
                        terminal.until("STALE")
                    (out / f"{state}-{name}.svg").write_text(terminal.picture(f"{state} {name}"))
                    if state != "warning":
                        continue
                    for key, words in SCREENS.items():
                        terminal.keys(key)
                        terminal.until(*words)
                        title = words[0].partition(",")[0]
                        (out / f"{state}-{name}-{title}.svg").write_text(terminal.picture(title))
                        terminal.keys("Escape")
                        terminal.until("── memory")
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
