"""Runs a program for a channel, without a shell, with limits on time and kept output."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wslgpud.alerts.channels import Channel, DeliveryError
from wslgpud.host import unprotected
from wslgpud.security import run_as
from wslgpud.security.redaction import parts, without
from wslgpud.security.run_as import Command, program, replaceable
from wslgpud.words import cause, say


def run(command: Command, text: str, timeout_seconds: float, *, guarded: bool = True) -> None:
    """Run a program with a text as its input, and check that it succeeded.

    On timeout it and its process group are killed; children that outlive it are not waited for, whatever they hold
    open. ``guarded`` runs it only if no one but us and root can replace it.

    Raises:
        DeliveryError: it cannot be started, others could replace it, it fails, or exceeds its time limit.
    """
    name, *arguments = command.arguments
    found = _found(name, command.environment.get("PATH"), guarded=guarded)
    child = replace(command, arguments=unprotected([found, *arguments]))
    try:
        status, _, told = run_as.run(child, timeout_seconds, text=text, spare_children=True)
    except TimeoutError:
        late = say(
            "{program} did not end within {limit_seconds} and was stopped", program=name, limit_seconds=timeout_seconds
        )
        raise DeliveryError(late) from None
    except OSError as error:
        raise DeliveryError(say("cannot start {program}: {why}", program=found, why=cause(error))) from error
    if status:
        # Its output may quote its arguments, including a token.
        told = without(told.strip()[-200:], (part for word in arguments for part in parts(word)))
        if not told:
            raise DeliveryError(say("{probe} ended with status {status}", probe=name, status=status))
        raise DeliveryError(say("{program} failed ({status}): {told}", program=name, status=status, told=told))


def _found(name: str, path: str | None, *, guarded: bool) -> str:
    place = program(name, path) or shutil.which(name, path=path)
    if place is None:
        # Not permanent: its drive may be gone for a while, as Windows' is after sleep.
        number = errno.EACCES if Path(name).is_file() else errno.ENOENT
        why = cause(OSError(number, os.strerror(number)))
        raise DeliveryError(say("cannot start {program}: {why}", program=name, why=why))
    if guarded and (problem := replaceable(Path(place))):
        raise DeliveryError(
            say("{program} is not started, as others could replace it: {problem}", program=name, problem=problem)
        )
    return place


class CommandChannel(Channel):
    """Runs the user's program with the warning as JSON on its standard input."""

    name = "command"
    human = False

    def __init__(self, command: Sequence[str], timeout_seconds: float) -> None:
        self._command, self._timeout = command, timeout_seconds

    def send(self, message: Mapping[str, Any]) -> None:
        """Run the program, without a shell; raises like ``run``."""
        run(Command(self._command, os.environ, folder=None), json.dumps(message), self._timeout)
