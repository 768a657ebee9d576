"""The real window as its own process, looked at and driven from outside (under run-headless.sh): keys and mouse by xdotool,
what is on show by find-button.c, what is kept by the history's database."""
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time

DONE, STOPPED, FAILED, INTERRUPTED = 4, 7, 8, 9  # QuireReplyState
LIMIT_S = 120  # only a hang reaches it
n_checks = n_bad = 0


def check(name, good, more=""):
    global n_checks, n_bad
    n_checks += 1
    n_bad += not good
    for line in str(more).splitlines() if not good else []:
        print("# " + line)
    print(f"{'ok' if good else 'not ok'} {n_checks} - {name}", flush=True)
    return good


def finish():
    print(f"1..{n_checks}")
    sys.exit(n_bad > 0)


class GaveUp(Exception):
    pass


def until(what, condition, limit_s=LIMIT_S):
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise GaveUp(what)
        time.sleep(0.05)


def xdotool(*args):
    return subprocess.run(["xdotool", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


class Window:
    """One life of the program after the other, on one history."""

    def __init__(self, program, source, build, language=None):
        self.program = program
        self.dir = os.environ["XDG_RUNTIME_DIR"]
        self.db = os.path.join(os.environ["XDG_DATA_HOME"], "quire", "history.db")
        self.seen_file, self.images_file = os.path.join(self.dir, "seen"), os.path.join(self.dir, "images")
        settings = os.path.join(os.environ["XDG_CONFIG_HOME"], "glib-2.0", "settings")
        os.makedirs(settings, exist_ok=True)
        with open(os.path.join(settings, "keyfile"), "w") as f:
            f.write("[io/github/quire_chat/Quire]\nwindow-width=1000\nwindow-height=700\ncustom-sampling=true\ntemperature=0.0\n"
                    "auto-title=false\ncpu-note-closed=true\n")
        self.env = dict(os.environ, GSETTINGS_BACKEND="keyfile", QUIRE_DATA_DIR=os.path.join(source, "data"),
                        GSETTINGS_SCHEMA_DIR=os.path.join(build, "data"), QUIRE_TEST_SEEN=self.seen_file,
                        QUIRE_TEST_IMAGES=self.images_file)
        self.process = None

    def start(self, *args):
        self.process = subprocess.Popen([self.program, *args], env=self.env, stdin=subprocess.DEVNULL,
                                        stderr=open(os.path.join(self.dir, "window.log"), "a"))
        self.wait_window()

    def wait_window(self):
        def is_there():
            if self.process.poll() is not None:
                raise GaveUp("the window, and the program ended")
            return xdotool("search", "--onlyvisible", "--pid", self.process.pid, "--name", ".").stdout.strip()
        until("the window", is_there)
        until("what it shows", lambda: self.seen() is not None)

    def log(self):
        with open(os.path.join(self.dir, "window.log")) as f:
            return f.read()

    def seen(self):
        """(buttons by action, labels), or None where it does not answer yet."""
        try:
            os.unlink(self.seen_file)
        except FileNotFoundError:
            pass
        # Before the program listens the signal would end it.
        with open(f"/proc/{self.process.pid}/status") as f:
            caught = next(int(line.split()[1], 16) for line in f if line.startswith("SigCgt:"))
        if not caught >> (signal.SIGUSR2 - 1) & 1:
            return None
        os.kill(self.process.pid, signal.SIGUSR2)
        end = time.monotonic() + 20
        while not os.path.exists(self.seen_file):
            if time.monotonic() > end:
                return None
            time.sleep(0.02)
        with open(self.seen_file) as f:
            lines = f.read().splitlines()
        buttons = {line.split()[1]: tuple(map(int, line.split()[2:])) for line in lines if line.startswith("button ")}
        return buttons, [line[6:] for line in lines if line.startswith("label ")]

    def wait_button(self, action):
        return until("a button for " + action, lambda: (self.seen() or ({}, []))[0].get(action))

    def click(self, action):
        x, y = self.wait_button(action)
        xdotool("mousemove", x, y, "click", 1)

    def shot(self, name):
        folder = os.environ.get("QUIRE_TEST_SHOTS")
        if folder:
            os.makedirs(folder, exist_ok=True)
            subprocess.run(["import", "-window", "root", os.path.join(folder, name)], check=False)

    def rows(self, sql, *args):
        try:
            with sqlite3.connect("file:" + self.db + "?mode=ro", uri=True, timeout=20) as db:
                return db.execute(sql, args).fetchall()
        except sqlite3.Error:
            return []

    def messages(self):
        """(role, state, text) in the order they were written; role 1 is the user, 2 the model."""
        return self.rows("SELECT role, state, text FROM message ORDER BY n")

    def send(self, text=None):
        """Types @text and sends it; while the model is being loaded the key does nothing, so it is pressed again."""
        before = len(self.messages())
        if text is not None:
            xdotool("type", "--delay", 8, text)

        def sent():
            if len(self.messages()) > before:
                return True
            xdotool("key", "Return")
            time.sleep(0.5)
            return len(self.messages()) > before
        until("the message", sent)

    def wait_reply(self, *states):
        def ended():
            last = self.messages()[-1:]
            return last and last[0][0] == 2 and last[0][1] in (states or (DONE,)) and last[0]
        return until("a reply", ended)

    def quit(self):
        xdotool("key", "ctrl+q")
        return self.process.wait(LIMIT_S)

    @contextlib.contextmanager
    def story(self, hang):
        """What is told within ends the program; @hang: the picture's name where something is waited for in vain."""
        try:
            yield
        except (GaveUp, subprocess.TimeoutExpired) as error:
            self.shot(hang)
            check("waited too long for " + str(error), False, self.log())
        finally:
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        finish()
