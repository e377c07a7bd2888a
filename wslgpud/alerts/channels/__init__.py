"""Channels: where a warning can go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class DeliveryError(Exception):
    """The channel did not take the warning; it is tried again later unless ``permanent``."""

    def __init__(self, text: str, *, permanent: bool = False) -> None:
        """Say what went wrong and whether another try could help."""
        super().__init__(text)
        self.permanent = permanent


class Channel(Protocol):
    """Somewhere a warning can go; called from the dispatcher's thread, so it may take its time."""

    name: str

    def send(self, message: Mapping[str, Any]) -> None:
        """Hand the message (see ``wslgpud.alerts.message.payload``) over.

        Raises:
            DeliveryError: the channel did not take it.
        """


class CommandChannel:
    """Runs a program with the warning as JSON on its standard input."""

    name = "command"

    def __init__(self, command: Sequence[str], timeout_seconds: float) -> None:
        """Keep the command line; it is run as it stands, without a shell."""
        self._command = list(command)
        self._timeout = timeout_seconds

    def send(self, message: Mapping[str, Any]) -> None:
        """Run the program.

        Raises:
            DeliveryError: it cannot be started, fails, or takes longer than it may.
        """
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise DeliveryError(
                f"cannot start {self._command[0]}: {error.strerror}", permanent=True
            ) from error
        with process:
            try:
                _, said = process.communicate(json.dumps(message), timeout=self._timeout)
            except subprocess.TimeoutExpired as error:
                # The whole group: a script's children would hold its pipes open and us with them.
                os.killpg(process.pid, signal.SIGKILL)
                raise DeliveryError(
                    f"{self._command[0]} did not end within {self._timeout:g} s and was stopped"
                ) from error
        if process.returncode:
            raise DeliveryError(f"{self._command[0]} ended with {process.returncode}: {said.strip()[-200:]}")
