"""The support archive: what a stranger needs to help, and nothing that says whose machine it is."""

from __future__ import annotations

import io
import json
import re
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wslgpud import __version__, documents
from wslgpud.advise.doctor.findings import Finding
from wslgpud.advise.wslconfig import files
from wslgpud.capture import Mask, capture
from wslgpud.config import Config, declared_keys
from wslgpud.host import Host, NoData, SourceError
from wslgpud.masking import SECRET, visible

WSL_CONF = "/etc/wsl.conf"
#: its user, its machine's name, and a command line, which may hold a token
_TELLING = re.compile(r"^(\s*(?:default|hostname|command)\s*=\s*).*", re.IGNORECASE | re.MULTILINE)
#: What small files the checks read that no source does; /proc/cmdline names no secret under WSL.
MORE = (
    "/proc/sys/vm/swappiness", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/max_map_count",
    "/proc/sys/fs/inotify/max_user_watches", "/sys/fs/cgroup/cgroup.controllers", WSL_CONF,
    "/proc/version", "/usr/local/cuda/version.json", "/sys/class/rtc/rtc0/since_epoch",
)  # fmt: skip
BINFMT = "/proc/sys/fs/binfmt_misc"


def write(target: Path, host: Host, config: Config, findings: Sequence[Finding]) -> list[str]:
    """Write the archive and return the names in it.

    Raises:
        OSError: it cannot be written; nothing half written is left.
    """
    mask = Mask(host)
    contents = {
        "doctor.json": _json([_in_english(mask, finding) for finding in findings]),
        "configuration.json": _json({k: _masked(mask, v) for k, v in _settings(config).items()}),
        "version.txt": f"wslgpud {__version__}\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "machine"
        for name in capture(host, machine, config):
            contents[f"machine/{name}"] = (machine / name).read_text()
    for path in (*MORE, *_wslconfig(host), *_interop(host)):
        text = _text(host, path)
        if text is not None:
            text = _TELLING.sub(rf"\1{SECRET}", text) if path == WSL_CONF else text
            contents[f"machine/root{mask.numbers(path)}"] = mask.words(text)
    if host.exists("/run/WSL"):
        contents["machine/root/run/WSL/.keep"] = ""
    with documents.draft(target) as draft, tarfile.open(draft, "w:gz") as archive:
        for name, text in sorted(contents.items()):
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"wslgpud-doctor/{name}")
            entry.size, entry.mtime = len(data), int(host.clock.wall())
            archive.addfile(entry, io.BytesIO(data))
    return sorted(contents)


def _settings(config: Config) -> dict[str, Any]:
    """Return the configuration, of each key as much as a stranger may see."""
    values = ((key, getattr(getattr(config, key.section), key.name)) for key in declared_keys())
    return {key.path: visible(value, key.shows, to_stranger=True) for key, value in values}


def _in_english(mask: Mask, finding: Finding) -> dict[str, str]:
    """Return a finding for whoever helps, whatever language its reader has."""
    return {name: mask.words(str(said)) for name, said in finding.document().items()}


def _masked(mask: Mask, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _masked(mask, item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(mask, item) for item in value]
    return mask.words(value) if isinstance(value, str) else value


def _wslconfig(host: Host) -> list[str]:
    try:
        return [files.find(host)]
    except files.NotFound:
        return []


def _interop(host: Host) -> list[str]:
    try:
        return [f"{BINFMT}/{name}" for name in host.names(BINFMT) if name.startswith("WSLInterop")]
    except (NoData, SourceError):
        return []


def _text(host: Host, path: str) -> str | None:
    try:
        with open(host.path(path), "rb") as stream:  # noqa: PTH123 - a path of the host
            return files.decoded(stream.read(1 << 16)).text
    except OSError:
        return None


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"
