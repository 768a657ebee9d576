#!/usr/bin/env bash
# Sources are formatted (clang-format 14), scripts parse, and no file of the repository names a place on one machine.
set -u
cd "$(dirname "$0")/../.."
tool=$(command -v clang-format-14 || true)
if [ -z "$tool" ] && clang-format --version 2>/dev/null | grep -q 'version 14\.'; then tool=clang-format; fi
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    sources=$(git ls-files '*.c' '*.h' '*.cu')
else
    sources=$(find app engine kernels tests -name '*.[ch]' -o -name '*.cu')
fi
if [ -z "$tool" ]; then
    echo "ok 1 - formatted # SKIP clang-format 14 is not installed"
else
    # shellcheck disable=SC2086
    if out=$("$tool" --dry-run -Werror $sources 2>&1); then echo "ok 1 - formatted"; else
        printf '%s\n' "$out" | grep -E 'error|warning' | head -n 20 | sed 's/^/# /'
        echo "not ok 1 - formatted (./dev format mends it)"
        bad=1
    fi
fi
shopt -s nullglob
for s in dev .ci/run tests/repo/*.sh tests/*.sh tests/app/*.sh tests/bench/*.sh data/screenshots/take.sh tests/gpu/run tests/gpu/pack flatpak/build flatpak/standin flatpak/*.sh; do bash -n "$s" || scripts=1; done
[ -z "${scripts:-}" ] && echo "ok 2 - scripts parse" || { echo "not ok 2 - scripts parse"; bad=1; }
# shellcheck disable=SC2086
hits=$(grep -nE '"/(home|work|root|mnt)/' $sources meson.build dev .ci/run README.md 2>/dev/null | head -n 10)
if [ -z "$hits" ]; then echo "ok 3 - no path of one machine"; else
    printf '%s\n' "$hits" | sed 's/^/# /'
    echo "not ok 3 - no path of one machine"
    bad=1
fi
echo "1..3"
exit "${bad:-0}"
