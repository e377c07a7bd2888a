"""Fixtures that boot virtual machines.

``machine(**options)`` boots one for a test, ``module_machine(**options)`` one that the tests of a module
share; both end it whatever happens. Options are those of :class:`Machine` (``memory_mib=512``, ``cpus=1``,
``swap_mib=0``, ``drives=()``), ``packages=("g++",)`` for more of Debian, and ``program=True``, which puts
this repository's program and its dependencies into ``/opt/wslgpud`` (no unit is enabled:
``/usr/src/wslgpud/deploy/install`` does that, in seconds and without a network). In the machine:

- ``run(*argv, stdin=, environment=, timeout_seconds=, check=True)`` as root, ``python(code, *arguments)``;
  background work: ``run("systemd-run", "--unit=hog", "python3", ...)``
- ``read``, ``write``, ``copy_in``, ``copy_out`` move files
- ``cut_power()`` or ``shut_down()``, then ``boot()`` again: the disk stays
- ``kernel_log()`` of this boot, ``console`` of all of them

A boot takes some 25 s without KVM, and everything in it ten times as long (with a second processor, which waits for
the first one's locks, twice that), so share one where you can, or take ``container``, which has this machine's kernel,
where no test loses power or runs out of memory. Mark the module ``vm``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .container import Container
from .image import Image, image, wheel_of
from .machine import Machine

TOOLS = ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "mkfs.ext4", "mkswap", "setpriv")
REPOSITORY = Path(__file__).parents[2]

BootMachine = Callable[..., Machine]
#: for tests that take minutes where machines are emulated, of what others cover on one machine
slow = pytest.mark.skipif(
    "WSLGPUD_SLOW" not in os.environ, reason="takes minutes where machines are emulated: set WSLGPUD_SLOW=1"
)


@pytest.fixture(scope="session")
def able_to_boot() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: install what tests/vm/PACKAGES lists")
    if os.geteuid() != 0:
        pytest.skip("needs root: the image is made in a chroot")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    return wheel_of(REPOSITORY, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def disk(able_to_boot: None, wheel: Path) -> Image:
    """The Debian with this repository's program; never the one without, which would be made of the same tree."""
    return image(wheel)


def _boots_machines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, able_to_boot: None
) -> Iterator[BootMachine]:
    with ExitStack() as machines:

        def boot(
            *,
            program: bool = False,
            packages: tuple[str, ...] = (),
            memory_mib: int = 512,
            cpus: int = 1,
            swap_mib: int = 0,
            drives: tuple[Path, ...] = (),
        ) -> Machine:
            disk = image(request.getfixturevalue("wheel") if program else None, packages)
            folder = tmp_path_factory.mktemp("machine")
            # Disks are hundreds of MB, and pytest keeps the folders of three runs.
            machines.callback(shutil.rmtree, folder)
            one = Machine(disk, folder, memory_mib=memory_mib, cpus=cpus, swap_mib=swap_mib, drives=drives)
            machines.enter_context(one).boot()
            return one

        yield boot


machine = pytest.fixture(_boots_machines, name="machine")
module_machine = pytest.fixture(_boots_machines, name="module_machine", scope="module")


@pytest.fixture(scope="module")
def container(disk: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """A container with the program, which the tests of a module share: it boots in seconds."""
    folder = tmp_path_factory.mktemp("container")
    one = Container(disk.tree, folder, disk.program)
    try:
        one.boot()
        yield one
    finally:
        one.kill()
        shutil.rmtree(folder)
