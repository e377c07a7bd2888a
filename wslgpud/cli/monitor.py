"""``wslgpud monitor``: the machine, live, in a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from wslgpud import config as configuration
from wslgpud.cli.common import (
    ConfigOption,
    Fault,
    HostOption,
    IntervalOption,
    StateOption,
    host_at,
    loaded,
    state_folder,
)
from wslgpud.cli.moments import seconds

if TYPE_CHECKING:
    from pathlib import Path

    from wslgpud.cli.live.looks import Feed

#: a single look shows rates and growth, too, so it needs a second one
SETTLE_SECONDS = 1.0
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
    from wslgpud.cli.live.looks import DaemonFeed, NoLookError, NotYetError, OwnFeed, daemon_feed  # noqa: PLC0415

    settings = loaded(config).config
    folders = [state] if state else [state_folder(None), configuration.SYSTEM_STATE]
    daemon = DaemonFeed(url) if url else None if host_root else daemon_feed(folders, settings.store.path)
    feed: Feed | None = None
    if daemon is not None:
        try:
            daemon.look()
            feed = daemon
        except NotYetError:
            feed = daemon
        except NoLookError as error:
            if url is not None:
                raise Fault(str(error)) from error
            # It was killed or hangs: not the same as that none was ever started.
            print(f"wslgpud: {error}", file=sys.stderr)
    if feed is None:
        feed = OwnFeed(settings, host_at(host_root), "recording") if host_root else _own(settings, folders)
    try:
        # Without a keyboard (</dev/null, docker run -t) nobody could leave it again.
        if once or not (os.isatty(0) and os.isatty(1)):
            _print_once(feed, recorded=host_root is not None)
            return
        from wslgpud.cli.live.app import Live  # noqa: PLC0415 - 0.3 s

        Live(feed, max(_LEAST_SECONDS, seconds(interval))).run()
    finally:
        feed.close()


def _own(settings: configuration.Config, folders: list[Path]) -> Feed:
    """Look ourselves; what a daemon kept that does not run now is history all the same."""
    from wslgpud.cli.live.looks import OwnFeed  # noqa: PLC0415

    with_history = next((folder for folder in folders if (folder / "wslgpud.db").exists()), folders[0])
    return OwnFeed(settings, host_at(None), folder=with_history)


def _print_once(feed: Feed, *, recorded: bool) -> None:
    from wslgpud.cli.console import Console  # noqa: PLC0415
    from wslgpud.cli.live.draw import Shown, screen  # noqa: PLC0415
    from wslgpud.cli.live.looks import NoLookError  # noqa: PLC0415
    from wslgpud.cli.live.trail import Trail  # noqa: PLC0415

    trail = Trail()
    try:
        look = feed.look()
        trail.add(look)
        if not recorded:
            time.sleep(SETTLE_SECONDS)
            look = feed.look()
            trail.add(look)
    except NoLookError as error:
        raise Fault(str(error)) from error
    size = shutil.get_terminal_size((120, 48))
    console = Console(width=size.columns)
    console.print(screen(look, trail, Shown(), size.columns, size.lines, time.time()))
