"""``wslgpud doctor``: is this machine set up for training, and if not, what to do."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from wslgpud.cli.common import ConfigOption, Fault, HostOption, JsonOption, StateOption, host_at, loaded


def doctor(
    config: ConfigOption = None,
    as_json: JsonOption = False,
    everything: Annotated[bool, typer.Option("--all", help="show passed checks, too")] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle", metavar="FILE", help="write a support archive (.tar.gz), secrets and names masked"
        ),
    ] = None,
    python: Annotated[
        list[Path] | None,
        typer.Option(
            "--python", metavar="FILE", help="check the torch of this Python instead of searching for one"
        ),
    ] = None,
    no_torch: Annotated[bool, typer.Option("--no-torch", help="do not start Python to check torch")] = False,
    state: StateOption = None,
    host_root: HostOption = None,
) -> None:
    """Check how this machine is set up; each problem comes with its fix. Exit status 1 if there are any.

    Examples:
        wslgpud doctor
        wslgpud doctor --all  # passed checks, too
        wslgpud doctor --bundle support.tar.gz  # everything that a bug report needs
    """
    from wslgpud.advise import doctor as doctors  # noqa: PLC0415 - only this command needs it
    from wslgpud.advise.doctor import torches  # noqa: PLC0415

    settings = loaded(config).config
    host = host_at(host_root)
    facts = None
    if host.live and not no_torch:
        facts = torches.ask(python or _pythons(), os.environ)
    findings = doctors.run(host, settings, facts, str(state) if state else None)
    if bundle is not None:
        from wslgpud.advise.doctor.bundle import write  # noqa: PLC0415

        try:
            names = write(bundle, host, settings, findings)
        except OSError as error:
            raise Fault(f"cannot write {bundle}: {error.strerror}") from error
        typer.echo(
            f"wrote {bundle}: {len(names)} files, names and secrets masked. Look through it before sharing.",
            err=as_json,
        )
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    elif bundle is None:
        from wslgpud.cli.doctor_screen import print_findings  # noqa: PLC0415 - rich only for it
        from wslgpud.words import chosen  # noqa: PLC0415 - only the screen has one

        tongue = chosen(settings.alerts.language, os.environ)
        print_findings(findings, everything=everything, tongue=tongue)
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


def _pythons() -> list[Path]:
    from wslgpud.advise.doctor.torches import pythons_with_torch  # noqa: PLC0415
    from wslgpud.stress.find_python import candidates, has_torch, home_folders  # noqa: PLC0415

    found = [p for p in candidates(os.environ, home_folders()) if os.access(p, os.X_OK)]
    return pythons_with_torch(found, {p: has_torch(p) for p in found})
