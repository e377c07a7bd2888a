"""Builds the Debian image that the machines boot, once, into a cache outside the repository.

``mmdebstrap`` makes the tree in half a minute (``debootstrap`` needs three times as long), ``mkfs.ext4 -d``
makes a disk of it without a mount. A program is installed natively, into a layer above the tree: ``pip`` inside an
emulated machine would take minutes. Everything is keyed by a hash of what it is made of, built under a file lock
and renamed into place, so that parallel runs share it and never see a half of it; the tree is never changed, as
running containers have it below them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GUEST = Path(__file__).parent / "guest"
SUITE = "bookworm"
REPOSITORY = Path(__file__).parents[2]
PINS, BUILD = (REPOSITORY / "deploy" / name for name in ("requirements.txt", "build.txt"))
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
GUEST_PYTHON = "3.11"  # of the suite: the wheels outside are chosen for it
PACKAGES = (
    "linux-image-cloud-amd64",  # a quarter of the size of linux-image-amd64, with PSI, cgroup v2 and zram
    "systemd",
    "systemd-sysv",
    "udev",
    "dbus",
    "dbus-user-session",  # with the next: a systemd of each user's own
    "libpam-systemd",
    "python3",
    "python3-venv",
)
SERVICES = ("agent.service", "swap-drive.service")
# Timers that would wake up in the middle of a test, consoles that nobody logs in to.
MASKED = (
    "apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service "
    "fstrim.timer getty@tty1.service serial-getty@ttyS0.service systemd-networkd-wait-online.service"
)
DISK_SIZE = "3G"  # sparse: what the guest may fill, not what the file takes
KEPT_IMAGES = 4  # of one recipe: each new wheel makes one
UNUSED_SECONDS = 14 * 86400  # images of other recipes go then
PROGRAM = "/opt/wslgpud"
SOURCE = "/usr/src/wslgpud"
# As deploy/install does it, whose run in the machine then finds the release and needs no network and no pip.
INSTALL = f"""
cd {SOURCE} && . deploy/environment.sh
release={PROGRAM}.releases/$(release_of "$PWD" "")
make_release "$release" "$PWD" "" && ln -s "$release" {PROGRAM}
"""
WHEELS = "opt/wheels"
# Arguments: a tree, the layer above it, the script to run in both, and the command to run on both afterwards.
LAYER = f"""
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$2.work" "$2.root"
chroot "$2.root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    PIP_NO_INDEX=1 PIP_FIND_LINKS=/{WHEELS} PIP_NO_CACHE_DIR=1 sh -c "$3"
rm -r "$2.root/{WHEELS}"
shift 3
exec "$@"
"""

# An initrd of "most" modules takes seconds to unpack in an emulated machine; a root disk needs these two.
INITRAMFS_HOOK = """
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"
echo MODULES=list > "$1/etc/initramfs-tools/conf.d/machine"
printf 'virtio_pci\\nvirtio_blk\\n' > "$1/usr/share/initramfs-tools/modules.d/machine"
"""
CUSTOMIZE_HOOK = f"""
install -m 755 {GUEST}/agent.py "$1/usr/local/lib/agent.py"
install -m 644 {" ".join(f"{GUEST}/{service}" for service in SERVICES)} "$1/etc/systemd/system/"
chroot "$1" systemctl enable {" ".join(SERVICES)}
chroot "$1" systemctl mask {MASKED}
mkdir -p "$1/var/log/journal"
echo machine > "$1/etc/hostname"
echo "127.0.0.1 localhost machine" > "$1/etc/hosts"
rm -f "$1/etc/resolv.conf"
"""


class ImageError(RuntimeError):
    """A step of the build failed; the text ends with what the step said."""


@dataclass(frozen=True)
class Image:
    """A bootable disk with the kernel and initrd that belong to it; never written to.

    ``tree`` is the Debian on it as a folder, ``program`` what the disk has besides, as a folder too.
    """

    kernel: Path
    initrd: Path
    disk: Path
    tree: Path
    program: Path


def cache_folder() -> Path:
    """Return the folder that holds images between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wslgpud-tests"


def image(wheel: Path | None = None, packages: tuple[str, ...] = ()) -> Image:
    """Return the image, building what the cache lacks.

    With a wheel, what it holds and its dependencies lie in a virtual environment at ``/opt/wslgpud``, and
    this repository's program and ``deploy`` at ``/usr/src/wslgpud``; with ``packages``, these of Debian are
    installed besides, in a tree of its own. The first call needs the network (Debian's archive; the package
    index for a new set of dependencies), later ones do not.

    Raises:
        ImageError: A tool failed.
    """
    base = cache_folder() / f"{SUITE}-{_recipe_hash(packages)}"
    base.mkdir(parents=True, exist_ok=True)
    disk = base / (f"program-{_sha256(wheel.read_bytes() + _made_of())}.img" if wheel else "base.img")
    program = disk.with_suffix(".program")
    with _locked(base / "lock"):
        tree = base / "tree"
        if not tree.exists():
            _build_tree(tree, packages)
        if not disk.exists():
            partial = _fresh(disk.with_suffix(".partial")) / "disk"
            _fresh(program)
            if wheel:
                _install(tree, program, partial)
            else:
                _run(*_packing(tree, partial))
            partial.rename(disk)
            partial.parent.rmdir()
        os.utime(disk)
        for old in sorted(base.glob("*.img"), key=lambda path: path.stat().st_mtime)[:-KEPT_IMAGES]:
            old.unlink()
            shutil.rmtree(old.with_suffix(".program"))
    for lock in cache_folder().glob(f"{SUITE}-*/lock"):
        if time.time() - lock.stat().st_mtime > UNUSED_SECONDS:  # each use touches it
            shutil.rmtree(lock.parent)
    boot = tree / "boot"
    return Image(next(boot.glob("vmlinuz-*")), next(boot.glob("initrd.img-*")), disk, tree, program)


def wheel_of(repository: Path, folder: Path) -> Path:
    """Build the wheel of a source tree into ``folder``; the same source gives the same bytes.

    Raises:
        ImageError: The source does not build.
    """
    _run(
        *PIP,
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        f"--find-links={backend()}",
        f"--wheel-dir={folder}",
        str(repository),
    )
    return next(folder.glob("*.whl"))


def backend() -> Path:
    """Return a folder with the wheels of what builds ours, also in editable form; downloaded once."""
    return _downloaded("backend", BUILD)


def wheelhouse() -> Path:
    """Return a folder with the wheels that the program depends on, for the guest's Python; downloaded once.

    Also what a test of an installer copies into a machine, which has no network.
    """
    platforms = [f"--platform=manylinux{version}_x86_64" for version in ("_2_34", "_2_28", "_2_17", "2014")]
    return _downloaded("wheels", PINS, *platforms, f"--python-version={GUEST_PYTHON}")


def _downloaded(name: str, locked: Path, *options: str) -> Path:
    """Return a folder with the wheels that a lock file names, fetched now or earlier."""
    key = "\n".join(options) + locked.read_text(encoding="utf-8")
    folder = cache_folder() / f"{name}-{_sha256(key.encode())}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not folder.exists():
            partial = _fresh(folder.with_suffix(".partial"))
            _run(
                *PIP,
                "download",
                "--quiet",
                "--require-hashes",
                "--only-binary=:all:",
                f"--dest={partial}",
                f"--requirement={locked}",
                *options,
            )
            partial.rename(folder)
    return folder


def _build_tree(tree: Path, packages: tuple[str, ...]) -> None:
    partial = _fresh(tree.with_suffix(".partial"))
    _run(
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=minbase",
        f"--include={','.join((*PACKAGES, *packages))}",
        *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale")),
        f"--extract-hook={INITRAMFS_HOOK}",
        f"--customize-hook={CUSTOMIZE_HOOK}",
        SUITE,
        str(partial),
    )
    partial.rename(tree)


def _install(tree: Path, layer: Path, disk: Path) -> None:
    """Install the program into a layer above the tree, and make a disk of both."""
    source = Path(f"{layer}{SOURCE}")
    for name in ("wslgpud", "deploy", "grafana"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    for folder in (wheelhouse(), backend()):
        shutil.copytree(folder, layer / WHEELS, dirs_exist_ok=True)
    root, work = (_fresh(Path(f"{layer}.{name}")) for name in ("root", "work"))
    _run("unshare", "--mount", "sh", "-ec", LAYER, "sh", str(tree), str(layer), INSTALL, *_packing(root, disk))
    root.rmdir()
    shutil.rmtree(work)


def _made_of() -> bytes:
    """Return what makes a release beside the wheel."""
    locked = sorted((REPOSITORY / "deploy").rglob("*.txt"))
    return b"".join(path.read_bytes() for path in (*locked, REPOSITORY / "pyproject.toml"))


def _packing(tree: Path, disk: Path) -> tuple[str, ...]:
    """Return the command that makes a disk of a tree."""
    # Lazy initialisation would write to the disk in the background for minutes, in every machine.
    options = ("-q", "-L", "root", "-E", "lazy_itable_init=0,lazy_journal_init=0")
    return "mkfs.ext4", *options, "-d", str(tree), str(disk), DISK_SIZE


def _recipe_hash(packages: tuple[str, ...] = ()) -> str:
    recipe = hashlib.sha256(Path(__file__).read_bytes() + " ".join(packages).encode())
    for path in sorted(GUEST.iterdir()):
        if path.is_file():
            recipe.update(path.read_bytes())
    return recipe.hexdigest()[:12]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(*command: str) -> None:
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        seconds = time.monotonic() - started
        said = (done.stderr or done.stdout)[-4000:]
        raise ImageError(f"{command[0]} failed with {done.returncode} after {seconds:.0f} s:\n{said}")
