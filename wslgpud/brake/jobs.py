"""Whom the brake pauses: the smallest part of the tree of processes that grows, if it may be paused. Pure.

A job is a process and all below it. It is looked for from the top: as long as one child with all below it accounts for
nearly all of the growth, that child is looked at in turn. So a leak is found in its own process, a build of many short
compilers in the one that starts them; and where that is one that is never paused, such as a shell, the job is
its children of one name.

What others can choose decides nothing: names only ever protect, and only their own program.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Final, Literal, NamedTuple

#: share of what was lost that programs must have taken: else it went elsewhere, into files in RAM say
FOUND_SHARE: Final = 0.5
#: share of all growth that one part of the tree accounts for, or nobody is paused
JOB_SHARE: Final = 0.7
#: processes of one job; a program that has more of them is not one that trains or builds
MOST_MEMBERS: Final = 1024
#: levels of the tree that are looked down; parents and children of a loop are never looked at twice
_DEEPEST: Final = 200

ProcessKey = tuple[int, int]
#: why nobody is paused
Spared = Literal["nobody", "several", "protected", "user", "crowd"]


class Program(NamedTuple):
    """A process as a look at /proc shows it.

    ``uid`` is None where it has rights of more than one user; ``name`` is what it calls itself, ``program`` the name of
    the file that it runs, empty where that is hidden: neither is fit to be shown. ``stopped``: by somebody, already.
    """

    pid: int
    start_ticks: int
    parent: int
    uid: int | None
    name: str
    held_bytes: int
    program: str = ""
    cgroup: str = ""
    stopped: bool = False

    @property
    def key(self) -> ProcessKey:
        """ExactProcess that survives the reuse of a pid."""
        return self.pid, self.start_ticks


class Job(NamedTuple):
    """What is paused: its processes, parents before their children; ``lead`` has grown most."""

    members: tuple[Program, ...]
    lead: Program
    grown_bytes: int
    #: the members that no other member has started
    roots: tuple[Program, ...]


#: through these one looks for who grows, and they themselves are left alone: to a shell its job's line comes back
_SHELLS = "sh bash rbash dash ash busybox zsh fish ksh* mksh csh tcsh nu pwsh xonsh elvish"
#: never paused: the ways to the machine, what draws on its screen, what keeps other programs and their data
_OTHERS = """
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
"""


def _patterns(names: str) -> re.Pattern[str]:
    return re.compile("|".join(translate(name) for name in names.split()))


_SHELL, _OTHER = _patterns(_SHELLS), _patterns(_OTHERS)


def is_shell(one: Program) -> bool:
    """Tell whether it reads commands: what it has started is somebody's job, it itself is not."""
    return any(_SHELL.fullmatch(name.removeprefix("-")) for name in (one.name, one.program) if name)


def is_protected(one: Program) -> bool:
    """Tell whether it is one that is never paused, whoever started it."""
    return one.pid <= 1 or any(_OTHER.fullmatch(name) for name in (one.name, one.program) if name)


class ProcessTree:
    """All processes of a look, and by how much each has grown since an earlier one."""

    def __init__(self, now: Iterable[Program], before: Mapping[ProcessKey, int], ours: Collection[int] = ()) -> None:
        """Take the processes of ``now``, what they held ``before``, and the pids of those that are part of us."""
        self.by_pid = {one.pid: one for one in now}
        self._before, self._ours = before, ours
        self.children: defaultdict[int, list[Program]] = defaultdict(list)
        for one in self.by_pid.values():
            self.children[one.parent].append(one)

    def grown(self, one: Program) -> int:
        """Return what it has taken since: of one that came meanwhile all that it has.

        Who was forked shares its parent's memory until it writes to it: that is no growth.
        """
        before = self._before.get(one.key)
        if before is None:
            parent = self.by_pid.get(one.parent)
            forked = parent is not None and parent.name == one.name and parent.program == one.program
            before = min(one.held_bytes, parent.held_bytes) if forked and parent is not None else 0
        return max(0, one.held_bytes - before)

    def below(self, root: Program) -> Iterator[Program]:
        """Yield a process and all below it, parents first."""
        seen, waiting = {root.pid}, deque([root])
        while waiting:
            yield (one := waiting.popleft())
            fresh = [child for child in self.children.get(one.pid, ()) if child.pid not in seen]
            seen.update(child.pid for child in fresh)
            waiting.extend(fresh)

    def may_be_paused(self, one: Program, users: Collection[int]) -> bool:
        """Tell whether it is one of the users' own programs, and neither protected nor a part of us."""
        return one.uid in users and not (one.pid in self._ours or is_shell(one) or is_protected(one))

    def members(
        self, roots: Sequence[Program], users: Collection[int], *, stopped: bool = False
    ) -> tuple[Program, ...]:
        """Return what is paused of these and all below them: no shells, and who is stopped already only if asked."""
        found: dict[int, Program] = {}
        for root in roots:
            cut: set[int] = set()
            for one in self.below(root):
                # Another user's program among them, or a protected one, has a life of its own.
                foreign = one.uid not in users or is_protected(one) or one.pid in self._ours
                if foreign or one.parent in cut:
                    cut.add(one.pid)
                elif not is_shell(one) and (stopped or not one.stopped):
                    found.setdefault(one.pid, one)
        return tuple(found.values())


def grower(
    tree: ProcessTree, users: Collection[int], lost_bytes: int, among: Collection[int] | None = None
) -> Job | Spared:
    """Return the job that has taken what was lost of RAM or of a limited group, or why nobody is paused.

    It accounts for ``JOB_SHARE`` of what all programs have taken, and for ``FOUND_SHARE`` of what was lost. ``among``
    are the pids that count, those in the group; without it all do.
    """
    counted = [one for one in tree.by_pid.values() if among is None or one.pid in among]
    grown = {one.pid: tree.grown(one) for one in counted}
    whole = sum(grown.values())
    if lost_bytes <= 0 or whole < FOUND_SHARE * lost_bytes:
        return "nobody"
    sums = _sums(tree, grown)

    def enough(ones: Iterable[Program]) -> bool:
        taken = sum(sums[one.pid] for one in ones)
        return taken >= JOB_SHARE * whole and taken >= FOUND_SHARE * lost_bytes

    here: Program | None = None
    children: Sequence[Program] = [one for one in tree.by_pid.values() if one.parent not in tree.by_pid]
    for _ in range(_DEEPEST):
        best = max(children, key=lambda one: sums[one.pid], default=None)
        if best is None or not enough([best]):
            break
        here, children = best, tree.children.get(best.pid, ())
    if here is not None and tree.may_be_paused(here, users):
        return _job(tree, [here], users, grown)
    if here is not None and grown.get(here.pid, 0) >= JOB_SHARE * whole:
        return _why_not(here, users)
    alike: defaultdict[tuple[str, str], list[Program]] = defaultdict(list)
    for child in children:
        alike[child.name, child.program].append(child)
    workers = max(alike.values(), key=lambda ones: sum(sums[one.pid] for one in ones), default=[])
    if here is None or not enough(workers):
        return "several"
    chosen = [one for one in workers if tree.may_be_paused(one, users)]
    return _job(tree, chosen, users, grown) if enough(chosen) else _why_not(workers[0], users)


def _why_not(one: Program, users: Collection[int]) -> Spared:
    return "protected" if one.uid in users else "user"


def named(tree: ProcessTree, users: Collection[int], pid: int) -> Job | Spared:
    """Return the job of a process that somebody who knows has named: the driver of a card."""
    root = tree.by_pid.get(pid)
    if root is None:
        return "nobody"
    if not tree.may_be_paused(root, users):
        return _why_not(root, users)
    return _job(tree, [root], users, {pid: 0})


def _job(tree: ProcessTree, roots: Sequence[Program], users: Collection[int], grown: Mapping[int, int]) -> Job | Spared:
    members = tree.members(roots, users)
    if len(members) > MOST_MEMBERS:
        return "crowd"
    if not members:  # stopped by somebody else: then it is not the one that grows
        return "nobody"
    lead = max(members, key=lambda one: grown.get(one.pid, 0))
    return Job(members, lead, sum(grown.get(one.pid, 0) for one in members), tuple(roots))


def _sums(tree: ProcessTree, grown: Mapping[int, int]) -> dict[int, int]:
    """Return for each process by how much it and all below it have grown."""
    sums = dict.fromkeys(tree.by_pid, 0)
    for first, size in grown.items():
        pid, seen = first, set[int]()
        while pid in tree.by_pid and pid not in seen and len(seen) < _DEEPEST:
            seen.add(pid)
            sums[pid] += size
            pid = tree.by_pid[pid].parent
    return sums


def own_cgroup(paths: Collection[str]) -> str:
    """Return the cgroup that has all of these in it; empty where that is only the root, in which everybody is."""
    if not paths or any(not path.startswith("/") or ".." in path.split("/") for path in paths):
        return ""
    return posixpath.commonpath(paths).rstrip("/")
