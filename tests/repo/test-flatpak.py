#!/usr/bin/env python3
"""The Flatpak manifests: what Flathub's linter refuses, and what holds the two of them and the program together.

    test-flatpak.py SOURCE_ROOT APP_ID

The linter itself is not in Debian: its rules for finish-args are written down here again, and tried on manifests that break
them. Where flatpak-builder is installed it must read both manifests as this does.
"""
import json
import os
import re
import shutil
import subprocess
import sys

try:
    import yaml
except ImportError:
    print("1..0 # SKIP python3-yaml is not installed")
    sys.exit(0)

root, app_id = sys.argv[1:]
n = 0
bad = 0


def ok(condition, what, *more):
    global n, bad
    n += 1
    if not condition:
        bad += 1
        for line in more:
            print(f"# {line}")
    print(f"{'ok' if condition else 'not ok'} {n} - {what}")


def lint(finish_args):
    """What Flathub's linter would refuse, as a list of its names for it."""
    errors = []
    args = [a.removeprefix("--") for a in finish_args]
    values = {}
    for arg in args:
        key, _, value = arg.partition("=")
        values.setdefault(key, []).append(value)
    sockets, shares = values.get("socket", []), values.get("share", [])
    if len(args) != len(set(args)):
        errors.append("duplicate")
    if "x11" in sockets and "wayland" in sockets:
        errors.append("contains-both-x11-and-wayland")
    if "x11" in sockets and "fallback-x11" in sockets:
        errors.append("contains-both-x11-and-fallback")
    if "fallback-x11" in sockets and "wayland" not in sockets:
        errors.append("fallback-x11-without-wayland")
    if "wayland" in sockets and not {"x11", "fallback-x11"} & set(sockets):
        errors.append("only-wayland")
    if {"x11", "fallback-x11"} & set(sockets) and "ipc" not in shares:
        errors.append("x11-without-ipc")
    if {"session-bus", "system-bus"} & set(sockets):
        errors.append("arbitrary-dbus-access")
    if "all" in values.get("device", []):
        errors.append("device-all")
    for path in values.get("filesystem", []):
        name = path.removeprefix("!").split(":")[0].rstrip("/")
        if name in ("home", "host", "host-os", "host-etc", "~", "/", "/home", "/tmp", "/var", "/run"):
            errors.append(f"filesystem-{name}")
        elif re.match(r"(~/\.var/app|~/\.local|~/\.cache|~/\.config|xdg-(data|config|cache|run/dconf))(/|$)", name):
            errors.append(f"filesystem-{name}")
        elif path.endswith(":create") and name.startswith("xdg-"):
            errors.append(f"filesystem-{name}")
    for name in values.get("own-name", []):
        if name == app_id or name.startswith(app_id + ".") or name.startswith("org.freedesktop."):
            errors.append("own-name")
    for name in values.get("talk-name", []):
        if name == app_id or name.startswith("org.freedesktop.portal.") or name == "org.freedesktop.Secrets":
            errors.append("talk-name")
        if name in ("org.freedesktop.Flatpak", "org.gtk.vfs.*", "ca.desrt.dconf") or name == "org.freedesktop.*":
            errors.append("talk-name")
    if any(key in ("no-talk-name", "allow", "metadata", "require-version") for key in values):
        errors.append("unusual")
    return errors


GOOD = ["--share=ipc", "--share=network", "--socket=wayland", "--socket=fallback-x11", "--device=dri"]
BROKEN = {
    "both X11 and Wayland": GOOD + ["--socket=x11"],
    "Wayland alone": ["--socket=wayland"],
    "fallback without Wayland": ["--share=ipc", "--socket=fallback-x11"],
    "X11 without ipc": ["--socket=wayland", "--socket=fallback-x11"],
    "the home folder": GOOD + ["--filesystem=home"],
    "the host, read-only": GOOD + ["--filesystem=host:ro"],
    "another program's models": GOOD + ["--filesystem=~/.var/app/com.example.App"],
    "the configuration folder": GOOD + ["--filesystem=xdg-config/quire"],
    "the temporary folder": GOOD + ["--filesystem=/tmp"],
    "all devices": GOOD + ["--device=all"],
    "the session bus": GOOD + ["--socket=session-bus"],
    "its own name": GOOD + [f"--own-name={app_id}"],
    "the portals": GOOD + ["--talk-name=org.freedesktop.portal.Desktop"],
    "the host's commands": GOOD + ["--talk-name=org.freedesktop.Flatpak"],
    "twice the same": GOOD + ["--share=ipc"],
}


def sources(manifest):
    return [s for m in manifest["modules"] for s in m["sources"]]


def commands(manifest):
    return "\n".join(c for m in manifest["modules"] for c in m.get("post-install", []) + m.get("build-commands", []))


app_file = os.path.join(root, "flatpak", app_id + ".yml")
cuda_file = os.path.join(root, "flatpak", app_id + ".Cuda.yml")
app, cuda = (yaml.safe_load(open(f)) for f in (app_file, cuda_file))

ok(lint(GOOD) == [], "what Quire needs breaks no rule", lint(GOOD))
for name, args in BROKEN.items():
    ok(lint(args) != [], f"refused: {name}")
ok(app["finish-args"] == GOOD, "the manifest asks for that and no more", app["finish-args"])

# The application.
ok(app["id"] == app_id and app["command"] == "quire", "the application's name and command")
ok(isinstance(app["runtime-version"], str), "the runtime's branch is a string: 50 and '50' differ")
ok(app["runtime"] == "org.gnome.Platform" and app["sdk"] == "org.gnome.Sdk", "GNOME's runtime and its SDK")
ok(not any("network" in a for m in app["modules"] for a in m.get("build-options", {}).get("build-args", [])),
   "it is built without a network")

# The extension and the application: the one's mount point is where the other's engine looks for the module.
point = app["add-extensions"].get(app_id + ".Cuda", {})
ok(cuda["id"] == app_id + ".Cuda" and cuda["runtime"] == app_id and cuda["build-extension"] is True,
   "the CUDA part is an extension of the application")
ok(point.get("directory") == "lib/quire", "it is mounted where the module is looked for")
kernels = open(os.path.join(root, "kernels", "meson.build")).read()
ok(re.search(r"QK_MODULE_DIR=.*get_option\('libdir'\) / 'quire'", kernels) is not None, "which is the module's folder in kernels/")
gpu = open(os.path.join(root, "app", "quire-flatpak-gpu.c")).read()
ok(f'"/app/{point.get("directory")}/"' in gpu, "and where the application looks for what is missing")
ok(point.get("add-ld-path") == ".", "its libraries are found")
ok(point.get("no-autodownload") is True and point.get("download-if") == "have-kernel-module-nvidia",
   "only a computer with NVIDIA's driver downloads it")
ok(cuda["runtime-version"] == cuda["branch"], "the extension's branch is the application's")
ok(cuda["sdk"] == f"org.gnome.Sdk//{app['runtime-version']}", "both are built with the same SDK")
ok("-Dcuda=disabled" in app["modules"][-1]["config-opts"], "the application holds no CUDA")

for name, manifest in (("application", app), ("extension", cuda)):
    for source in sources(manifest):
        if source["type"] == "archive":
            ok(source["url"].startswith("https://") and re.fullmatch(r"[0-9a-f]{64}", source["sha256"]) is not None,
               f"{name}: {source['url'].rpartition('/')[2]} has a checksum")
        else:
            ok(source == {"type": "dir", "path": ".."}, f"{name}: Quire itself comes from this tree")
    ok("share/licenses/${FLATPAK_ID}" in commands(manifest), f"{name}: licences are installed")
    text = open(app_file if manifest is app else cuda_file).read()
    ok("\t" not in text and not re.search(r" +$", text, re.M), f"{name}: no tabs, no blanks at ends of lines")

if shutil.which("flatpak-builder"):
    for path, manifest in ((app_file, app), (cuda_file, cuda)):
        shown = subprocess.run(["flatpak-builder", "--show-manifest", path], capture_output=True, text=True)
        read = json.loads(shown.stdout) if shown.returncode == 0 else {}
        ok(read.get("id") == manifest["id"] and len(read.get("modules", [])) == len(manifest["modules"])
           and read.get("finish-args", []) == manifest.get("finish-args", []),
           f"flatpak-builder reads {os.path.basename(path)} alike", shown.stderr.strip())
else:
    print(f"ok {n + 1} - flatpak-builder reads the manifests # SKIP flatpak-builder is not installed")
    n += 1
print(f"1..{n}")
sys.exit(bad > 0)
