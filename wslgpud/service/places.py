"""Paths of the service: the system's, or a user's own."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wslgpud.shipped_files import ROOT

#: lock files of the optional parts; that of torch, which gets an environment of its own
EXTRAS_FOLDER = ROOT / "deploy/extras"
STRESS_EXTRA: Final = "stress"
#: program and unit of our Debian package
PACKAGE = Path("/usr/lib/wslgpud")
PACKAGED_PROGRAM = Path("/usr/bin/wslgpud")
_PACKAGED_UNIT = Path("/usr/lib/systemd/system/wslgpud.service")
#: folders below ``share`` with our files: manual pages and shell completion
SHARED = ("man", "bash-completion", "fish", "zsh")


@dataclass(frozen=True)
class Places:
    """Paths of one service. ``program`` is a link to the current release; the others lie beside it."""

    user: bool
    program: Path
    units: Path
    settings: Path
    data: Path
    command: Path
    share: Path

    @property
    def packaged(self) -> bool:
        """Whether the service is the Debian package's, whose files belong to dpkg."""
        return not self.user and _PACKAGED_UNIT.exists()

    @property
    def is_installed(self) -> bool:
        return self.packaged or self.running is not None or (self.units / "wslgpud.service").exists()

    @property
    def releases(self) -> Path:
        return Path(f"{self.program}.releases")

    @property
    def extras(self) -> Path:
        """The file that records the extras added by ``--extra``, for later upgrades."""
        return self.releases / "extras"

    @property
    def stress(self) -> Path:
        """The environment with torch, if created by ``--extra stress``."""
        return Path(f"{self.program}.stress")

    @property
    def stress_being_made(self) -> Path:
        return Path(f"{self.stress}.new")

    @property
    def drop_ins(self) -> Path:
        return self.units / "wslgpud.service.d"

    @property
    def configuration(self) -> Path:
        return self.settings / "wslgpud.toml"

    @property
    def allowed(self) -> list[str]:
        """The names of our installed drop-ins that relax the sandbox."""
        return sorted(path.stem.removeprefix("wslgpud-") for path in self.drop_ins.glob("wslgpud-*.conf"))

    @property
    def added_extras(self) -> list[str]:
        """The extras added so far by ``--extra``."""
        added = [STRESS_EXTRA] if self.stress.exists() else []
        with suppress(OSError):
            known, words = offered_extras(), self.extras.read_text(encoding="utf-8", errors="replace").split()
            added += [name for name in words if name in known]
        return sorted(added)

    def systemctl(self, *arguments: str) -> tuple[str, ...]:
        """Return a command for the service's own systemd."""
        return ("systemctl", *(("--user",) if self.user else ()), *arguments)

    @property
    def kind(self) -> str:
        return "user" if self.user else "system"

    @property
    def enabled_units(self) -> tuple[str, ...]:
        return ("wslgpud.service",) if self.user else ("wslgpud.service", "wslgpud-stress.socket")

    @property
    def shared_links(self) -> list[Path]:
        """The links below ``share`` to files of the program."""
        paths = (path for folder in SHARED for path in self.share.glob(f"{folder}/**/*wslgpud*"))
        return sorted(path for path in paths if path.is_symlink() and path.readlink().is_relative_to(self.program))

    @property
    def running(self) -> Path | None:
        """The release that the program links to; None without one."""
        try:
            return self.program.readlink()
        except OSError:
            return None


SYSTEM = Places(
    user=False,
    program=Path("/opt/wslgpud"),
    units=Path("/etc/systemd/system"),
    settings=Path("/etc/wslgpud"),
    data=Path("/var/lib/wslgpud"),
    command=Path("/usr/local/bin/wslgpud"),
    share=Path("/usr/local/share"),
)


def places(*, user: bool) -> Places:
    """Return the paths of the system's service, or of the user's own, below ``$HOME``."""
    if not user:
        return SYSTEM
    home = Path(os.environ.get("HOME") or Path.home())
    return Places(
        user=True,
        program=home / ".local/share/wslgpud",
        units=home / ".config/systemd/user",
        settings=home / ".config/wslgpud",
        data=home / ".local/state/wslgpud",
        command=home / ".local/bin/wslgpud",
        share=home / ".local/share",
    )


def offered_extras() -> list[str]:
    """Return the names accepted by ``--extra``."""
    return sorted(file.stem for file in EXTRAS_FOLDER.glob("*.txt"))
