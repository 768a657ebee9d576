# What flatpak/build checks of an installed Quire. Sourced by it: `me` runs a command as the ordinary user.
# shellcheck shell=bash disable=SC2154
passed=0 failed=0
ok() { # RESULT WHAT: 0 is well
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
        echo "ok - $2"
    else
        failed=$((failed + 1))
        echo "not ok - $2"
    fi
}
# is WHAT GOT WANTED
is() {
    if [ "$2" = "$3" ]; then ok 0 "$1"; else
        ok 1 "$1"
        printf '#   got:    %s\n#   wanted: %s\n' "$2" "$3"
    fi
}
# There is no document portal without FUSE: flatpak says so on every start.
inside() { me flatpak run --user --command="$1" "$id" "${@:2}" 2> >(grep -v 'document portal' >&2); }
json() { python3 -c "import json,sys; d=json.load(sys.stdin); print($1)"; }

# ---- What was built ----------------------------------------------------------------------------------------------------
files=$home/.local/share/flatpak/app/$id/current/active/files
for f in bin/quire bin/quire-cli lib/libmd4c.so.0 share/licenses/$id/LICENSE share/licenses/$id/md4c/LICENSE.md \
    share/applications/$id.desktop share/icons/hicolor/scalable/apps/$id.svg; do
    ok "$([ -e "$files/$f" ]; echo $?)" "installed: $f"
done
# Older builders give the metainfo its former name.
is "installed: the metainfo" "$(find "$files/share/" -name "$id.metainfo.xml" -o -name "$id.appdata.xml" | wc -l)" 1
is "software centres have a catalogue of it" "$(find "$files/share/" -name "$id.xml.gz" | wc -l)" 1
is "no CUDA in the application itself" "$(find "$files/" -name '*cuda*' -o -name '*cublas*')" ""
is "no headers and no static libraries" "$(find "$files/" -name '*.h' -o -name '*.a' -o -name '*.pc')" ""
exported=$home/.local/share/flatpak/exports/share
ok "$([ -e "$exported/applications/$id.desktop" ]; echo $?)" "the desktop file is exported"
is "all that it exports has its name" "$(find "$exported/" -type l -o -type f | grep -v -e "/$id" -e 'mimeinfo.cache' -e 'icon-theme' -e 'hicolor/index.theme' -e '/mime/' || true)" ""

# ---- Permissions, as flatpak has them and as the program sees them -----------------------------------------------------
is "the permissions" "$(me flatpak info --user --show-permissions "$id" | grep -v '^$' | sed 's/;$//' | paste -sd' ')" \
    "[Context] shared=network;ipc sockets=x11;wayland;fallback-x11 devices=dri"
echo "nobody else's business" >"$scratch/secret"
chmod 644 "$scratch/secret"
echo "private" | me tee "$home/letter.txt" >/dev/null
cat >"$scratch/look" <<END
say() { printf '%s=%s\n' "\$1" "\$2"; }
say uid "\$(id -u)"
say caps "\$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)"
say nonewprivs "\$(sed -n 's/^NoNewPrivs:[[:space:]]*//p' /proc/self/status)"
say seccomp "\$(sed -n 's/^Seccomp:[[:space:]]*//p' /proc/self/status)"
say home "\$(cat "$home/letter.txt" 2>/dev/null || echo hidden)"
say host "\$(cat "$scratch/secret" 2>/dev/null || echo hidden)"
say hostname "\$(ls /var/host /run/host/root /run/host/etc 2>/dev/null || echo hidden)"
say usr "\$(touch /usr/x 2>/dev/null && echo writable || echo read-only)"
say app "\$(touch /app/x 2>/dev/null && echo writable || echo read-only)"
say data "\$(touch "\$XDG_DATA_HOME/x" && echo writable)"
END
seen=$(inside sh -s <"$scratch/look" || true)
seen_of() { sed -n "s/^$1=//p" <<<"$seen"; }
is "runs as the user" "$(seen_of uid)" "$("${as[@]}" id -u)"
is "has no capability" "$(seen_of caps)" 0000000000000000
is "can gain no privilege" "$(seen_of nonewprivs)" 1
is "system calls are filtered" "$(seen_of seccomp)" 2
is "does not see the home folder" "$(seen_of home)" hidden
is "does not see another folder of the host" "$(seen_of host)" hidden
is "does not see the host's system" "$(seen_of hostname)" hidden
is "cannot change the runtime" "$(seen_of usr)" read-only
is "cannot change itself" "$(seen_of app)" read-only
is "can keep its data" "$(seen_of data)" writable

# ---- The command line in the sandbox -----------------------------------------------------------------------------------
prompt="What is a KV cache?"
answer=$(inside quire-cli generate --prompt "$prompt" --temperature 0 --json | json "d['text']" || true)
ok "$([ ${#answer} -gt 20 ]; echo $?)" "quire-cli answers: ${answer:0:60}…"

# ---- The window --------------------------------------------------------------------------------------------------------
me Xvfb -displayfd 4 -screen 0 1200x800x24 -nolisten tcp 4>"$scratch/display" 2>/dev/null &
pids+=($!)
for _ in $(seq 100); do [ -s "$scratch/display" ] && break; sleep 0.1; done
DISPLAY=:$(cat "$scratch/display")
export DISPLAY
# Greedy, so that the window must answer what the command line did.
for setting in "custom-sampling true" "temperature 0.0"; do
    # shellcheck disable=SC2086
    inside gsettings set $id $setting
done
is "settings last, in a file of the sandbox" "$(inside gsettings get $id custom-sampling)" true
me flatpak run --user --env=GSK_RENDERER=cairo "$id" >"$out/run.log" 2>&1 &
for _ in $(seq 600); do
    window=$(me xdotool search --onlyvisible --class quire 2>/dev/null | tail -1 || true)
    [ -n "$window" ] && break
    sleep 0.1
done
ok "$([ -n "${window:-}" ]; echo $?)" "the window comes up"
history=$home/.var/app/$id/data/quire/history.db
query() { python3 -c "import sqlite3,sys
try: print(sqlite3.connect('file:'+sys.argv[1]+'?mode=ro', uri=True, timeout=5).execute(sys.argv[2]).fetchone()[0])
except Exception: print('')" "$history" "$1"; }
# The field takes keys once the window has the focus; what was typed shows in the history when it was sent.
if [ -n "${window:-}" ]; then
    me xdotool windowfocus "$window" 2>/dev/null || true
    for _ in $(seq 20); do
        sleep 1
        me xdotool key --clearmodifiers ctrl+a BackSpace type --delay 20 "$prompt"
        me xdotool key Return
        for _ in $(seq 20); do
            [ "$(query "SELECT count(*) FROM message WHERE text='$prompt'")" = 1 ] && break 2
            sleep 0.2
        done
    done
    for _ in $(seq 600); do
        said=$(query "SELECT text FROM message WHERE state=4 AND seq>0 AND text!='' AND text!='$prompt' ORDER BY n DESC LIMIT 1")
        [ -n "$said" ] && break
        sleep 0.2
    done
fi
is "the prompt typed into the window is answered, as on the command line" "${said:-}" "$answer"
sleep 1
me import -window root "$scratch/window.png" && cp "$scratch/window.png" "$out/window.png"
colours=$(identify -format %k "$out/window.png" 2>/dev/null || echo 0)
ok "$([ "$colours" -gt 200 ]; echo $?)" "a screenshot is in $out/window.png ($colours colours)"
is "the window printed no warning" "$(grep -E 'WARNING|CRITICAL' "$out/run.log" | grep -v -e portal -e 'Unable to acquire' -e 'dconf' || true)" ""
me flatpak kill "$id" || true
is "its data is in the sandbox's folder alone" "$(find "$home" -name 'history.db' | sed "s#^$home/##")" ".var/app/$id/data/quire/history.db"

# ---- Why the card is not seen ------------------------------------------------------------------------------------------
# A root folder that says of the host what this machine is not, and shows the sandbox's own extensions.
fake=$home/.var/app/$id/data/fake
me mkdir -p "$fake/sys/module/nvidia" "$fake/proc" "$fake/dev"
for name in usr app .flatpak-info; do me ln -sfn "/$name" "$fake/$name"; done
echo 580.95.05 | me tee "$fake/sys/module/nvidia/version" >/dev/null
echo "nvidia 1 0 - Live 0x0" | me tee "$fake/proc/modules" >/dev/null
info() { me flatpak run --user --command=quire-cli --env=QUIRE_FLATPAK_ROOT="$fake" "$id" info --json 2>/dev/null; }
causes() { info | json "' '.join(p['cause'] for p in d['flatpak_problems'])"; }
cuda() { info | json "[b.get('device') or b['reason'] for b in d['backends'] if b['name'] == 'cuda'][0]"; }

# stub ID BRANCH ARRANGE OF: an extension of OF with what the function ARRANGE puts into $stub/files.
stub() {
    local name=$1 its_branch=$2
    stub=$scratch/stub
    rm -rf "$stub"
    me mkdir -p "$stub/files/lib"
    printf '[Runtime]\nname=%s\n\n[ExtensionOf]\nref=%s\n' "$name" "$4" | me tee "$stub/metadata" >/dev/null
    $3
    me flatpak build-export --runtime --disable-sandbox --no-update-summary "$scratch/stubs" "$stub" "$its_branch" >/dev/null
    me flatpak build-update-repo "$scratch/stubs" >/dev/null
    me flatpak remote-add --user --if-not-exists --no-gpg-verify stubs "file://$scratch/stubs"
    me flatpak install --user -y --noninteractive stubs "runtime/$name/x86_64/$its_branch" >/dev/null
}
sdk_cc() { me flatpak build --bind-mount=/stub="$stub/files" --bind-mount=/src="$scratch/src" "$scratch/build" cc -shared -fPIC "$@"; }
arrange_driver() { printf 'int cuInit(unsigned f) { return 999; }\n' | me tee "$scratch/src/cuda.c" >/dev/null; sdk_cc -o /stub/lib/libcuda.so.1 /src/cuda.c; }
# The engine's interface with a card made up: what the tests of the registry use.
arrange_cuda() {
    sdk_cc -I/src -DFAKE_ABI=QK_ABI_VERSION -o /stub/quire-cuda.so /src/tests/kernels/fake-cuda-module.c
    sed -n "s/^  version: '\(.*\)',$/\1/p" "$src/meson.build" | me tee "$stub/files/version" >/dev/null
}
arrange_old_cuda() {
    arrange_cuda
    echo 0.0.1 | me tee "$stub/files/version" >/dev/null
}

is "nothing installed: both are named" "$(causes)" "no-driver-extension no-cuda-extension no-uvm"
is "the command for the driver" "$(info | json "d['flatpak_problems'][0]['command']")" \
    "flatpak install --user flathub org.freedesktop.Platform.GL.nvidia-580-95-05//1.4"
is "the command for the CUDA extension" "$(info | json "d['flatpak_problems'][1]['command']")" \
    "flatpak install --user $id.Cuda//$branch"
stub org.freedesktop.Platform.GL.nvidia-550-54-14 1.4 arrange_driver "runtime/org.gnome.Platform/x86_64/$version"
is "a driver's extension of another version is not mounted" "$(causes)" "no-driver-extension no-cuda-extension no-uvm"
gl=nvidia-550-54-14
is "one that is mounted all the same is told apart" "$(causes)" "other-driver-version no-cuda-extension no-uvm"
stub org.freedesktop.Platform.GL.nvidia-580-95-05 1.4 arrange_driver "runtime/org.gnome.Platform/x86_64/$version"
gl=nvidia-580-95-05
is "the right one is found" "$(causes)" "no-cuda-extension no-uvm"
is "its library is found by name" "$(inside sh -c 'ldconfig -p | grep -c libcuda.so.1')" 1
ok "$(cuda | grep -q 'CUDA module is missing'; echo $?)" "without the CUDA extension the CPU computes"
stub "$id.Cuda" "$branch" arrange_old_cuda "app/$id/x86_64/$branch"
is "a CUDA extension of another version" "$(causes)" "other-cuda-version no-uvm"
stub "$id.Cuda" "$branch" arrange_cuda "app/$id/x86_64/$branch"
me flatpak update --user -y --noninteractive "$id.Cuda" >/dev/null 2>&1 || true
is "the CUDA extension is found" "$(causes)" "no-uvm"
is "and its module opened" "$(cuda)" "Fake GPU"
echo "nvidia_uvm 1 0 - Live 0x0" | me tee -a "$fake/proc/modules" >/dev/null
is "nvidia_uvm without its device" "$(causes)" "no-uvm-node"
me touch "$fake/dev/nvidia-uvm"
is "nothing is missing" "$(causes)" ""
is "and on this machine, as it is" \
    "$(inside quire-cli info --json | json "' '.join(p['cause'] for p in d['flatpak_problems']) or 'a card'")" \
    "$(if [ -e /proc/driver/nvidia/version ]; then echo 'a card'; else echo no-card; fi)"

# ---- The test suite in the sandbox -------------------------------------------------------------------------------------
tree=$(find "$cache/state/build/quire" -maxdepth 0 -printf '%l\n')
begun=$SECONDS
# shellcheck disable=SC2046
if me flatpak build --bind-mount=/run/build/quire="$cache/state/build/$tree" "$scratch/build" \
    sh -c 'cd /run/build/quire/_flatpak_build && meson test --no-rebuild "$@"' sh $(printf -- '--suite=%s ' $suites) >"$out/tests.log" 2>&1; then
    counts=$(grep -E '^(Ok|Skipped|Expected Fail|Fail):' "$out/tests.log" | tr -s ' ' | paste -sd' ')
    ok 0 "meson test in the sandbox, $suites: $counts($((SECONDS - begun)) s)"
else
    tail -n 30 "$out/tests.log"
    ok 1 "meson test in the sandbox, $suites"
fi
grep -E 'SKIP' "$out/tests.log" | sed 's/^/#   /' || true

say "$((SECONDS - started)) s in all"
echo "flatpak: $passed passed, $failed failed"
[ "$failed" = 0 ]
