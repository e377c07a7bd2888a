"""``wslgpud wslconfig``: check, show, preset, apply, restore."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from wslgpud.advise.wslconfig import check as checks
from wslgpud.advise.wslconfig import compare, files, parse, presets
from wslgpud.advise.wslconfig.files import Document
from wslgpud.advise.wslconfig.keys import KEYS, KINDS
from wslgpud.advise.wslconfig.presets import GIB
from wslgpud.app.process import host_at
from wslgpud.cli import common
from wslgpud.cli.commands import App
from wslgpud.cli.common import Fault, argument, flag, option, refused
from wslgpud.cli.console import Console, table_of
from wslgpud.host import Host
from wslgpud.words import Message, MessageError, current, says, t, template

app = App(help="Check .wslconfig, compare it with the running VM, switch between presets.")

FileOption = Annotated[Path | None, option("--file", "FILE", "this .wslconfig instead of the Windows user's own")]
PresetArgument = Annotated[str, argument("|".join(presets.PRESETS), "use of the machine")]
MemoryOption = Annotated[str, option("--memory", "SIZE", "Windows' RAM, like 64GB; asked of Windows otherwise")]
ProcessorsOption = Annotated[int, option("--processors", "N", "Windows' logical processors", min=0)]
YesOption = Annotated[bool, flag("--yes -y", "do not ask")]

IN_FORCE = template("It takes effect when WSL starts anew. Save your work, then run in Windows:  wsl --shutdown")
#: how a setting stands, and in which colour
MATCHES: Mapping[compare.Match, tuple[str, str]] = {
    "in force": (template("in force"), "green"),
    "waiting": (template("waits for wsl --shutdown"), "yellow"),
    "default": (template("not set"), "dim"),
    "not visible": (template("not visible"), "dim"),
}


@app.command()
def check(file: FileOption = None, as_json: common.Json = False, host_root: common.HostRoot = None) -> None:
    """Report mistakes in the file with their fixes; exit status 1 if there are any.

    Examples:
        wslgpud wslconfig check
    """
    host = host_at(host_root)
    place, document = _document(host, file)
    parsed = parse.parse(document.text, place)
    # Asking Windows takes a second: only where its answer is of use.
    windows = files.windows_size(host) if parsed.get("wsl2.memory") or parsed.get("wsl2.processors") else None
    found = checks.remarks(parsed, *(windows or ()))
    if as_json:
        print(json.dumps([remark._asdict() for remark in found], default=str, indent=2))
    else:
        lines = document.text.splitlines()
        for remark in found:
            _print_remark(remark, lines)
        if not document.sound:
            print(t("The file is not valid UTF-8: WSL stops reading where it is not. Save it as UTF-8.") + "\n")
        used = sum(e.state == "used" for e in parsed.entries)
        settings = says("{count} setting in use", "{count} settings in use", count=used)
        remarks = says("{count} remark", "{count} remarks", count=len(found))
        print(t("{path}: {settings}, {remarks}", path=place, settings=settings, remarks=remarks))
    if found or not document.sound:
        raise typer.Exit(1)


def _print_remark(remark: checks.Remark, lines: list[str]) -> None:
    console = Console(soft_wrap=True)
    source = lines[remark.line - 1].strip() if remark.line <= len(lines) else ""
    words = current()
    console.print(Text.assemble((t("line {number}:", number=remark.line) + " ", "bold"), source))
    if remark.wsl:
        # Foreign, and a file's name may be long: as it is.
        console.print(Text.assemble("  ", t("WSL says:"), " ", remark.wsl, style="dim"))
    console.print(Text(f"  {words.text(remark.why)}"))
    console.print(Text.assemble("  ", (t("fix:") + " ", "green"), words.text(remark.fix), "\n"))


@app.command()
def show(file: FileOption = None, as_json: common.Json = False, host_root: common.HostRoot = None) -> None:
    """Compare each setting with the running virtual machine.

    Examples:
        wslgpud wslconfig show
    """
    host = host_at(host_root)
    place, document = _document(host, file)
    rows = compare.rows(parse.parse(document.text, place), host)
    if as_json:
        names = ("key", "file", "machine", "state", "default")
        facts = ((r.key.path, r.wanted, r.has, r.match, r.key.default) for r in rows)
        common.print_json([dict(zip(names, one, strict=True)) for one in facts])
        return
    table = table_of("<" + t("setting"), "~" + t("file"), "~" + t("machine"), "<")
    for row in rows:
        wanted, has = Text(compare.quoted(row.key, row.wanted)), Text(compare.measured(row.key, row.has))
        state, colour = MATCHES[row.match]
        table.add_row(row.key.path, wanted, has, Text(t(state), colour))
    Console().print(table)
    print(f"\n{place}")


@app.command()
def keys(as_json: common.Json = False) -> None:
    """List every setting that WSL knows: section, type, default, since when.

    Examples:
        wslgpud wslconfig keys
    """
    if as_json:
        common.print_json([dataclasses.asdict(key) for key in KEYS])
        return
    console = Console(soft_wrap=True)
    for key in KEYS:
        facts = {"kind": "|".join(key.choices) if key.choices else t(KINDS[key.kind]), "since": t(key.since)}
        if key.default:
            about = t("{kind}, default {default}, since {since}", default=t(key.default), **facts)
        else:
            about = t("{kind}, no default, since {since}", **facts)
        console.print(Text.assemble((f"[{key.section}] {key.name}", "bold"), "  ", (about, "dim")))
        console.print(f"    {t(key.meaning)}")


@app.command()
def preset(
    name: PresetArgument,
    memory: MemoryOption = "",
    processors: ProcessorsOption = 0,
    file: FileOption = None,
    host_root: common.HostRoot = None,
) -> None:
    """Print the file that a preset would make of yours, and why; nothing is written.

    Examples:
        wslgpud wslconfig preset training
    """
    host = host_at(host_root)
    chosen, place, old = _settings(host, name, memory, processors), files.NAME, Document("")
    with contextlib.suppress(MessageError):  # it is only shown; a machine without a file of its own may want one
        place, old = _document(host, file, missing=True)
    new = parse.changed(old.text, {setting.path: setting.value for setting in chosen})
    purpose = Message(presets.PRESETS[name].purpose)
    print("#", t("{path} with the preset {name}: {purpose}", path=place, name=name, purpose=purpose))
    print(new.replace("\r\n", "\n").rstrip())
    print()
    for one in chosen:
        print(t("{setting}: {why}", setting=f"{one.path}={one.value}", why=one.why))


@app.command()
def apply(
    name: PresetArgument,
    memory: MemoryOption = "",
    processors: ProcessorsOption = 0,
    file: FileOption = None,
    yes: YesOption = False,
) -> None:
    """Write a preset into the file, after showing the difference; the old file is kept beside it.

    Examples:
        wslgpud wslconfig apply training
    """
    host = Host()
    chosen, (place, old) = _settings(host, name, memory, processors), _document(host, file, missing=True)
    _write(Path(place), old, parse.changed(old.text, {setting.path: setting.value for setting in chosen}), yes)


@app.command()
def restore(
    backup: Annotated[Path | None, argument("BACKUP", "file to go back to; the newest otherwise")] = None,
    file: FileOption = None,
    yes: YesOption = False,
) -> None:
    """Go back to an earlier version of the file; the current one is kept as a backup.

    Examples:
        wslgpud wslconfig restore
    """
    place, old = _document(Host(), file, missing=True)
    kept = files.backups(Path(place)) if Path(place).parent.is_dir() else []
    if (chosen := backup or next(iter(kept), None)) is None:
        raise Fault("there is no backup of {path}: wslgpud has never changed it", path=place)
    with refused("cannot read {path}: {why}", path=str(chosen)):
        new = files.read(chosen)
    print(t("from {path}", path=str(chosen)))
    _write(Path(place), old, new, yes)


def _settings(host: Host, name: str, memory: str, processors: int) -> list[presets.Setting]:
    if name not in presets.PRESETS:
        raise Fault("there is no preset {name}; there are {known}", name=name, known=tuple(presets.PRESETS))
    ram = parse.size(memory.upper()) if memory else None
    if memory and (not ram or ram < GIB):  # 64 alone would be bytes
        raise Fault("--memory {value}: write it like 64GB", value=memory)
    if not ram or not processors:
        asked = files.windows_size(host)
        if asked is None:
            raise Fault("Windows cannot be asked for its size from here: add --memory 64GB --processors 32")
        ram, processors = ram or asked[0], processors or asked[1]
    return presets.settings(presets.PRESETS[name], ram, processors)


def _document(host: Host, file: Path | None, *, missing: bool = False) -> tuple[str, Document]:
    """Return where the file is, and its text; one that is not there is empty where that may be."""
    place = str(file) if file is not None else files.find(host)
    with refused("cannot read {path}: {why}", path=place):
        try:
            return place, files.read(file or Path(host.path(place)))
        except FileNotFoundError as error:
            if missing:
                return place, Document("")
            raise Fault("there is no {path}: every setting is at its default", path=place) from error


def _write(target: Path, old: Document, new: Document | str, yes: bool) -> None:
    if isinstance(new, str):
        if not old.sound:
            facts = {"path": str(target), "encoding": old.encoding}
            raise Fault("{path} is not valid {encoding}: save it as UTF-8 first, so that nothing gets lost", **facts)
        new = dataclasses.replace(old, text=new)
    if new.data == old.data:
        print(t("{path} is like that already; nothing to do", path=str(target)))
        return
    _print_difference(old.text, new.text, target)
    if not yes and not typer.confirm(t("Write it?"), default=False):
        print(t("nothing was written"))
        raise typer.Exit(1)
    if target.exists() and files.read(target).data != old.data:
        raise Fault("{path} was changed by somebody else meanwhile; nothing was written, try again", path=str(target))
    with refused("cannot write {path}: {why}; it is as it was", path=str(target)):
        backup = files.replace(target, new, datetime.now().astimezone())
    print(t("wrote {path}", path=str(target)))
    if backup:
        print(t("the old file is kept as {path}", path=str(backup)))
    print(t(IN_FORCE))


def _print_difference(old: str, new: str, target: Path) -> None:
    colours = {"+": "green", "-": "red", "@": "cyan"}
    console = Console(soft_wrap=True)
    now, then = t("{path} now", path=str(target)), t("{path} then", path=str(target))
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), now, then, lineterm="", n=2)
    for line in lines:
        console.print(Text(line, colours.get(line[:1], "")))
