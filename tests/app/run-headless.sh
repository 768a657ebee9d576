#!/usr/bin/env bash
# Runs a program on a display of its own, with a session bus and settings of its own. Skips (a TAP plan that says why) where the tools
# for that are not there.   run-headless.sh PROGRAM [ARGS]
set -u
for tool in Xvfb dbus-run-session xdotool; do
    command -v "$tool" >/dev/null || { echo "1..0 # SKIP $tool is not installed"; exit 0; }
done

dir=$(mktemp -d)
xvfb=
cleanup() {
    [ -n "$xvfb" ] && kill "$xvfb" 2>/dev/null
    wait 2>/dev/null
    rm -rf "$dir"
}
trap cleanup EXIT

# The server picks a free display itself and writes its number. It must not begin anew when its last client leaves: one that comes
# at that moment is turned away.
Xvfb -displayfd 3 -noreset -screen 0 "${QUIRE_TEST_SCREEN:-1200x800}x24" -nolisten tcp 3>"$dir/display" 2>"$dir/xvfb.log" &
xvfb=$!
for _ in $(seq 100); do
    [ -s "$dir/display" ] && break
    kill -0 "$xvfb" 2>/dev/null || { sed 's/^/# /' "$dir/xvfb.log"; echo "1..0 # SKIP no X server"; exit 0; }
    sleep 0.1
done
[ -s "$dir/display" ] || { echo "1..0 # SKIP the X server did not start"; exit 0; }

DISPLAY=":$(cat "$dir/display")"
export DISPLAY
export HOME=$dir XDG_CONFIG_HOME=$dir/config XDG_CACHE_HOME=$dir/cache XDG_DATA_HOME=$dir/data XDG_RUNTIME_DIR=$dir
export GDK_BACKEND=x11 GSK_RENDERER=cairo GSETTINGS_BACKEND=memory GTK_A11Y=none ADW_DISABLE_PORTAL=1
export G_DEBUG=fatal-criticals LC_ALL=C.UTF-8
# The readable kernels are the slowest: the shipped model's replies then last for many frames on any machine, so a test
# can watch them grow.
export QUIRE_ISA=reference
unset WAYLAND_DISPLAY
# A bus that starts nothing but accessibility: what a desktop has installed, as portals, does not reach the tests.
mkdir "$dir/services"
# It says when it is ready, on what is the test's output here.
for service in /usr/share/dbus-1/services/org.a11y.Bus.service; do
    [ -f "$service" ] && sed 's|^Exec=\(.*\)$|Exec=/bin/sh -c "exec \1 >\&2"|' "$service" >"$dir/services/${service##*/}"
done
cat >"$dir/bus.conf" <<EOF
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:tmpdir=/tmp</listen>
  <servicedir>$dir/services</servicedir>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
EOF
dbus-run-session --config-file="$dir/bus.conf" -- "$@" 2> >(grep -v 'fd limit' >&2)
