"""The support archive: everything a stranger needs to help, and nothing that identifies the machine."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wslgpud import __version__
from wslgpud.advise.doctor.checking import CheckResult
from wslgpud.advise.wslconfig import files
from wslgpud.config import Config, declared_keys
from wslgpud.host import Host, NoData, SourceError
from wslgpud.probes.interop import BINFMT, WSL_CONF_PATH
from wslgpud.sampling.capture import Mask, capture
from wslgpud.security import safe_files
from wslgpud.security.redaction import SECRET, visible

#: fields omitted: user, host name, and a command line, which may hold a token
_TELLING = re.compile(r"^(\s*(?:default|hostname|command)\s*=\s*).*", re.IGNORECASE | re.MULTILINE)
#: Small files that checks read and no source does; /proc/cmdline has no secret under WSL.
MORE = (
    *(f"/proc/sys/{name}" for name in ("vm/swappiness", "vm/overcommit_memory", "vm/max_map_count")),
    "/proc/sys/fs/inotify/max_user_watches",
    "/sys/fs/cgroup/cgroup.controllers",
    WSL_CONF_PATH,
    "/proc/version",
    "/usr/local/cuda/version.json",
    "/sys/class/rtc/rtc0/since_epoch",
)


def write(target: Path, host: Host, config: Config, findings: Sequence[CheckResult]) -> list[str]:
    """Write the archive and return the names in it.

    Raises:
        OSError: it cannot be written; no partial file is left.
    """
    mask = Mask(host)
    # In English for the helper, whatever the user's language.
    documents = [{name: mask.words(str(said)) for name, said in found._asdict().items()} for found in findings]
    contents = {
        "doctor.json": f"{json.dumps(documents, indent=1)}\n",
        "configuration.json": f"{json.dumps(_masked(mask, _settings(config)), indent=1)}\n",
        "version.txt": f"wslgpud {__version__}\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "machine"
        for name in capture(host, machine, config):
            contents[f"machine/{name}"] = (machine / name).read_text()
    for path in (*MORE, *_more_of_wsl(host)):
        with contextlib.suppress(OSError):  # missing, hidden, or not a regular file
            text = files.read(host.path(path)).text
            text = _TELLING.sub(rf"\1{SECRET}", text) if path == WSL_CONF_PATH else text
            contents[f"machine/root{mask.numbers(path)}"] = mask.words(text)
    if host.exists("/run/WSL"):
        contents["machine/root/run/WSL/.keep"] = ""
    with safe_files.draft(target) as draft, tarfile.open(draft, "w:gz") as archive:
        for name, text in sorted(contents.items()):
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"wslgpud-doctor/{name}")
            entry.size, entry.mtime = len(data), int(host.clock.wall())
            archive.addfile(entry, io.BytesIO(data))
    return sorted(contents)


def _settings(config: Config) -> dict[str, Any]:
    """Return the configuration, with secrets and names removed."""
    values = ((key, getattr(getattr(config, key.section), key.name)) for key in declared_keys())
    return {key.path: visible(value, key.shows, to_stranger=True) for key, value in values}


def _masked(mask: Mask, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _masked(mask, item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(mask, item) for item in value]
    return mask.words(value) if isinstance(value, str) else value


def _more_of_wsl(host: Host) -> Iterator[str]:
    with contextlib.suppress(files.NotFound):
        yield files.find(host)
    with contextlib.suppress(NoData, SourceError):
        yield from (f"{BINFMT}/{name}" for name in host.names(BINFMT) if name.startswith("WSLInterop"))
