"""The brake, and giving page cache back: whether the daemon can do what it is configured to."""

from __future__ import annotations

from wslgpud.advise.doctor.checking import Evidence, Outcome, check, good, in_windows, note, problem, skipped, unknown
from wslgpud.brake.brake import allowed_users
from wslgpud.config import ConfigError
from wslgpud.sources.cgroups import reclaim_file
from wslgpud.words import cause, say

#: capability(7)
_CAP_DAC_OVERRIDE, _CAP_KILL = 1, 5
UNKNOWN = say("unknown until the daemon runs")
UNREADABLE = say("the daemon's permissions cannot be read")


@check("rights.brake", "Brake")
def brake(machine: Evidence) -> Outcome:
    """The daemon can pause a job only if it may send it signals."""
    if not machine.host.live:
        return skipped(say("this is a recording"))
    if not machine.config.brake.on:
        return skipped(say("the brake is off"))
    try:
        users = allowed_users(machine.config.brake)
    except ConfigError as error:
        return problem(cause(error), say("fix it in the configuration"))
    status = _status_of_daemon(machine)
    return note(UNKNOWN) if status is None else _rights(status, users)


def _rights(status: str, users: frozenset[int]) -> Outcome:
    """Judge by the text of /proc/PID/status."""
    rights = _uid_and_capabilities(status)
    if rights is None:
        return unknown(UNREADABLE)
    uid, capabilities = rights
    if capabilities >> _CAP_KILL & 1 or users <= {uid}:
        return good(say("the daemon may pause the jobs of the named users"))
    said = say("the daemon may not signal programs of other users")
    return problem(said, "sudo wslgpud service install --allow brake")


@check("rights.return_cache", "Page cache for Windows", "wsl")
def return_cache(machine: Evidence) -> Outcome:
    """Page cache that Linux keeps is memory that Windows lacks; only root's files of the kernel give it back."""
    if not machine.host.live:
        return skipped(say("this is a recording"))
    if not machine.config.windows.return_cache:
        return skipped(say("windows.return_cache is off"))
    status = _status_of_daemon(machine)
    return note(UNKNOWN) if status is None else _may_reclaim(status, here=bool(reclaim_file(machine.host)))


def _may_reclaim(status: str, *, here: bool) -> Outcome:
    """Judge by the text of /proc/PID/status and by whether the kernel has memory.reclaim ``here``."""
    rights = _uid_and_capabilities(status)
    if rights is None:
        return unknown(UNREADABLE)
    uid, capabilities = rights
    if uid and not here:
        return problem(say("this kernel has no memory.reclaim"), in_windows("wsl --update"))
    if not uid or capabilities >> _CAP_DAC_OVERRIDE & 1:
        return good(say("the daemon may have the kernel drop page cache"))
    said = say("the daemon may not write the kernel's memory.reclaim")
    return problem(said, "sudo wslgpud service install --allow return-cache")


def _status_of_daemon(machine: Evidence) -> str | None:
    """Return /proc/PID/status of the running daemon; None where none runs."""
    return machine.read(f"/proc/{machine.daemon.pid()}/status") if machine.daemon else None


def _uid_and_capabilities(status: str) -> tuple[int, int] | None:
    facts = dict(line.partition(":")[::2] for line in status.splitlines())
    try:
        return int(facts["Uid"].split()[0]), int(facts["CapEff"].strip(), 16)
    except (KeyError, ValueError, IndexError):
        return None
