"""``wslgpud wslconfig``: check, show, preset, apply, restore."""

from __future__ import annotations

import dataclasses
import difflib
import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from wslgpud.advise.wslconfig import check as checks
from wslgpud.advise.wslconfig import compare, edit, files, parse, presets
from wslgpud.advise.wslconfig.files import Document, NotFound
from wslgpud.advise.wslconfig.presets import GIB
from wslgpud.cli.commands import App
from wslgpud.cli.common import Fault, HostOption, JsonOption, host_at
from wslgpud.host import Host, NoData, SourceError

app = App(help="Check .wslconfig, compare it with the running VM, switch between presets.")

FileOption = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="this .wslconfig instead of the Windows user's own"),
]
PresetArgument = Annotated[str, typer.Argument(metavar="|".join(presets.PRESETS), help="use of the machine")]
MemoryOption = Annotated[
    str,
    typer.Option("--memory", metavar="SIZE", help="Windows' RAM, like 64GB; asked of Windows otherwise"),
]
ProcessorsOption = Annotated[
    int, typer.Option("--processors", metavar="N", help="Windows' logical processors", min=0)
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]

IN_FORCE = "It takes effect when WSL starts anew. Close your work, then run in Windows:  wsl --shutdown"


@app.command()
def check(file: FileOption = None, as_json: JsonOption = False, host_root: HostOption = None) -> None:
    """Report mistakes in the file with their fixes; exit status 1 if there are any.

    Examples:
        wslgpud wslconfig check
    """
    host = host_at(host_root)
    place = _place(host, file)
    document = _document(host, place, file)
    parsed = parse.parse(document.text, place)
    # Asking Windows takes a second: only where its answer is of use.
    windows = files.windows_size(host) if parsed.get("wsl2.memory") or parsed.get("wsl2.processors") else None
    found = checks.remarks(parsed, *(windows or ()))
    if as_json:
        print(json.dumps([remark._asdict() for remark in found], indent=2))
    else:
        lines = document.text.splitlines()
        for remark in found:
            _print_remark(remark, lines)
        if not document.sound:
            print("The file is not valid UTF-8: WSL stops reading where it is not. Save it as UTF-8.\n")
        used = sum(e.state == "used" for e in parsed.entries)
        print(f"{place}: {used} settings count, {len(found)} remark{'s' * (len(found) != 1)}")
    if found or not document.sound:
        raise typer.Exit(1)


def _print_remark(remark: checks.Remark, lines: list[str]) -> None:
    from rich.text import Text  # noqa: PLC0415

    from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks

    console = Console(soft_wrap=True)
    source = lines[remark.line - 1].strip() if remark.line <= len(lines) else ""
    console.print(Text.assemble((f"line {remark.line}: ", "bold"), source))
    if remark.wsl:
        console.print(Text(f"  WSL says: {remark.wsl}", "dim"))
    console.print(Text(f"  {remark.why}"))
    console.print(Text.assemble("  ", ("fix: ", "green"), remark.fix, "\n"))


@app.command()
def show(file: FileOption = None, as_json: JsonOption = False, host_root: HostOption = None) -> None:
    """Compare each setting with the running virtual machine.

    Examples:
        wslgpud wslconfig show
    """
    host = host_at(host_root)
    place = _place(host, file)
    parsed = parse.parse(_document(host, place, file).text, place)
    rows = compare.rows(parsed, host)
    if as_json:
        facts = [
            {
                "key": r.key.path,
                "file": r.wanted,
                "machine": r.has,
                "state": r.match,
                "default": r.key.default,
            }
            for r in rows
        ]
        print(json.dumps(facts, indent=2))
        return
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("setting", "file", "machine", ""):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("setting", ""))
    colours = {"in force": "green", "waiting": "yellow", "default": "dim", "not visible": "dim"}
    words = {"waiting": "waits for wsl --shutdown", "default": "not set"}
    for row in rows:
        table.add_row(
            row.key.path,
            Text(compare.shown(row.key, row.wanted)),
            Text(compare.shown(row.key, row.has)),
            Text(words.get(row.match, row.match), colours[row.match]),
        )
    Console().print(table)
    print(f"\n{place}")


@app.command()
def keys(as_json: JsonOption = False) -> None:
    """List every setting that WSL knows: section, type, default, since when.

    Examples:
        wslgpud wslconfig keys
    """
    from wslgpud.advise.wslconfig.keys import KEYS  # noqa: PLC0415

    if as_json:
        print(json.dumps([dataclasses.asdict(key) for key in KEYS], indent=2))
        return
    from rich.table import Table  # noqa: PLC0415

    from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("key", "type", "default", "since", "meaning"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "key")
    for key in KEYS:
        kind = "|".join(key.choices) if key.choices else key.kind
        table.add_row(f"[{key.section}] {key.name}", kind, key.default, key.since, key.meaning)
    Console().print(table)


@app.command()
def preset(
    name: PresetArgument,
    memory: MemoryOption = "",
    processors: ProcessorsOption = 0,
    file: FileOption = None,
    host_root: HostOption = None,
) -> None:
    """Print the file that a preset would make of yours, and why; nothing is written.

    Examples:
        wslgpud wslconfig preset training
    """
    host = host_at(host_root)
    chosen = _settings(host, name, memory, processors)
    try:
        place = _place(host, file)
        old = _document(host, place, file, missing=True)
    except Fault:  # it is only shown; a machine without a file of its own may want one
        place, old = files.NAME, Document("")
    print(f"# {place} with preset {name}: {presets.PRESETS[name].purpose}")
    print(edit.changed(old.text, {s.path: s.value for s in chosen}).replace("\r\n", "\n").rstrip())
    print()
    for setting in chosen:
        print(f"{setting.path}={setting.value}: {setting.why}")


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
    chosen = _settings(host, name, memory, processors)
    place = _place(host, file)
    old = _document(host, place, file, missing=True)
    _write(Path(place), old, edit.changed(old.text, {s.path: s.value for s in chosen}), yes)


@app.command()
def restore(
    backup: Annotated[
        Path | None, typer.Argument(metavar="BACKUP", help="file to go back to; the newest otherwise")
    ] = None,
    file: FileOption = None,
    yes: YesOption = False,
) -> None:
    """Go back to an earlier version of the file; the current one is kept as a backup.

    Examples:
        wslgpud wslconfig restore
    """
    host = Host()
    place = _place(host, file)
    kept = files.backups(Path(place)) if Path(place).parent.is_dir() else []
    chosen = backup or (kept[0] if kept else None)
    if chosen is None:
        raise Fault(f"there is no backup of {place}: none was ever changed by us")
    try:
        new = files.read(chosen)
    except OSError as error:
        raise Fault(f"cannot read {chosen}: {error.strerror}") from error
    print(f"from {chosen}")
    _write(Path(place), _document(host, place, file, missing=True), new, yes)


def _settings(host: Host, name: str, memory: str, processors: int) -> list[presets.Setting]:
    if name not in presets.PRESETS:
        raise Fault(f"there is no preset {name}; there are {', '.join(presets.PRESETS)}")
    ram = parse.size(memory.upper()) if memory else None
    if memory and (not ram or ram < GIB):  # 64 alone would be bytes
        raise Fault(f"--memory {memory}: write it like 64GB")
    if not ram or not processors:
        asked = files.windows_size(host)
        if asked is None:
            raise Fault(
                "Windows cannot be asked for its size from here: give it as --memory 64GB --processors 32"
            )
        ram, processors = ram or asked[0], processors or asked[1]
    return presets.settings(presets.PRESETS[name], ram, processors)


def _place(host: Host, file: Path | None) -> str:
    if file is not None:
        return str(file)
    try:
        return files.find(host)
    except NotFound as error:
        raise Fault(str(error)) from error


def _document(host: Host, place: str, file: Path | None, *, missing: bool = False) -> Document:
    """Return the file's text; one that is not there is empty where that may be."""
    source = file or Path(host.path(place))
    try:
        return files.read(source)
    except FileNotFoundError as error:
        if missing:
            return Document("")
        raise Fault(f"{place} is not there: all settings are at their defaults") from error
    except (OSError, NoData, SourceError) as error:
        raise Fault(f"cannot read {place}: {error}") from error


def _write(target: Path, old: Document, new: Document | str, yes: bool) -> None:
    if isinstance(new, str):
        if not old.sound:
            raise Fault(
                f"{target} is not valid {old.encoding}: save it as UTF-8 first, so that nothing gets lost"
            )
        new = dataclasses.replace(old, text=new)
    if new.data == old.data:
        print(f"{target} is like that already; nothing to do")
        return
    _print_difference(old.text, new.text, target)
    if not yes and not typer.confirm("Write it?", default=False):
        print("nothing was written")
        raise typer.Exit(1)
    if target.exists() and files.read(target).data != old.data:
        raise Fault(f"{target} has been changed by somebody else meanwhile; nothing was written, try again")
    try:
        backup = files.replace(target, new, datetime.now().astimezone())
    except OSError as error:
        raise Fault(f"cannot write {target}: {error.strerror}; it is as it was") from error
    print(f"wrote {target}" + (f"\nkept {backup}" if backup else ""))
    print(IN_FORCE)


def _print_difference(old: str, new: str, target: Path) -> None:
    from rich.text import Text  # noqa: PLC0415

    from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks

    colours = {"+": "green", "-": "red", "@": "cyan"}
    console = Console(soft_wrap=True)
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"{target} now", f"{target} then", lineterm="", n=2
    )
    for line in lines:
        console.print(Text(line, colours.get(line[:1], "")))
