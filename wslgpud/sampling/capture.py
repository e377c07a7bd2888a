"""``wslgpud capture``: record this machine's files and answers, as a machine for tests.

Only data that the sources read and need is written: no program arguments, no unrelated lines of the kernel log, no
other mounts; names, numbers and addresses that identify the machine are replaced. Program names stay, so review a
capture before sharing it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from wslgpud.config import Config
from wslgpud.host import DiskSpace, Host, NoData, SourceError, output
from wslgpud.model import Sample
from wslgpud.probes.interop import BINFMT
from wslgpud.probes.supervisor import clean_environment, python_command
from wslgpud.sampling.sampler import SOURCES
from wslgpud.security import safe_files
from wslgpud.security.redaction import masked
from wslgpud.security.safe_files import Folder
from wslgpud.sources import Source
from wslgpud.sources.disk import mounts
from wslgpud.sources.kernel_lines import PRECEDES_THE_END, failing_disk, parse_line
from wslgpud.sources.logs import KernelLogSource
from wslgpud.sources.processes import FRAMEWORK, GPU_DEVICE, title
from wslgpud.sources.windows import WindowsSource

_KMSG = "/dev/kmsg"
_NVML_SECONDS = 60  # waking a sleeping card takes long
_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_LONG_HEX = re.compile(r"\b[0-9a-f]{24,64}\b")
_MAC = re.compile(r"\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b", re.IGNORECASE)
# Windows' names have spaces, and .wslconfig doubles its backslashes.
_HOME = re.compile(r"((?:/home|/Users|\\Users)[/\\]+)[^/\\\s]+(?:(?: [^/\\\s]+)+(?=[/\\]))?")
_TELLING = re.compile(
    r"dxg|NVRM: |oom-kill:|invoked oom-killer|Kill(?:ed)? process|page allocation failure|vmbus_add_channel_work"
)
#: the process of a session of WSL's containers, which is named after the Windows user
_SESSION = re.compile(r"(vmmemwslc-cli-(?:admin-)?)[^\"\\]+", re.IGNORECASE)
_PROCESS = re.compile(r"/proc/(\d+)/(\w+)")


class Recorder(Host):
    """The real machine, recording every answer."""

    recorded = True
    live = False  # sources must read everything, the kernel log included, through this recorder

    def __init__(self, host: Host) -> None:
        super().__init__(host.root or "/", host.clock)
        self._host = host
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.disks: dict[str, DiskSpace] = {}
        self.commands: dict[str, str | dict[str, str]] = {}

    def path(self, path: str) -> str:  # noqa: ARG002 - none of them
        """Return no path: a file that a source opened itself would not be recorded."""
        return ""

    def read(self, path: str) -> str:
        if path == _KMSG and self._host.live:
            self.files[path] = "".join(_kernel_log(self._host))
        else:
            self.files[path] = self._host.read(path)
        return self.files[path]

    def head(self, path: str, max_bytes: int) -> str:
        self.files[path] = self._host.head(path, max_bytes)
        return self.files[path]

    def exists(self, path: str) -> bool:
        present = self._host.exists(path)
        if present and path not in self.files:
            # Git does not keep empty folders.
            self.files[f"{path}/.keep" if Path(self._host.path(path)).is_dir() else path] = ""
        return present

    def names(self, path: str, max_entries: int | None = None) -> list[str]:
        """Return the names in a folder; most are recorded by the files read below it."""
        names = self._host.names(path, max_entries)
        if path == BINFMT:
            self.files.update({f"{path}/{name}": "" for name in names if name.startswith("WSLInterop")})
        return names

    def link(self, path: str) -> str | None:
        target = self._host.link(path)
        if target is not None:
            self.links[path] = target
        return target

    def disk_space(self, path: str) -> DiskSpace:
        self.disks[path] = space = self._host.disk_space(path)
        return space

    def run(self, command: Sequence[str], timeout_seconds: float) -> str:
        line = " ".join(command)
        try:
            answer = self._host.run(command, timeout_seconds)
        except SourceError as error:
            self.commands[line] = {"error": str(error)}
            raise
        self.commands[line] = answer
        return answer


def capture(host: Host, folder: Path, config: Config | None = None) -> list[str]:
    """Record ``host`` into ``folder``, ready for ``RecordedHost``; return the files' names.

    Raises OSError: the folder is not empty or cannot be written.
    """
    if folder.exists() and any(folder.iterdir()):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))
    recorder = Recorder(host)
    config = config or Config()
    samples = [_read(source(recorder, config)) for source in SOURCES]
    files = _needed(recorder, samples)
    mask = Mask(host)
    facts: dict[str, Any] = {
        "kind": "recorded",
        "origin": "wslgpud capture",
        "wall": round(host.clock.wall(), 3),
        "mono": round(host.clock.mono(), 3),
        "links": _links(recorder.links, files),
        "disks": {mask.words(p): list(space) for p, space in sorted(recorder.disks.items())},
        "commands": {
            line: mask.words(answer) if isinstance(answer, str) else {"error": mask.words(answer["error"])}
            for line, answer in sorted(recorder.commands.items())
        },
    }
    contents = {
        f"root{mask.numbers(path)}": (mask.words if _PROCESS.match(path) else mask.numbers)(text)
        for path, text in sorted(files.items())
    }
    contents["host.json"] = json.dumps(facts, indent=1) + "\n"
    if host.live and (recording := _nvml()):
        contents["nvml.json"] = mask.words(json.dumps(recording, indent=1)) + "\n"
    with contextlib.closing(WindowsSource(host, config)) as source, contextlib.suppress(NoData, SourceError):
        contents["windows.json"] = _SESSION.sub(r"\1user", mask.words(json.dumps(source.ask(), indent=1))) + "\n"
    safe_files.make_folder(folder)
    for name, text in contents.items():
        # Whoever owns the folder that it lies in may exchange it for a link meanwhile.
        path = PurePosixPath(name)
        with Folder(folder, str(path.parent), make=True) as inner:
            inner.put(path.name, text)
    return sorted(contents)


class Mask:
    """Replaces identifying data; equal values stay equal, different ones different."""

    def __init__(self, host: Host) -> None:
        name = host.read_optional("/proc/sys/kernel/hostname").strip()
        self._name = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])") if len(name) > 3 else None
        self._numbers: dict[str, int] = {}

    def numbers(self, text: str) -> str:
        """Return the text with identifiers, addresses and home folders replaced."""
        text = _UUID.sub(lambda m: f"00000000-0000-0000-0000-{self._number(m):012}", text)
        text = _LONG_HEX.sub(lambda m: f"{self._number(m):0{len(m[0])}}", text)
        text = _MAC.sub(lambda m: f"00:00:00:00:00:{self._number(m) % 256:02x}", text)
        return _HOME.sub(r"\1user", text)

    def words(self, text: str) -> str:
        """Return the text with the machine's name and likely secrets replaced as well.

        Only for user-chosen texts: a machine called "swap" must not corrupt the kernel's tables.
        """
        text = masked(self.numbers(text))
        return self._name.sub("host", text) if self._name else text

    def _number(self, match: re.Match[str]) -> int:
        return self._numbers.setdefault(match[0].lower(), len(self._numbers) + 1)


def _read(source: Source) -> Sample:
    with contextlib.closing(source), contextlib.suppress(NoData, SourceError):
        return source.read()
    return Sample()


def _needed(recorder: Recorder, samples: list[Sample]) -> dict[str, str]:
    """Return the files to write, reduced to the parts that the sources need."""
    pids = {p.pid for sample in samples for p in sample.processes or ()}
    limited = {r.labels[0] for sample in samples for r in sample.readings if r.spec.labels == ("cgroup",)}
    files = {}
    for path, text in recorder.files.items():
        process = _PROCESS.fullmatch(path)
        if path in ("/proc/1/mounts", "/proc/self/mounts"):
            files[path] = _mounts(text, set(recorder.disks))
        elif process is not None:
            if int(process[1]) in pids:
                files[path] = _process_file(process[2], text)
                # The GPU source needs this to distinguish processes with the same pid.
                name = text.partition("(")[2].rpartition(")")[0]
                if process[2] == "stat":
                    files[f"/proc/{process[1]}/comm"] = f"{name}\n"
        elif path == "/proc/swaps":  # swap files lie in folders whose names may identify
            files[path] = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("/dev/zram"))
        elif path == _KMSG:
            lines = (line for line in text.splitlines() if _tells(line))
            files[path] = "".join(f"{line}\n" for line in lines)
        elif not path.startswith("/sys/fs/cgroup/") or _leads_to_limit(path, limited):
            files[path] = text
    return files


def _tells(record: str) -> bool:
    line = parse_line(record)
    if line is None:
        return False
    return bool(failing_disk(line.text)) or any(p.search(line.text) for p in (_TELLING, *PRECEDES_THE_END.values()))


def _process_file(kind: str, text: str) -> str:
    if kind == "cmdline":
        return title(text.rstrip("\0").split("\0")).replace(" ", "\0") + "\0"
    if kind == "maps":
        libraries = sorted({match[0] for match in FRAMEWORK.finditer(text)})
        return "".join(f"0-1 r-xp 0 00:00 0 {name}\n" for name in libraries)
    if kind == "status":
        return "".join(f"{line}\n" for line in text.splitlines() if line.startswith(("Tgid:", "Uid:", "VmSwap:")))
    # After the resident size come addresses, which only help attackers.
    head, bracket, rest = text.rpartition(")")
    return f"{head}{bracket} {' '.join(rest.split()[:22])}\n"


def _mounts(text: str, asked: set[str]) -> str:
    """Keep the mounts and mount options that a source uses."""
    lines = []
    for line in text.splitlines():
        for mount in mounts(line):
            told_by = mount.type in ("cgroup", "cgroup2") or mount.point == "/proc/meminfo"  # lxcfs
            if mount.point in asked or mount.windows or told_by:
                device, point, kind = line.split(" ")[:3]
                options = [o for o in mount.options if o in ("ro", "rw", "memory", "aname=drvfs")]
                lines.append(f"{device} {point} {kind} {','.join(options)} 0 0\n")
    return "".join(lines)


def _leads_to_limit(path: str, limited: set[str]) -> bool:
    folder = str(PurePosixPath(path).parent)
    return any(f"/sys/fs/cgroup{box}/".startswith(f"{folder}/") or folder.endswith(box) for box in limited)


def _links(links: Mapping[str, str], files: Mapping[str, str]) -> dict[str, str]:
    """Keep only the names of a process's program and its GPU devices: folders of programs identify users."""
    kept = {}
    for path, target in sorted(links.items()):
        process = _PROCESS.match(path)
        if process is None or f"/proc/{process[1]}/stat" not in files:
            continue
        if path.endswith("/exe"):
            kept[path] = f"/usr/bin/{PurePosixPath(target).name}"
        elif GPU_DEVICE.fullmatch(target):
            kept[path] = target
    return kept


def _nvml() -> dict[str, Any]:
    """Return NVML's answers in the format of nvml.json; nothing where there is no NVML."""
    with contextlib.suppress(NoData, SourceError, ValueError):  # a signal where the driver crashes
        command = python_command("wslgpud.probes.nvml_probe")
        answer = output(command, _NVML_SECONDS, clean_environment(), text='{"record": true}\n')
        recording: dict[str, Any] = safe_files.parsed(answer.encode()).get("recording", {})
        return recording
    return {}


def _kernel_log(host: Host) -> Iterator[str]:
    """Yield the records in /dev/kmsg, without waiting for more."""
    with contextlib.closing(KernelLogSource(host, Config())) as source:
        while not source.caught_up:
            yield from source.records()
