"""The machine: RAM, swap, the kernel's settings, disks, the clock, Docker, and what our own service may do."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Container, Mapping
from pathlib import Path

from wslgpud.advise.doctor.checking import Evidence, Outcome, check, good, in_windows, note, problem, skipped, unknown
from wslgpud.advise.doctor.checks_wsl import lasting_sysctl
from wslgpud.brake.brake import allowed_users
from wslgpud.config import ConfigError, config_files, find_file
from wslgpud.host import NoData, SourceError
from wslgpud.security import safe_files
from wslgpud.sources import parse_uint, table
from wslgpud.sources.cgroups import reclaim_file
from wslgpud.sources.disk import READERS, holder, open_there
from wslgpud.sources.processes import ProcessSource
from wslgpud.words import Message, MessageLike, all_of, cause, say, says, template
from wslgpud.words.units import size

GIB = 1 << 30
#: A build of a CUDA extension takes 10 to 15 GB, and a 7B model is loaded through RAM.
SMALL_BYTES = 15 * GIB
#: WSL's own choice of swap is a quarter of the memory; half of that is too little to outlast a peak.
MIN_SWAP_RATIO = 0.125
#: Share of time stalled on memory: see the risk engine's own limits.
THRASHING_RATIO = 0.1
#: Elasticsearch's requirement; big models are mapped in many pieces as well.
MAPS = 262144
#: One watch takes at most 1 kB of kernel memory; editors and TensorBoard need one for each folder.
WATCHES, MANY_WATCHES = 65536, 524288
#: ext4.vhdx grows by gigabytes at a time, and Windows itself fails with only a few left.
FULL_BYTES, NEARLY_FULL_BYTES = 5 * GIB, 20 * GIB
#: A quarter of an hour of samples is sealed once the server has it, checked every minute.
LATE_SECONDS = 1200.0
#: The hardware clock has a resolution of seconds, and a machine under load reads it late.
SKEW_SECONDS = 5.0
#: Time zones differ by quarters of an hour, and by 14 hours at most.
_ZONE_SECONDS, _FARTHEST_SECONDS = 900.0, 14 * 3600.0 + SKEW_SECONDS
#: time daemons by the kernel's name, and their units
TIME_DAEMONS = {"chronyd": "chrony", "ntpd": "ntpd", "openntpd": "openntpd", "systemd-timesyn": "systemd-timesyncd"}
#: capability(7)
_CAP_DAC_OVERRIDE, _CAP_KILL = 1, 5
#: The distribution's disk turns read-only once ext4.vhdx cannot grow.
WINDOWS_DRIVE_FULL = say(
    "free up the Windows drive, then run 'wsl --shutdown' there; if it persists: "
    "https://learn.microsoft.com/windows/wsl/disk-space#how-to-repair-a-vhd-mounting-error"
)
_SHOWS_WHO = say("{command}   # shows who", command="wslgpud status")


@check("memory.size", "RAM")
def ram(machine: Evidence) -> Outcome:
    """If the virtual machine is too small, builds and model loading crash WSL."""
    total, available = machine.memory["MemTotal"], machine.memory.get("MemAvailable")
    if available is None:
        newer = say("Linux 3.14 or newer tells it, in containers lxcfs 2.0 or newer")
        return note(
            "{total_bytes}; how much is available is not told, so nothing warns of its end",
            in_windows("wsl --set-version DISTRO 2") if machine.wsl == 1 else newer,
            total_bytes=total,
        )
    if total >= SMALL_BYTES:
        return good("{total_bytes}, {left_bytes} of it available", total_bytes=total, left_bytes=available)
    if machine.wsl == 2:
        return note("WSL has only {total_bytes}", "wslgpud wslconfig preset training", total_bytes=total)
    remedy = say("keep MAX_JOBS low: {command}", command="wslgpud guard -- YOUR BUILD")
    return note("only {total_bytes}", remedy, total_bytes=total)


@check("memory.swap", "Swap")
def swap(machine: Evidence) -> Outcome:
    """With swap, a peak makes things slow; without it, the kernel kills."""
    total, ram = machine.memory.get("SwapTotal"), machine.memory["MemTotal"]
    if total is None:
        return unknown("{path} does not say", path="/proc/meminfo")
    if total >= MIN_SWAP_RATIO * ram:
        return Outcome("good", size(total))
    remedy: MessageLike = in_wslconfig(f"swap={max(4, round(ram * 0.4 / GIB))}GB")
    if not machine.wsl:
        # The last line makes it permanent; it starts with a newline, as the file may lack a final one.
        remedy = (
            "sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && "
            "sudo swapon /swapfile\n"
            r"printf '\n/swapfile none swap sw 0 0\n' | sudo tee -a /etc/fstab"
        )
    if total:
        return note("{swap_bytes} for {ram_bytes} of RAM", remedy, swap_bytes=total, ram_bytes=ram)
    if machine.wsl and float((machine.read("/proc/uptime") or "1e9").split()[0]) < 60:
        return unknown("WSL adds swap some seconds after it starts; check again in a minute")
    return problem("there is none", remedy)


@check("memory.thrashing", "Thrashing")
def thrashing(machine: Evidence) -> Outcome:
    """A machine that swaps constantly is a hundred times slower."""
    match = re.search(r"^full avg10=([\d.]+)", machine.host.read("/proc/pressure/memory"), re.MULTILINE)
    if not match:
        return unknown("{path} does not say", path="/proc/pressure/memory")
    share = float(match[1]) / 100
    if share < THRASHING_RATIO:
        return good("programs stalled on memory for {share_ratio} of the last 10 s", share_ratio=share)
    return problem("all programs stalled on memory for {share_ratio} of the last 10 s", _SHOWS_WHO, share_ratio=share)


@check("memory.killed", "OOM kills")
def killed(machine: Evidence) -> Outcome:
    """A program killed by the kernel often ends without any message."""
    kills = parse_uint(table(machine.read("/proc/vmstat") or "").get("oom_kill"))
    if kills is None:
        return unknown("{path} does not say", path="/proc/vmstat")
    if not kills:
        return good("none since boot")
    found = says(
        "{count} process killed for lack of memory since boot",
        "{count} processes killed for lack of memory since boot",
        count=kills,
    )
    return note(found, "wslgpud incidents")


@check("kernel.swappiness", "vm.swappiness")
def swappiness(machine: Evidence) -> Outcome:
    """Above 60 the kernel swaps programs out to keep files cached; at 0 it swaps only when it is too late."""
    return _sysctl(machine, "vm.swappiness", 10, range(1, 61))


@check("kernel.overcommit", "vm.overcommit_memory")
def overcommit(machine: Evidence) -> Outcome:
    """At 1 no allocation ever fails: programs get no error to react to, and warnings come later."""
    meanings = {
        1: template("{value}: every allocation succeeds until something is killed"),
        2: template("{value}: programs that reserve much address space, as CUDA does, may not start"),
    }
    return _sysctl(machine, "vm.overcommit_memory", 0, (0,), meanings)


@check("kernel.max_map_count", "vm.max_map_count")
def max_map_count(machine: Evidence) -> Outcome:
    """Big models and vector databases need many memory mappings."""
    return _sysctl(machine, "vm.max_map_count", MAPS, range(MAPS, sys.maxsize))


@check("kernel.inotify", "inotify watches")
def inotify(machine: Evidence) -> Outcome:
    """Editors and TensorBoard stop seeing changes when these run out."""
    return _sysctl(machine, "fs.inotify.max_user_watches", MANY_WATCHES, range(WATCHES, sys.maxsize))


def _sysctl(
    machine: Evidence, name: str, wanted: int, accepted: Container[int], meanings: Mapping[int, str] = {}
) -> Outcome:
    """Compare a kernel setting with its valid values; ``meanings`` explains some."""
    path = f"/proc/sys/{name.replace('.', '/')}"
    value = parse_uint(machine.host.read(path).strip())
    if value is None:
        return unknown("{path} does not hold a number", path=path)
    if value in accepted:
        return Outcome("good", str(value))
    found = Message(meanings[value], {"value": value}) if value in meanings else str(value)
    return Outcome("note", found, lasting_sysctl(name, wanted))


@check("kernel.pressure", "Pressure (PSI)")
def pressure(machine: Evidence) -> Outcome:
    """It is the earliest sign that memory is getting short."""
    if machine.host.exists("/proc/pressure/memory"):
        return Outcome("good", "/proc/pressure")
    if machine.wsl != 2:
        return note("the kernel does not report it", say("add psi=1 to the kernel's command line"))
    if machine.release.startswith("5."):
        return note("Linux {version} has none", in_windows("wsl --update"), version=machine.release.partition("-")[0])
    # WSL's Linux 6.18 has it, switched off: arch/x86/configs/config-wsl.
    return note("built into the kernel, but off", in_wslconfig("kernelCommandLine=psi=1"))


def in_wslconfig(setting: str) -> Message:
    """Return a line of .wslconfig."""
    return say("{setting}   # below [wsl2] in .wslconfig", setting=setting)


#: systemd then leaves all controllers to version 2
_UNIFIED = "systemd.unified_cgroup_hierarchy=0"


@check("kernel.memory_cgroup", "Memory cgroups")
def memory_cgroup(machine: Evidence) -> Outcome:
    """They limit and measure containers and guarded builds."""
    controllers = machine.read("/sys/fs/cgroup/cgroup.controllers")
    if "memory" in (controllers or "").split():
        return good("version {number}", number=2)
    if any(m.type == "cgroup" and "memory" in m.options for m in machine.mounts):
        return good("version {number}", number=1)
    if controllers is None:
        return unknown("{path} shows no controllers", path="/sys/fs/cgroup")
    # Name, number of the hierarchy of version 1 that holds it, groups, enabled.
    rows = [line.split() for line in (machine.read("/proc/cgroups") or "").splitlines()]
    if any(row[:1] == ["memory"] and row[1:2] != ["0"] for row in rows):
        remedy = say("remove {option} from the kernel's command line", option=_UNIFIED)
        return note("version 1 holds the memory controller, and is not mounted here", remedy)
    remedy = say("remove cgroup_disable=memory from the kernel's command line")
    if machine.wsl:
        remedy = say("remove automount.cgroups=v1 from /etc/wsl.conf, and cgroup_no_v1 from the kernel's command line")
    return note("version 2 without the memory controller", remedy)


@check("memory.limited", "Cgroup limits")
def limited(machine: Evidence) -> Outcome:
    """A group that reaches its limit is killed even though the machine has memory left."""
    most, now = (machine.number(f"/sys/fs/cgroup/wsl-user/memory.{name}") for name in ("max", "current"))
    if most is None or now is None:
        return skipped("WSL sets none here")
    found = say("{used_bytes} that WSL allows all programs together", used_bytes=(now, most))
    return note(found, _SHOWS_WHO) if now > 0.95 * most else good(found)


@check("data.windows_drive", "Training data", "wsl")
def windows_drive(machine: Evidence) -> Outcome:
    """Windows drives (/mnt/c) are many times slower from Linux and leak Windows' memory; the card waits."""
    points = [m.point for m in machine.mounts if m.windows]
    if not points:
        return skipped("no Windows drive is mounted")
    names = {}
    with contextlib.suppress(NoData, SourceError):
        running = ProcessSource(machine.host, machine.config).read().processes or ()
        names = {p.pid: p.command or p.name for p in running if p.roles & READERS}
    if not names:
        return skipped("no training is running")
    for pid, path in open_there(machine.host, names, points):
        folder = shlex.quote(f"{path.rpartition('/')[0]}/")  # to be pasted; anybody may open a file of any name
        copy = f"mkdir -p ~/data && rsync -a --info=progress2 {folder} ~/data/"
        return problem("{program} (pid {pid}) has {path} open", copy, program=names[pid], pid=pid, path=path)
    return good("nothing open on {drives}", drives=tuple(points))


@check("disk.state", "Location of the history")
def state(machine: Evidence) -> Outcome:
    """SQLite loses its locks, and its data, on Windows drives."""
    path = machine.state_folder
    mount = holder(machine.mounts, path)
    if mount is None:
        return unknown("no mount holds {path}", path=path)
    if mount.windows or mount.type in ("9p", "virtiofs", "nfs", "nfs4", "cifs", "fuse"):
        remedy = say("set store.path to a folder such as /var/lib/wslgpud")
        return problem("{path} is on {filesystem}", remedy, path=path, filesystem=mount.type)
    if "ro" in mount.options:
        remedy = say("{command}   # a failing disk? see dmesg", command=f"sudo mount -o remount,rw {mount.point}")
        return problem("{path} is read-only", WINDOWS_DRIVE_FULL if machine.wsl else remedy, path=path)
    return good("{path}, on {filesystem}", path=path, filesystem=mount.type)


@check("disk.replication", "Copy of the history on the server")
def replication(machine: Evidence) -> Outcome:
    """An unreachable server causes only delay: data not copied yet waits on this machine's disk."""
    # Imported late: few machines need SQLAlchemy here.
    from wslgpud.store import Reader, StoreError, shown, sqlite_path

    server = machine.config.store.path
    try:
        if not server or sqlite_path(server) is not None or not machine.host.live:
            return skipped("the history is only on this machine")
        with Reader(str(Path(machine.state_folder) / "wslgpud.db")) as reader:
            ticks, oldest_wall = reader.unsealed()
    except StoreError as error:
        return Outcome("could not tell", cause(error))
    waited = 0.0 if oldest_wall is None else machine.host.clock.wall() - oldest_wall
    if waited < LATE_SECONDS:
        return good("{server} has all but the newest samples", server=shown(server))
    found = says(
        "{count} sample waits on this disk for {server}, the oldest for {waited_seconds}",
        "{count} samples wait on this disk for {server}, the oldest for {waited_seconds}",
        count=ticks,
        server=shown(server),
        waited_seconds=waited,
    )
    return problem(found, "journalctl -u wslgpud -g 'kept on this machine' | tail -3")


@check("disk.space", "Space on the Linux disk")
def space(machine: Evidence) -> Outcome:
    """A full disk has no room for checkpoints or history."""
    disk = machine.host.disk_space("/")
    found = say("{left_bytes} left on {path}", left_bytes=disk.available, path="/")
    return problem(found, "du -xh --max-depth=2 ~ | sort -h | tail") if disk.available < FULL_BYTES else good(found)


@check("disk.windows", "Space on the Windows drive", "wsl")
def windows_space(machine: Evidence) -> Outcome:
    """The distro's disk is a file on it.

    When the drive is full, Linux turns read-only or does not start, however empty it looks.
    """
    left = []
    for mount in (m for m in machine.mounts if m.windows):
        with contextlib.suppress(NoData, SourceError):
            left.append((machine.host.disk_space(mount.point).available, mount.point))
    if not left:
        return unknown("no Windows drive answers")
    least, _ = min(left)
    drives = [say("{left_bytes} left on {path}", left_bytes=size, path=point) for size, point in sorted(left)]
    if least >= NEARLY_FULL_BYTES:
        return good(all_of(drives))
    remedy = say("{command}   # in Windows; or free up that drive", command="wsl --manage DISTRO --compact")
    return problem(drives[0], remedy) if least < FULL_BYTES else note(drives[0], remedy)


@check("clock.daemons", "Clock synchronization", "wsl")
def clock(machine: Evidence) -> Outcome:
    """Windows sets WSL's clock; a second time daemon fights it, and the clock jumps (microsoft/WSL#11790)."""
    for program in sorted(TIME_DAEMONS.keys() & set(machine.running)):
        remedy = f"sudo systemctl disable --now {TIME_DAEMONS[program]}"
        return note("{program} sets it as well", remedy, program=program)
    return good("set only by Windows")


@check("clock.skew", "Time")
def skew(machine: Evidence) -> Outcome:
    """After Windows slept, Linux' clock may lag behind: downloads fail, and make rebuilds nothing."""
    hardware = machine.number("/sys/class/rtc/rtc0/since_epoch")
    if hardware is None:
        return unknown("this machine has no visible hardware clock")
    off = hardware - machine.host.clock.wall()
    if abs(off) <= SKEW_SECONDS:
        return good("within {skew_seconds} of the hardware clock", skew_seconds=SKEW_SECONDS)
    if abs(off - _ZONE_SECONDS * round(off / _ZONE_SECONDS)) <= SKEW_SECONDS and abs(off) <= _FARTHEST_SECONDS:
        return good("agrees with the hardware clock, which keeps local time")
    found = say("{skew_seconds} behind the hardware clock", skew_seconds=off)
    if off < 0:
        found = say("{skew_seconds} ahead of the hardware clock", skew_seconds=-off)
    if not machine.wsl:
        return note(found, "sudo hwclock -s")
    remedy = say("{command}   # for good: 'wsl --update' in Windows; fixed in 2.1.1", command="sudo hwclock -s")
    return problem(found, remedy)


@check("docker.nvidia", "GPU in Docker", "gpu")
def docker(machine: Evidence) -> Outcome:
    """Containers see the card only through NVIDIA's runtime or a CDI file."""
    exists = machine.host.exists
    if not any(map(exists, ("/var/run/docker.sock", "/run/docker.sock", "/usr/bin/dockerd"))):
        return skipped("Docker is not installed here")
    if any(map(exists, ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml"))):
        return good("through CDI")
    try:
        runtimes = safe_files.parsed(machine.read("/etc/docker/daemon.json") or "{}").get("runtimes")
    except ValueError:
        return problem("{path} is not valid JSON", "sudo dockerd --validate", path="/etc/docker/daemon.json")
    if isinstance(runtimes, dict) and "nvidia" in runtimes:
        return good("through NVIDIA's runtime")
    if any(map(exists, ("/mnt/wsl/docker-desktop", "/usr/bin/com.docker.cli"))):
        return good("through Docker Desktop")
    configure = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
    return note("Docker has no NVIDIA runtime", f"sudo apt-get install nvidia-container-toolkit && {configure}")


@check("rights.processes", "Other users' processes")
def processes(machine: Evidence) -> Outcome:
    """Only visible processes can be named as the culprit."""
    options = [option for mount in machine.mounts if mount.point == "/proc" for option in mount.options]
    hidden = any(o.startswith("hidepid=") and o not in ("hidepid=0", "hidepid=off") for o in options)
    # The user who made a recording is unknown: most likely not root.
    if not hidden or (machine.host.live and os.geteuid() == 0):
        return good("visible")
    remedy = say("{command}   # the service may see them", command="sudo systemctl enable --now wslgpud")
    return note("hidden from this user (hidepid)", remedy)


@check("rights.secrets", "Secrets", "live")
def secrets(machine: Evidence) -> Outcome:
    """Anyone who can read a channel's address can read your alerts, and send some in your name."""
    for path in config_files.exposed(machine.config, find_file(os.environ)):
        return problem("every user can read {path}", config_files.remedy(path), path=str(path))
    return good("readable only by wslgpud")


@check("service.runs", "Daemon", "live")
def service(machine: Evidence) -> Outcome:
    """Nothing warns you while it is not running."""
    if machine.daemon is not None:
        return good("running at {url}", url=str(machine.daemon_status.get("url", machine.daemon.url)))
    return note("not running", say("{command}   # or: wslgpud run", command="sudo systemctl enable --now wslgpud"))


@check("rights.brake", "Brake", "live")
def brake(machine: Evidence) -> Outcome:
    """The daemon can pause a job only if it may send it signals."""
    if not machine.config.brake.on:
        return skipped("the brake is off")
    try:
        users = allowed_users(machine.config.brake)
    except ConfigError as error:
        return Outcome("problem", cause(error), say("fix it in the configuration"))
    if machine.daemon is None:
        return note("unknown until the daemon runs")
    uid, capabilities = machine.daemon_rights
    if capabilities >> _CAP_KILL & 1 or users <= {uid}:
        return good("the daemon may pause the jobs of the named users")
    remedy = "sudo wslgpud service install --allow brake"
    return problem("the daemon may not signal programs of other users", remedy)


@check("rights.return_cache", "Page cache for Windows", "wsl", "live")
def return_cache(machine: Evidence) -> Outcome:
    """Page cache that Linux keeps is memory that Windows lacks; only root's files of the kernel give it back."""
    if not machine.config.windows.return_cache:
        return skipped("windows.return_cache is off")
    if machine.daemon is None:
        return note("unknown until the daemon runs")
    uid, capabilities = machine.daemon_rights
    if uid and not reclaim_file(machine.host):
        return problem("this kernel has no memory.reclaim", in_windows("wsl --update"))
    if not uid or capabilities >> _CAP_DAC_OVERRIDE & 1:
        return good("the daemon may have the kernel drop page cache")
    remedy = "sudo wslgpud service install --allow return-cache"
    return problem("the daemon may not write the kernel's memory.reclaim", remedy)
