#!/usr/bin/env bash
# Takes the pictures of README and metainfo: the application that was built, the shipped model, real conversations.
#   data/screenshots/take.sh [BUILD]        writes beside itself; look at each before it is committed
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
src=$(cd "$here/../.." && pwd)
if [ "${1:-}" != --inside ]; then
    build=$(cd "${1:-$src/build}" && pwd)
    store=$(mktemp -d)
    trap 'rm -rf "$store"' EXIT
    # Sidebar and conversations first; the later ones find these again. NAME SCHEME SIZE PANEL SIDEBAR
    for shot in "main-light default 1200x800 false true" "main-dark prefer-dark 1200x800 false true" \
        "cache-light default 1200x800 true true" "narrow-light default 360x720 false false"; do
        read -r name scheme size panel sidebar <<<"$shot"
        QUIRE_TEST_SCREEN=$size "$src/tests/app/run-headless.sh" "$0" --inside "$build" "$store" "$here/$name.png" \
            "$scheme" "$size" "$panel" "$sidebar"
    done
    exit
fi

build=$2 store=$3 out=$4 scheme=$5 size=$6 panel=$7 sidebar=$8
export XDG_DATA_HOME=$store/data XDG_CONFIG_HOME=$store/config XDG_CACHE_HOME=$store/cache GSETTINGS_BACKEND=keyfile
export QUIRE_DATA_DIR=$src/data GSETTINGS_SCHEMA_DIR=$build/data ADW_DEBUG_COLOR_SCHEME=$scheme
unset QUIRE_ISA
mkdir -p "$store/config/glib-2.0/settings"
cat >"$store/config/glib-2.0/settings/keyfile" <<KEYS
[io/github/quire_chat/Quire]
window-width=${size%x*}
window-height=${size#*x}
sidebar-open=$sidebar
panel-open=$panel
cpu-note-closed=true
custom-sampling=true
temperature=0.0
KEYS
"$build/app/quire" 2>/dev/null &
app=$!
# How many replies are complete, after $1 of them are there.
replies() {
    for _ in $(seq 1200); do
        have=$(python3 -c 'import sqlite3, sys
try:
    print(sqlite3.connect("file:" + sys.argv[1] + "?mode=ro", uri=True).execute("SELECT count(*) FROM message WHERE role = 2 AND state = 4").fetchone()[0])
except sqlite3.Error:
    print(0)' "$XDG_DATA_HOME/quire/history.db")
        [ "$have" -ge "$1" ] && return
        sleep 0.1
    done
    echo "no reply" >&2
    exit 1
}
n=0
ask() {
    xdotool type --delay 8 "$1"
    xdotool key Return
    n=$((n + 1))
    replies $n
}
xdotool search --sync --onlyvisible --name . >/dev/null
sleep 3
if [ ! -e "$store/asked" ]; then
    ask "What is 12 + 30?"
    xdotool key ctrl+t
    sleep 1
    ask "My name is Ada. Please remember it."
    ask "What is my name?"
    xdotool key ctrl+t
    sleep 1
    ask "Tell me a story."
    xdotool key ctrl+t
    sleep 1
    ask "What is a KV cache?"
    ask "Why does it need memory?"
    touch "$store/asked"
fi
sleep 2
xdotool mousemove "${size%x*}" "${size#*x}"
sleep 1
import -window root "$out"
xdotool key ctrl+q
wait "$app" || true
