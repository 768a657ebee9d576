#!/usr/bin/env bash
# What an installation takes and how fast it starts: sizes, cold start to the window, cold start to the first token.
#   tests/bench/start.sh [BUILD] [RUNS]      installs BUILD (stripped) under a folder of its own and runs it on its own display
# Cold: the files of the installation are put out of the page cache before each run; libraries of the system stay in it.
set -euo pipefail
src=$(cd "$(dirname "$0")/../.." && pwd)
if [ "${1:-}" != --inside ]; then
    build=$(cd "${1:-$src/build}" && pwd)
    exec "$src/tests/app/run-headless.sh" "$0" --inside "$build" "${2:-5}"
fi
build=$2 runs=$3
dest=$HOME/dest
meson install -C "$build" --no-rebuild --quiet --strip --destdir "$dest"
root=$(dirname "$(dirname "$(find "$dest" -path '*/bin/quire')")")
search=$(find "$dest" -name quire-search)
size() { du -cb "$@" | tail -n 1 | cut -f1; }
echo "installed: all $(size "$dest"), quire $(size "$root/bin/quire"), quire-cli $(size "$root/bin/quire-cli"), quire-search $(size "$search"), model $(size "$root/share/quire") bytes"

export XDG_DATA_DIRS=$root/share:/usr/local/share:/usr/share GSETTINGS_BACKEND=keyfile
unset QUIRE_ISA QUIRE_DATA_DIR GSETTINGS_SCHEMA_DIR
glib-compile-schemas "$root/share/glib-2.0/schemas"
mkdir -p "$XDG_CONFIG_HOME/glib-2.0/settings"
printf '[io/github/quire_chat/Quire]\nmax-tokens=uint32 1\ncpu-note-closed=true\n' >"$XDG_CONFIG_HOME/glib-2.0/settings/keyfile"

python3 - "$root" "$XDG_DATA_HOME/quire/history.db" "$runs" <<'PY'
import os, shutil, sqlite3, statistics, subprocess, sys, time
root, history, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])


def forget():
    for folder, _, names in os.walk(root):
        for name in names:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def until(condition):
    while not condition():
        time.sleep(0.005)


def shown():
    return subprocess.run(["xdotool", "search", "--onlyvisible", "--name", "."], capture_output=True).returncode == 0


def answered():
    try:
        db = sqlite3.connect(f"file:{history}?mode=ro", uri=True)
        return db.execute("SELECT count(*) FROM message WHERE role = 2 AND state = 5").fetchone()[0] > 0
    except sqlite3.Error:
        return False


def show(name, seconds):
    s = sorted(seconds)
    print(f"{name}: median {statistics.median(s):.2f} s, {s[0]:.2f} to {s[-1]:.2f} s, {len(s)} runs")


windows, tokens, cli = [], [], []
for _ in range(runs):
    shutil.rmtree(os.path.dirname(history), ignore_errors=True)
    forget()
    began = time.monotonic()
    app = subprocess.Popen([f"{root}/bin/quire"], stderr=subprocess.DEVNULL)
    until(shown)
    windows.append(time.monotonic() - began)
    subprocess.run(["xdotool", "type", "--delay", "1", "Hi"], check=True)
    while not answered():
        subprocess.run(["xdotool", "key", "Return"], check=True)
        time.sleep(0.02)
    tokens.append(time.monotonic() - began)
    subprocess.run(["xdotool", "key", "ctrl+q"], check=True)
    app.wait()
    forget()
    began = time.monotonic()
    subprocess.run([f"{root}/bin/quire-cli", "generate", "--prompt", "Hi", "--max-tokens", "1"], check=True, stdout=subprocess.DEVNULL)
    cli.append(time.monotonic() - began)
show("start to window", windows)
show("start to window, typed prompt and first token", tokens)
show("quire-cli start to first token", cli)
PY
