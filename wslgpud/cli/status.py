"""``wslgpud status`` and ``wslgpud monitor``: the current state, once or live, on a terminal or for a script."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from wslgpud.advise.live_sample import OWN_LOOK, LiveSample, RecentSeries
from wslgpud.cli import common
from wslgpud.cli.common import Fault, complain, flag, option
from wslgpud.cli.console import Console
from wslgpud.cli.live.feed import DaemonFeed, Feed, NotYet, feed_of, looked
from wslgpud.cli.live.screen import Screen, once
from wslgpud.client import DaemonClient, Unanswered, in_one_line
from wslgpud.words import MessageError, current, t
from wslgpud.words.moments import seconds

#: exit status of ``--check``, by level; any other means unknown
EXITS, UNKNOWN = {"ok": 0, "info": 0, "warning": 1, "critical": 2, "emergency": 2}, 3
#: shortest interval of the live view
MIN_SECONDS = 0.2
_CHECK = "print one line; exit status 0 for ok or info, 1 warning, 2 critical or worse, 3 unknown or not watched"


def status(
    config: common.Config = None,
    as_json: common.Json = False,
    check: Annotated[bool, flag("--check", _CHECK)] = False,
    state: common.State = None,
    host_root: common.HostRoot = None,
) -> None:
    """Show the state of this machine, from the running daemon, else sampled on the spot.

    Without a daemon nobody warns: the exit status is 3, however calm it looks.

    Examples:
        wslgpud status
        wslgpud status --check || echo trouble  # for scripts: one line, and the exit status
        wslgpud status --json  # for programs
    """
    if check and as_json:
        raise Fault("--check prints one line: leave out --json")
    silent: list[str] = []
    try:
        feed = feed_of(config, state, host_root, silent.append if check else complain)
    except MessageError as error:
        if not check:
            raise
        # Scripts would take the usual exit status of a fault for a critical level.
        print(Seen(None, {}, "unknown", current().text(error.message)).line)
        raise SystemExit(UNKNOWN) from error
    with contextlib.closing(feed):
        seen = Seen(None, {}, "unknown", silent[0]) if silent else _seen(feed)
        watched = seen.look is None or seen.look.seen_by != OWN_LOOK
        if check:
            print(seen.line)
            raise SystemExit(EXITS.get(seen.level, UNKNOWN) if watched else UNKNOWN)
        if as_json:
            common.print_json(seen.document)
        elif seen.look is None:
            print(seen.headline)
        else:
            Console().print(once(seen.look))
        if not watched:
            raise SystemExit(UNKNOWN)


class Seen(NamedTuple):
    """The result of one query: no sample without an answer."""

    look: LiveSample | None
    document: Mapping[str, Any]
    level: str
    headline: str
    state: str = ""

    @property
    def line(self) -> str:
        """The whole state in one line."""
        return f"{current().label('level', self.state or self.level).upper()} {self.headline}"


def _seen(feed: Feed) -> Seen:
    try:
        look = looked(feed, RecentSeries())
    except Unanswered as silent:
        document = silent.document if isinstance(silent, NotYet) else {}
        return Seen(None, document, "unknown", current().text(silent.message))
    if look.stale:
        return Seen(look, look.document, "unknown", t("the daemon answers but takes no samples"))
    verdict = look.document["verdict"]
    return Seen(look, look.document, verdict["level"], in_one_line(verdict), verdict.get("state", ""))


def monitor(
    config: common.Config = None,
    once: Annotated[bool, flag("--once -o", "print one screen and exit")] = False,
    url: Annotated[str | None, option("--url", "URL", "a daemon elsewhere, such as http://trainer:9655")] = None,
    interval: common.Interval = "1s",
    state: common.State = None,
    host_root: common.HostRoot = None,
) -> None:
    """Watch the machine live in this terminal, through the running daemon, else sampled on the spot.

    Keys: s sorts programs, / filters them, p pauses, + and - choose how far back sparklines go, h opens the
    daemon's history, q quits.

    Bars show what is used; their broken part is the forecast for the next five minutes. A gap in a sparkline is a time
    without samples. n/a is what this card or kernel does not report, such as the VRAM of a process under WSL2. Growth
    is that of the last minute. The process that the verdict names is marked.

    Examples:
        wslgpud monitor
        wslgpud monitor --once  # one screen, printed
        wslgpud monitor --url http://trainer:9655 --interval 5s  # another machine
    """
    if url:
        daemon = DaemonClient(url.rstrip("/"))
        daemon.status()  # report at once if it does not answer
    feed: Feed = DaemonFeed(daemon) if url else feed_of(config, state, host_root)
    with contextlib.closing(feed):
        # Without a keyboard (</dev/null, docker run -t) there would be no way to quit.
        if once or not (os.isatty(0) and os.isatty(1)):
            _print_once(feed)
            return
        from wslgpud.cli.live.app import LiveApp  # 0.3 s

        LiveApp(feed, max(MIN_SECONDS, seconds(interval))).run()


def _print_once(feed: Feed) -> None:
    from wslgpud.cli.live.past import before  # the database only on request

    trail, console = RecentSeries(), Console()
    look = looked(feed, trail)
    with contextlib.suppress(MessageError):  # then sparklines begin with this sample
        for key, points in before(feed.past(), look):
            trail.seed(key, points)
    height = shutil.get_terminal_size().lines if console.is_terminal else None
    console.print(Screen(look, trail, mono=time.monotonic(), height=height))
