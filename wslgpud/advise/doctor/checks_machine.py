"""Disks, the clock, Docker, permissions, and our own service."""

from __future__ import annotations

from wslgpud import documents, secrecy
from wslgpud.advise.doctor.findings import (
    Outcome,
    check,
    could_not_tell,
    good,
    not_applicable,
    note,
    problem,
)
from wslgpud.advise.doctor.look import Look
from wslgpud.advise.drives import READERS, open_there
from wslgpud.host import NoData, SourceError
from wslgpud.sources.disk import holder
from wslgpud.sources.text import whole
from wslgpud.words import all_of, say, template

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
    template("Training data"),
    template(
        "Windows drives (/mnt/c) are many times slower from Linux and leak Windows' memory; the card waits."
    ),
    "wsl",
)
def windows_drive(look: Look) -> Outcome:
    """No training reads or writes on a drive of Windows."""
    points = [m.point for m in look.mounts if m.windows]
    if not points:
        return not_applicable(say("no Windows drive is mounted"))
    workers = [p for p in look.processes if p.roles & READERS]
    if not workers:
        return not_applicable(say("no training is running"))
    names = {p.pid: p.command or p.name for p in workers}
    for pid, path in open_there(look.host, names, points):
        return problem(
            say("{program} (pid {pid}) has {path} open", program=names[pid], pid=pid, path=path),
            f"mkdir -p ~/data && rsync -a --info=progress2 '{path.rpartition('/')[0]}/' ~/data/",
        )
    return good(say("nothing open on {drives}", drives=tuple(points)))


@check(
    "disk.state",
    template("Location of the history"),
    template("SQLite loses its locks, and its data, on Windows drives."),
)
def state(look: Look) -> Outcome:
    """Our own data lies on a file system of Linux."""
    mount = holder(look.mounts, look.state_folder)
    if mount is None:
        return could_not_tell(say("no mount holds {path}", path=look.state_folder))
    if mount.windows or mount.type in ("9p", "virtiofs", "nfs", "nfs4", "cifs", "fuse"):
        return problem(
            say("{path} is on {filesystem}", path=look.state_folder, filesystem=mount.type),
            say("set store.path to a folder such as /var/lib/wslgpud"),
        )
    if "ro" in mount.options:
        return problem(
            say("{path} is read-only", path=look.state_folder),
            say("{command}   # a failing disk? see dmesg", command="sudo mount -o remount,rw /"),
        )
    return good(say("{path}, on {filesystem}", path=look.state_folder, filesystem=mount.type))


@check(
    "disk.space",
    template("Space on the Linux disk"),
    template("A full disk takes neither checkpoints nor history."),
)
def space(look: Look) -> Outcome:
    """The root has room."""
    disk = look.host.disk_space("/")
    found = say("{left_bytes} left on {path}", left_bytes=disk.available, path="/")
    return (
        problem(found, "du -xh --max-depth=2 ~ | sort -h | tail")
        if disk.available < FULL_BYTES
        else good(found)
    )


@check(
    "disk.windows",
    template("Space on the Windows drive"),
    template(
        "The distro's disk is a file there: when Windows is full, Linux turns read-only or does not start, "
        "however empty it looks."
    ),
    "wsl",
)
def windows_space(look: Look) -> Outcome:
    """The drive that holds the virtual disk has room."""
    left = []
    for mount in (m for m in look.mounts if m.windows):
        try:
            disk = look.host.disk_space(mount.point)
        except (NoData, SourceError):
            continue
        left.append((disk.available, mount.point))
    if not left:
        return could_not_tell(say("no Windows drive answers"))
    told = [say("{left_bytes} left on {path}", left_bytes=size, path=point) for size, point in sorted(left)]
    least, _ = min(left)
    if least >= NEARLY_FULL_BYTES:
        return good(all_of(told))
    remedy = say("{command}   # in Windows; or free up that drive", command="wsl --manage DISTRO --compact")
    return problem(told[0], remedy) if least < FULL_BYTES else note(told[0], remedy)


@check(
    "clock.daemons",
    template("Clock synchronization"),
    template(
        "Windows sets WSL's clock; a second time daemon fights it, and the clock jumps (microsoft/WSL#11790)."
    ),
    "wsl",
)
def clock(look: Look) -> Outcome:
    """Only Windows sets the clock."""
    found = sorted(TIME_DAEMONS & set(look.names.values()))
    if found:
        unit = {"chronyd": "chrony", "systemd-timesyn": "systemd-timesyncd"}.get(found[0], found[0])
        return note(
            say("{program} sets it as well", program=found[0]), f"sudo systemctl disable --now {unit}"
        )
    return good(say("set by Windows alone"))


@check(
    "clock.skew",
    template("Time"),
    template("After Windows slept, Linux' clock may lag behind: downloads fail, and make rebuilds nothing."),
)
def skew(look: Look) -> Outcome:
    """The clock agrees with the hardware's, which under WSL2 is that of Windows."""
    text = look.read("/sys/class/rtc/rtc0/since_epoch")
    hardware = whole((text or "").strip())
    if hardware is None:
        return could_not_tell(say("this machine has no visible hardware clock"))
    off = hardware - look.host.clock.wall()
    if abs(off) <= SKEW_SECONDS:
        return good(say("within {skew_seconds} of the hardware clock", skew_seconds=SKEW_SECONDS))
    if (
        abs(off - _ZONE_SECONDS * round(off / _ZONE_SECONDS)) <= SKEW_SECONDS
        and abs(off) <= _FARTHEST_SECONDS
    ):
        return good(say("agrees with the hardware clock, which keeps local time"))
    found = (
        say("{skew_seconds} behind the hardware clock", skew_seconds=off)
        if off > 0
        else say("{skew_seconds} ahead of the hardware clock", skew_seconds=-off)
    )
    command = "sudo hwclock -s"
    if not look.wsl:
        return note(found, command)
    return problem(
        found, say("{command}   # for good: 'wsl --update' in Windows; fixed in 2.1.1", command=command)
    )


@check(
    "docker.nvidia",
    template("GPU in Docker"),
    template("Containers see the card only through NVIDIA's runtime or a CDI file."),
    "gpu",
)
def docker(look: Look) -> Outcome:
    """Containers can have the GPU."""
    present = any(
        look.host.exists(p) for p in ("/var/run/docker.sock", "/run/docker.sock", "/usr/bin/dockerd")
    )
    if not present:
        return not_applicable(say("Docker is not installed here"))
    if any(look.host.exists(p) for p in ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml")):
        return good(say("through CDI"))
    try:
        runtimes = documents.parsed(look.read("/etc/docker/daemon.json") or "{}").get("runtimes")
    except ValueError:
        return problem(
            say("{path} is not valid JSON", path="/etc/docker/daemon.json"), "sudo dockerd --validate"
        )
    if isinstance(runtimes, dict) and "nvidia" in runtimes:
        return good(say("through NVIDIA's runtime"))
    if look.host.exists("/mnt/wsl/docker-desktop") or look.host.exists("/usr/bin/com.docker.cli"):
        return good(say("through Docker Desktop"))
    return note(
        say("Docker has no NVIDIA runtime"),
        "sudo apt-get install nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker"
        " && sudo systemctl restart docker",
    )


@check(
    "rights.kernel_log",
    template("Kernel log"),
    template("Only there does it say who was killed, and what the GPU driver reported."),
)
def kernel_log(look: Look) -> Outcome:
    """We may read what the kernel says."""
    try:
        if look.host.live:
            with open("/dev/kmsg", "rb"):  # noqa: PTH123 - opening is the test; reading would wait
                return good(say("readable"))
        look.host.read("/dev/kmsg")
    except NoData:
        return could_not_tell(say("there is no {path}", path="/dev/kmsg"))
    except (OSError, SourceError):
        return note(
            say("hidden from this user"),
            say(
                "{command}   # or install the service, which may read it",
                command="sudo sysctl kernel.dmesg_restrict=0",
            ),
        )
    return good(say("readable"))


@check(
    "rights.processes",
    template("Other users' processes"),
    template("Only visible processes can be named as the ones that take the memory."),
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
            say("hidden from this user (hidepid)"),
            say("{command}   # the service may see them", command="sudo systemctl enable --now wslgpud"),
        )
    return good(say("visible"))


@check(
    "rights.secrets",
    template("Secrets"),
    template("Whoever can read a channel's address can read your alerts, and send some in your name."),
)
def secrets(look: Look) -> Outcome:
    """No file of ours with secrets in it is open to everybody."""
    if not look.host.live:
        return not_applicable(say("this is a recording"))
    for path in look.exposed:
        return problem(say("every user can read {path}", path=str(path)), secrecy.remedy(path))
    return good(say("readable only by wslgpud"))


@check("service.runs", template("Daemon"), template("Nothing warns you while it is not running."))
def service(look: Look) -> Outcome:
    """The daemon runs."""
    if not look.host.live:
        return not_applicable(say("this is a recording"))
    for folder in (look.state_folder, "/var/lib/wslgpud"):
        text = look.read(f"{folder}/daemon.json")
        try:
            document = documents.parsed(text or "{}")
        except ValueError:
            continue
        # After a crash the note is still there, and its number may be another program's by now.
        if "wslgpud" in (look.read(f"/proc/{document.get('pid')}/cmdline") or ""):
            return good(say("running at {url}", url=str(document.get("url"))))
    return note(
        say("not running"),
        say("{command}   # or: wslgpud run", command="sudo systemctl enable --now wslgpud"),
    )
