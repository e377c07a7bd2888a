$me = New-Object Security.Principal.WindowsPrincipal ([Security.Principal.WindowsIdentity]::GetCurrent())
@{
    version = "$($PSVersionTable.PSVersion)"
    windows = "$([Environment]::OSVersion.Version)"
    language = (Get-UICulture).Name
    administrator = $me.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)
} | ConvertTo-Json -Compress
