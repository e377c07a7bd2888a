"""``wslgpud status`` and ``wslgpud monitor``: the current state, once or live, on a terminal or for a script."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, NoReturn

from rich.live import Live
from rich.text import Text

from wslgpud.advise.live_sample import OWN_LOOK, LiveSample, RecentSeries
from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, complain, flag, option
from wslgpud.cli.console import Console
from wslgpud.cli.live.feed import DaemonFeed, Feed, NotYet, feed_of, looked
from wslgpud.cli.live.screen import Screen, once
from wslgpud.client import DaemonClient, Unanswered, in_one_line
from wslgpud.words import MessageError, current, t
from wslgpud.words.moments import seconds

#: exit status of ``--check``, by level; any other means unknown
EXITS, UNKNOWN = {"ok": 0, "info": 0, "warning": 1, "critical": 2, "emergency": 2}, 3
#: default interval; and the shortest
WATCH_SECONDS, MIN_SECONDS = 2.0, 0.2
_CHECK = "print one line; exit status 0 for ok or info, 1 warning, 2 critical or worse, 3 unknown or not watched"


def status(
    config: common.Config = None,
    as_json: common.Json = False,
    check: Annotated[bool, flag("--check", _CHECK)] = False,
    watch: Annotated[bool, flag("--watch", "refresh until Ctrl-C")] = False,
    interval: Annotated[str, argument("SECONDS", "interval of --watch (2 s by default)")] = "",
    state: common.State = None,
    host_root: common.HostRoot = None,
) -> None:
    """Show the state of this machine, from the running daemon, else sampled on the spot.

    Without a daemon nobody warns: the exit status is 3, however calm it looks.

    Examples:
        wslgpud status
        wslgpud status --watch 5  # again every five seconds
        wslgpud status --check || echo trouble  # for scripts: one line, and the exit status
        wslgpud status --json  # for programs
    """
    if check and (watch or as_json):
        raise Fault("--check prints one line, once: leave out --watch and --json")
    if interval and not watch:
        raise Fault("{text} is an interval: it needs --watch", text=interval)
    pause = seconds(interval if interval[-1:].isalpha() else f"{interval}s") if interval else WATCH_SECONDS
    silent: list[str] = []
    try:
        feed = feed_of(config, state, host_root, silent.append if check else complain)
    except MessageError as error:
        if not check:
            raise
        # Scripts would take the usual exit status of a fault for a critical level.
        print(Seen(None, {}, "unknown", current().text(error.message)).line)
        raise SystemExit(UNKNOWN) from error
    with contextlib.closing(feed), contextlib.suppress(KeyboardInterrupt):
        if watch:
            _watch(feed, max(MIN_SECONDS, pause), as_json=as_json)
        seen = Seen(None, {}, "unknown", silent[0]) if silent else _seen(feed, RecentSeries())
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


def _seen(feed: Feed, trail: RecentSeries) -> Seen:
    try:
        look = looked(feed, trail)
    except Unanswered as silent:
        document = silent.document if isinstance(silent, NotYet) else {}
        return Seen(None, document, "unknown", current().text(silent.message))
    if look.stale:
        return Seen(look, look.document, "unknown", t("the daemon answers but takes no samples"))
    verdict = look.document["verdict"]
    return Seen(look, look.document, verdict["level"], in_one_line(verdict), verdict.get("state", ""))


def _watch(feed: Feed, pause: float, *, as_json: bool) -> NoReturn:
    """Refresh repeatedly: in place on a terminal, else one line each time."""
    console, trail = Console(), RecentSeries()
    place = Live(console=console, auto_refresh=False) if console.is_terminal and not as_json else None
    with place or contextlib.nullcontext():
        while True:
            seen = _seen(feed, trail)
            if place is None:
                line = json.dumps(seen.document) if as_json else f"{time.strftime('%H:%M:%S')} {seen.line}"
                print(line, flush=True)
            elif seen.look is None:
                place.update(Text(seen.line), refresh=True)
            else:
                shown = Screen(seen.look, trail, mono=time.monotonic(), height=console.height - 1)
                place.update(shown, refresh=True)
            time.sleep(pause)


def monitor(
    config: common.Config = None,
    once: Annotated[bool, flag("--once -o", "print one screen and exit")] = False,
    url: Annotated[str | None, option("--url", "URL", "a daemon elsewhere, such as http://trainer:9655")] = None,
    interval: common.Interval = "1s",
    state: common.State = None,
    host_root: common.HostRoot = None,
) -> None:
    """Watch the machine live in this terminal, through the running daemon, else sampled on the spot.

    Keys: s sorts programs, / filters them, p pauses, + and - choose how far back sparklines go, h opens the history,
    ? explains the screen, q quits.

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
    from wslgpud.cli.live.series_source import before  # the database only on request

    trail, console = RecentSeries(), Console()
    look = looked(feed, trail)
    past = feed.past(trail)
    with contextlib.closing(past), contextlib.suppress(MessageError):  # then sparklines begin with this sample
        for key, points in before(past, look):
            trail.seed(key, points)
    height = shutil.get_terminal_size().lines if console.is_terminal else None
    console.print(Screen(look, trail, mono=time.monotonic(), height=height))
