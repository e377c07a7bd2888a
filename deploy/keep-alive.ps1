# Windows stops a WSL distribution 15 s after its last terminal closes, whatever services run in it. A hidden
# wsl.exe from each log-on on keeps it. One line on standard input: create, remove or status, and the distribution.
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
$action, $name = [Console]::In.ReadLine().Trim().Split(' ', 2)
# WSL's own rule for names; nothing else may become part of a command line.
if ($name -notmatch '^[A-Za-z0-9._-]+$') { throw "not the name of a distribution: $name" }
$task = "wslgpud keeps $name running"
$known = Get-ScheduledTask -TaskName $task -ErrorAction SilentlyContinue
if ($action -eq 'create') {
    $what = New-ScheduledTaskAction -Execute 'conhost.exe' -Argument "--headless wsl.exe -d $name --exec sleep infinity"
    # A log-on of one's own needs no administrator; one of anybody would.
    $when = New-ScheduledTaskTrigger -AtLogOn -User "$env:USERDOMAIN\$env:USERNAME"
    # By default a task is stopped after three days, and on battery.
    $how = New-ScheduledTaskSettingsSet -ExecutionTimeLimit ([TimeSpan]::Zero) -MultipleInstances IgnoreNew `
        -AllowStartIfOnBatteries -DontStopIfGoingOnBatteries
    $why = 'Made by wslgpud; sudo ./deploy/uninstall in the distribution removes it.'
    [void](Register-ScheduledTask -TaskName $task -Action $what -Trigger $when -Settings $how -Description $why -Force)
    Start-ScheduledTask -TaskName $task
    "Windows' task ""$task"" starts at each log-on, and now"
} elseif ($action -eq 'remove' -and $known) {
    Stop-ScheduledTask -TaskName $task
    Unregister-ScheduledTask -TaskName $task -Confirm:$false
    "removed Windows' task ""$task"""
} elseif ($action -eq 'status' -and $known) {
    'present'
}
