#!/usr/bin/env bash
# The layers are app -> engine -> kernels: each may include only the public header of the one below.
set -u
cd "$(dirname "$0")/../.."
n=0 bad=0
check() { # NAME PATTERN-OF-FORBIDDEN FILES...
    local name=$1 pattern=$2 hits
    shift 2
    n=$((n + 1))
    hits=$(grep -rnE "$pattern" "$@" --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' 2>/dev/null)
    if [ -n "$hits" ]; then
        bad=$((bad + 1))
        printf '%s\n' "$hits" | sed 's/^/# /'
        echo "not ok $n - $name"
    else
        echo "ok $n - $name"
    fi
}
inc='^[[:space:]]*#[[:space:]]*include[[:space:]]*'
check "kernels include no GLib, engine or app header" "${inc}[<\"](glib|gio|gobject|json-glib|gtk|adwaita|engine/|app/)" kernels
check "the engine includes no GTK and no app header" "${inc}[<\"](gtk|gdk|adwaita|app/)" engine
check "the engine includes of kernels only qk.h" "${inc}\"kernels/([^q]|q[^k]|qk[^.])" engine
check "the app includes no kernels header" "${inc}\"kernels/" app
check "the app includes of the engine only qe.h" "${inc}\"engine/([^q]|q[^e]|qe[^.])" app
check "headers are included by their path from the root" "${inc}\"q[ek][^/]*\\.h\"" engine kernels
# The check itself must notice a trespass.
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
echo '#include "engine/qe-session.h"' >"$tmp/trespass.c"
n=$((n + 1))
if grep -qE "${inc}\"engine/([^q]|q[^e]|qe[^.])" "$tmp/trespass.c"; then echo "ok $n - a trespass is noticed"; else
    bad=$((bad + 1))
    echo "not ok $n - a trespass is noticed"
fi
echo "1..$n"
exit $((bad > 0))
