"""A folder that looks like a WSL2 machine, with a stand-in for the powershell.exe of its Windows.

What each Windows answers is a file in ``windows/``; its README.md has the format.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wslgpud.host import Host, StoppedClock

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent / "windows"
WINDOWS = {file.stem: tomllib.loads(file.read_text("utf-8")) for file in sorted(HERE.glob("*.toml"))}
ANSWER: dict[str, Any] = WINDOWS["11-english"]["probe"]["answer"]
#: the scripts of ours, by words that only one of them has
SCRIPTS = {
    "about": "WindowsPrincipal",
    "probe": "vmmem",
    "toast": "ToastNotification",
    "task": "ScheduledTask",
    "size": "Win32_ComputerSystem",
    "folder": "USERPROFILE",
}
#: Notes how it was started, and answers its script out of ``says.json``, see ``spoken``.
POWERSHELL = """#!{python}
import base64, json, os, sys, time
from pathlib import Path
here = Path(sys.argv[0]).parent
script = base64.b64decode(sys.argv[-1]).decode("utf-16-le")
part = next(part for part, word in {scripts!r}.items() if word in script)
start = {{"part": part, "args": sys.argv[1:], "cwd": os.getcwd(), "pid": os.getpid()}}
with (here / "starts").open("a") as starts:
    starts.write(json.dumps({{**start, "interop": os.environ.get("WSL_INTEROP")}}) + "\\n")
said = json.loads((here / "says.json").read_text())[part]
answers = [bytes.fromhex(answer) for answer in said["answers"]]
for given in iter(sys.stdin.readline, "") if part == "probe" else [sys.stdin.readline()]:
    (here / part).write_text(given)
    time.sleep(said["seconds"])
    answer = answers.pop(0) if len(answers) > 1 else answers[0]
    for at in range(0, len(answer), said["piece_bytes"]):
        sys.stdout.buffer.write(answer[at : at + said["piece_bytes"]])
        sys.stdout.flush()
    if said["dies"]:
        break
else:
    (here / "ended").touch()
sys.stderr.buffer.write(bytes.fromhex(said["complaint"]))
sys.exit(said["status"])
"""
FILES = {
    "proc/sys/fs/binfmt_misc/WSLInterop": "enabled\n",
    "proc/meminfo": "MemTotal:  49283072 kB\nMemFree:   29360128 kB\n",
    "proc/vmstat": "",
    "proc/self/mounts": "C:\\134 /mnt/c 9p rw,aname=drvfs;path=C:\\134 0 0\n",
    "proc/1/mounts": "C:\\134 /mnt/c 9p rw,aname=drvfs;path=C:\\134 0 0\n",
    "dev/dxg": "",
}


def spoken(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stand-in's answer to one script: bytes in hexadecimal, and all that a file may leave out."""
    encoding, end = part.get("encoding", "utf-8"), part.get("end", "\n")
    objects = part.get("answers", [part["answer"]] if "answer" in part else [])
    texts = [json.dumps(one, ensure_ascii=False) + end for one in objects] or [part.get("text", "")]
    mark = "\ufeff" if part.get("mark") else ""
    cut = part.get("cut_bytes")
    return {
        "answers": [(mark + text).encode(encoding)[:cut].hex() for text in texts],
        "complaint": part.get("complaint", "").encode(part.get("encoding", "utf-8")).hex(),
        "status": part.get("status", 0),
        "seconds": part.get("seconds", 0),
        "piece_bytes": part.get("piece_bytes", 1 << 20),
        "dies": part.get("dies", False),
    }


class Pc:
    """A machine below ``root`` with a Windows that answers as ``says`` was told, at first as 11-english does."""

    def __init__(self, root: Path, **windows: Any) -> None:
        self.root = root
        # How soon after a failure something happens is said by no machine.
        self.host = Host(root, StoppedClock(1.8e9, 1000.0))
        self.folder = root / "mnt/c/Windows/System32/WindowsPowerShell/v1.0"
        self.folder.mkdir(parents=True)
        for name, text in FILES.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        program = self.folder / "powershell.exe"
        program.write_text(POWERSHELL.format(python=sys.executable, scripts=SCRIPTS))
        program.chmod(0o755)
        self.says(**windows)

    def at(self, seconds: float) -> None:
        """Let so many seconds have passed since the machine was made."""
        self.host.clock.mono = lambda: 1000.0 + seconds  # type: ignore[method-assign]

    def says(self, name: str = "11-english", **parts: Mapping[str, Any]) -> None:
        """Have Windows answer like a file, but for these parts."""
        windows = {**WINDOWS["11-english"], **WINDOWS[name], **parts}
        users = self.root / "mnt/c/Users"
        shutil.rmtree(users, ignore_errors=True)
        for user in windows["users"]:
            (users / user).mkdir(parents=True)
        binfmt = self.root / "proc/sys/fs/binfmt_misc/WSLInterop"
        binfmt.touch() if windows["interop"] else binfmt.unlink()
        (self.folder / "says.json").write_text(json.dumps({part: spoken(windows[part]) for part in SCRIPTS}))

    def starts(self, part: str = "") -> list[dict[str, Any]]:
        """Return how the stand-in was started, for all scripts or for one."""
        file = self.folder / "starts"
        lines = file.read_text().splitlines() if file.exists() else []
        return [start for start in map(json.loads, lines) if part in ("", start["part"])]
