"""``wslgpud status``: how things stand, for a terminal, for a script, or as JSON."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from wslgpud.cli.common import (
    ConfigOption,
    Fault,
    HostOption,
    JsonOption,
    StateOption,
    daemon_folders,
    host_at,
    loaded,
    warn,
)
from wslgpud.cli.moments import seconds
from wslgpud.words import t
from wslgpud.words.names import LEVELS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wslgpud.cli.live.looks import Feed, Look
    from wslgpud.cli.live.trail import Trail

#: of ``--check``, by level; any other is not known
EXITS, UNKNOWN = {"ok": 0, "info": 0, "warning": 1, "critical": 2, "emergency": 2}, 3
#: between two looks, unless somebody says; and at least
WATCH_SECONDS, LEAST_SECONDS = 2.0, 0.2


def status(
    config: ConfigOption = None,
    as_json: JsonOption = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="print one line and exit by it: 0 ok or info, 1 warning, 2 critical or worse, 3 not known",
        ),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="look again and again, until Ctrl-C")] = False,
    interval: Annotated[
        str, typer.Argument(metavar="SECONDS", help="time between looks of --watch (else 2 s)")
    ] = "",
    state: StateOption = None,
    host_root: HostOption = None,
) -> None:
    """Show the state of this machine, from the running daemon, else sampled on the spot.

    Examples:
        wslgpud status
        wslgpud status --watch 5  # again every five seconds
        wslgpud status --check || echo trouble  # for scripts: one line, and the exit status
        wslgpud status --json  # for programs
    """
    from wslgpud.cli.live.looks import feed_of  # noqa: PLC0415 - the sources only when somebody looks
    from wslgpud.cli.live.trail import Trail  # noqa: PLC0415

    if check and (watch or as_json):
        raise Fault(t("--check prints one line, once: leave out --watch and --json"))
    if interval and not watch:
        raise Fault(t("{text} is a time between looks: it needs --watch", text=interval))
    pause = seconds(interval if interval[-1:].isalpha() else f"{interval}s") if interval else WATCH_SECONDS
    settings, silent = loaded(config).config, list[str]()
    recorded = host_at(host_root) if host_root else None
    feed = feed_of(settings, daemon_folders(state), recorded, silent.append if check else warn)
    with contextlib.closing(feed), contextlib.suppress(KeyboardInterrupt):
        if watch:
            _watch(feed, max(LEAST_SECONDS, pause), as_json=as_json)
        seen = Seen(None, {}, "unknown", silent[0]) if silent else _seen(feed, Trail())
        if check:
            print(seen.line)
            raise typer.Exit(EXITS.get(seen.level, UNKNOWN))
        if as_json:
            print(json.dumps(seen.document, indent=2))
        elif seen.look is None:
            print(seen.headline)
        else:
            from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks
            from wslgpud.cli.screen import once  # noqa: PLC0415

            Console().print(once(seen.look))


class Seen(NamedTuple):
    """What a look has brought: no look where nobody answered."""

    look: Look | None
    document: Mapping[str, Any]
    level: str
    headline: str

    @property
    def line(self) -> str:
        """All of it in one line."""
        return f"{t(LEVELS[self.level]).upper()} {self.headline}"


def _seen(feed: Feed, trail: Trail) -> Seen:
    from wslgpud.cli.live.looks import NotYet, looked  # noqa: PLC0415 - see above
    from wslgpud.client import Unanswered  # noqa: PLC0415
    from wslgpud.status import in_one_line  # noqa: PLC0415

    try:
        look = looked(feed, trail)
    except NotYet as early:
        return Seen(None, early.document, "unknown", str(early))
    except Unanswered as silent:
        return Seen(None, {}, "unknown", str(silent))
    if look.stale:
        return Seen(look, look.document, "unknown", t("the daemon answers but takes no samples"))
    verdict = look.document["verdict"]
    return Seen(look, look.document, verdict["level"], in_one_line(verdict))


def _watch(feed: Feed, pause: float, *, as_json: bool) -> NoReturn:
    """Look again and again: in place on a terminal, else a line each time."""
    from rich.live import Live  # noqa: PLC0415 - only when somebody looks
    from rich.text import Text  # noqa: PLC0415

    from wslgpud.cli.console import Console  # noqa: PLC0415
    from wslgpud.cli.live.trail import Trail  # noqa: PLC0415
    from wslgpud.cli.screen import Screen  # noqa: PLC0415

    console, trail = Console(), Trail()
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
