# shellcheck shell=sh
# Sourced by deploy/install and deploy/uninstall: where everything lies, and doing things or only showing them.

# places USER: set the paths, of the system's service or, when USER is not empty, of the user's own.
# shellcheck disable=SC2034 # used by who sources this
places() {
    if [ "$1" ]; then
        kind=user
        program=$HOME/.local/share/wslgpud
        units=$HOME/.config/systemd/user
        settings=$HOME/.config/wslgpud
        data=$HOME/.local/state/wslgpud
        command=$HOME/.local/bin/wslgpud
    else
        kind=system
        program=/opt/wslgpud
        units=/etc/systemd/system
        settings=/etc/wslgpud
        data=/var/lib/wslgpud
        command=/usr/local/bin/wslgpud
    fi
    releases=$program.releases # the program itself is a link to one of them
    dropins=$units/wslgpud.service.d
}

# does COMMAND...: do it; with --dry-run only show it.
does() {
    does_what "$*" "$@"
}

# does_what WORDS COMMAND...: the same for what is told better in words.
done=''
does_what() {
    done=yes
    if [ "$dry" ]; then
        printf '  %s\n' "$1"
    else
        shift
        "$@"
    fi
}

# fail LINE...: end with these lines.
fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

# check_who USER: the system's service is root's business, a user's own never.
check_who() {
    if [ "$1" ] && [ "$(id -u)" = 0 ]; then
        fail "--user is for the service of an ordinary user; as root leave it out"
    elif [ -z "$1$dry" ] && [ "$(id -u)" != 0 ]; then
        fail "this needs root: sudo $0 (or, without root and with less protection: $0 --user)"
    fi
}

# in_group USER GROUP: tell whether the user belongs to it.
in_group() {
    id -nG "$1" 2>/dev/null | tr ' ' '\n' | grep -qx "$2"
}

under_wsl() {
    [ -e /dev/dxg ] || [ -e /run/WSL ] || grep -qi microsoft /proc/sys/kernel/osrelease
}

# keep_alive create|remove|status: Windows' scheduled task that keeps this distribution running.
keep_alive() {
    "$program/bin/python" -m wslgpud.probes.keep_alive "$1"
}
