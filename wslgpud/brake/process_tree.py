"""The process tree: scanned, with each process's growth since an earlier scan, and the programs that are never paused.

A scan reads three small files and the executable's name for each process, about 40 us. A rescan reads only new
processes: memory is running out while the brake looks for children to stop.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Final, NamedTuple

from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources import parse_uint, table
from wslgpud.sources.cgroups import find_tree
from wslgpud.sources.procfs import memory_cgroup, process_stat, status_field, status_number

ProcessKey = tuple[int, int]


def _patterns(names: str) -> re.Pattern[str]:
    return re.compile("|".join(translate(name) for name in names.split()))


# A process can choose its name, so a name may only protect that process; it never causes a pause.
#: the search for the growing process passes through these, but they are not paused: the user needs the prompt
_SHELL = _patterns("sh bash rbash dash ash busybox zsh fish ksh* mksh csh tcsh nu pwsh xonsh elvish")
#: never paused: logins and remote access, display servers and desktops, terminals, container engines, databases
_PROTECTED = _patterns("""
    init systemd systemd-* (sd-pam) dbus-* login agetty su sudo sudo-rs doas runuser pkexec polkitd cron crond atd
    sshd sshd-* sshd:* ssh ssh-* mosh-* dropbear tailscaled SessionLeader Relay(* init(* plan9 wsl*
    tmux tmux:* screen SCREEN zellij byobu* abduco dtach script
    Xorg X Xwayland Xwayland* weston* wayfire sway Hyprland labwc niri river cosmic-* kwin* plasma* ksmserver
    gnome-* gdm* gjs
    mutter* cinnamon* xfce4-* xfwm4 mate-* marco budgie-* lightdm* sddm* i3 awesome bspwm openbox pipewire* wireplumber
    pulseaudio xdg-* ibus-* fcitx* Xvnc* x11vnc xrdp* nvidia-persiste* nvidia-persistenced nvidia-powerd
    konsole xterm urxvt* kitty alacritty wezterm* foot ghostty terminator tilix* ptyxis* xfce4-terminal terminology st
    dockerd docker-* docker-proxy docker-init containerd containerd-* runc crun conmon* podman* buildkitd kubelet k3s*
    lxd lxc* incus* libvirtd virt* qemu-*
    postgres postmaster mysqld mariadbd mongod mongos redis-server valkey-server memcached influxd clickhouse* cassandra
    sqlservr oracle* etcd prometheus grafana* loki
    code code-* code-server cursor windsurf wslgpud wslgpud-*
""")


class ScannedProcess(NamedTuple):
    """A process as read from /proc.

    ``uid`` is None if its real, effective, saved and filesystem users differ. ``name`` is its own choice (comm),
    ``program`` the name of its executable, empty if hidden; both are untrusted and must be redacted before display.
    ``memory_bytes`` is private memory in RAM and swap, ``shared_bytes`` resident shared memory (shm, tmpfs), which
    others may map too, or the files in RAM that its cgroup is charged for (``charged``). ``stopped``:
    already stopped by a user or a debugger.
    """

    pid: int
    start_ticks: int
    parent: int
    uid: int | None
    name: str
    memory_bytes: int
    program: str = ""
    cgroup: str = ""
    stopped: bool = False
    shared_bytes: int = 0

    @property
    def key(self) -> ProcessKey:
        """Identity that stays unique when the pid is reused."""
        return self.pid, self.start_ticks

    @property
    def is_shell(self) -> bool:
        """Whether it is a shell: its children are jobs, the shell itself is not."""
        return any(_SHELL.fullmatch(name.removeprefix("-")) for name in (self.name, self.program))

    @property
    def is_protected(self) -> bool:
        """Whether it is never paused, whoever runs it."""
        return self.pid <= 1 or any(_PROTECTED.fullmatch(name) for name in (self.name, self.program))

    def with_shared(self) -> ScannedProcess:
        """Return it with shared memory counted as private."""
        return self._replace(memory_bytes=self.memory_bytes + self.shared_bytes)


class ProcessTree:
    """All processes of a scan, with their growth since an earlier one."""

    def __init__(
        self, now: Iterable[ScannedProcess], before: Mapping[ProcessKey, int], ours: Collection[int] = ()
    ) -> None:
        """Build the tree: processes ``now``, their memory in bytes ``before``, and the pids of the daemon itself."""
        self.by_pid = {process.pid: process for process in now}
        self._before, self._ours = before, ours
        self.children: defaultdict[int, list[ScannedProcess]] = defaultdict(list)
        for process in self.by_pid.values():
            self.children[process.parent].append(process)

    def growth_bytes(self, process: ScannedProcess) -> int:
        """Return a process's growth; all of its memory if it is new.

        A forked child shares its parent's pages until it writes to them (copy-on-write): those are no growth.
        """
        before, parent = self._before.get(process.key), self.by_pid.get(process.parent)
        if before is None and parent is not None and (parent.name, parent.program) == (process.name, process.program):
            before = parent.memory_bytes
        return max(0, process.memory_bytes - (before or 0))

    def subtree(self, root: ScannedProcess) -> Iterator[ScannedProcess]:
        """Yield a process and its descendants, parents first."""
        seen, waiting = {root.pid}, deque([root])
        while waiting:
            yield (one := waiting.popleft())
            fresh = [child for child in self.children.get(one.pid, ()) if child.pid not in seen]
            seen.update(child.pid for child in fresh)
            waiting.extend(fresh)

    def may_be_paused(self, process: ScannedProcess, users: Collection[int]) -> bool:
        """Return whether it belongs to one of the users and is neither a shell, protected, nor part of the daemon."""
        return process.uid in users and not (process.pid in self._ours or process.is_shell or process.is_protected)

    def members(
        self, roots: Sequence[ScannedProcess], users: Collection[int], *, stopped: bool = False
    ) -> tuple[ScannedProcess, ...]:
        """Return the processes to pause in these subtrees: no shells, and stopped processes only with ``stopped``."""
        members: dict[int, ScannedProcess] = {}
        for root in roots:
            cut: set[int] = set()
            for process in self.subtree(root):
                # The subtree of another user's or a protected program is not part of the job.
                foreign = process.uid not in users or process.is_protected or process.pid in self._ours
                if foreign or process.parent in cut:
                    cut.add(process.pid)
                elif not process.is_shell and (stopped or not process.stopped):
                    members.setdefault(process.pid, process)
        return tuple(members.values())


#: not RssFile: pages of mapped files are reclaimed under pressure
_OWN: Final = ("RssAnon", "VmSwap")
#: appended by the kernel if the executable was replaced since the process started
_REPLACED: Final = " (deleted)"
#: folders of editors' remote servers, which run terminals and whose executable is an ordinary ``node``
_EDITOR_SERVER = re.compile(r"/\.(?:vscode|cursor|windsurf|vscodium|positron)-server(?:-[a-z]+)?/")


class ProcessListing(NamedTuple):
    """The user-space processes, and the pids of all, kernel threads included."""

    processes: tuple[ScannedProcess, ...]
    pids: frozenset[int]


def scan(host: Host) -> ProcessListing:
    """Read all processes."""
    pids = _pids(host)
    return ProcessListing(_read(host, pids), frozenset(pids))


def rescan(host: Host, before: ProcessListing, again: Collection[int]) -> ProcessListing:
    """Return a scan with new processes added and those of ``again`` read anew.

    A pid reused within these milliseconds would be missed, but the kernel cycles through all others first.
    """
    pids = _pids(host)
    read = _read(host, [pid for pid in pids if pid in again or pid not in before.pids])
    unchanged = (process for process in before.processes if process.pid not in again)
    return ProcessListing((*unchanged, *read), before.pids.union(pids))


def charged(host: Host, processes: Iterable[ScannedProcess], users: Collection[int]) -> tuple[ScannedProcess, ...]:
    """Return the processes with files in RAM (tmpfs, /dev/shm) as shared memory of those who may have written them.

    No process holds them, but the cgroup that wrote them is charged (``shmem`` of memory.stat, see
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files). Which of its processes wrote them is
    unknown: they count for one that is never paused if there is any, else for the oldest.
    """
    sizes: dict[int, int] = {}
    by_cgroup: defaultdict[str, list[ScannedProcess]] = defaultdict(list)
    for process in (processes := tuple(processes)):
        # Not the root, which has no statistics of its own, nor what a container's view leaves out.
        if process.uid in users and process.cgroup.strip("/") and ".." not in process.cgroup.split("/"):
            by_cgroup[process.cgroup].append(process)
    with contextlib.suppress(NoData, SourceError):  # no cgroups
        root = find_tree(host).root
        for path, inside in by_cgroup.items():
            bearer = min(inside, key=lambda one: (not (one.is_shell or one.is_protected), one.start_ticks))
            statistics = table(host.read_optional(f"{root}{path}/memory.stat"))
            sizes[bearer.pid] = parse_uint(statistics.get("shmem")) or 0
    return tuple(one._replace(shared_bytes=max(one.shared_bytes, sizes.get(one.pid, 0))) for one in processes)


def _pids(host: Host) -> list[int]:
    return [int(name) for name in host.names("/proc") if name.isdecimal()]


def _read(host: Host, pids: Iterable[int]) -> tuple[ScannedProcess, ...]:
    return tuple(process for pid in pids if (process := _process(host, pid)) is not None)


def _process(host: Host, pid: int) -> ScannedProcess | None:
    """Return one process; None if it has exited, is hidden, or has no address space (a kernel thread)."""
    row = process_stat(host, pid)
    if row is None or not row.virtual_bytes or not (status := host.read_optional(f"/proc/{pid}/status")):
        return None
    users = {*status_field(status, "Uid")}
    return ScannedProcess(
        pid,
        row.start_ticks,
        row.parent,
        parse_uint(users.pop()) if len(users) == 1 else None,
        row.name,
        sum(status_number(status, name) or 0 for name in _OWN) << 10,
        _program(host.link(f"/proc/{pid}/exe") or ""),
        memory_cgroup(host.read_optional(f"/proc/{pid}/cgroup")),
        row.stopped,
        (status_number(status, "RssShmem") or 0) << 10,
    )


def _program(path: str) -> str:
    """Return the name of an executable, given its path."""
    if _EDITOR_SERVER.search(path):
        return "code-server"
    return path.rpartition("/")[2].removesuffix(_REPLACED)
