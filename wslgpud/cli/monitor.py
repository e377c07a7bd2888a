"""``wslgpud monitor``: the machine, live, in a terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING, Annotated

import typer

from wslgpud.cli.common import (
    ConfigOption,
    Fault,
    HostOption,
    IntervalOption,
    StateOption,
    daemon_folders,
    host_at,
    loaded,
    warn,
)
from wslgpud.cli.moments import seconds
from wslgpud.words import cause

if TYPE_CHECKING:
    from wslgpud.cli.live.looks import Feed

_LEAST_SECONDS = 0.2


def monitor(
    config: ConfigOption = None,
    once: Annotated[bool, typer.Option("--once", "-o", help="print one look and end")] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="a daemon elsewhere, such as http://trainer:9655"),
    ] = None,
    interval: IntervalOption = "1s",
    state: StateOption = None,
    host_root: HostOption = None,
) -> None:
    """Watch the machine live in this terminal, through the running daemon, else sampled on the spot.

    Examples:
        wslgpud monitor
        wslgpud monitor --once  # one look, printed
        wslgpud monitor --url http://trainer:9655 --interval 5s  # another machine
    """
    from wslgpud.cli.live.looks import DaemonFeed, feed_of  # noqa: PLC0415 - only when somebody looks
    from wslgpud.client import Daemon, Unanswered  # noqa: PLC0415

    settings = loaded(config).config
    feed: Feed
    if url:
        daemon = Daemon(url.rstrip("/"))
        feed = DaemonFeed(daemon)
        try:
            daemon.status()
        except Unanswered as error:
            raise Fault(cause(error)) from error
    else:
        recorded = host_at(host_root) if host_root else None
        feed = feed_of(settings, daemon_folders(state), recorded, warn)
    with contextlib.closing(feed):
        # Without a keyboard (</dev/null, docker run -t) nobody could leave it again.
        if once or not (os.isatty(0) and os.isatty(1)):
            _print_once(feed)
            return
        from wslgpud.cli.live.app import Live  # noqa: PLC0415 - 0.3 s

        Live(feed, max(_LEAST_SECONDS, seconds(interval))).run()


def _print_once(feed: Feed) -> None:
    from wslgpud.cli.console import Console  # noqa: PLC0415 - see above
    from wslgpud.cli.live.looks import looked  # noqa: PLC0415
    from wslgpud.cli.live.past import NoPastError, before  # noqa: PLC0415
    from wslgpud.cli.live.trail import Trail  # noqa: PLC0415
    from wslgpud.cli.screen import Screen  # noqa: PLC0415
    from wslgpud.client import Unanswered  # noqa: PLC0415

    trail, console = Trail(), Console()
    try:
        look = looked(feed, trail)
    except Unanswered as error:
        raise Fault(cause(error)) from error
    past = feed.past(trail)
    with contextlib.closing(past), contextlib.suppress(NoPastError):  # then sparklines begin with this look
        for key, points in before(past, look):
            trail.seed(key, points)
    height = shutil.get_terminal_size().lines if console.is_terminal else None
    console.print(Screen(look, trail, mono=time.monotonic(), height=height))
