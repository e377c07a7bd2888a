"""Starts the real program for a test, and asks it things."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from wslgpud.serve.router import Response, Route, dumps
from wslgpud.serve.server import LocalApi

T = TypeVar("T")

WSLGPUD = [sys.executable, "-m", "wslgpud"]
#: for things that must happen; a slow machine may take its time, a broken program does not pass
PATIENCE_SECONDS = 180.0


def clean_environment(home: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which no configuration of the machine counts."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WSLGPUD_", "XDG_", "NOTIFY_"))}
    return {**kept, "HOME": str(home), "WSLGPUD_SERVER__PORT": "0", **(settings or {})}


def wslgpud(*arguments: str, home: Path, settings: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*WSLGPUD, *arguments],
        env=clean_environment(home, settings),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


class Running:
    """A daemon that runs."""

    def __init__(self, process: subprocess.Popen[str], state: Path) -> None:
        self.process = process
        self.state = state
        assert process.stdout is not None
        self.said = [process.stdout.readline() for _ in range(4)]
        if not self.said[0]:
            raise AssertionError(f"the daemon did not start: {self.end()[1]}")
        self.url = self.said[1].split()[1].removesuffix("/")
        self.database = Path(self.said[3].split(maxsplit=1)[1].strip())

    def get(self, path: str, **headers: str) -> str:
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.read().decode()

    def status_of(self, path: str) -> int:
        try:
            self.get(path)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        return 200

    def samples(self) -> dict[str, float]:
        """Return /metrics as ``name{labels}`` -> value."""
        lines = (line for line in self.get("/metrics").splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.get("/api/v1/status"))
        return document

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit status and the standard error output."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, errors


@contextmanager
def daemon(home: Path, *arguments: str, settings: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Run the daemon with its state below ``home``; it is ended when the block is left."""
    state = home / "state"
    process = subprocess.Popen(
        [*WSLGPUD, "run", "--state", str(state), *arguments],
        env=clean_environment(home, settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Running(process, state)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@contextmanager
def saying(state: Path, document: Mapping[str, Any], *more: Route) -> Iterator[None]:
    """Answer as a daemon of that state folder would, with this status."""
    answer = Response(200, dumps(document), "application/json")
    local = LocalApi(state, [Route("/api/v1/status", lambda _: answer), *more])
    assert local.start()
    with closing(local):
        yield


def eventually(look: Callable[[], T], what: str) -> T:
    """Return what ``look`` returns once that is true; fail after a long time."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come about within {PATIENCE_SECONDS:g} s")
