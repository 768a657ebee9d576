"""A lost card does not come back to the process that had it: the real window, over the mock device, offers to start again, and does
so in its own place: the same process id, another image, the same conversation and draft, and the card. TAP.
    test-restart.py PROGRAM SOURCE BUILD        (under run-headless.sh)"""
import os
import signal
import subprocess
import sys

from window import DONE, FAILED, Window, check, until, xdotool

program, source, build = sys.argv[1:4]
os.environ["QUIRE_TEST_MARK"] = "kept"
w = Window(program, source, build)


def open_files(pid):
    folder = f"/proc/{pid}/fd"
    out = []
    for fd in os.listdir(folder):
        try:
            out.append(os.readlink(os.path.join(folder, fd)))
        except FileNotFoundError:
            pass
    return out


def images():
    with open(w.images_file) as f:
        return f.read().split()


def text_of(pid, name):
    with open(f"/proc/{pid}/{name}", "rb") as f:
        return f.read().decode().split("\0")


def owner():
    out = subprocess.run(["gdbus", "call", "--session", "--dest", "org.freedesktop.DBus", "--object-path", "/org/freedesktop/DBus",
                          "--method", "org.freedesktop.DBus.GetConnectionUnixProcessID", "io.github.quire_chat.Quire"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return int("".join(c for c in out.replace("uint32", "") if c.isdigit()) or 0)


with w.story("restart-hang.png"):
    w.start("--model", os.path.join(source, "data", "demo-model"))
    w.send("My name is Ada.")
    w.wait_reply(DONE)
    pid = w.process.pid
    files = open_files(pid)

    # The card faults in the midst of a reply; the first way back is tried, and does not lead there.
    os.kill(pid, signal.SIGUSR1)
    w.send("Tell me a story.")
    w.wait_reply(FAILED)
    w.wait_button("win.recover")
    check("at first the bar offers to load the model again", "app.restart" not in w.seen()[0])
    w.click("win.recover")
    w.wait_button("app.restart")
    check("after that failed it offers to start again", True)
    w.shot("restart-1-offered.png")
    xdotool("key", "ctrl+l")
    xdotool("type", "--delay", 8, "What is my name?")

    # The draft is not saved by any pause before the click: the restart itself keeps it.
    w.click("app.restart")
    until("another image", lambda: len(images()) == 2)
    check("the process is the same one, with another image", images() == [str(pid)] * 2 and w.process.poll() is None, images())
    w.wait_window()
    check("the environment is kept", "QUIRE_TEST_MARK=kept" in text_of(pid, "environ"))
    check("so is the model it was started with",
          text_of(pid, "cmdline")[1:2] == ["--model=" + os.path.join(source, "data", "demo-model")], text_of(pid, "cmdline"))
    until("the name on the bus", lambda: owner() == pid)
    check("it is the one instance on the bus", True)
    until("the conversation", lambda: "My name is Ada." in "\n".join(w.seen()[1]))
    w.shot("restart-2-back.png")

    # Only the key: the draft is there, and the chat knows what was said before.
    w.send()
    reply = w.wait_reply(DONE)
    sent = [text for role, state, text in w.messages() if role == 1]
    check("conversation and draft are back", sent == ["My name is Ada.", "Tell me a story.", "What is my name?"], sent)
    check("the next reply works, and knows the chat", "Ada" in reply[2], reply)
    left = [f for f in open_files(pid) if f.endswith("history.db")]
    check("no file of the old image is left open", len(left) == len([f for f in files if f.endswith("history.db")])
          and len(open_files(pid)) <= len(files) + 4, "\n".join(open_files(pid)))
    check("another start finds the one that runs", subprocess.run([program], env=w.env, timeout=120).returncode == 0 and owner() == pid)
    check("it ends as ever", w.quit() == 0, w.log())
