# Sizes and cold starts, in the sandbox and installed below a prefix. Sourced by flatpak/build; needs root for the cold ones.
# shellcheck shell=bash disable=SC2154
files=$home/.local/share/flatpak/app/$id/current/active/files
say "bundle $(stat -c %s "$scratch/$id.flatpak") bytes, installed $(du -sb "$files" | cut -f1) bytes, of which the model $(du -sb "$files/share/quire/demo-model" | cut -f1)"
# The same objects below a prefix, without a sandbox: what `meson install` gives.
prefix=$scratch/prefix
meson setup "$scratch/native" "$scratch/src" --prefix="$prefix" --libdir=lib --buildtype=debugoptimized -Dgui=enabled -Dcuda=disabled >/dev/null
ninja -C "$scratch/native" >/dev/null
meson install -C "$scratch/native" --no-rebuild >/dev/null 2>&1
chmod -R a+rX "$prefix"
me Xvfb -displayfd 4 -screen 0 1200x800x24 -nolisten tcp 4>"$scratch/display" 2>/dev/null &
pids+=($!)
for _ in $(seq 100); do [ -s "$scratch/display" ] && break; sleep 0.1; done
DISPLAY=:$(cat "$scratch/display")
export DISPLAY
now() { date +%s%N; }
cold() { sync; echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || say "caches stay: not root"; }
# to_window COMMAND...: milliseconds until a window shows. The window is closed again.
to_window() {
    local begun n
    begun=$(now)
    me "$@" >/dev/null 2>&1 &
    for n in $(seq 1000); do me xdotool search --onlyvisible --class quire >/dev/null 2>&1 && break; sleep 0.02; done
    echo $((($(now) - begun) / 1000000))
    me flatpak kill "$id" 2>/dev/null || true
    me xdotool search --onlyvisible --class quire windowkill >/dev/null 2>&1 || true
    for n in $(seq 100); do me xdotool search --onlyvisible --class quire >/dev/null 2>&1 || break; sleep 0.1; done
}
# to_token COMMAND...: milliseconds from the start of the process until a reply of one token is printed.
to_token() {
    local begun
    begun=$(now)
    me "$@" generate --prompt "What is a KV cache?" --max-tokens 1 --temperature 0 >/dev/null
    echo $((($(now) - begun) / 1000000))
}
sandbox_window=(flatpak run --user --env=GSK_RENDERER=cairo "$id")
sandbox_cli=(flatpak run --user --command=quire-cli "$id")
prefix_window=(env GSK_RENDERER=cairo GSETTINGS_SCHEMA_DIR="$prefix/share/glib-2.0/schemas" XDG_DATA_DIRS="$prefix/share:/usr/share" "$prefix/bin/quire")
prefix_cli=("$prefix/bin/quire-cli")
say "load average $(cut -d' ' -f1-3 /proc/loadavg)"
for what in window token; do
    for where in sandbox prefix; do
        times=()
        for _ in 1 2 3; do
            cold
            if [ $what = window ]; then declare -n run=${where}_window; else declare -n run=${where}_cli; fi
            times+=("$(to_$what "${run[@]}")")
        done
        warm=()
        for _ in 1 2 3; do warm+=("$(to_$what "${run[@]}")"); done
        say "start to $what, $where: cold ${times[*]} ms, warm ${warm[*]} ms"
    done
done
