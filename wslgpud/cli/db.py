"""``wslgpud db``: what the history consists of, whether it is sound, a copy of it, a smaller file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from wslgpud.cli.common import Commands, ConfigOption, Fault, JsonOption, StateOption, database_of, loaded
from wslgpud.cli.progress import bar
from wslgpud.units import size

app = typer.Typer(
    cls=Commands, help="Look into the history's database, check, copy or compact it.", no_args_is_help=True
)
_DAY = 86400.0


@contextmanager
def _explained() -> Iterator[None]:
    from wslgpud.store import StoreError  # noqa: PLC0415 - the database only when asked for

    try:
        yield
    except StoreError as error:
        raise Fault(str(error)) from error


@app.command()
def info(config: ConfigOption = None, as_json: JsonOption = False, state: StateOption = None) -> None:
    """What takes the room, since when, how fast it grows, and for how long it is kept."""
    from wslgpud.store import Reader, shown  # noqa: PLC0415 - see above
    from wslgpud.store.info import info as look  # noqa: PLC0415

    target = database_of(config, state)
    with _explained(), Reader(target) as reader:
        found = look(reader)
    keep = loaded(config).config.store
    document: dict[str, Any] = {
        "database": shown(target),
        "schema": found.version,
        "hosts": found.hosts,
        "series": found.series,
        "samples": found.samples,
        "bytes_a_sample": found.bytes_a_sample,
        "bytes_a_day": found.bytes_a_day,
        "size_bytes": {"file": found.file_bytes, "log": found.wal_bytes, "free inside": found.free_bytes},
        "tiers_bytes": found.tiers,
        "samples_since": _iso(found.oldest.raw_wall),
        "minutes_since": _iso(found.oldest.minute_wall),
        "hours_since": _iso(found.oldest.hour_wall),
        "newest": _iso(found.newest_wall),
        "keep": asdict(keep) | {"path": None},
        "set_aside": [str(path) for path in found.set_aside],
    }
    del document["keep"]["path"]
    if as_json:
        print(json.dumps(document, indent=2))
        return
    print("\n".join(_readable(document)))


def _readable(found: dict[str, Any]) -> Iterator[str]:
    sizes, keep = found["size_bytes"], found["keep"]
    hosts = ", ".join(found["hosts"])
    yield f"{found['database']}: schema {found['schema']}, {found['series']} series of {hosts}"

    def line(name: str, text: str) -> str:
        return f"  {name:<18}{text}"

    log = f", log {size(sizes['log'])}" if sizes["log"] else ""
    yield line("size", f"{size(sizes['file'])} of at most {size(keep['max_bytes'])}{log};"
                       f" free inside {size(sizes['free inside'])}")  # fmt: skip
    if found["bytes_a_sample"] is not None:
        yield line(
            "samples", f"{found['samples']:,} at {found['bytes_a_sample']:.2f} bytes, blocks and index"
        )
    if found["bytes_a_day"] is not None:
        month = size(found["bytes_a_day"] * keep["raw_days"])
        yield line("samples a day", f"{size(found['bytes_a_day'])}; {keep['raw_days']:g} days take {month}")
    yield ""
    for tier, days in (("samples", "raw_days"), ("minutes", "minute_days"), ("hours", "hour_days")):
        yield line(f"{tier} since", f"{_local(found[f'{tier}_since'])}, kept for {keep[days]:g} days")
    yield line("newest", _local(found["newest"]))
    yield ""
    yield from (line(tier, f"{size(taken):>8}") for tier, taken in found["tiers_bytes"].items())
    for path in found["set_aside"]:
        yield f"\nset aside because it was damaged; delete it when you need it no more: {path}"


@app.command()
def check(config: ConfigOption = None, as_json: JsonOption = False, state: StateOption = None) -> None:
    """Read every block and hold the minutes against their samples; exit status 1 if anything is wrong.

    Goes beside a running daemon, which sets a damaged file aside by itself and saves what can be read.
    """
    from wslgpud.store import Reader, shown  # noqa: PLC0415 - see above
    from wslgpud.store.audit import audit  # noqa: PLC0415

    target = database_of(config, state)
    with _explained(), Reader(target) as reader, bar("checking", silent=as_json) as progress:
        findings = audit(reader, progress)
    if as_json:
        print(json.dumps({"database": shown(target), "findings": findings}))
    else:
        print("\n".join(findings) if findings else f"{shown(target)}: nothing wrong")
    if findings:
        raise typer.Exit(1)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="copy to make; in a folder it is named after the day")],
    force: Annotated[bool, typer.Option("--force", help="replace an earlier copy of that name")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Copy the history as it is now, beside a running daemon; the copy is checked, and there whole or not."""
    from wslgpud.store import maintenance  # noqa: PLC0415 - see above

    target = database_of(config, state)
    if file.is_dir():
        file /= f"wslgpud-{datetime.now().astimezone():%Y-%m-%d}.db"
    if file.exists() and not force:
        raise Fault(f"{file} exists already; it is left as it is (--force replaces it)")
    with _explained(), bar("copying") as progress:
        taken = maintenance.backup(target, file, progress)
    print(f"{file}: {size(taken)}")


@app.command()
def compact(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what it would free")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Write the file anew without its free room, while the daemon is stopped.

    Seldom worth it: the daemon gives most free room back by itself and uses the rest again.
    """
    from wslgpud.store import maintenance  # noqa: PLC0415 - see above

    target = database_of(config, state)
    with _explained():
        if dry_run:
            before = maintenance.would_free(target)
            print(f"{size(before.free_bytes)} of {size(before.file_bytes)} can be freed")
        else:
            after = maintenance.compact(target)
            print(f"{size(after.free_bytes)} freed, {size(after.file_bytes)} left")


def _iso(wall: float | None) -> str | None:
    return None if wall is None else datetime.fromtimestamp(wall).astimezone().isoformat(timespec="seconds")


def _local(iso: str | None) -> str:
    return "nothing yet" if iso is None else iso[:16].replace("T", " ")
