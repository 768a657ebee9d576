#!/usr/bin/env bash
# Installs what was built under a folder of its own and uses it from there, with nothing of the source or build tree at hand:
# model, settings, icon and translations are found, the window answers; then uninstalls, and nothing is left. TAP.
#   test-install.sh BUILD PREFIX LIBEXECDIR HAS-ICON-PROGRAM       (under run-headless.sh)
set -u
build=$1 prefix=$2 libexec=$3 has_icon=$4
n=0 bad=0
check() { # NAME COMMAND...
    local name=$1
    shift
    n=$((n + 1))
    if "$@" >"$dir/log" 2>&1; then echo "ok $n - $name"; else
        bad=$((bad + 1))
        tail -n 20 "$dir/log" | sed 's/^/# /'
        echo "not ok $n - $name"
    fi
}
until_true() { # COMMAND...: a hang ends it, nothing else does
    for _ in $(seq 1200); do
        "$@" && return 0
        sleep 0.1
    done
    return 1
}

dir=$(mktemp -d)
app=
cleanup() {
    [ -n "$app" ] && kill "$app" 2>/dev/null
    rm -rf "$dir"
}
trap cleanup EXIT
unset QUIRE_DATA_DIR QUIRE_MODEL GSETTINGS_SCHEMA_DIR GSETTINGS_BACKEND
export GSETTINGS_BACKEND=keyfile
dest=$dir/dest root=$dir/dest$prefix
export XDG_DATA_DIRS=$root/share:/usr/local/share:/usr/share
id=io.github.quire_chat.Quire

# A person's own record of an installation from this build folder is not this test's to replace.
log=$build/meson-logs/install-log.txt
[ -f "$log" ] && cp "$log" "$dir/install-log"
check "installs" meson install -C "$build" --no-rebuild --quiet --destdir "$dest"
cp "$log" "$dir/ours"

for f in bin/quire bin/quire-cli share/applications/$id.desktop share/metainfo/$id.metainfo.xml \
    share/icons/hicolor/scalable/apps/$id.svg share/dbus-1/services/$id.service \
    share/dbus-1/services/$id.SearchProvider.service share/gnome-shell/search-providers/$id.search-provider.ini \
    share/man/man1/quire.1 share/man/man1/quire-cli.1 share/locale/de/LC_MESSAGES/quire.mo; do
    check "there is $f" test -f "$root/$f"
done
check "the search provider is where the bus looks" test -x "$dest$libexec/quire-search"
check "the schema compiles" glib-compile-schemas --strict "$root/share/glib-2.0/schemas"
installed=$(find "$root" -name gschemas.compiled)

cli_answers() {
    local here there
    here=$("$root/bin/quire-cli" generate --prompt "What is a KV cache?" --temperature 0 --max-tokens 12) || return 1
    there=$("$build/app/cli/quire-cli" generate --model "$root/share/quire/demo-model" --prompt "What is a KV cache?" --temperature 0 --max-tokens 12)
    [ -n "$here" ] && [ "$here" = "$there" ]
}
check "quire-cli finds the model and answers" cli_answers
check "both programs are of one version" \
    test "$("$root/bin/quire" --version | cut -d' ' -f2)" = "$("$root/bin/quire-cli" --version | cut -d' ' -f2)"
check "translations are found" bash -c "LANGUAGE=de LC_ALL=C.UTF-8 '$root/bin/quire' --help | grep -q 'Zu ladender Modellordner'"
check "the icons are found" "$has_icon" $id $id-symbolic

# The window: its title is in German, and what is typed is answered and kept.
LANGUAGE=de "$root/bin/quire" >"$dir/window.log" 2>&1 &
app=$!
has_window() { xdotool search --onlyvisible --name "$1" >/dev/null 2>&1; }
check "the window opens, in German" until_true has_window '^Neuer Chat$'
has_reply() {
    python3 - "$XDG_DATA_HOME/quire/history.db" <<'PY'
import sqlite3, sys
try:
    rows = sqlite3.connect("file:" + sys.argv[1] + "?mode=ro", uri=True).execute(
        "SELECT text FROM message WHERE role = 2 AND state = 4").fetchall()
except sqlite3.Error:
    rows = []
sys.exit(not any(text for (text,) in rows))
PY
}
# The composer takes the text at once; while the model is still being loaded the key does nothing, so it is pressed again.
asks() {
    xdotool type --delay 5 "Hello"
    for _ in $(seq 240); do
        xdotool key Return
        sleep 0.5
        has_reply && return 0
    done
    return 1
}
check "the window finds the model and answers" asks
[ -n "${QUIRE_TEST_SHOTS:-}" ] && command -v import >/dev/null && mkdir -p "$QUIRE_TEST_SHOTS" && import -window root "$QUIRE_TEST_SHOTS/install-1.png"
xdotool key ctrl+q
is_gone() { ! kill -0 "$app" 2>/dev/null; }
check "Ctrl+Q ends it" until_true is_gone
app=

check "uninstalls" bash -c "cp '$dir/ours' '$log' && cd '$build' && meson --internal uninstall"
rm -f "$installed"
nothing_left() { [ -z "$(find "$dest" \( -type f -o -type l \) -print | tee /dev/stderr)" ]; }
check "nothing is left" nothing_left
if [ -f "$dir/install-log" ]; then cp "$dir/install-log" "$log"; else rm -f "$log"; fi
echo "1..$n"
exit $((bad > 0))
