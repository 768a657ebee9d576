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
    # The first makes the conversations, the others find them again. NAME SCHEME SIZE PANEL SIDEBAR
    for shot in "asked default 1200x800 false true" "main-light default 1200x800 false true" "main-dark prefer-dark 1200x800 false true" \
        "cache-light default 1200x800 true true" "narrow-light default 360x720 false false"; do
        read -r name scheme size panel sidebar <<<"$shot"
        out=$here/$name.png
        [ "$name" = asked ] && out=$store/asked.png
        QUIRE_TEST_SCREEN=$size "$src/tests/app/run-headless.sh" "$0" --inside "$build" "$store" "$out" \
            "$scheme" "$size" "$panel" "$sidebar"
    done
    exit
fi

build=$2 store=$3 out=$4 scheme=$5 size=$6 panel=$7 sidebar=$8
export XDG_DATA_HOME=$store/data XDG_CONFIG_HOME=$store/config XDG_CACHE_HOME=$store/cache GSETTINGS_BACKEND=keyfile
export QUIRE_DATA_DIR=$src/data GSETTINGS_SCHEMA_DIR=$build/data ADW_DEBUG_COLOR_SCHEME=$scheme
unset QUIRE_ISA
mkdir -p "$store/config/glib-2.0/settings" "$store/config/gtk-4.0"
printf '[Settings]\ngtk-font-name=Cantarell 11\n' >"$store/config/gtk-4.0/settings.ini"
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
# How many replies are complete.
count() {
    python3 -c 'import sqlite3, sys
try:
    print(sqlite3.connect("file:" + sys.argv[1] + "?mode=ro", uri=True).execute("SELECT count(*) FROM message WHERE role = 2 AND state = 4").fetchone()[0])
except sqlite3.Error:
    print(0)' "$XDG_DATA_HOME/quire/history.db"
}
wait_for() { # N replies
    for _ in $(seq 1200); do
        [ "$(count)" -ge "$1" ] && return
        sleep 0.1
    done
    echo "no reply" >&2
    exit 1
}
ask() {
    local before
    before=$(count)
    xdotool type --delay 8 "$1"
    xdotool key Return
    wait_for $((before + 1))
}
xdotool search --sync --onlyvisible --name . >/dev/null
sleep 3
new() {
    xdotool key ctrl+t
    sleep 1
}
if [ ! -e "$store/asked" ]; then
    ask "What is 12 + 30?"
    new
    ask "My name is Ada."
    ask "What is my name?"
    new
    ask "Write a list of fruits."
    new
    ask "Tell me a story about a cat."
    new
    ask "What is a KV cache?"
    ask "Why is the second message faster?"
    ask "Write code in Python."
    touch "$store/asked"
elif [ "$panel" = true ]; then
    # Two chats with pages: those from before have none until they are asked something.
    ask "What is prefix caching?"
    xdotool key ctrl+Page_Up
    sleep 1
    ask "Tell me a story about a dog."
    ask "Tell me a joke."
    xdotool key ctrl+Page_Down
    sleep 1
fi
sleep 2
xdotool mousemove "${size%x*}" "${size#*x}"
sleep 1
import -window root "$out"
xdotool key ctrl+q
wait "$app" || true
