"""A Debian whose own systemd is process 1, in namespaces of this machine's kernel: it boots in seconds, natively.

Everything that a service meets is real but for the kernel, which is this machine's: it can neither lose power nor run
out of memory by itself. What needs that boots a ``Machine``.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from .image import PACKAGES, PROGRAM, SOURCE, _fresh, _locked, _recipe_hash, _run, cache_folder
from .machine import COMMAND_SECONDS, MachineError, Result

#: mounts what systemd expects of who starts it (https://systemd.io/CONTAINER_INTERFACE), and becomes it
BOOT = """
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
cd "$2/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for folder in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs $folder; done
chmod 1777 tmp
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
exec env -i container=tests PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /sbin/init
"""
_SETTLED = ("running", "degraded")
PATHS = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
#: what the tree of the machines may have besides Debian
NOT_DEBIAN = ("etc/systemd/system/agent.service", *(path[1:] for path in (PROGRAM, f"{PROGRAM}.releases", SOURCE)))


def tree(suite: str) -> Path:
    """Return the folder with a Debian that has systemd, Python and apt, of another suite than the machines'; made once.

    Raises:
        ImageError: it cannot be made.
    """
    folder = cache_folder() / f"{suite}-{_recipe_hash()}"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        made, partial = folder / "tree", folder / "tree.partial"
        if not made.exists():
            _fresh(partial)
            wanted = ",".join(name for name in PACKAGES if not name.startswith("linux-image"))
            _run(
                "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={wanted}", suite, str(partial)
            )
            partial.rename(made)
    return made


def hide(names: Iterable[str], upper: Path) -> None:
    """Let an overlay whose changes come to ``upper`` not have these files and folders of what lies below."""
    for name in names:
        (upper / name).parent.mkdir(parents=True, exist_ok=True)
        os.mknod(upper / name, stat.S_IFCHR)  # an overlay's "gone"


class Container:
    """One machine; what is written to it stays from one boot to the next."""

    def __init__(self, lower: Path, folder: Path, program: Path | None = None) -> None:
        """Take a copy of ``lower`` and what ``program`` has besides; nothing runs before :meth:`boot`.

        All that changes comes to ``folder``.
        """
        self._lower, self._folder = f"{program}:{lower}" if program else str(lower), folder
        self._outside: subprocess.Popen[bytes] | None = None
        self.upper = folder / "upper"
        for name in ("upper", "work", "root"):
            (folder / name).mkdir()
        hide(NOT_DEBIAN[: 1 if program else None], self.upper)
        self._console = folder / "console.log"

    def boot(self) -> None:
        """Start it, and wait until systemd has settled. Raises MachineError: it does not."""
        apart = ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup"]
        with self._console.open("ab") as console:
            self._outside = subprocess.Popen(
                [*apart, "sh", "-euc", BOOT, "sh", self._lower, str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        end = time.monotonic() + COMMAND_SECONDS
        while self.run("systemctl", "is-system-running", "--wait", check=False).stdout.strip() not in _SETTLED:
            if time.monotonic() > end:
                raise MachineError(f"systemd does not settle\n{self._last_words()}")
            time.sleep(0.1)

    def kill(self) -> None:
        """End all that runs in it at this very moment."""
        if self._outside is not None:
            self._outside.kill()  # and with it process 1, and with that everything
            self._outside.wait()
            self._outside = None

    def run(
        self,
        *argv: str,
        stdin: bytes = b"",
        environment: Mapping[str, str] = PATHS,
        timeout_seconds: float = COMMAND_SECONDS,
        check: bool = True,
    ) -> Result:
        """Run one command as root in it, to its end.

        Raises:
            MachineError: with ``check``, it failed.
        """
        variables = [f"{name}={value}" for name, value in {**PATHS, **environment}.items()]
        inside = ["nsenter", f"--target={self._init()}", "--all", "--root", "--wd", "env", "-i", *variables, *argv]
        done = subprocess.run(inside, input=stdin, capture_output=True, timeout=timeout_seconds, check=False)
        result = Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
        if check and result.returncode != 0:
            raise MachineError(f"{argv} ended with {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    def python(self, code: str, *arguments: str) -> Result:
        return self.run("python3", "-c", code, *arguments)

    def read(self, path: str) -> bytes:
        return self.run("cat", path).stdout.encode()

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        data = content.encode() if isinstance(content, str) else content
        self.run("install", "-D", f"-m{mode:o}", "/dev/stdin", path, stdin=data)

    def copy_in(self, source: Path, target: str) -> None:
        """Copy a file or the content of a folder to ``target``."""
        if source.is_file():
            self.write(target, source.read_bytes(), source.stat().st_mode & 0o777)
            return
        packed = subprocess.run(["tar", "-c", "-C", source, "."], capture_output=True, check=True).stdout
        self.run("mkdir", "-p", target)
        self.run("tar", "-x", "--no-same-owner", "-C", target, stdin=packed)

    def has(self, path: str) -> bool:
        return self.run("test", "-e", path, "-o", "-L", path, check=False).returncode == 0

    def _init(self) -> int:
        if self._outside is None:
            raise MachineError("it does not run")
        while self._outside.poll() is None:
            outside = self._outside.pid
            if children := Path(f"/proc/{outside}/task/{outside}/children").read_text(encoding="ascii").split():
                return int(children[0])
            time.sleep(0.01)
        raise MachineError(f"it has ended\n{self._last_words()}")

    def _last_words(self) -> str:
        return self._console.read_text(encoding="utf-8", errors="replace")[-2000:]
