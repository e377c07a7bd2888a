[Diagnostics.Process]::GetCurrentProcess().PriorityClass = 'BelowNormal'
$counters = 'Win32_PerfFormattedData'
$system = [wmisearcher]'SELECT TotalVisibleMemorySize FROM Win32_OperatingSystem'
$memory = [wmisearcher]('SELECT AvailableBytes, CommittedBytes, CommitLimit, PoolNonpagedBytes ' +
    "FROM ${counters}_PerfOS_Memory")
$gpu = [wmisearcher]('SELECT Name, DedicatedUsage, SharedUsage, TotalCommitted ' +
    "FROM ${counters}_GPUPerformanceCounters_GPUAdapterMemory")
$held = [wmisearcher]"SELECT Name, LocalUsage FROM ${counters}_GPUPerformanceCounters_GPUProcessMemory"
function Rows($search) {
    foreach ($row in $search.Get()) {
        $found = @{}
        foreach ($property in $row.Properties) { $found[$property.Name] = $property.Value }
        $row.Dispose()
        $found
    }
}
$parts = @{
    memory = { Rows $memory }
    system = { Rows $system }
    gpu = { Rows $gpu }
    programs = {
        $large = Rows $held | Where-Object { [long]$_.LocalUsage -ge 67108864 }
        $large | Sort-Object { [long]$_.LocalUsage } -Descending | Select-Object -First 24 | ForEach-Object {
            try {
                $process = [Diagnostics.Process]::GetProcessById([int]$_.Name.Split('_')[1])
                $_.Program = $process.ProcessName
                $process.Dispose()
            } catch [ArgumentException] { }
            $_
        }
    }
    vm = {
        foreach ($process in [Diagnostics.Process]::GetProcesses()) {
            $name = $process.ProcessName
            if ($name -like 'vmmem*') {
                @{ Name = $name; WorkingSet = $process.WorkingSet64; Private = $process.PrivateMemorySize64 }
            }
            $process.Dispose()
        }
    }
    adapters = {
        $root = [Microsoft.Win32.Registry]::LocalMachine.OpenSubKey('SOFTWARE\Microsoft\DirectX')
        $seen = $root.GetValue('LastSeen')
        foreach ($name in $root.GetSubKeyNames()) {
            $key = $root.OpenSubKey($name)
            if ($null -ne $key.GetValue('AdapterLuid') -and $key.GetValue('LastSeen') -eq $seen) {
                @{
                    Luid = $key.GetValue('AdapterLuid'); Name = $key.GetValue('Description')
                    DedicatedVideoMemory = $key.GetValue('DedicatedVideoMemory')
                }
            }
            $key.Close()
        }
        $root.Close()
    }
}
while ($null -ne [Console]::In.ReadLine()) {
    $answer = @{ missing = @{} }
    foreach ($part in $parts.Keys) {
        try { $answer[$part] = @(& $parts[$part]) } catch { $answer.missing[$part] = $_.Exception.Message }
    }
    ConvertTo-Json $answer -Compress -Depth 4
}
