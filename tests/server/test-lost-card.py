"""`quire-cli serve` whose card is lost: who asks is told 503, and the server starts again in its own place: the same process id and
address, another image, which has the card. Where that happens again and again it ends with a status of its own. The card is the
mock device (tests/app/lost-card.c)."""
import http.client
import os
import signal
import sys
import tempfile
import time

from harness import Server, run_tests, wait_for

CLI, MODEL = sys.argv[1:3]


def answers(server):
    try:
        return server.request("GET", "/health")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def starts_again():
    with tempfile.TemporaryDirectory() as folder:
        images = os.path.join(folder, "images")
        s = Server(CLI, MODEL, env={"QUIRE_TEST_IMAGES": images})
        pid = s.process.pid
        try:
            before = s.chat("My name is Oda.")["choices"][0]["message"]["content"]
            s.process.send_signal(signal.SIGUSR1)
            wait_for(lambda: s.fails_or_none(), 120)
            wait_for(lambda: open(images).read().split() == [str(pid)] * 2, 120)
            wait_for(lambda: answers(s), 120)
            after = s.chat("My name is Oda.")["choices"][0]["message"]["content"]
            assert before == after, (before, after)
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                line = f.read().decode().split("\0")
            assert line[-2] == f"--port={s.port}", line
            assert s.process.stdout.readline().decode().strip() == s.uri
        finally:
            rc, err = s.stop()
        assert rc == 0, (rc, err)
        assert "device was lost" in err and "starting again" in err, err


def gives_up():
    now = int(time.time())
    s = Server(CLI, MODEL, env={"QUIRE_SERVE_RESTARTS": f"{now - 3} {now - 2} {now - 1}"})
    try:
        s.process.send_signal(signal.SIGUSR1)
        wait_for(lambda: s.fails_or_none(), 120)
        rc = s.process.wait(120)
    finally:
        _, err = s.stop()
    assert rc == 75, (rc, err)
    assert "4 times within 10 minutes" in err, err
    # Those of long ago do not count: this one would start again, but is told to end.
    s = Server(CLI, MODEL, env={"QUIRE_SERVE_RESTARTS": f"{now - 800} {now - 700} {now - 601}"})
    rc, err = s.stop()
    assert rc == 0 and err == "", (rc, err)


def fails_or_none(self):
    """A request that the lost card fells: 503, with what happened. The signal may come after one that is still answered."""
    status, headers, data = self.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story."}]})
    if status == 200:
        return False
    assert status == 503 and b'"device_lost"' in data, (status, data)
    assert headers.get("retry-after") == "1", headers
    return True


Server.fails_or_none = fails_or_none
run_tests([starts_again, gives_up])
