"""A program of the user's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from wslgpud.alerts.channels import programs


class CommandChannel:
    """Runs a program with the warning as JSON on its standard input."""

    name = "command"
    human = False

    def __init__(self, command: Sequence[str], timeout_seconds: float) -> None:
        """Keep the command line; it is run as it stands, without a shell."""
        self._command = list(command)
        self._timeout = timeout_seconds

    def send(self, message: Mapping[str, Any]) -> None:
        """Run the program.

        Raises:
            DeliveryError: it cannot be started, fails, or takes longer than it may.
        """
        programs.run(self._command, json.dumps(message), self._timeout)
