"""The parts of the tests that need more than Python: left out by default, run by name or with ``--all``."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

#: where ./tests/run --all unpacks Debian's servers
UNPACKED = Path(__file__).parents[2] / ".cache" / "debian"


@dataclass(frozen=True)
class Part:
    """A marker of tests, what they do, and their requirements on this machine."""

    what: str
    #: whoever uses one of these fixtures is part of it, marked or not
    fixtures: tuple[str, ...] = ()
    #: programs, each with the Debian package that has it
    programs: tuple[tuple[str, str], ...] = ()
    modules: tuple[str, ...] = ()
    root: bool = False

    def needs(self) -> str:
        """Return its requirements, in words."""
        packages = dict.fromkeys(package for _, package in self.programs)
        return ", ".join([*packages, *self.modules, *["root"] * self.root]) or "only time"

    def lacks(self) -> list[str]:
        """Return the requirements missing here."""
        missing = [f"{package} (Debian)" for program, package in self.programs if not _found(program, package)]
        missing += [f"{name} (Python)" for name in self.modules if importlib.util.find_spec(name) is None]
        return list(dict.fromkeys(missing + ["root"] * (self.root and os.geteuid() != 0)))


PARTS = {
    "vm": Part(
        "boots virtual machines",
        fixtures=("able_to_boot",),
        programs=(
            ("qemu-system-x86_64", "qemu-system-x86"),
            ("qemu-img", "qemu-utils"),
            ("mmdebstrap", "mmdebstrap"),
            ("mkfs.ext4", "e2fsprogs"),
        ),
        root=True,
    ),
    "servers": Part(
        "starts real servers",
        fixtures=("postgresql",),
        programs=(
            ("prometheus", "prometheus"),
            ("prometheus-alertmanager", "prometheus-alertmanager"),
            ("initdb", "postgresql"),
        ),
    ),
    "browser": Part("looks at the page in a browser", fixtures=("chromium",), programs=(("chromium", "chromium"),)),
    "torch": Part("runs the stress worker, and trainings", fixtures=("faulty",), modules=("torch",)),
    "slow": Part("the hundred that take longest"),
}
#: what ``-m`` takes for the tests that need nothing but Python
LIGHT = f"not ({' or '.join([*PARTS, 'bench'])})"


def _found(program: str, package: str) -> bool:
    places = [str(UNPACKED / package / "usr/bin"), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]
    servers = Path("/usr/lib/postgresql").glob(f"*/bin/{program}")
    return shutil.which(program, path=os.pathsep.join(places)) is not None or any(servers)
