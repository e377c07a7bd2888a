"""``wslgpud monitor``: the machine, live, in a terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import Annotated

from wslgpud.cli import common
from wslgpud.cli.common import flag, option
from wslgpud.cli.console import Console
from wslgpud.cli.live.live_sample import DaemonFeed, Feed, feed_of, looked
from wslgpud.cli.live.recent_series import RecentSeries
from wslgpud.cli.live.series_source import before
from wslgpud.cli.moments import seconds
from wslgpud.cli.screen import Screen
from wslgpud.client import Daemon
from wslgpud.words import MessageError

_LEAST_SECONDS = 0.2


def monitor(
    config: common.Config = None,
    once: Annotated[bool, flag("--once -o", "print one look and end")] = False,
    url: Annotated[str | None, option("--url", "URL", "a daemon elsewhere, such as http://trainer:9655")] = None,
    interval: common.Interval = "1s",
    state: common.State = None,
    host_root: common.HostRoot = None,
) -> None:
    """Watch the machine live in this terminal, through the running daemon, else sampled on the spot.

    Examples:
        wslgpud monitor
        wslgpud monitor --once  # one look, printed
        wslgpud monitor --url http://trainer:9655 --interval 5s  # another machine
    """
    if url:
        daemon = Daemon(url.rstrip("/"))
        daemon.status()  # one that does not answer is said so at once
    feed: Feed = DaemonFeed(daemon) if url else feed_of(config, state, host_root)
    with contextlib.closing(feed):
        # Without a keyboard (</dev/null, docker run -t) nobody could leave it again.
        if once or not (os.isatty(0) and os.isatty(1)):
            _print_once(feed)
            return
        from wslgpud.cli.live.app import Live  # 0.3 s

        Live(feed, max(_LEAST_SECONDS, seconds(interval))).run()


def _print_once(feed: Feed) -> None:
    trail, console = RecentSeries(), Console()
    look = looked(feed, trail)
    past = feed.past(trail)
    with contextlib.closing(past), contextlib.suppress(MessageError):  # then sparklines begin with this look
        for key, points in before(past, look):
            trail.seed(key, points)
    height = shutil.get_terminal_size().lines if console.is_terminal else None
    console.print(Screen(look, trail, mono=time.monotonic(), height=height))
