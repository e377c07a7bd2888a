"""The files themselves: location, encoding, changes that keep comments, order and unknown keys, and replacement."""

from __future__ import annotations

import codecs
import errno
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from wslgpud.host import Host, NoData, SourceError
from wslgpud.probes import interop, wsl_config
from wslgpud.probes.wsl_config import WSL_CONF, WSLCONFIG, WslFile, WslKey, parse
from wslgpud.security import safe_files
from wslgpud.sources.disk import windows_points
from wslgpud.words import MessageError, cause, say

#: size limit; a file with every key and a comment on each has 10 kB
MAX_BYTES = 1 << 20
_NOT_PEOPLE = frozenset({"Public", "Default", "Default User", "All Users", "WsiAccount", "defaultuser0"})
_STAMP = re.compile(r"\.\d{8}-\d{6}-\d{6}")
#: https://aka.ms/wslc-settings: by default half of the RAM, as a comment says there
_SESSION_MEMORY = re.compile(r"^\s+memorySize:\s*[\"']?(\d+[KMGT]?B)\b", re.MULTILINE)
#: starting a Windows program takes a second, and ten when Windows is busy
_INTEROP_SECONDS = 20.0
_LINE_END = re.compile(r"\r?\n")
_TO_ESCAPE = {"\\": r"\\", '"': r"\"", "\b": r"\b", "\n": r"\n", "\t": r"\t"}


class CannotSet(MessageError):
    """A value cannot be written into this file."""


class NotFound(NoData):
    """The location of the file is unknown; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class ConfigText:
    """The text of a file and its encoding; invalid bytes of UTF-8 survive as surrogates."""

    text: str
    encoding: str = "utf-8"

    @property
    def data(self) -> bytes:
        """Return the file's bytes."""
        return self.text.encode(self.encoding, "surrogateescape")


def decoded(data: bytes) -> ConfigText:
    """Decode the bytes of a file, by the marks that WSL's C runtime checks before it assumes UTF-8.

    Raises:
        OSError: they are no UTF-16 although their mark says so.
    """
    encoding, errors = "utf-8-sig" if data.startswith(codecs.BOM_UTF8) else "utf-8", "surrogateescape"
    if data.startswith(codecs.BOM_UTF16_LE):
        encoding, errors = "utf-16", "strict"
    try:
        return ConfigText(data.decode(encoding, errors), encoding)
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ)) from error


def find(host: Host) -> str:
    """Return the path of the user's .wslconfig; the file itself may not exist yet.

    Raises:
        NotFound: the Windows user is unknown.
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
    """Return RAM (bytes) and logical processors of Windows; None where it cannot be queried."""
    script = (
        "$c = Get-CimInstance Win32_ComputerSystem; '{0} {1}' -f $c.TotalPhysicalMemory, $c.NumberOfLogicalProcessors"
    )
    words = _powershell(host, script).split()
    return (int(words[0]), int(words[1])) if len(words) == 2 and all(map(str.isdecimal, words)) else None


def containers_bytes(host: Host, ram_bytes: int | None) -> int | None:
    """Return the most RAM that a session of WSL's containers may take; None where this Windows user never had one.

    Raises:
        NotFound: the Windows user is unknown.
    """
    folder = f"{find(host).rpartition('/')[0]}/AppData/Local/wslc"
    if not host.exists(folder):
        return None
    try:
        text = read(host.path(f"{folder}/settings.yaml")).text
    except OSError:
        text = ""
    written = _SESSION_MEMORY.search(text)
    return (written and wsl_config.size(written[1])) or (ram_bytes or 0) // 2


def declared(path: str | os.PathLike[str]) -> WslFile:
    """Return which of WSL's two files a path refers to."""
    return WSL_CONF if Path(path).name == WSL_CONF.name else WSLCONFIG


def read(path: str | os.PathLike[str]) -> ConfigText:
    """Return the file's text.

    Raises:
        OSError: it cannot be read, is not a regular file, or far larger than any .wslconfig.
    """
    return decoded(safe_files.contents(path, MAX_BYTES, follow=True))


def named(
    host: Host, file: Path | None, declared: WslFile = WSLCONFIG, *, missing: bool = False
) -> tuple[str, ConfigText]:
    """Return the path of ``file`` or of the machine's own, and its text; empty where a missing file is allowed.

    Raises:
        NotFound: there is none, or it cannot be read.
    """
    place = str(file) if file is not None else interop.WSL_CONF_PATH if declared is WSL_CONF else find(host)
    try:
        return place, read(file or Path(host.path(place)))
    except FileNotFoundError as error:
        if missing:
            return place, ConfigText("")
        raise NotFound("there is no {path}: every setting is at its default", path=place) from error
    except OSError as error:
        raise NotFound("cannot read {path}: {why}", path=place, why=cause(error)) from error


def wanted(settings: Iterable[str], known: Collection[WslFile]) -> dict[WslFile, dict[str, str]]:
    """Return the values in ``wsl2.memory=24GB`` and the like, by file. Raises CannotSet: WSL does not know a key."""
    found: dict[WslFile, dict[str, str]] = {}
    for setting in settings:
        path, equals_sign, value = setting.partition("=")
        file = next((one for one in known if path.lower() in one.by_path), None)
        if file is None or not equals_sign:
            raise CannotSet(
                "{setting}: WSL does not know this key in {files}; write it like wsl2.memory=24GB",
                setting=setting,
                files=tuple(one.name for one in known),
            )
        found.setdefault(file, {})[path] = value
    return found


def changed(text: str, values: Mapping[str, str], file: WslFile = WSLCONFIG) -> str:
    """Return the text of a file with these values: in the line that decides the key, else in its section.

    Other lines of these keys, which WSL ignores (a duplicate, one in a wrong section, a malformed one), are removed:
    they would contradict. Values are unescaped: paths have single backslashes.

    Raises:
        KeyError: WSL does not know this key.
        CannotSet: WSL would refuse the value or stops reading the file above it, or the value cannot be represented in
            the file (a lone carriage return).
    """
    if file is WSL_CONF:
        text = text.replace("\r\n", "\n")  # see check.py
    for path, value in values.items():
        key = file.by_path[path.lower()]
        text = _with(_without_contradictions(text, key, file), key, value, file)
        parsed = parse(text, file=file)
        entry = parsed.first(path)
        if entry and entry.state == "refused":
            raise CannotSet(entry.warning)
        if entry is None or entry.value != value:
            stops = [] if file.forgiving else [bad.line for bad in parsed.entries if bad.state == "unreadable"]
            raise CannotSet(
                "{key} cannot be set to {value} in this file[, which WSL reads only up to line {line}]: set it by hand",
                key=path,
                value=value,
                **({"line": stops[0]} if stops else {}),
            )
    return text


def encoded(value: str) -> str:
    """Escape a value for WSL."""
    escaped = "".join(_TO_ESCAPE.get(char, char) for char in value)
    return f'"{escaped}"' if "#" in value or value != value.strip(" \t") else escaped


def _without_contradictions(text: str, key: WslKey, file: WslFile) -> str:
    """Remove each line of a key that does not decide it."""
    for entry in reversed(parse(text, file=file).entries):
        means_it = entry.state in ("unknown", "unreadable") and file.by_name.get(entry.name.lower()) is key
        if means_it or (entry.state == "duplicate" and entry.key is key):
            line_end = _LINE_END.match(text, entry.end)
            text = text[: entry.begin].rstrip(" \t") + text[line_end.end() if line_end else entry.end :]
    return text


def _with(text: str, key: WslKey, value: str, file: WslFile) -> str:
    parsed = parse(text, file=file)
    if entry := parsed.first(key.path):
        start, end = entry.span
        return text[:start] + encoded(value) + text[end:]
    newline = "\r\n" if "\r\n" in text or not (text or file is not WSLCONFIG) else "\n"
    line = f"{key.name}={encoded(value)}"
    if at := parsed.ends.get(key.section.lower()):
        return f"{text[:at]}{newline}{line}{text[at:]}"
    # A line that ends in a backslash continues in the next: give it an empty one.
    pad = newline * (0 if not text or text.endswith("\n") else 2 if text.endswith("\\") else 1)
    blank = newline if text.strip() else ""
    return f"{text}{pad}{blank}[{key.section}]{newline}{line}{newline}"


def replace(path: Path, document: ConfigText, now: datetime) -> Path | None:
    """Replace the file atomically and return the backup of the old one (None if there was none).

    A link is kept: its target is written, as in a folder of dotfiles. It must lead into a folder of its own owner: on
    Windows drives everybody may create links, and root may run this.

    Raises:
        OSError: the folder cannot be written, or is full; the old file is then unchanged.
    """
    backup, mode = None, 0o644  # required for wsl.conf, which services read
    if path.exists():
        data, mode = safe_files.contents(path, MAX_BYTES, follow=True), path.stat().st_mode & 0o777
        backup = path.with_name(f"{path.name}.{now:%Y%m%d-%H%M%S-%f}")
        with backup.open("xb") as stream:  # never through a planted link
            stream.write(data)
    target = path.resolve()
    # Held open, so that it cannot be swapped for another folder after the owner check.
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


def _powershell(host: Host, script: str) -> str:
    """Return PowerShell's output, or nothing: interop may be off, broken or slow."""
    try:
        return interop.run(host, script, timeout_seconds=_INTEROP_SECONDS)
    except (NoData, SourceError):
        return ""
