"""What the product says of an input, asked as a user would: by its kind, the name of the folder that it lies in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.hosts.machines import HERE as HOSTS
from wslgpud.advise.guard.summary import explanation
from wslgpud.advise.guard.usage import RunStats
from wslgpud.config import Config
from wslgpud.host import RecordedHost
from wslgpud.sources.kernel_lines import PRECEDES_THE_END
from wslgpud.sources.logs import KernelLogSource

#: the machine that an input of a kind is laid over
_BASES = {"kernel": "wsl2-idle", "nvml": "wsl2-idle", "proc": "bare-linux", "wslconf": "wsl2-idle"}
NOTHING = "(nothing)"


def answer(kind: str, case: Path, folder: Path) -> str:
    """Return what the product says of a case; ``folder`` is empty, for a machine to lay it over."""
    return _KINDS[kind](case, folder).strip() or NOTHING


def kinds(folder: Path) -> list[str]:
    """Return the kinds of which a folder has cases."""
    return [kind for kind in _KINDS if (folder / kind).is_dir()]


def _of_output(case: Path, _: Path) -> str:
    return "\n".join(map(str, explanation(case.read_bytes(), RunStats(code=1), wsl=True)))


def _of_kernel_log(case: Path, folder: Path) -> str:
    machine, lines = _machine("kernel", folder), case.read_text().splitlines()
    (machine / "root/dev").mkdir(exist_ok=True)
    records = (f"3,{number},{1_000_000 * number},-;{line}\n" for number, line in enumerate(lines, 1))
    (machine / "root/dev/kmsg").write_text("".join(records))
    source = KernelLogSource(RecordedHost(machine), Config())
    said = [f"{event.kind}: {event.message}" for event in source.read().events]
    said += [f"{sign}: {line}" for line in lines for sign, pattern in PRECEDES_THE_END.items() if pattern.match(line)]
    return "\n".join(said)


def _of_memory(case: Path, folder: Path) -> str:
    machine = _machine("proc", folder)
    for beside in case.parent.glob(f"{case.name.partition('.')[0]}.*"):
        path = beside.name.partition(".")[2]
        target = machine / "root" / (path.replace("_", "/") if path.startswith("proc_") else f"proc/{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(beside, target)
    return _says("status", "--host-root", str(machine))


def _of_cards(case: Path, folder: Path) -> str:
    machine = _machine("nvml", folder)
    shutil.copy(case, machine / "nvml.json")
    said = _says("status", "--host-root", str(machine))
    return f"{said}\n{_says('doctor', '--no-torch', '--host-root', str(machine))}"


def _of_wslconfig(case: Path, folder: Path) -> str:
    machine = _machine("wslconf", folder)
    return _says("wslconfig", "check", "--file", str(case), "--host-root", str(machine))


def _of_wsl_conf(case: Path, folder: Path) -> str:
    machine = _machine("wslconf", folder)
    (machine / "root/etc").mkdir(exist_ok=True)
    shutil.copy(case, machine / "root/etc/wsl.conf")
    return _says("wslconfig", "check", "--host-root", str(machine))


def _of_model(case: Path, _: Path) -> str:
    return _says("fit", str(case))


def _of_web_config(case: Path, folder: Path) -> str:
    file = folder / case.name
    shutil.copy(case, file)
    return _says("config", "check", WSLGPUD_SERVER__WEB_CONFIG_FILE=str(file))


_KINDS: Mapping[str, Callable[[Path, Path], str]] = {
    "oom": _of_output,
    "kernel": _of_kernel_log,
    "proc": _of_memory,
    "nvml": _of_cards,
    "wslconfig": _of_wslconfig,
    "wslconf": _of_wsl_conf,
    "prometheus": _of_web_config,
    "fit": _of_model,
}


def _machine(kind: str, folder: Path) -> Path:
    return Path(shutil.copytree(HOSTS / _BASES[kind], folder / "machine"))


def _says(*words: str, **environment: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("WSLGPUD_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-m", "wslgpud", *words],
        env={**own, "LC_ALL": "C.UTF-8", "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.stdout + done.stderr
