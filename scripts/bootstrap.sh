#!/bin/sh
# Makes the virtual environment that `make` works in, and does nothing when it is there and up to date.
#
#   PYTHON=python3.12 VENV=.venv sh scripts/bootstrap.sh
#
# Plain POSIX sh. Writes to the checkout and to pip's cache only. Two files in the environment tell its state:
#   .made-by-make   we created the folder and may delete it
#   .installed      the installation is whole; first line: where and for which Python, second: from which requirements
# An environment without .installed was interrupted and is built again from nothing.
set -eu

here=$(dirname -- "$0")
cd -- "$here/.."

VENV=${VENV:-.venv}
PYTHON=${PYTHON:-}
LOG=.venv-install.log
LOCK=.venv-lock
NEEDED_MB=2300  # the finished environment takes 1.9 GB on Linux with CPU-only torch
CPU_TORCH="PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"

# What pip's log holds when a connection failed, and when pip gave up for want of a file.
NETWORK_SIGNS='connection broken by|NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|NameResolutionError|name resolution|Name or service not known|nodename nor servname|Network is unreachable|Connection refused|Connection reset|No route to host|RemoteDisconnected|IncompleteRead|incomplete-download'
FETCH_FAILED='No matching distribution|ResolutionImpossible|due to an OSError|Max retries exceeded|Read timed out|incomplete-download|^(requests|urllib3|pip\._vendor)[a-z0-9_.]*\.exceptions\.'

installer=
have_lock=

say() { printf '%s\n' "$*"; }

fail() {
    printf 'neverscratch: %s\n' "$*" >&2
    exit 1
}

clean_up() {
    if [ -n "$installer" ]; then
        kill "$installer" 2>/dev/null || :
        wait "$installer" 2>/dev/null || :
    fi
    if [ -n "$have_lock" ]; then rm -rf "$LOCK"; fi
}

# --- is there anything to do? ---------------------------------------------------------------------------------------

requirements_key() { cat setup.cfg pyproject.toml constraints.txt | cksum; }

# Empty when the environment's Python does not run.
environment_key() {
    tag=$("$VENV/bin/python" -c 'import sys; print(sys.implementation.cache_tag)' 2>/dev/null) || return 0
    printf '%s %s\n' "$tag" "$(pwd -P)"
}

# whole | outdated (right Python and place, other requirements) | broken
environment_state() {
    if [ ! -f "$VENV/.installed" ] || [ ! -x "$VENV/bin/neverscratch" ]; then echo broken; return; fi
    key=$(environment_key)
    if [ -z "$key" ] || [ "$key" != "$(sed -n 1p "$VENV/.installed")" ]; then echo broken; return; fi
    if [ -n "$PYTHON" ]; then
        wanted=$("$PYTHON" -c 'import sys; print(sys.implementation.cache_tag)' 2>/dev/null) || wanted=
        if [ "$wanted" != "${key%% *}" ]; then echo broken; return; fi
    fi
    if [ "$(requirements_key)" = "$(sed -n 2p "$VENV/.installed")" ]; then echo whole; else echo outdated; fi
}

# --- what the machine offers ----------------------------------------------------------------------------------------

# Sets PYTHON to the first interpreter that will do.
find_python() {
    if [ -n "$PYTHON" ]; then
        asked="; that is what PYTHON names"
        candidates=$PYTHON
    else
        asked=
        candidates="python3.13
python3.12
python3.11
python3
python"
    fi
    unset with_pip
    too_old=
    without_venv=
    broken=
    old_ifs=$IFS
    IFS='
'
    set -f
    for candidate in $candidates; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        # Version shims (pyenv, asdf) can be on the path and still not run.
        version=$("$candidate" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || version=
        if [ -z "$version" ]; then broken=${broken:-$candidate}; continue; fi
        if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            too_old=${too_old:-"$candidate is $version"}
        elif "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
            with_pip=
            break
        elif "$candidate" -c 'import sys, venv, pip; sys.exit(int(pip.__version__.split(".")[0]) < 23)' 2>/dev/null; then
            # Debian without python3-venv: pip can install itself into another environment.
            with_pip=--without-pip
            break
        else
            without_venv=${without_venv:-"$candidate ($version)"}
        fi
        candidate=
    done
    set +f
    IFS=$old_ifs
    if [ -n "${with_pip+found}" ]; then PYTHON=$candidate; return; fi
    if [ -n "$without_venv" ]; then
        short=${without_venv##*(}
        short=${short%.*}
        fail "$without_venv lacks the venv and ensurepip modules; install them (Debian, Ubuntu: apt install python$short-venv) or name another Python: make PYTHON=..."
    fi
    if [ -n "$too_old" ]; then
        fail "Python 3.11 or newer is needed, but $too_old$asked; install a newer one, or name it: make PYTHON=/path/to/python3.12"
    fi
    if [ -n "$asked" ]; then
        if [ -n "$broken" ]; then fail "PYTHON=$PYTHON does not run as a Python; name one of version 3.11 or newer."; fi
        fail "PYTHON=$PYTHON is not to be found; name a Python of version 3.11 or newer."
    fi
    fail "No Python found (looked for python3.13, python3.12, python3.11, python3, python); install 3.11 or newer, or name it: make PYTHON=/path/to/python3.12"
}

# Free megabytes in a folder; nothing when df cannot tell. Fields are counted from "%": names may hold blanks.
free_mb() {
    df -Pk "$1" 2>/dev/null | awk 'NR == 2 { for (i = NF; i > 1; i--) if ($i ~ /%$/) { printf "%d", $(i - 1) / 1024; exit } }'
}

# --- installing -----------------------------------------------------------------------------------------------------

take_lock() {
    told=
    until complaint=$(LC_ALL=C mkdir "$LOCK" 2>&1); do
        case $complaint in
            *"File exists"*) ;;
            *"No space"* | *"quota"*) fail "The disk is full: nothing can be written in $(pwd -P)." ;;
            *) fail "The checkout cannot be written to ($(pwd -P)): it is read-only or another user's; make one of your own." ;;
        esac
        alive=
        for holder in $(cat "$LOCK/pid" "$LOCK/installer" 2>/dev/null || :); do
            if kill -0 "$holder" 2>/dev/null; then alive=$holder; fi
        done
        if [ -z "$alive" ]; then
            # Its owner was killed, or is between mkdir and writing its number.
            sleep 1
            if [ ! -s "$LOCK/pid" ] || ! kill -0 "$(cat "$LOCK/pid" 2>/dev/null)" 2>/dev/null; then rm -rf "$LOCK"; fi
            continue
        fi
        if [ -z "$told" ]; then say "Process $alive is installing here already; waiting for it (if that cannot be: rm -r $LOCK)."; told=1; fi
        sleep 1
    done
    have_lock=1
    echo $$ >"$LOCK/pid" 2>/dev/null || fail "The disk is full: cannot write to $(pwd -P)."
}

# Runs a command with its output in the log, showing that time passes. On failure says why, and ends.
logged() {
    "$@" >>"$LOG" 2>&1 &
    installer=$!
    echo "$installer" >"$LOCK/installer" 2>/dev/null || :
    waited=0
    while kill -0 "$installer" 2>/dev/null; do
        sleep 1
        waited=$((waited + 1))
        if [ $((waited % 10)) -eq 0 ]; then say "  ... $((waited)) s: $(progress)"; fi
    done
    rc=0
    wait "$installer" || rc=$?
    installer=
    [ "$rc" -eq 0 ] || explain
}

packages_seen() { grep -c -E '^(Collecting|Processing) ' "$LOG" || :; }

progress() {
    if tail -n 1 "$LOG" | grep -q '^Installing collected'; then
        echo "unpacking $(packages_seen) packages"
    elif tail -n 2 "$LOG" | grep -q 'Retrying (Retry'; then
        echo "the package index does not answer, trying again"
    else
        echo "$(packages_seen) packages found so far"
    fi
}

explain() {
    if grep -q -i -E 'No space left on device|Errno 28\]|Disk quota exceeded|Errno 122\]' "$LOG" || ! can_log; then
        tmp=${TMPDIR:-/tmp}
        fail "The disk is full ($(free_mb .) MB left here, $(free_mb "$tmp") MB in $tmp): free some, or set TMPDIR; on Linux CPU-only torch is much smaller: $CPU_TORCH. Details: $LOG"
    fi
    # Retries that healed leave the same warnings, so pip must also have ended on something it could not find or fetch.
    if grep -q -E "$NETWORK_SIGNS" "$LOG" && grep -q -E "$FETCH_FAILED" "$LOG"; then
        fail "The package index cannot be reached: check the network, or name a mirror in PIP_INDEX_URL, then call make again. Details: $LOG"
    fi
    missing=$(sed -n 's/^ERROR: No matching distribution found for //p' "$LOG" | tail -n 1)
    if [ -n "$missing" ]; then
        fail "The package index has no $missing for this machine and $("$VENV/bin/python" -V 2>&1 || echo Python); try another Python: make PYTHON=... Details: $LOG"
    fi
    missing=$(sed -n 's/^ERROR: Cannot install \(.*\) because these package versions have conflicting.*/\1/p' "$LOG" | tail -n 1)
    if [ -n "$missing" ]; then
        fail "The package index does not offer what constraints.txt asks for ($missing) to $("$VENV/bin/python" -V 2>&1 || echo Python); check PIP_INDEX_URL, or try another Python: make PYTHON=... Details: $LOG"
    fi
    if grep -q -E 'Read-only file system|Errno 30\]' "$LOG"; then fail "The checkout is read-only: $(pwd -P). Details: $LOG"; fi
    reason=$(grep -E '^(ERROR|error|Error)' "$LOG" | tail -n 1)
    [ -n "$reason" ] || reason=$(tail -n 1 "$LOG")
    say "The end of $LOG:" >&2
    tail -n 5 "$LOG" | sed 's/^/  /' >&2
    fail "Installing failed: $reason"
}

can_log() { { echo . >"$LOCK/probe"; } 2>/dev/null && [ -s "$LOCK/probe" ]; }

install() {
    state=$(environment_state)
    if [ "$state" = whole ]; then return; fi  # another make finished it while we waited
    if [ "$state" = broken ]; then
        if [ -e "$VENV" ] && [ ! -f "$VENV/.made-by-make" ]; then
            fail "$VENV is here but was not made by make: move it away, or let make use another folder: make VENV=.venv-make"
        fi
        find_python
        if [ -e "$VENV" ]; then say "$VENV is unfinished or for another place or Python: making it again."; rm -rf "$VENV"; fi
        free=$(free_mb .)
        if [ "${free:-$NEEDED_MB}" -lt "$NEEDED_MB" ]; then
            fail "The disk is too full: $free MB free in $(pwd -P), and about $NEEDED_MB MB are needed."
        fi
    fi

    # A PYTHONPATH would count as installed; a user-wide --user, --target or --prefix would lead out of the environment.
    unset PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_ROOT
    PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off
    export PIP_USER PIP_DISABLE_PIP_VERSION_CHECK PIP_NO_INPUT PIP_PROGRESS_BAR

    : >"$LOG" || fail "Cannot write $LOG in $(pwd -P)."
    if [ "$state" = broken ]; then
        say "Making $VENV with $PYTHON ($("$PYTHON" -V 2>&1)); this happens once and takes a minute or a few."
        mkdir -p "$VENV"
        : >"$VENV/.made-by-make"
        logged "$PYTHON" -m venv ${with_pip:+"$with_pip"} "$VENV"
        if [ -n "$with_pip" ]; then logged "$PYTHON" -m pip --python "$VENV/bin/python" install pip; fi
    else
        say "The requirements have changed: bringing $VENV up to date."
        rm -f "$VENV/.installed"
    fi
    say "Installing neverscratch and what it needs, at the versions in constraints.txt (pip's own words: $LOG)."
    # setuptools comes first and from the same constraints, so that the build is as reproducible as the rest.
    logged "$VENV/bin/python" -m pip install -c constraints.txt setuptools
    logged "$VENV/bin/python" -m pip install -c constraints.txt --no-build-isolation -e ".[dev]"

    { environment_key; requirements_key; } >"$VENV/.installed.tmp"
    mv "$VENV/.installed.tmp" "$VENV/.installed"
    say "Installed."
}

if [ "$(environment_state)" = whole ]; then exit 0; fi
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
take_lock
install
