"""WSL 3's containers beside WSL: how much RAM a session may take, and what presets leave for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from wslgpud.advise.doctor import run
from wslgpud.advise.wslconfig import files
from wslgpud.advise.wslconfig.presets import PRESETS, settings
from wslgpud.config import Config
from wslgpud.host import Host, RecordedHost
from wslgpud.probes.wsl_config import WSLCONFIG

GIB = 1 << 30
HOSTS = Path(__file__).parents[2] / "hosts"
#: as 'wslc settings' writes the file
DEFAULT = (
    "session:\n  # Memory limit for the session (e.g. 2GB default: half of available memory)\n  # memorySize: default\n"
)


def machine(tmp_path: Path, text: str | None) -> Host:
    """Return a machine whose Windows user has containers with these settings; None: has none."""
    root = tmp_path / "root"
    user = root / "mnt/c/Users/me"
    (user / "AppData/Local").mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mounts").write_text("C:\\134 /mnt/c 9p rw,aname=drvfs;path=C:\\134 0 0\n")
    if text is not None:
        (user / "AppData/Local/wslc").mkdir()
        (user / "AppData/Local/wslc/settings.yaml").write_text(text)
    return Host(root)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (None, None),
        ("", 32 * GIB),
        (DEFAULT, 32 * GIB),
        ("session:\n  memorySize: 12GB\n", 12 * GIB),
        ('session:\n  memorySize: "8GB"\n', 8 * GIB),
        ("session:\n  memorySize: 6144MB\n", 6 * GIB),
        ("session:\n  memorySize: -1GB\n", 32 * GIB),
        ("session:\n  memorySize: default\n", 32 * GIB),
        ("other:\nmemorySize: 1GB\n", 32 * GIB),
    ],
)
def test_the_limit_of_a_session_is_as_its_settings_say(tmp_path: Path, text: str | None, size: int | None) -> None:
    assert files.containers_bytes(machine(tmp_path, text), 64 * GIB) == size


@pytest.mark.parametrize(
    ("ram", "containers", "memory"), [(64, 0, 50), (64, 12, 48), (64, 32, 28), (16, 8, 4), (8, 4, 2), (4, 2, 1)]
)
def test_a_preset_leaves_room_for_containers(ram: int, containers: int, memory: int) -> None:
    (first, *_) = settings(PRESETS["training"], ram * GIB, 24, containers * GIB)

    assert first.value == f"{memory}GB"
    assert ("wslc settings" in str(first.why)) is bool(containers)


def test_room_for_wsl_and_its_containers_is_judged() -> None:
    (told,) = [f for f in run(RecordedHost(HOSTS / "wsl3-containers"), Config()) if f.id == "wsl.containers"]
    (other,) = [f for f in run(RecordedHost(HOSTS / "wsl2-idle"), Config()) if f.id == "wsl.containers"]

    assert (told.state, str(told.found)) == (
        "note",
        "WSL may take 49 GiB and its containers 32 GiB of 64 GiB in Windows",
    )
    assert (other.state, str(other.found)) == ("not applicable", "this Windows user has none")


def test_the_limit_on_users_programs_came_with_2_9_5() -> None:
    (key,) = [key for key in WSLCONFIG.keys if key.name == "isolateDistroCgroup"]

    assert key.since == "2.9.5"
