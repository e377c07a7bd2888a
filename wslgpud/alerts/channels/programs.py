"""Running a program for a channel: bounded in time, with its children, without a shell."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from wslgpud.alerts.channels import DeliveryError
from wslgpud.foreign.rule import Account
from wslgpud.host import unprotected


def run(  # noqa: PLR0913 - how a program runs has so many sides
    command: Sequence[str],
    text: str,
    timeout_seconds: float,
    *,
    cwd: str | None = None,
    environment: Mapping[str, str] | None = None,
    account: Account | None = None,
) -> None:
    """Run ``command`` with ``text`` on its standard input, to its end.

    Args:
        command: program and arguments, as they stand.
        text: what it gets to read.
        timeout_seconds: when it and its children are killed.
        cwd: where it runs.
        environment: its variables instead of ours.
        account: as whom it runs, instead of us (for root only).

    Raises:
        DeliveryError: it cannot be started, fails, or takes longer than it may.
    """
    name = command[0]
    if shutil.which(name, path=(environment or os.environ).get("PATH")) is None:
        # Not for good: its drive may be away for a while, as that of Windows after sleep.
        raise DeliveryError(f"cannot start {name}: {_why_not(name)}")
    try:
        process = subprocess.Popen(
            unprotected(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            cwd=cwd,
            env=environment,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=account.groups if account else None,
        )
    except OSError as error:
        raise DeliveryError(f"cannot start {name}: {error.strerror}") from error
    with process:
        try:
            _, said = process.communicate(text, timeout=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            # The whole group: a script's children would hold its pipes open and us with them.
            os.killpg(process.pid, signal.SIGKILL)
            raise DeliveryError(f"{name} did not end within {timeout_seconds:g} s and was stopped") from error
    if process.returncode:
        raise DeliveryError(f"{name} ended with {process.returncode}: {said.strip()[-200:]}")


def _why_not(name: str) -> str:
    return "Permission denied" if Path(name).is_file() else "No such file or directory"
