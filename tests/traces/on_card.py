"""Starts and ends the programs of gpu_programs.py, for those who record them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

PROGRAMS = Path(__file__).with_name("gpu_programs.py")
#: torch may come from a cold disk
PATIENCE_SECONDS = 90.0


class Program:
    """One of gpu_programs.py, loaded at once and begun later; ``python`` has torch."""

    def __init__(self, name, card=0, seconds=0.0, *, python=sys.executable):
        command = [python, str(PROGRAMS), name, str(card), str(seconds)]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.name, self.failed_at = name, None
        self._said = {"ready": threading.Event(), "taken": threading.Event()}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.child.stdout:
            word, *rest = line.split() or [""]
            if word == "failed":
                self.failed_at = float(rest[0])
            elif word in self._said:
                self._said[word].set()

    def wait_for(self, word):
        if not self._said[word].wait(PATIENCE_SECONDS):
            raise SystemExit(f"{self.name} has not said {word!r} within {PATIENCE_SECONDS:.0f} s")

    def begin(self):
        self.child.stdin.write("go\n")
        self.child.stdin.flush()
        return self

    def end(self):
        """Kill it with all that it has started."""
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
