"""The real window, killed while a reply streams: the next start has the chat, what was written of the reply, and "Interrupted" with
Continue. TAP.    test-window-killed.py PROGRAM SOURCE BUILD        (under run-headless.sh)
QUIRE_TEST_KILLS: how many lives end so (default: 3)."""
import os
import random
import sys
import time

from window import DONE, Window, check, until

# A reply lasts some seconds on any machine, so that the kill comes before its end.
os.environ["QUIRE_TEST_DELAY_US"] = "60000"
w = Window(*sys.argv[1:4])
n_kills = int(os.environ.get("QUIRE_TEST_KILLS", "3"))
chance = random.Random(5)


def last():
    rows = w.messages()
    return rows[-1] if rows else (0, 0, "")


def labels():
    return (w.seen() or ({}, []))[1]


with w.story("killed-hang.png"):
    w.start()
    w.send("My name is Ada.")
    w.wait_reply(DONE)
    for life in range(n_kills):
        question = f"Tell me a story about a {['cat', 'dog', 'fox', 'bear'][life % 4]}."
        w.send(question)
        # From the first words that are kept until a moment later: in the midst of writing, saving or painting.
        until("the first words on the disk", lambda: last()[0] == 2 and last()[2] != "")
        time.sleep(chance.random() * 0.5)
        w.process.kill()
        w.process.wait()
        rows = w.messages()
        _, state, partial = rows[-1]
        check(f"kill {life + 1}: the question and words of the reply are on the disk",
              rows[-2][2] == question and partial != "" and state < DONE, rows[-2:])
        w.start()
        until("Interrupted", lambda: any(label.startswith("Interrupted") for label in labels()))
        at = w.wait_button("chat.continue")
        shown = "\n".join(labels())
        check(f"kill {life + 1}: the chat is there again, interrupted, with Continue", question in shown and at is not None, shown)
        if life == 0:
            w.shot("killed-1-interrupted.png")
    w.click("chat.continue")
    whole = w.wait_reply(DONE)[2]
    check("Continue goes on where it was cut", whole.startswith(partial) and len(whole) > len(partial), (partial, whole))
    asked = [text for role, _, text in w.messages() if role == 1]
    check("no message was lost or sent twice", len(asked) == len(set(asked)) == n_kills + 1, asked)
    check("it ends as ever", w.quit() == 0, w.log())
