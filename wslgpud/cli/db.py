"""``wslgpud db``: size and health of the history, a backup of it, a smaller file."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from wslgpud.cli import common
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import Fault, argument, database_of, loaded
from wslgpud.cli.console import Console, bar, pairs
from wslgpud.store import Reader, maintenance, shown
from wslgpud.store.maintenance import TIERS, audit
from wslgpud.store.maintenance import info as look
from wslgpud.words import current, t
from wslgpud.words.units import size

app = CommandGroup()


@app.command()
def info(config: common.Config = None, as_json: common.Json = False, state: common.State = None) -> None:
    """Show the size of the history by tier, its age, its growth and how long it is kept.

    Examples:
        wslgpud db info
    """
    target = database_of(config, state)
    with Reader(target) as reader:
        measured = look(reader)
    keep = loaded(config).config.store
    document: dict[str, Any] = {
        "database": shown(target),
        "schema": measured.version,
        "hosts": measured.hosts,
        "series": measured.series,
        "samples": measured.samples,
        "bytes_a_sample": measured.bytes_a_sample,
        "bytes_a_day": measured.bytes_a_day,
        "size_bytes": {"file": measured.file_bytes, "log": measured.wal_bytes, "free_inside": measured.free_bytes},
        "tiers_bytes": measured.tiers,
        "samples_since": common.iso(measured.oldest.raw_wall),
        "minutes_since": common.iso(measured.oldest.minute_wall),
        "hours_since": common.iso(measured.oldest.hour_wall),
        "newest": common.iso(measured.newest_wall),
        "keep": {name: value for name, value in asdict(keep).items() if name != "path"},
        "set_aside": [str(path) for path in measured.set_aside],
    }
    if as_json:
        print(json.dumps(document, indent=2))
        return
    head = {"database": document["database"], "version": measured.version, "count": measured.series}
    print(t("{database}: schema {version}, {count} series of {hosts}", hosts=tuple(measured.hosts), **head))
    rows = [
        (t("size"), t("{room_bytes} at most", room_bytes=(measured.file_bytes, keep.max_bytes))),
        (t("write-ahead log"), size(measured.wal_bytes) if measured.wal_bytes else ""),
        (t("free inside"), size(measured.free_bytes)),
    ]
    if (each := measured.bytes_a_sample) is not None:
        count, number = f"{measured.samples:,}", f"{each:.2f}"
        rows.append((t("samples"), t("{count} at {number} bytes, blocks and index", count=count, number=number)))
    if (day := measured.bytes_a_day) is not None:
        facts = {"day_bytes": day, "days": keep.raw_days, "all_bytes": day * keep.raw_days}
        rows.append((t("samples per day"), t("{day_bytes}; {days} days take {all_bytes}", **facts)))
    for name, wall, days in (
        (t("samples since"), measured.oldest.raw_wall, keep.raw_days),
        (t("minutes since"), measured.oldest.minute_wall, keep.minute_days),
        (t("hours since"), measured.oldest.hour_wall, keep.hour_days),
    ):
        rows.append((name, t("{when}, kept for {days} days", when=_local(wall), days=days)))
    rows.append((t("newest"), _local(measured.newest_wall)))
    Console().print(pairs([*rows, *((t(TIERS[tier][0]), size(taken)) for tier, taken in measured.tiers.items())]))
    for path in document["set_aside"]:
        print("\n" + t("set aside because it was damaged; delete it when it is no longer needed: {path}", path=path))


@app.command()
def check(config: common.Config = None, as_json: common.Json = False, state: common.State = None) -> None:
    """Read every block and compare the summaries with their samples; exit status 1 if anything is wrong.

    The daemon may keep running; it sets a damaged file aside by itself and salvages the rest.

    Examples:
        wslgpud db check
    """
    target = database_of(config, state)
    with Reader(target) as reader, bar(t("checking"), silent=as_json) as progress:
        findings = audit(reader, progress)
    if as_json:
        print(json.dumps({"database": shown(target), "findings": list(map(str, findings))}))
    else:
        lines = map(current().text, findings)
        print("\n".join(lines) if findings else t("{database}: nothing wrong", database=shown(target)))
    if findings:
        raise SystemExit(1)


@app.command()
def backup(
    file: Annotated[Path, argument("FILE", "file of the copy; in a folder it is named after the day")],
    force: common.Force = False,
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Copy the history while the daemon runs; the copy is verified, and never incomplete.

    Examples:
        wslgpud db backup /mnt/backup  # a file named after the day
    """
    target = database_of(config, state)
    if file.is_dir():
        file /= f"wslgpud-{datetime.now().astimezone():%Y-%m-%d}.db"
    if file.exists() and not force:
        raise Fault("{file} exists already; it is left as it is (--force replaces it)", file=str(file))
    with bar(t("copying")) as progress:
        taken = maintenance.backup(target, file, progress)
    print(t("{title}: {text}", title=str(file), text=size(taken)))


@app.command()
def compact(dry_run: common.DryRun = False, config: common.Config = None, state: common.State = None) -> None:
    """Rewrite the file without its free space, while the daemon is stopped.

    Seldom worth it: the daemon returns most free space by itself and reuses the rest.

    Examples:
        wslgpud db compact --dry-run  # only the amount it would free
        sudo systemctl stop wslgpud && sudo wslgpud db compact
    """
    target = database_of(config, state)
    if dry_run:
        before = maintenance.would_free(target)
        print(t("{room_bytes} can be freed", room_bytes=(before.free_bytes, before.file_bytes)))
    else:
        after = maintenance.compact(target)
        print(t("{freed_bytes} freed, {left_bytes} left", freed_bytes=after.free_bytes, left_bytes=after.file_bytes))


def _local(wall: float | None) -> str:
    return t("nothing yet") if wall is None else f"{datetime.fromtimestamp(wall).astimezone():%Y-%m-%d %H:%M}"
