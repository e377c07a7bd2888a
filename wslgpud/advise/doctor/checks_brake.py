"""The brake: whether it can do what it is configured to."""

from __future__ import annotations

from wslgpud.advise.doctor.checking import Evidence, Outcome, check, good, note, problem, skipped, unknown
from wslgpud.brake.brake import allowed_users
from wslgpud.client import NOTE
from wslgpud.config import SYSTEM_STATE, ConfigError
from wslgpud.security import safe_files
from wslgpud.words import cause, say

#: capability(7)
_CAP_KILL = 5


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
    for folder in dict.fromkeys((machine.state_folder, str(SYSTEM_STATE))):
        try:
            pid = safe_files.parsed(machine.read(f"{folder}/{NOTE}") or "{}").get("pid")
        except ValueError:
            continue
        status = machine.read(f"/proc/{pid}/status") if isinstance(pid, int) else None
        if status is not None:
            return _rights(status, users)
    return note(say("unknown until the daemon runs"))


def _rights(status: str, users: frozenset[int]) -> Outcome:
    """Judge by the text of /proc/PID/status."""
    facts = dict(line.partition(":")[::2] for line in status.splitlines())
    try:
        uid, rights = int(facts["Uid"].split()[0]), int(facts["CapEff"].strip(), 16)
    except (KeyError, ValueError, IndexError):
        return unknown(say("the daemon's permissions cannot be read"))
    if rights >> _CAP_KILL & 1 or users <= {uid}:
        return good(say("the daemon may pause the jobs of the named users"))
    said = say("the daemon may not signal programs of other users")
    return problem(said, "sudo wslgpud service install --allow brake")
