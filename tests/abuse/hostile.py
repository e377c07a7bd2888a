"""Machines and databases in which every text tries to command the terminal that shows it."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.hosts.machines import HERE as HOSTS
from wslgpud.store.schema import dumps

#: Harmless letters that come with it: where they are shown, the attack was, too.
MARK = "PWN"
#: Title, clipboard, a clear screen, hidden letters, each with ESC and some with their C1 form; directions of
#: writing, zero width, a tag; DEL. None of them ends a line, so that it fits into the kernel's tables.
ATTACK = (
    f"{MARK}\x1b]0;t\x07\x1b]52;c;cm0=\x07\x1b[2J\x1b[1;1H\x1b[8m\x9d0;t\x9c\x9b2J\x90q\x9c"
    "\u202e\u2066\u2069\u200e\u200f\u061c\u200b\ufeff\U000e0041\x7f\x08"
)
#: What a rewritten row of a database may hold besides: other ends of lines, and half a surrogate.
ATTACK_OF_ROWS = f"{ATTACK}\x0b\x0c\r\x85\u2028\u2029"
#: words that programs decide by: with another one a row is refused, and is no attack
_KEPT = {
    "verdict",
    "mode",
    "kind",
    "class",
    "outcome",
    "level",
    "old",
    "new",
    "previous_level",
    "health",
    "state",
    "at",
    "since",
    "opened",
    "closed",
    "seen_by",
    "type",
    "event",
    "torch_abi",
}
#: as above; ticks and figures
_KEPT_COLUMNS = {("series", "kind"), ("series", "metric"), ("stress_run", "verdict")}
_FIGURES = {"batch", "rollup_minute", "schema_migration"}


def poisoned(value: Any, attack: str = ATTACK_OF_ROWS) -> Any:
    """Return JSON with the attack behind every text in it."""
    if isinstance(value, dict):
        return {k: v if k in _KEPT else poisoned(v, attack) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(item, attack) for item in value]
    # Of constants in capitals (NVML's) a program knows each.
    return value + attack if isinstance(value, str) and not value.isupper() else value


def poison_database(file: Path) -> int:
    """Put the attack behind every text of a daemon's database; return how many were changed."""
    count = 0
    with closing(sqlite3.connect(file)) as database, database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [(name, kind) for _, name, kind, *_ in database.execute(f"PRAGMA table_info({table})")]
            for column in (name for name, kind in columns if kind.upper() == "TEXT"):
                if (table, column) in _KEPT_COLUMNS or table in _FIGURES:
                    continue
                rows = database.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
                for row, text in rows:
                    if isinstance(text, str) and (new := _poisoned_text(text)) != text:
                        change = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
                        database.execute(change, (new, row))
                        count += 1
    return count


def _poisoned_text(text: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        return text + ATTACK_OF_ROWS
    # As the store writes it: it looks a series up by this very text.
    return dumps(poisoned(document)) if isinstance(document, dict | list) else text


def machine(name: str, folder: Path) -> Path:
    """Copy a recorded machine to ``folder``, with the attack in all that its users and devices can name."""
    shutil.copytree(HOSTS / name, folder)
    for file in (folder / "host.json", folder / "nvml.json", folder / "windows.json"):
        if file.exists():
            document = json.loads(file.read_text())
            kept = {key: document.pop(key) for key in ("kind", "ticks", "wall", "mono") if key in document}
            disks = {point + ATTACK: space for point, space in document.pop("disks", {}).items()}
            file.write_text(json.dumps({**poisoned(document, ATTACK), **kept, "disks": disks}))
    root = folder / "root"
    _rewrite(root, "proc/*/stat", lambda text: re.sub(r"\((.*)\)", rf"(\1{ATTACK})", text))
    _rewrite(root, "proc/*/comm", lambda text: text.strip() + ATTACK + "\n")
    _rewrite(root, "proc/*/cmdline", lambda text: text.rstrip("\0") + ATTACK + "\0")
    _rewrite(root, "proc/*/mounts", lambda text: re.sub(r"(?m)^(\S+ /\S*)", rf"\1{ATTACK}", text))
    _rewrite(root, "proc/net/dev", lambda text: re.sub(r"(?m)^( *[a-z]\w*):", rf"\1{ATTACK}:", text))
    _rewrite(root, "proc/diskstats", lambda text: re.sub(r"(?m)^( *\d+ +\d+ \w+)", rf"\1{ATTACK}", text))
    _rewrite(root, "dev/kmsg", lambda text: re.sub(r"(?m)(.)$", rf"\1{ATTACK}", text))
    _rewrite(root, "etc/wsl.conf", lambda text: text.rstrip() + f"\n[{ATTACK}]\nx={ATTACK}\n")
    for group in sorted(root.glob("sys/fs/cgroup/*/"), reverse=True):
        group.rename(group.with_name(group.name + ATTACK))
    return folder


def _rewrite(root: Path, pattern: str, change: Callable[[str], str]) -> None:
    for file in root.glob(pattern):
        if file.is_file():
            file.write_text(change(file.read_text()))


def trace(source: Path, target: Path) -> Path:
    """Copy a recording with the attack in its names."""
    lines = gzip.decompress(source.read_bytes()).decode().splitlines()
    target.write_text("".join(json.dumps(poisoned(json.loads(line))) + "\n" for line in lines))
    return target
