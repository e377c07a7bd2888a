"""Response time of the page over a year of history, and its cost to the daemon while it is open.

    python -m tests.bench.bench_page [--database FILE] [--seconds 20]

FILE is a year as made by ``python -m tests.bench.year FILE``; by default one is made in which only the last day has
every sample. Goals: less than a second per zoom, and next to no CPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Page, sync_playwright

from tests.bench import year
from tests.page.stage import Stage
from tests.support.daemons import daemon, eventually

ZOOMS = 8
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def zooms(page: Page, url: str, board: str) -> list[float]:
    """Return the milliseconds to load a year, and for each of several zooms."""
    page.goto(f"{url}/#/history?board={board}&last=31536000")
    took = [loaded(page, 0)]
    for number in range(1, ZOOMS + 1):
        box = page.locator(".panels .u-over").first.bounding_box()
        page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 20, steps=3)
        began = page.evaluate("performance.now()")
        page.mouse.up()
        took.append(loaded(page, number) - began)
    return took


def loaded(page: Page, number: int) -> float:
    """Wait until history has been loaded ``number`` + 1 times; return the moment, in the page's milliseconds.

    Polls from outside: waiting inside the page needs eval, which its content security policy forbids.
    """
    mark = f"performance.getEntriesByName('history-loaded')[{number}]?.startTime"
    while (found := page.evaluate(mark)) is None:
        page.wait_for_timeout(10)
    return float(found)


def history(browser: Browser, database: Path) -> None:
    """Print the duration of zooms on ``database``."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), database=database)
        try:
            for board in ("memory", "vram", "gpu"):
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                first, *rest = zooms(page, stage.url, board)
                figures = f"zoom p50 {median(rest):4.0f} ms  max {max(rest):4.0f} ms"
                print(f"{board:<8} page and its year {first:5.0f} ms  {figures}")
                page.close()
        finally:
            stage.close()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def share(pid: int, seconds: float) -> float:
    """Return a process's CPU use as a share of one core."""
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - began)


def cost(browser: Browser, seconds: float) -> None:
    """Print the daemon's CPU use alone, with the page open, and with the page hidden."""
    with tempfile.TemporaryDirectory() as folder, daemon(Path(folder)) as running:
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
        time.sleep(5)
        pid = running.process.pid
        print(f"daemon alone        {share(pid, seconds):6.2%} of one core")
        for view in ("overview", "history"):
            page = browser.new_page()
            page.goto(f"{running.url}/#/{view}")
            page.wait_for_selector("canvas")
            print(f"with {view:<14} {share(pid, seconds):6.2%}")
            page.close()
        running.end()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        database = asked.database
        if database is None:
            database = Path(folder) / "week.db"
            for _ in year.make(database, end=int(time.time()), days=366, raw_days=1, series=40):
                pass
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        history(browser, database)
        cost(browser, asked.seconds)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
