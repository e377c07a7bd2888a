"""What each surface tells its reader at one moment of a story: one small function for each."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families
from textual.widgets import Static

from tests.stories.machine import Played
from wslgpud.cli import app
from wslgpud.cli.live.app import LiveApp
from wslgpud.cli.live.feed import DaemonFeed
from wslgpud.client import DaemonClient as Client
from wslgpud.words import TEMPLATES, translator, use

LOCALES = {"en": "C.UTF-8", "zh": "zh_CN.UTF-8"}
#: wide enough for the whole verdict on one line
COLUMNS = 240
_BADGE = re.compile(r"^ ?(?P<badge>\S+) +(?P<rest>.+?)$")


class Shown(NamedTuple):
    """One surface's output: the state (a level or "killed") by its JSON name, and its text."""

    state: str
    text: str


def get(played: Played, path: str) -> str:
    """Return the answer of the daemon's server."""
    with urllib.request.urlopen(played.daemon.url + path) as answer:
        return answer.read().decode()


def ask(played: Played, path: str, code: str = "en") -> Any:
    """Return the API's answer in a language."""
    return json.loads(get(played, f"/api/v1/{path}{'&' if '?' in path else '?'}lang={code}"))


def command(played: Played, code: str, *words: str, columns: int = COLUMNS) -> Result:
    """Run a command of the daemon's user in this process."""
    environment = {"LC_ALL": LOCALES[code], "COLUMNS": str(columns), "HOME": str(played.folder), "TZ": "UTC"}
    try:
        return CliRunner().invoke(app, list(words), env=environment)
    finally:
        use("en")


def verdict(played: Played, code: str) -> dict[str, Any]:
    """Return the verdict itself."""
    found: dict[str, Any] = ask(played, "status", code)["verdict"]
    return found


def api(played: Played, code: str) -> Shown:
    """``/api/v1/status``: its own level and headline, beside the verdict."""
    document = ask(played, "status", code)
    said = document["verdict"]
    assert document["level"] == said["level"]
    return Shown(said["state"], f"{document['headline']} {said.get('calm')} {said.get('who', '')} {_lost(said)}")


def page(played: Played, code: str) -> Shown:
    """``/api/v1/live``, the page's data."""
    said = ask(played, "live", code)["status"]["verdict"]
    return Shown(said["state"], f"{said['headline']} {said.get('calm')} {said.get('who', '')} {_lost(said)}")


def systemd(played: Played, code: str) -> Shown:
    """The line of ``systemctl status``: it is in the daemon's own language."""
    assert code == played.language
    line = next(line for line in played.notified.splitlines() if line.startswith("STATUS="))
    badge, _, text = line.removeprefix("STATUS=").partition(": ")
    return Shown(_state(badge, code), text)


def status(played: Played, code: str) -> Shown:
    """``wslgpud status``: the first line of its screen."""
    return _first_line(command(played, code, "status", "--state", str(played.state)), code)


def monitor(played: Played, code: str) -> Shown:
    """``wslgpud monitor --once``: the first line of its screen."""
    return _first_line(command(played, code, "monitor", "--once", "--url", played.daemon.url), code)


def live(played: Played, code: str, size: tuple[int, int] = (COLUMNS, 36)) -> str:
    """Return the screen of ``wslgpud monitor`` as somebody sees it who has just started it."""

    async def looked() -> str:
        screen = LiveApp(DaemonFeed(Client(played.daemon.url)), 0.2)
        async with screen.run_test(size=size) as pilot:
            while screen._look is None or not screen._trail.known():
                await pilot.pause()
            await pilot.pause()
            view = screen.query_one("#view", Static)
            return "\n".join(view.render_line(y).text.rstrip() for y in range(view.size.height))

    use(code)
    try:
        return asyncio.run(looked())
    finally:
        use("en")


def check(played: Played, code: str) -> Shown:
    """``wslgpud status --check``: a line, and an exit status that says the same."""
    done = command(played, code, "status", "--check", "--state", str(played.state))
    told = _first_line(done, code)
    assert done.exit_code == {"warning": 1, "critical": 2, "emergency": 2}.get(told.state, 0)
    return told


#: those that say at every moment how things stand, in the language of their reader
SURFACES: tuple[Callable[[Played, str], Shown], ...] = (api, page, systemd, status, check, monitor)


def texts(played: Played) -> Iterator[str]:
    """Yield all that is on Chinese screens."""
    for words in (("status",), ("incidents", "--since", "2023-01-01"), ("alerts", "list")):
        yield command(played, "zh", *words, "--state", str(played.state), columns=100).output


def metrics(played: Played) -> tuple[int, dict[str, str]]:
    """Return ``wslgpud_verdict_level`` and the labels of ``wslgpud_verdict_info``, as Prometheus has them."""
    families = {f.name: f.samples for f in text_string_to_metric_families(get(played, "/metrics"))}
    (level,), (told,) = families["wslgpud_verdict_level"], families["wslgpud_verdict_info"]
    assert told.value == 1
    return int(level.value), told.labels


def _first_line(done: Result, code: str) -> Shown:
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    lines = done.stdout.splitlines()
    found = _BADGE.match(lines[0])
    assert found is not None, done.output
    # Below a lost job is how things stand now.
    return Shown(_state(found["badge"], code), " ".join((found["rest"], *lines[1:2])))


def _lost(said: dict[str, Any]) -> str:
    return str(said.get("lost", {}).get("headline", ""))


def _state(badge: str, code: str) -> str:
    """Return the state that a badge names."""
    return next(
        name for name, word in TEMPLATES["label"]["level"].items() if translator(code).t(word).upper() == badge.upper()
    )
