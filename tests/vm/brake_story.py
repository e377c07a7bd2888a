"""The brake in a virtual machine: a training grows, is paused, its owner is alerted, it resumes and finishes.

    python -m tests.vm.brake_story

Not a test: the machine is emulated and takes some minutes. The terminal's output is saved in ``brake_story.json``, from
which ``tests/test_docs.py`` draws a picture. Every step waits for a condition, never for a length of time.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.bench.bench_oom import bring
from tests.bench.oom_machine import ALICE, CONFIGURATION, PACKAGES, REPOSITORY, machine
from tests.support.screens import print_status
from tests.vm.image import image, wheel_of
from tests.vm.machine import Machine
from tests.vm.test_story import COLUMNS, PATIENCE_SECONDS, Terminal, wait_until

STORY = Path(__file__).with_name("brake_story.json")
MEMORY_MIB = 1024
HOME = f"/home/{ALICE}"
WARNINGS = "/var/lib/wslgpud/warnings"  # the service may write nowhere else
ON_WARNING = f"""#!/usr/bin/python3
import json, sys
told = json.load(sys.stdin)
with open("{WARNINGS}", "a") as file:
    print(f"{{told['headline']}}\\n{{told.get('evidence', '')}}\\n{{told.get('advice', '')}}\\n", file=file)
"""
ALERTS = '[alerts]\ncommand = ["/usr/local/bin/on-warning"]\n'
#: allocates 40 % of the memory, like a program that has loaded data
PREPARE = """
import os, sys, time
pages = os.sysconf("SC_PHYS_PAGES") * 4 // 10
data = [os.urandom(4096) for _ in range(pages)]
print("ready", flush=True)
time.sleep(3600)
"""
#: allocates 55 % of the memory in forty steps and verifies its content at the end
TRAIN = """
import hashlib, os, time
share = os.sysconf("SC_PHYS_PAGES") * 4096 * 55 // 100 // 40
kept, sums = [], []
for step in range(1, 41):
    kept.append(os.urandom(share))
    sums.append(hashlib.sha256(kept[-1][:4096]).digest())
    print(f"step {step:2} of 40  loss {2.31 * 0.96 ** step:.3f}  kept {step * share >> 20} MiB", flush=True)
    time.sleep(0.7)
assert sums == [hashlib.sha256(one[:4096]).digest() for one in kept]
print("finished: all that it kept is as it was", flush=True)
"""
#: not in Python, which takes longer to start here than there is time left
ASK = r"""
exec 3<>/dev/tcp/127.0.0.1/9655
printf 'GET /api/v1/status HTTP/1.1\r\nHost: 127.0.0.1:9655\r\nConnection: close\r\n\r\n' >&3
cat <&3
"""


def start(one: Machine, name: str) -> None:
    """Start a program of the user in its own scope, as a desktop does."""
    uid = one.run("id", "-u", ALICE).stdout.strip()
    user = (
        "setpriv",
        f"--reuid={ALICE}",
        f"--regid={ALICE}",
        "--init-groups",
        "env",
        f"XDG_RUNTIME_DIR=/run/user/{uid}",
    )
    scope = f"exec systemd-run --user --scope --quiet --collect --unit={name} python3 {name}.py >{name}.log 2>&1"
    one.run("systemd-run", "--quiet", f"--unit=start-{name}", *user, "sh", "-c", f"cd {HOME} && {scope}")


def status_once(one: Machine, pattern: str) -> str:
    """Return the screen of ``wslgpud status`` once its document matches ``pattern``."""
    wait_until(one, f"bash /root/ask >/root/answer && grep -qE '{pattern}' /root/answer")
    answer = one.read("/root/answer").decode().partition("\r\n\r\n")[2]
    screen = Console(record=True, width=COLUMNS, force_terminal=True, file=io.StringIO())
    print_status({"seen_by": "daemon", "url": "http://127.0.0.1:9655", **json.loads(answer)}, screen)
    return screen.export_text(styles=True)


def tell(one: Machine, terminal: Terminal) -> None:
    terminal.scene("A training grows beside a program that uses 40 % of the memory")
    start(one, "train")
    shown = status_once(one, "RAM full in about")
    terminal.types("tail -n 2 train.log", HOME, shown_as="python3 train.py")
    terminal.shows("wslgpud status", shown, lines=14)
    wait_until(one, f"grep -qs ' paused at ' {WARNINGS}")
    terminal.scene("Before memory runs out, the brake pauses it. Nothing is lost")
    terminal.types("tail -n 2 train.log", HOME)
    terminal.types("wslgpud brake list")
    terminal.types("wslgpud status", lines=12)
    terminal.scene("Its owner gets an alert with the commands to type")
    terminal.types(f"grep -A 2 ' paused at ' {WARNINGS} | fold -s -w {COLUMNS - 4}")
    terminal.scene("Memory is freed: it resumes where it was, and finishes")
    terminal.types("pkill -f '[p]repare.py'", shown_as="pkill -f prepare.py")
    wait_until(one, f"grep -qs ' resumed when ' {WARNINGS}")
    terminal.types(f"grep ' resumed ' {WARNINGS}")
    wait_until(one, f"grep -qs -e finished -e Error {HOME}/train.log")
    assert "all that it kept is as it was" in terminal.types("tail -n 2 train.log", HOME)
    status_once(one, '"incidents": ?\\[\\]')
    terminal.scene("The incident shows how much work was saved")
    listed = terminal.types("wslgpud incidents", lines=6)
    number = next(line.split()[0] for line in listed.splitlines() if " paused " in line)
    terminal.types(f"wslgpud incidents {number}", lines=22)


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        disk = image(wheel_of(REPOSITORY, Path(scratch)), PACKAGES)
        with machine(disk, MEMORY_MIB, psi=True) as one:
            bring(one)
            one.write("/etc/wslgpud/wslgpud.toml", CONFIGURATION + ALERTS)
            one.write("/root/ask", ASK)
            one.write("/usr/local/bin/on-warning", ON_WARNING, mode=0o755)
            one.run("ln", "-sf", "/opt/wslgpud/bin/wslgpud", "/usr/local/bin/wslgpud")
            for name, code in (("prepare", PREPARE), ("train", TRAIN)):
                one.write(f"{HOME}/{name}.py", code)
            one.run("chown", "-R", f"{ALICE}:", HOME)
            one.run("usermod", "--append", "--groups", "systemd-journal", "wslgpud")
            start(one, "prepare")
            wait_until(one, f"grep -qs ready {HOME}/prepare.log")
            one.run("systemctl", "start", "wslgpud", timeout_seconds=PATIENCE_SECONDS)
            terminal, began = Terminal(one), time.monotonic()
            try:
                tell(one, terminal)
            finally:
                print(json.dumps(terminal.scenes, indent=1), f"{time.monotonic() - began:.0f} s", file=sys.stderr)
                log = one.run("journalctl", "--no-pager", "-o", "cat", "-u", "wslgpud", "-n", "60", check=False)
                sys.stderr.write(log.stdout)
    STORY.write_text(json.dumps(terminal.scenes, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
