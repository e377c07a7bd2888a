"""``wslgpud wslconfig``: check, show, preset, apply, restore."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
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
from wslgpud.host import Host
from wslgpud.words import Message, current, failure, says, t, template

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

IN_FORCE = template(
    "It takes effect when WSL starts anew. Save your work, then run in Windows:  wsl --shutdown"
)
#: how a setting stands
MATCHES: Mapping[compare.Match, str] = {
    "in force": template("in force"),
    "waiting": template("waits for wsl --shutdown"),
    "default": template("not set"),
    "not visible": template("not visible"),
}


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
        told = [
            {
                name: value if isinstance(value, int) else str(value)
                for name, value in remark._asdict().items()
            }
            for remark in found
        ]
        print(json.dumps(told, indent=2))
    else:
        lines = document.text.splitlines()
        for remark in found:
            _print_remark(remark, lines)
        if not document.sound:
            print(
                t("The file is not valid UTF-8: WSL stops reading where it is not. Save it as UTF-8.") + "\n"
            )
        used = sum(e.state == "used" for e in parsed.entries)
        print(
            t(
                "{path}: {settings}, {remarks}",
                path=place,
                settings=says("{count} setting in use", "{count} settings in use", count=used),
                remarks=says("{count} remark", "{count} remarks", count=len(found)),
            )
        )
    if found or not document.sound:
        raise typer.Exit(1)


def _print_remark(remark: checks.Remark, lines: list[str]) -> None:
    from rich.text import Text  # noqa: PLC0415

    from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks

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
    for heading, whole in ((t("setting"), True), (t("file"), False), (t("machine"), False), ("", True)):
        table.add_column(heading, overflow="fold", no_wrap=whole)
    colours = {"in force": "green", "waiting": "yellow", "default": "dim", "not visible": "dim"}
    for row in rows:
        table.add_row(
            row.key.path,
            Text(compare.quoted(row.key, row.wanted)),
            Text(compare.measured(row.key, row.has)),
            Text(t(MATCHES[row.match]), colours[row.match]),
        )
    Console().print(table)
    print(f"\n{place}")


@app.command()
def keys(as_json: JsonOption = False) -> None:
    """List every setting that WSL knows: section, type, default, since when.

    Examples:
        wslgpud wslconfig keys
    """
    from wslgpud.advise.wslconfig.keys import KEYS, KINDS  # noqa: PLC0415

    if as_json:
        print(json.dumps([dataclasses.asdict(key) for key in KEYS], indent=2))
        return
    from rich.text import Text  # noqa: PLC0415

    from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks

    console = Console(soft_wrap=True)
    for key in KEYS:
        facts = {
            "kind": "|".join(key.choices) if key.choices else t(KINDS[key.kind]),
            "default": t(key.default),
            "since": t(key.since),
        }
        about = (
            t("{kind}, default {default}, since {since}", **facts)
            if key.default
            else t("{kind}, no default, since {since}", **facts)
        )
        console.print(Text.assemble((f"[{key.section}] {key.name}", "bold"), "  ", (about, "dim")))
        console.print(f"    {t(key.meaning)}")


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
    new = _changed(old, chosen)
    purpose = Message(presets.PRESETS[name].purpose)
    print("#", t("{path} with the preset {name}: {purpose}", path=place, name=name, purpose=purpose))
    print(new.replace("\r\n", "\n").rstrip())
    print()
    for setting in chosen:
        line = f"{setting.path}={setting.value}"
        print(t("{setting}: {why}", setting=line, why=setting.why))


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
    _write(Path(place), old, _changed(old, chosen), yes)


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
        raise Fault(t("there is no backup of {path}: wslgpud has never changed it", path=place))
    try:
        new = files.read(chosen)
    except OSError as error:
        raise Fault(t("cannot read {path}: {why}", path=str(chosen), why=failure(error))) from error
    print(t("from {path}", path=str(chosen)))
    _write(Path(place), _document(host, place, file, missing=True), new, yes)


def _settings(host: Host, name: str, memory: str, processors: int) -> list[presets.Setting]:
    if name not in presets.PRESETS:
        raise Fault(
            t("there is no preset {name}; there are {known}", name=name, known=tuple(presets.PRESETS))
        )
    ram = parse.size(memory.upper()) if memory else None
    if memory and (not ram or ram < GIB):  # 64 alone would be bytes
        raise Fault(t("--memory {value}: write it like 64GB", value=memory))
    if not ram or not processors:
        asked = files.windows_size(host)
        if asked is None:
            raise Fault(
                t("Windows cannot be asked for its size from here: add --memory 64GB --processors 32")
            )
        ram, processors = ram or asked[0], processors or asked[1]
    return presets.settings(presets.PRESETS[name], ram, processors)


def _place(host: Host, file: Path | None) -> str:
    if file is not None:
        return str(file)
    try:
        return files.find(host)
    except NotFound as error:
        raise Fault(current().text(error.said)) from error


def _changed(old: Document, chosen: list[presets.Setting]) -> str:
    """Return the file's text with a preset."""
    try:
        return edit.changed(old.text, {setting.path: setting.value for setting in chosen})
    except edit.CannotSet as error:
        raise Fault(current().text(error.said)) from error


def _document(host: Host, place: str, file: Path | None, *, missing: bool = False) -> Document:
    """Return the file's text; one that is not there is empty where that may be."""
    source = file or Path(host.path(place))
    try:
        return files.read(source)
    except FileNotFoundError as error:
        if missing:
            return Document("")
        raise Fault(t("there is no {path}: every setting is at its default", path=place)) from error
    except OSError as error:
        raise Fault(t("cannot read {path}: {why}", path=place, why=failure(error))) from error


def _write(target: Path, old: Document, new: Document | str, yes: bool) -> None:
    if isinstance(new, str):
        if not old.sound:
            raise Fault(
                t(
                    "{path} is not valid {encoding}: save it as UTF-8 first, so that nothing gets lost",
                    path=str(target),
                    encoding=old.encoding,
                )
            )
        new = dataclasses.replace(old, text=new)
    if new.data == old.data:
        print(t("{path} is like that already; nothing to do", path=str(target)))
        return
    _print_difference(old.text, new.text, target)
    if not yes and not typer.confirm(t("Write it?"), default=False):
        print(t("nothing was written"))
        raise typer.Exit(1)
    if target.exists() and files.read(target).data != old.data:
        raise Fault(
            t(
                "{path} was changed by somebody else meanwhile; nothing was written, try again",
                path=str(target),
            )
        )
    try:
        backup = files.replace(target, new, datetime.now().astimezone())
    except OSError as error:
        raise Fault(
            t("cannot write {path}: {why}; it is as it was", path=str(target), why=failure(error))
        ) from error
    print(t("wrote {path}", path=str(target)))
    if backup:
        print(t("the old file is kept as {path}", path=str(backup)))
    print(t(IN_FORCE))


def _print_difference(old: str, new: str, target: Path) -> None:
    from rich.text import Text  # noqa: PLC0415

    from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks

    colours = {"+": "green", "-": "red", "@": "cyan"}
    console = Console(soft_wrap=True)
    now, then = t("{path} now", path=str(target)), t("{path} then", path=str(target))
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), now, then, lineterm="", n=2)
    for line in lines:
        console.print(Text(line, colours.get(line[:1], "")))
