"""``wslgpud doctor``: is this machine set up for training, and if not, what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wslgpud.cli.common import ConfigOption, Fault, HostOption, JsonOption, StateOption, host_at, loaded
from wslgpud.words import failure, t

if TYPE_CHECKING:
    from wslgpud.advise.doctor.findings import Finding


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

    With --bundle the exit status only says whether the archive was written.

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
            why = failure(error)
            raise Fault(t("cannot write {path}: {why}", path=str(bundle), why=why)) from error
        typer.echo(
            t(
                "wrote {path}: {count} files, names and secrets masked. Look through it before sharing it.",
                path=str(bundle),
                count=len(names),
            ),
            err=as_json,
        )
    if as_json:
        print(json.dumps([_in_english(finding) for finding in findings], indent=2))
    elif bundle is None:
        from wslgpud.cli.doctor_screen import print_findings  # noqa: PLC0415 - rich only for it

        print_findings(findings, everything=everything)
    # Of an archive it is asked whether it is there: what is wrong is why somebody makes one.
    if bundle is None and any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


def _in_english(finding: Finding) -> dict[str, str]:
    """Return a finding for programs, which read the same in every locale."""
    return {name: str(said) for name, said in finding.document().items()}


def _pythons() -> list[Path]:
    from wslgpud.advise.doctor.torches import pythons_with_torch  # noqa: PLC0415
    from wslgpud.stress.find_python import candidates, has_torch, home_folders  # noqa: PLC0415

    found = [p for p in candidates(os.environ, home_folders()) if os.access(p, os.X_OK)]
    return pythons_with_torch(found, {p: has_torch(p) for p in found})
