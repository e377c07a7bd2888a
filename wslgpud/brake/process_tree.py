"""The process tree, with each process's growth since an earlier scan, and the programs that are never paused. Pure."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import NamedTuple

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
    others may map too, or the files in RAM that its cgroup is charged for (``process_scan.charged``). ``stopped``:
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
