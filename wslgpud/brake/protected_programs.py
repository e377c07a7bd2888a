"""Programs that the brake never pauses, by name. Pure.

A process can choose its name, so a name may only protect that process; it never causes a pause.
"""

from __future__ import annotations

import re
from fnmatch import translate

#: the search for the growing process passes through these, but they are not paused: the user needs the prompt
_SHELLS = "sh bash rbash dash ash busybox zsh fish ksh* mksh csh tcsh nu pwsh xonsh elvish"
#: never paused: logins and remote access, display servers and desktops, terminals, container engines, databases
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


def is_shell(*names: str) -> bool:
    """Return whether a process of these names is a shell."""
    return any(_SHELL.fullmatch(name.removeprefix("-")) for name in names if name)


def is_protected(*names: str) -> bool:
    """Return whether a process of these names is never paused."""
    return any(_OTHER.fullmatch(name) for name in names if name)
