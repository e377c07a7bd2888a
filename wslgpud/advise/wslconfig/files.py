"""The files themselves: where they lie, how they are encoded, and how they are replaced without losing a byte."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from wslgpud.host import Host, NoData, SourceError
from wslgpud.probes import interop
from wslgpud.probes.wsl_keys import WSL_CONF, WSLCONFIG, WslFile
from wslgpud.security import safe_files
from wslgpud.sources.disk import windows_points
from wslgpud.words import MessageError, say

#: one with every key and a comment on each has 10 kB
MOST_BYTES = 1 << 20
#: WSL's C runtime looks at these before it takes a file for UTF-8
_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"))
_NOT_PEOPLE = frozenset({"Public", "Default", "Default User", "All Users", "WsiAccount", "defaultuser0"})
_STAMP = re.compile(r"\.\d{8}-\d{6}(-\d+)?")
#: starting a Windows program takes a second, and ten when Windows is busy
_INTEROP_SECONDS = 20.0


class NotFound(MessageError):
    """It is not known where the file lies; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ConfigText:
    """The text of a file and how it is encoded; what is no text survives as surrogates or in ``raw``.

    ``sound`` is False where WSL cannot read it to its end: it takes bytes that are not UTF-8 for U+FFFD, but for
    the file's last.
    """

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""
    sound: bool = True
    raw: bytes = b""

    @property
    def data(self) -> bytes:
        """Return the bytes that the file holds."""
        return self.raw or self.mark + self.text.encode(self.encoding, "surrogateescape")


def decoded(data: bytes) -> ConfigText:
    """Return what the bytes of a file say."""
    mark, encoding = next(((m, e) for m, e in _MARKS if data.startswith(m)), (b"", "utf-8"))
    body = data[len(mark) :]
    try:
        return ConfigText(body.decode(encoding), encoding, mark)
    except UnicodeDecodeError:
        if encoding == "utf-8":
            text = body.decode(encoding, "surrogateescape")
            return ConfigText(text, encoding, mark, sound=not "\udc80" <= text[-1] <= "\udcff")
        # UTF-16 has no way to carry odd bytes along; such a file is shown, not changed.
        return ConfigText(body.decode(encoding, "replace"), encoding, mark, sound=False, raw=data)


def find(host: Host) -> str:
    """Return the path of the user's .wslconfig; the file itself may not exist yet.

    Raises:
        NotFound: it is not known whose it would be.
    """
    places = (f"{point}/Users" for point in sorted(windows_points(host)))
    users = next(filter(host.exists, places), "")
    if not users:
        raise NotFound(say("no Windows drive with its users is mounted here: name the file with --file"))
    try:
        people = [n for n in sorted(host.names(users)) if n not in _NOT_PEOPLE and not n.startswith("desktop.")]
    except (NoData, SourceError) as error:
        raise NotFound("cannot list {path}: name the file with --file", path=users) from error
    having = [name for name in people if host.exists(f"{users}/{name}/{WSLCONFIG.name}")]
    if len(having) == 1 or (not having and len(people) == 1):
        return f"{users}/{(having or people)[0]}/{WSLCONFIG.name}"
    name = _powershell(host, "$env:USERPROFILE").strip().rpartition("\\")[2]
    if name in people:
        return f"{users}/{name}/{WSLCONFIG.name}"
    yours = f"{users}/YOU/{WSLCONFIG.name}"
    raise NotFound("several people use this Windows: name the file, like --file {path}", path=yours)


def windows_size(host: Host) -> tuple[int, int] | None:
    """Return RAM (bytes) and logical processors of Windows; None where it cannot be asked."""
    script = (
        "$c = Get-CimInstance Win32_ComputerSystem; '{0} {1}' -f $c.TotalPhysicalMemory, $c.NumberOfLogicalProcessors"
    )
    words = _powershell(host, script).split()
    return (int(words[0]), int(words[1])) if len(words) == 2 and all(map(str.isdecimal, words)) else None


def declared(path: str | os.PathLike[str]) -> WslFile:
    """Return which of WSL's two files a path names."""
    return WSL_CONF if Path(path).name == WSL_CONF.name else WSLCONFIG


def read(path: str | os.PathLike[str]) -> ConfigText:
    """Return the file's text.

    Raises:
        OSError: it cannot be read, is no plain file, or far larger than any .wslconfig.
    """
    return decoded(safe_files.contents(path, MOST_BYTES, follow=True))


def replace(path: Path, document: ConfigText, now: datetime) -> Path | None:
    """Write the file in one step and return the backup of what was there (None when nothing was).

    A link stays one: it is what it leads to that is written, in a folder of dotfiles for one. It leads only
    into a folder of its own owner's: under Windows' drives everybody may make links, and root may run this.

    Raises:
        OSError: the folder cannot be written, or is full; the old file is then as it was.
    """
    backup = None
    mode = 0o644  # as wsl.conf has to be, which services read
    if path.exists():
        backup, mode = _kept(path, safe_files.contents(path, MOST_BYTES, follow=True), now), path.stat().st_mode & 0o777
    target = path.resolve()
    # Held open: nobody can put another folder in its place after the look at its owner.
    with safe_files.Folder(target.parent) as folder:
        if path.is_symlink() and path.lstat().st_uid not in {0, os.geteuid(), folder.stat(".").st_uid}:
            raise OSError(errno.EPERM, f"it is another user's link into {target.parent}", str(path))
        with folder.replacing(target.name) as descriptor, os.fdopen(descriptor, "wb", closefd=False) as stream:
            os.fchmod(descriptor, mode)
            stream.write(document.data)
    return backup


def backups(path: Path) -> list[Path]:
    """Return the backups of a file, newest first."""
    beside = (f for f in path.parent.iterdir() if f.name.startswith(path.name))
    return sorted((f for f in beside if _STAMP.fullmatch(f.name[len(path.name) :])), reverse=True)


def _kept(path: Path, data: bytes, now: datetime) -> Path:
    """Write a backup under a name that was free, and return it: never through a link that waits there."""
    stamp = f"{path.name}.{now:%Y%m%d-%H%M%S}"
    for name in (stamp, *(f"{stamp}-{i}" for i in range(1, 100))):
        with contextlib.suppress(FileExistsError), (path.parent / name).open("xb") as stream:
            stream.write(data)
            return path.parent / name
    raise OSError(errno.EEXIST, "there are a hundred backups of this second", str(path))


def _powershell(host: Host, script: str) -> str:
    """Return what PowerShell prints, or nothing: interop may be off, broken or slow."""
    try:
        return interop.run(host, script, timeout_seconds=_INTEROP_SECONDS)
    except (NoData, SourceError):
        return ""
