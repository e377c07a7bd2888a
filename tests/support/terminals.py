"""A real terminal of any size, by tmux: its screen as text, and as a picture."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from tests.support.daemons import PATIENCE_SECONDS
from tests.support.pictures import svg_of

if TYPE_CHECKING:
    from typing_extensions import Self


class Terminal:
    """A command in a separate tmux. ``with Terminal([...], folder) as terminal: terminal.until("RAM")``."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        size: tuple[int, int] = (100, 30),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare it; ``folder`` takes tmux's socket."""
        # A socket's path may have no more than about a hundred characters.
        self._socket = f"wslgpud-{uuid.uuid4().hex[:12]}"
        self._folder, self._size = folder, size
        self._command = shlex.join(command)
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            **(environment or {}),
        }

    def __enter__(self) -> Self:
        """Start it; once it has ended, ``ended with status N`` is on the screen."""
        width, height = map(str, self._size)
        settings = ["set", "-g", "default-terminal", "tmux-256color", ";", "set", "-g", "status", "off", ";"]
        # tmux's own remain-on-exit now and then misses the end of a command (3.3a): the screen stays empty.
        line = f"{self._command}; echo ended with status $?; while :; do sleep 3600; done"
        self._tmux(*settings, "new-session", "-d", "-x", width, "-y", height, line)
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._tmux("kill-server", check=False)

    def keys(self, *names: str) -> None:
        """Press keys, as tmux names them: ``q``, ``Up``, ``Escape``."""
        self._tmux("send-keys", *names)

    def resize(self, width: int, height: int) -> None:
        """Change the size of the window."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def text(self) -> str:
        """Return the screen, without colours."""
        return self._tmux("capture-pane", "-p").rstrip("\n")

    def coloured(self) -> str:
        """Return the screen, with escape sequences for colours."""
        return self._tmux("capture-pane", "-p", "-e").rstrip("\n")

    def until(self, *words: str) -> str:
        """Return the screen once all these words are on it."""
        return self.until_match(*map(re.escape, words))

    def until_match(self, *patterns: str) -> str:
        """Return the screen once all these patterns are on it."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            text = self.text()
            if all(re.search(pattern, text) for pattern in patterns):
                return text
            assert time.monotonic() < end, f"{patterns} not on:\n{text}"
            time.sleep(0.1)

    def picture(self, title: str) -> str:
        """Return the screen as SVG."""
        console = Console(record=True, width=self._size[0], file=io.StringIO(), force_terminal=True)
        for line in self.coloured().splitlines():
            console.print(Text.from_ansi(line, no_wrap=True, overflow="crop"))
        return svg_of(console, title)

    def _tmux(self, *words: str, check: bool = True) -> str:
        # -f: the user's own settings are none of ours.
        command = [shutil.which("tmux") or "tmux", "-L", self._socket, "-f", "/dev/null", "-u", *words]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout
