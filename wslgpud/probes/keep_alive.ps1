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
