"""Disks, the clock, Docker, permissions, and our own service."""

from __future__ import annotations

from wslgpud import documents, secrecy
from wslgpud.advise.doctor.findings import Outcome, check, could_not_tell, good, not_applicable, note, problem
from wslgpud.advise.doctor.look import Look
from wslgpud.advise.drives import READERS, open_there
from wslgpud.host import NoData, SourceError
from wslgpud.sources.disk import holder
from wslgpud.sources.text import whole
from wslgpud.units import duration, size

GIB = 1 << 30
#: ext4.vhdx grows by gigabytes at a time, and Windows itself fails below some.
FULL_BYTES, NEARLY_FULL_BYTES = 5 * GIB, 20 * GIB
#: The hardware clock tells whole seconds, and a machine under load asks late.
SKEW_SECONDS = 5.0
#: Time zones differ by quarters of an hour, and by 14 hours at most.
_ZONE_SECONDS, _FARTHEST_SECONDS = 900.0, 14 * 3600.0 + 5.0
TIME_DAEMONS = frozenset({"chronyd", "ntpd", "systemd-timesyn", "openntpd"})


@check(
    "data.windows_drive",
    "Training data",
    "Windows' drives (/mnt/c) are many times slower from Linux, and leak Windows' memory; the card waits.",
    "wsl",
)
def windows_drive(look: Look) -> Outcome:
    """No training reads or writes on a drive of Windows."""
    points = [m.point for m in look.mounts if m.windows]
    if not points:
        return not_applicable("no drive of Windows is mounted")
    workers = [p for p in look.processes if p.roles & READERS]
    if not workers:
        return not_applicable("no training runs now")
    names = {p.pid: p.command or p.name for p in workers}
    for pid, path in open_there(look.host, names, points):
        return problem(
            f"{names[pid]} ({pid}) has {path} open",
            f"mkdir -p ~/data && rsync -a --info=progress2 '{path.rpartition('/')[0]}/' ~/data/",
        )
    return good(f"nothing open on {', '.join(points)}")


@check("disk.state", "Where history lies", "SQLite loses its locks, and its data, on drives of Windows.")
def state(look: Look) -> Outcome:
    """Our own data lies on a file system of Linux."""
    mount = holder(look.mounts, look.state_folder)
    if mount is None:
        return could_not_tell(f"no mount holds {look.state_folder}")
    if mount.windows or mount.type in ("9p", "virtiofs", "nfs", "nfs4", "cifs", "fuse"):
        return problem(
            f"{look.state_folder} is on {mount.type}", "store.path: a folder like /var/lib/wslgpud"
        )
    if "ro" in mount.options:
        return problem(
            f"{look.state_folder} is read-only", "sudo mount -o remount,rw /   # a failing disk? see dmesg"
        )
    return good(f"{look.state_folder} on {mount.type}")


@check("disk.space", "Room on Linux' disk", "Checkpoints and history end in a full disk.")
def space(look: Look) -> Outcome:
    """The root has room."""
    disk = look.host.disk_space("/")
    if disk.available < FULL_BYTES:
        return problem(f"{size(disk.available)} left on /", "du -xh --max-depth=2 ~ | sort -h | tail")
    return good(f"{size(disk.available)} left on /")


@check(
    "disk.windows",
    "Room on Windows' drive",
    "The distro's disk is a file there: when Windows is full, Linux "
    "gets read-only or does not start, however empty it looks.",
    "wsl",
)
def windows_space(look: Look) -> Outcome:
    """The drive that holds the virtual disk has room."""
    tight, seen = [], []
    for mount in (m for m in look.mounts if m.windows):
        try:
            disk = look.host.disk_space(mount.point)
        except (NoData, SourceError):
            continue
        seen.append(f"{size(disk.available)} left on {mount.point}")
        if disk.available < NEARLY_FULL_BYTES:
            tight.append((disk.available, seen[-1]))
    if not seen:
        return could_not_tell("no drive of Windows answers")
    if not tight:
        return good(", ".join(seen))
    worst = min(tight)
    remedy = "wsl --manage DISTRO --compact, or empty that drive        (in Windows)"
    return problem(worst[1], remedy) if worst[0] < FULL_BYTES else note(worst[1], remedy)


@check(
    "clock.daemons",
    "The clock",
    "Windows sets WSL's clock; a second time daemon fights it, and the clock jumps (microsoft/WSL#11790).",
    "wsl",
)
def clock(look: Look) -> Outcome:
    """Only Windows sets the clock."""
    found = sorted(TIME_DAEMONS & set(look.names.values()))
    if found:
        unit = {"chronyd": "chrony", "systemd-timesyn": "systemd-timesyncd"}.get(found[0], found[0])
        return note(f"{found[0]} sets it as well", f"sudo systemctl disable --now {unit}")
    return good("set by Windows alone")


@check(
    "clock.skew",
    "The time",
    "After Windows slept, Linux may go on where it was: downloads fail, make builds nothing.",
)
def skew(look: Look) -> Outcome:
    """The clock agrees with the hardware's, which under WSL2 is that of Windows."""
    text = look.read("/sys/class/rtc/rtc0/since_epoch")
    hardware = whole((text or "").strip())
    if hardware is None:
        return could_not_tell("this machine shows no hardware clock")
    off = hardware - look.host.clock.wall()
    if abs(off) <= SKEW_SECONDS:
        return good(f"within {SKEW_SECONDS:.0f} s of the hardware's")
    if (
        abs(off - _ZONE_SECONDS * round(off / _ZONE_SECONDS)) <= SKEW_SECONDS
        and abs(off) <= _FARTHEST_SECONDS
    ):
        return good("as the hardware's, which keeps local time")
    way = "behind" if off > 0 else "ahead of"
    found = f"{duration(abs(off))} {way} the hardware's"
    remedy = "sudo hwclock -s" + ("   # for good: wsl --update (in Windows); 2.1.1 mends it" * bool(look.wsl))
    return problem(found, remedy) if look.wsl else note(found, remedy)


@check(
    "docker.nvidia", "Docker's GPU", "Containers see the card only by NVIDIA's runtime or a CDI file.", "gpu"
)
def docker(look: Look) -> Outcome:
    """Containers can have the GPU."""
    present = any(
        look.host.exists(p) for p in ("/var/run/docker.sock", "/run/docker.sock", "/usr/bin/dockerd")
    )
    if not present:
        return not_applicable("Docker is not installed here")
    if any(look.host.exists(p) for p in ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml")):
        return good("by CDI")
    try:
        runtimes = documents.parsed(look.read("/etc/docker/daemon.json") or "{}").get("runtimes")
    except ValueError:
        return problem("/etc/docker/daemon.json is not valid JSON", "sudo dockerd --validate")
    if isinstance(runtimes, dict) and "nvidia" in runtimes:
        return good("by NVIDIA's runtime")
    if look.host.exists("/mnt/wsl/docker-desktop") or look.host.exists("/usr/bin/com.docker.cli"):
        return good("by Docker Desktop")
    return note(
        "Docker has no NVIDIA runtime",
        "sudo apt-get install nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker"
        " && sudo systemctl restart docker",
    )


@check(
    "rights.kernel_log",
    "The kernel's log",
    "Who was killed, and what the GPU's driver said, stands only there.",
)
def kernel_log(look: Look) -> Outcome:
    """We may read what the kernel says."""
    try:
        if look.host.live:
            with open("/dev/kmsg", "rb"):  # noqa: PTH123 - opening is the test; reading would wait
                return good("readable")
        look.host.read("/dev/kmsg")
    except NoData:
        return could_not_tell("there is no /dev/kmsg")
    except (OSError, SourceError):
        return note(
            "hidden from this user", "sudo sysctl kernel.dmesg_restrict=0   # or the service: it may read it"
        )
    return good("readable")


@check(
    "rights.processes",
    "Other users' processes",
    "Who takes the memory can be told only of processes we may see.",
)
def processes(look: Look) -> Outcome:
    """We see whose memory it is."""
    hidden = any(
        m.point == "/proc"
        and any(o.startswith("hidepid=") and o not in ("hidepid=0", "hidepid=off") for o in m.options)
        for m in look.mounts
    )
    if hidden and not look.is_root:
        return note(
            "hidden from this user (hidepid)", "the service may see them: sudo systemctl enable --now wslgpud"
        )
    return good("visible")


@check(
    "rights.secrets",
    "Our secrets",
    "Who can read the address of a channel reads your warnings, and sends some in your name.",
)
def secrets(look: Look) -> Outcome:
    """No file of ours with secrets in it is open to everybody."""
    if not look.host.live:
        return not_applicable("this is a recording")
    for path in look.exposed:
        return problem(f"every user can read {path}", secrecy.remedy(path))
    return good("for us alone")


@check("service.runs", "The daemon", "Nothing warns while it does not run.")
def service(look: Look) -> Outcome:
    """The daemon runs."""
    if not look.host.live:
        return not_applicable("this is a recording")
    for folder in (look.state_folder, "/var/lib/wslgpud"):
        text = look.read(f"{folder}/daemon.json")
        try:
            document = documents.parsed(text or "{}")
        except ValueError:
            continue
        # After a crash the note is still there, and its number may be another program's by now.
        if "wslgpud" in (look.read(f"/proc/{document.get('pid')}/cmdline") or ""):
            return good(f"it answers at {document.get('url')}")
    return note("it does not run", "sudo systemctl enable --now wslgpud   # or: wslgpud run")
