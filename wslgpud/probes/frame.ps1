$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
$utf8 = New-Object Text.UTF8Encoding $false
function Tell($stream, $text) {
    $line = $utf8.GetBytes("$text`n")
    $stream.Write($line, 0, $line.Length)
    $stream.Flush()
}
try {
    & {
{script}
    } | ForEach-Object { Tell ([Console]::OpenStandardOutput()) $_ }
} catch {
    Tell ([Console]::OpenStandardError()) $_.Exception.Message
    exit 1
}
