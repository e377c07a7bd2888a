"""``wslgpud wslconfig``: check, show, set, preset, apply, restore."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated

import click
from rich.text import Text

from wslgpud.advise.wslconfig import check as checks
from wslgpud.advise.wslconfig import compare, files, presets
from wslgpud.advise.wslconfig.files import ConfigText
from wslgpud.app.process import host_at
from wslgpud.cli import common
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import Fault, argument, flag, option, refused
from wslgpud.cli.console import Console, table_of
from wslgpud.host import Host
from wslgpud.probes import wsl_config
from wslgpud.probes.interop import WSL_CONF_PATH
from wslgpud.probes.wsl_config import FILES, KINDS, WSL_CONF, WSLCONFIG, WslFile
from wslgpud.words import Message, MessageError, current, says, t, template

app = CommandGroup()

FileOption = Annotated[Path | None, option("--file", "FILE", "this .wslconfig instead of the Windows user's own")]
PresetArgument = Annotated[str, argument("|".join(presets.PRESETS), "use of the machine")]
MemoryOption = Annotated[str, option("--memory", "SIZE", "Windows' RAM, like 64GB; queried from Windows by default")]
ProcessorsOption = Annotated[int, option("--processors", "N", "Windows' logical processors", min=0)]
YesOption = Annotated[bool, flag("--yes -y", "do not ask")]

IN_FORCE = template("It takes effect when WSL restarts. Save your work, then run in Windows:  wsl --shutdown")
_ABSENT = template("there is no {path}: every setting is at its default")
#: state of a setting, and its colour
MATCHES: Mapping[compare.Match, tuple[str, str]] = {
    "in force": (template("in force"), "green"),
    "waiting": (template("waits for wsl --shutdown"), "yellow"),
    "default": (template("not set"), "dim"),
    "not visible": (template("not visible"), "dim"),
}


@app.command()
def check(file: FileOption = None, as_json: common.Json = False, host_root: common.HostRoot = None) -> None:
    """Report mistakes in .wslconfig and /etc/wsl.conf with their fixes; exit status 1 if there are any.

    Examples:
        wslgpud wslconfig check
        wslgpud wslconfig check --file /etc/wsl.conf
    """
    host, reported = host_at(host_root), []
    # The optional file first: where Windows' user is not known, the command ends at the other.
    for wanted in (WSL_CONF, WSLCONFIG) if file is None and host.exists(WSL_CONF_PATH) else (WSLCONFIG,):
        place, document = files.named(host, file, wanted, missing=file is None)
        declared = files.declared(place)
        parsed = wsl_config.parse(document.text, place, declared)
        # Querying Windows takes a second: only where its answer matters.
        sized = declared is WSLCONFIG and (parsed.get("wsl2.memory") or parsed.get("wsl2.processors"))
        remarks = checks.remarks(parsed, *((files.windows_size(host) if sized else None) or ()))
        reported += [{"file": place, **remark._asdict()} for remark in remarks]
        if as_json:
            continue
        if file is None and not host.exists(place):
            print(t(_ABSENT, path=place))
            continue
        lines = document.text.splitlines()
        for remark in remarks:
            _print_remark(remark, lines)
        used = sum(entry.state == "used" for entry in parsed.entries)
        settings = says("{count} setting in use", "{count} settings in use", count=used)
        remark_count = says("{count} remark", "{count} remarks", count=len(remarks))
        print(t("{path}: {settings}, {remarks}", path=place, settings=settings, remarks=remark_count))
    if as_json:
        print(json.dumps(reported, default=str, indent=2))
    if reported:
        raise SystemExit(1)


def _print_remark(remark: checks.Remark, lines: list[str]) -> None:
    console, words = Console(soft_wrap=True), current()
    source = lines[remark.line - 1].strip() if remark.line <= len(lines) else ""
    console.print(Text.assemble((t("line {number}:", number=remark.line) + " ", "bold"), source))
    if remark.wsl:
        # Foreign text, and a file's name may be long: not wrapped.
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
    place, document = files.named(host, file, missing=file is None)
    rows = compare.rows(wsl_config.parse(document.text, place), host)
    if as_json:
        names = ("key", "file", "machine", "state", "default")
        facts = ((r.key.path, r.wanted, r.has, r.match, r.key.default) for r in rows)
        common.print_json([dict(zip(names, one, strict=True)) for one in facts])
        return
    shown = []
    for row in rows:
        wanted, has = Text(compare.quoted(row.key, row.wanted)), Text(compare.measured(row.key, row.has))
        state, colour = MATCHES[row.match]
        shown.append((row.key.path, wanted, has, Text(t(state), colour)))
    Console().print(table_of("<" + t("setting"), "~" + t("file"), "~" + t("machine"), "<", rows=shown))
    print("\n" + (place if file or host.exists(place) else t(_ABSENT, path=place)))


@app.command()
def keys(as_json: common.Json = False) -> None:
    """List every setting that WSL knows: section, type, default, since when.

    Examples:
        wslgpud wslconfig keys
    """
    if as_json:
        common.print_json([{"file": file.name, **dataclasses.asdict(key)} for file in FILES for key in file.keys])
        return
    console = Console(soft_wrap=True)
    for name, key in ((file.name, key) for file in FILES for key in file.keys):
        kind = "|".join(key.choices) if key.choices else t(KINDS[key.kind])
        default = {"default": t(key.default)} if key.default else {}
        about = t("{kind}[, default {default}], since {since}", kind=kind, since=t(key.since), **default)
        console.print(Text.assemble((f"{name} [{key.section}] {key.name}", "bold"), "  ", (about, "dim")))
        console.print(f"    {t(key.meaning)}")


@app.command()
def preset(
    name: PresetArgument,
    memory: MemoryOption = "",
    processors: ProcessorsOption = 0,
    file: FileOption = None,
    host_root: common.HostRoot = None,
) -> None:
    """Print your file with a preset applied, and the reasons; nothing is written.

    Examples:
        wslgpud wslconfig preset training
    """
    host = host_at(host_root)
    chosen, place, old = presets.for_machine(host, name, memory, processors), WSLCONFIG.name, ConfigText("")
    with contextlib.suppress(MessageError):  # only for display; the machine may have no file yet
        place, old = files.named(host, file, missing=True)
    purpose = Message(presets.PRESETS[name].purpose)
    print("#", t("{path} with the preset {name}: {purpose}", path=place, name=name, purpose=purpose))
    print(_changed(old, {one.path: one.value for one in chosen}).text.replace("\r\n", "\n").rstrip() + "\n")
    for one in chosen:
        print(t("{setting}: {why}", setting=f"{one.path}={one.value}", why=one.why))


def _changed(old: ConfigText, values: Mapping[str, str], file: WslFile = WSLCONFIG) -> ConfigText:
    return dataclasses.replace(old, text=files.changed(old.text, values, file))


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
    chosen, (place, old) = presets.for_machine(host, name, memory, processors), files.named(host, file, missing=True)
    _write(Path(place), old, _changed(old, {one.path: one.value for one in chosen}), yes)


@app.command(name="set")
def set_(
    settings: Annotated[list[str], argument("KEY=VALUE", "like wsl2.memory=24GB or boot.systemd=true")],
    file: FileOption = None,
    yes: YesOption = False,
) -> None:
    """Set a key in the file where WSL reads it, after showing the difference; the old file is kept beside it.

    Examples:
        wslgpud wslconfig set wsl2.memory=24GB
        sudo wslgpud wslconfig set boot.systemd=true  # in /etc/wsl.conf
    """
    for declared, values in files.wanted(settings, FILES if file is None else (files.declared(file),)).items():
        place, old = files.named(Host(), file, declared, missing=True)
        _write(Path(place), old, _changed(old, values, declared), yes)


@app.command()
def restore(
    backup: Annotated[Path | None, argument("BACKUP", "file to restore; the newest by default")] = None,
    file: FileOption = None,
    yes: YesOption = False,
) -> None:
    """Restore an earlier version of the file; the current one is kept as a backup.

    Examples:
        wslgpud wslconfig restore
    """
    place, old = files.named(Host(), file, missing=True)
    backups = files.backups(Path(place)) if Path(place).parent.is_dir() else []
    if (chosen := backup or next(iter(backups), None)) is None:
        raise Fault("there is no backup of {path}: wslgpud has never changed it", path=place)
    with refused("cannot read {path}: {why}", path=str(chosen)):
        new = files.read(chosen)
    print(t("from {path}", path=str(chosen)))
    _write(Path(place), old, new, yes)


def _write(target: Path, old: ConfigText, new: ConfigText, yes: bool) -> None:
    if new.data == old.data:
        print(t("{path} has these settings already; nothing to do", path=str(target)))
        return
    console, colours = Console(soft_wrap=True), {"+": "green", "-": "red", "@": "cyan"}
    before, after = t("{path} now", path=str(target)), t("{path} then", path=str(target))
    lines = difflib.unified_diff(old.text.splitlines(), new.text.splitlines(), before, after, lineterm="", n=2)
    for line in lines:
        console.print(Text(line, colours.get(line[:1], "")))
    if not yes and not click.confirm(t("Write it?"), default=False):
        print(t("nothing was written"))
        raise SystemExit(1)
    if target.exists() and files.read(target).data != old.data:
        raise Fault("{path} was changed by another program meanwhile; nothing was written, try again", path=str(target))
    with refused("cannot write {path}: {why}; it is unchanged", path=str(target)):
        backup = files.replace(target, new, datetime.now().astimezone())
    print(t("wrote {path}", path=str(target)))
    if backup:
        print(t("the old file is kept as {path}", path=str(backup)))
    print(t(IN_FORCE))
