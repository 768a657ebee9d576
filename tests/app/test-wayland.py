"""The real window as a native Wayland client of a real compositor: it is typed into, answers, shows the
cache panel and ends well. Weston draws on the X display of run-headless.sh, so that keys and pictures come from outside as in the
other tests; the program itself has no X display. TAP.    test-wayland.py PROGRAM SOURCE BUILD"""
import os
import re
import shutil
import socket
import subprocess
import sys
import time

from window import DONE, Window, check, until, xdotool

if shutil.which("weston") is None:
    print("1..0 # SKIP weston is not installed")
    sys.exit(0)

folder = os.environ["XDG_RUNTIME_DIR"]
log = os.path.join(folder, "weston.log")
with open(log, "w") as f:
    weston = subprocess.Popen(["weston", "--backend=x11-backend.so", "--use-pixman", "--no-config", "--idle-time=0",
                               "--socket=quire", "--width=1200", "--height=800"], stdout=f, stderr=f,
                              env={k: v for k, v in os.environ.items() if k != "GDK_BACKEND"})


def answers():
    if weston.poll() is not None:
        print("1..0 # SKIP weston does not start: " + open(log).read().strip().rpartition("\n")[2])
        sys.exit(0)
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(os.path.join(folder, "quire"))
            # Its window has no name that xdotool knows: it is the one beside the root.
            return xdotool("search", "--onlyvisible", "--class", ".*").stdout.split()[1:]
        except OSError:
            return None


class WaylandWindow(Window):
    def wait_window(self):
        def is_there():
            self.process.poll()
            return self.process.returncode is not None or self.seen() is not None
        until("what it shows", is_there)
        assert self.process.returncode is None, self.log()


try:
    screen = until("weston", answers)[0]
    xdotool("windowmove", screen, 0, 0, "windowfocus", "--sync", screen)
    w = WaylandWindow(*sys.argv[1:4])
    w.env.pop("DISPLAY")
    w.env.update(GDK_BACKEND="wayland", WAYLAND_DISPLAY="quire", WAYLAND_DEBUG="1")
    with w.story("wayland-hang.png"):
        w.start()
        # What is typed before the compositor gives the window its keyboard goes nowhere.
        until("the keyboard", lambda: re.search(r"wl_keyboard@\d+\.enter\(", w.log()))
        w.send("My name is Ada.")
        w.wait_reply(DONE)
        w.send("What is my name?")
        reply = w.wait_reply(DONE)[2]
        check("what was typed is answered", "Ada" in reply and w.messages()[0][2] == "My name is Ada.", w.messages())
        xdotool("key", "F12")
        until("the cache panel", lambda: any("page" in label.lower() for label in (w.seen() or ({}, []))[1]))
        time.sleep(0.5)  # for the picture alone: the panel slides in
        w.shot("wayland.png")
        check("the window is a Wayland surface of the application's name",
              'set_app_id("io.github.quire_chat.Quire")' in w.log() and "xdg_toplevel" in w.log())
        check("it ends as ever", w.quit() == 0, w.log()[-2000:])
        said = [line for line in w.log().splitlines() if "WARNING" in line or "CRITICAL" in line or "error" in line.lower()]
        check("no warning, and the compositor found no fault", not said, "\n".join(said))
finally:
    weston.terminate()
    weston.wait()
