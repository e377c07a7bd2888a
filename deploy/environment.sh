# shellcheck shell=sh
# Sourced by deploy/run, deploy/install and tests/run: makes virtual environments, once.

# as_root COMMAND...: run it as root, with sudo if needed; fails if neither is possible.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "root or sudo is needed for: $*" >&2
        return 1
    fi
}

# quietly COMMAND...: run it; its output is shown only if it fails.
quietly() {
    said=$("$@" 2>&1) || { code=$? && printf '%s\n' "$said" >&2 && return $code; }
}

# counted TOTAL PIP...: like quietly, but shows progress through the packages.
counted() {
    total=$1 count=0 said=
    shift
    { "$@" 2>&1 && echo "status 0" || echo "status $?"; } | while IFS= read -r line; do
        case $line in
            "Collecting "* | "Processing "*) # the latter of a file that is here
                count=$((count + 1))
                [ $((count % 20)) != 0 ] || echo "fetching package $count of $total" >&2
                ;;
            "Ignoring "*) total=$((total - 1)) ;; # of another system or Python
            "Installing collected"*) echo "installing $count packages" >&2 ;;
            "status 0") exit ;;
            "status "*) printf '%s' "$said" >&2 && exit "${line#status }" ;;
            "  Downloading "* | "  Using cached "* | "Looking in "*) ;;
            *) said="$said$line
" ;;
        esac
    done
}

# missing_packages NAME...: print the Debian packages among NAME that are not installed.
missing_packages() {
    for name in "$@"; do
        dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || printf '%s ' "$name"
    done
}

# debian_packages NAME...: install the missing ones, and say which.
debian_packages() {
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || { echo "please install: $missing" >&2; return 1; }
    echo "installing Debian packages: $missing" >&2
    # Without package lists nothing is found; with old ones nothing can be downloaded.
    # shellcheck disable=SC2086 # a list of names
    if ! quietly as_root apt-get -qq update ||
        ! quietly as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get -qq install --yes --no-install-recommends $missing; then
        echo "please install: $missing" >&2
        return 1
    fi
}

# unpacked_packages FOLDER NAME...: unpack Debian packages into FOLDER/NAME without installing them. For servers:
# installed, they would start with the machine and take its ports.
unpacked_packages() {
    folder=$1
    shift
    for name in "$@"; do
        [ -d "$folder/$name" ] && continue
        echo "fetching the Debian package $name into $folder" >&2
        rm -rf "$folder/$name.part" && mkdir -p "$folder/$name.part" || return
        # apt drops to an unprivileged user who may not write here; its warning about that is harmless.
        (cd "$folder/$name.part" &&
            { apt-get -qq download "$name" 2>/dev/null ||
                { quietly as_root apt-get -qq update && quietly apt-get -qq download "$name"; }; } &&
            dpkg-deb -x ./*.deb . && rm ./*.deb) >&2 || return
        mv "$folder/$name.part" "$folder/$name" || return
    done
}

# find_python: print the first suitable Python. For a virtual environment (ours, if it is on PATH) the Python it
# was made with: the environment may be about to be replaced.
find_python() {
    for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
        "$python" -I -c 'import sys
sys.version_info < (3, 10) and sys.exit(1)
print(sys._base_executable or sys.executable)' 2>/dev/null && return
    done
    echo "wslgpud needs Python 3.10 or newer: install python3, or name one with PYTHON=" >&2
    return 1
}

# with_venv PYTHON: make sure that it can create virtual environments.
with_venv() {
    # -I, here and below: else Python would import a module of that name from the current folder.
    # Debian packages venv and pip separately; Python's own message does not give the remedy.
    "$1" -I -c 'import ensurepip, venv' 2>/dev/null ||
        debian_packages "$("$1" -I -c 'import sys; print(f"python3.{sys.version_info.minor}-venv")')"
}

# install_locked ENVIRONMENT FILE...: install the packages in the lock files. Only files hashed at locking time, and
# no source archives: to build one, pip would fetch whatever it asks for.
install_locked() {
    pip=$1/bin/pip
    shift
    locked=$(grep -h '^[a-z].*==' "$@" | sort -u | wc -l)
    for file in "$@"; do
        set -- "$@" --requirement "$file"
        shift
    done
    counted "$locked" "$pip" install --progress-bar off --disable-pip-version-check --require-hashes --only-binary :all: "$@"
}

# install_ours ENVIRONMENT REPOSITORY OPTION...: install the repository's own package. The build
# tools are locked too, and removed afterwards; pip's isolated build would fetch the newest of everything.
install_ours() {
    backend=$1/backend pip=$1/bin/pip repository=$2
    shift 2
    quietly "$pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
        --target "$backend" --requirement "$repository/deploy/build.txt" &&
        quietly env PYTHONPATH="$backend" "$pip" install --quiet --disable-pip-version-check \
            --no-index --no-deps --no-build-isolation "$@" "$repository" &&
        rm -rf "$backend"
}

# make_environment FOLDER REPOSITORY REQUIREMENTS...: a virtual environment with exactly these packages and
# the repository's in editable form. When it is up to date, does nothing and needs no network.
make_environment() {
    environment=$1 repository=$2
    shift 2
    python=$(find_python) || return
    stamp=$({
        "$python" -VV
        echo "$repository"
        cat "$repository/pyproject.toml" "$@"
    } | sha256sum)
    [ "$(cat "$environment/stamp" 2>/dev/null)" = "$stamp" ] && return
    if ! [ -w "$repository" ]; then
        echo "$(id -un) may not write to $repository, to make $environment: clone it to a folder of yours" >&2
        return 1
    fi
    with_venv "$python" || return
    echo "preparing $environment (once, about half a minute)" >&2
    rm -rf "$environment"
    "$python" -I -m venv "$environment" || return
    if ! install_locked "$environment" "$@" || ! install_ours "$environment" "$repository" --editable; then
        echo "the packages above could not be installed; the first run needs the network, later ones do not" >&2
        return 1
    fi
    echo "$stamp" >"$environment/stamp"
}

# release_of REPOSITORY EXTRAS: print the name of a release, which identifies its contents.
release_of() {
    python=$(find_python) || return
    printf '%s-%s\n' "$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$1/wslgpud/__init__.py")" "$(
        cd "$1" && {
            "$python" -VV
            echo "$2"
            find pyproject.toml grafana wslgpud deploy/build.txt deploy/drop-ins deploy/extras deploy/prometheus \
                deploy/requirements.txt deploy/share deploy/system deploy/user \
                -type f ! -name '*.pyc' -exec sha256sum {} + | LC_ALL=C sort
        } | sha256sum | cut -c1-12
    )"
}

# make_release FOLDER REPOSITORY EXTRAS: an environment with a copy of the program, independent of the
# repository from then on. EXTRAS like "apprise plots", or nothing.
make_release() {
    [ -e "$1/complete" ] && return
    python=$(find_python) && with_venv "$python" || return
    echo "preparing $1 (once, about half a minute)" >&2
    rm -rf "$1" && mkdir -p "$1" && "$python" -I -m venv "$1" || return
    release=$1 repository=$2 extras=$3
    set -- "$repository/deploy/requirements.txt"
    for extra in $extras; do
        set -- "$@" "$repository/deploy/extras/$extra.txt"
    done
    if ! install_locked "$release" "$@" || ! install_ours "$release" "$repository"; then
        echo "the packages above could not be installed; this needs the network, a second time it does not" >&2
        return 1
    fi
    # As 'wslgpud service install' starts it: no variable or folder of the caller's decides which modules it loads.
    [ ! -e "$release/bin/wslgpud" ] || sed -i '1s,^#!.*/python[0-9.]*$,& -I,' "$release/bin/wslgpud"
    sync # else a power cut could leave a link to a program without content
    touch "$release/complete"
}
