"""Running a program for a channel: bounded in time, with its children, without a shell."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from wslgpud.alerts.channels import DeliveryError


def run(  # noqa: PLR0913 - how a program runs has so many sides
    command: Sequence[str],
    text: str,
    timeout_seconds: float,
    *,
    cwd: str | None = None,
    environment: Mapping[str, str] | None = None,
    user: int | None = None,
) -> None:
    """Run ``command`` with ``text`` on its standard input, to its end.

    Args:
        command: program and arguments, as they stand.
        text: what it gets to read.
        timeout_seconds: when it and its children are killed.
        cwd: where it runs.
        environment: its variables instead of ours.
        user: as whom it runs, instead of us (for root only).

    Raises:
        DeliveryError: it cannot be started, fails, or takes longer than it may.
    """
    name = command[0]
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            cwd=cwd,
            env=environment,
            user=user,
        )
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        raise DeliveryError(f"cannot start {name}: {error.strerror}", permanent=gone) from error
    with process:
        try:
            _, said = process.communicate(text, timeout=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            # The whole group: a script's children would hold its pipes open and us with them.
            os.killpg(process.pid, signal.SIGKILL)
            raise DeliveryError(f"{name} did not end within {timeout_seconds:g} s and was stopped") from error
    if process.returncode:
        raise DeliveryError(f"{name} ended with {process.returncode}: {said.strip()[-200:]}")
