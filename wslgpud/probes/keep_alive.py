"""Windows' scheduled task that keeps this distribution running: ``python -m wslgpud.probes.keep_alive create``.

Windows stops a WSL distribution 15 s after its last terminal closes, whatever services run in it. A hidden wsl.exe,
started at each log-on, keeps it running (https://github.com/microsoft/WSL/issues/10138).
"""

from __future__ import annotations

import os
import sys

from wslgpud.host import Host
from wslgpud.probes import interop
from wslgpud.words import MessageError, current

#: One line on standard input: create, remove, status or try, and the distribution.
SCRIPT = r"""
$action, $name = [Console]::In.ReadLine().Trim().Split(' ', 2)
# WSL's own rule for names; nothing else may become part of a command line.
if ($name -notmatch '^[A-Za-z0-9._-]+$') { throw "not the name of a distribution: $name" }
$task = "wslgpud keeps $name running"
function Register($task, $program) {
    $what = New-ScheduledTaskAction -Execute 'conhost.exe' -Argument "--headless wsl.exe -d $name --exec $program"
    # A log-on of one's own needs no administrator; one of anybody would.
    $when = New-ScheduledTaskTrigger -AtLogOn -User "$env:USERDOMAIN\$env:USERNAME"
    # By default a task is stopped after three days, and on battery.
    $how = New-ScheduledTaskSettingsSet -ExecutionTimeLimit ([TimeSpan]::Zero) -MultipleInstances IgnoreNew `
        -AllowStartIfOnBatteries -DontStopIfGoingOnBatteries
    $why = 'Made by wslgpud; sudo wslgpud service uninstall in the distribution removes it.'
    [void](Register-ScheduledTask -TaskName $task -Action $what -Trigger $when -Settings $how -Description $why -Force)
    Start-ScheduledTask -TaskName $task
}
if ($action -eq 'try') {
    # All of it but the log-on, under a name of its own: made, run to its end, removed.
    $task = "wslgpud tries to keep $name running"
    try {
        Register $task true
        foreach ($tick in 1..40) {
            Start-Sleep -Milliseconds 500
            $result = (Get-ScheduledTaskInfo -TaskName $task).LastTaskResult
            # It runs (0x41301), or has not begun yet (0x41303).
            if ($result -notin 0x41301, 0x41303) { break }
        }
        '0x{0:X}' -f $result
    } finally {
        Unregister-ScheduledTask -TaskName $task -Confirm:$false -ErrorAction SilentlyContinue
    }
    return
}
$known = Get-ScheduledTask -TaskName $task -ErrorAction SilentlyContinue
if ($action -eq 'create') {
    Register $task 'sleep infinity'
    "Windows' task '$task' starts at each log-on, and now"
} elseif ($action -eq 'remove' -and $known) {
    Stop-ScheduledTask -TaskName $task
    Unregister-ScheduledTask -TaskName $task -Confirm:$false
    "removed Windows' task '$task'"
} elseif ($action -eq 'status' -and $known) {
    'present'
}
"""
_WSLPATH_SECONDS = 5.0


def does(host: Host, action: str) -> str:
    """Create, remove, query (``status``) or test the task, and return PowerShell's output.

    Raises:
        NoData: Windows cannot be queried, or the name of this distribution is unknown.
        SourceError: it failed.
    """
    return interop.run(host, SCRIPT, f"{action} {_distribution(host)}\n").strip()


def _distribution(host: Host) -> str:
    """Return the name by which Windows knows this distribution; sudo takes it from the environment."""
    if host.live and (name := os.environ.get("WSL_DISTRO_NAME")):
        return name
    return host.run(["wslpath", "-w", "/"], _WSLPATH_SECONDS).strip().strip("\\").rpartition("\\")[2]


if __name__ == "__main__":
    try:
        print(does(Host(), sys.argv[1]))
    except MessageError as error:
        sys.exit(current().text(error.said))
