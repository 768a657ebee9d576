"""Starts and stops `quire-cli serve` on a free port; HTTP by the standard library; TAP. Used by the tests of this folder."""
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import traceback


class Server:
    """`with Server(cli, model, "--max-requests", "2") as s:`; s.port, s.request(...)."""

    def __init__(self, cli, model, *args, env=None):
        full = dict(os.environ, QUIRE_MODEL=model, LC_ALL="C.UTF-8", **(env or {}))
        self.process = subprocess.Popen([cli, "serve", "--port", "0", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=full)
        self.uri = self.process.stdout.readline().decode().strip()
        if not self.uri:
            raise RuntimeError("serve did not start: " + self.process.stderr.read().decode())
        self.port = int(self.uri.rstrip("/").rsplit(":", 1)[1])
        self.token = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        rc, err = self.stop()
        if exc[0] is None:
            assert rc == 0, f"serve ended with {rc}: {err}"
            assert err == "", f"serve said: {err}"

    def stop(self, with_signal=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, self.process.stderr.read().decode()

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def raw(self, data, timeout=30, until_closed=True):
        """Sends bytes as they are; returns what comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as s:
            s.sendall(data)
            got = b""
            while until_closed or b"\r\n\r\n" not in got:
                try:
                    piece = s.recv(65536)
                except ConnectionResetError:
                    break
                if not piece:
                    break
                got += piece
            return got

    def request(self, method, path, body=None, headers=None, connection=None):
        """(status, headers, bytes)."""
        h = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if method == "POST":
            h.setdefault("Content-Type", "application/json")
        if self.token:
            h.setdefault("Authorization", "Bearer " + self.token)
        c = connection or self.connect()
        c.request(method, path, body, h)
        r = c.getresponse()
        data = r.read()
        if connection is None:
            c.close()
        return r.status, dict((k.lower(), v) for k, v in r.getheaders()), data

    def json(self, method, path, body=None, status=200, **kw):
        got, headers, data = self.request(method, path, body, **kw)
        assert got == status, f"{method} {path}: expected {status}, found {got}: {data[:500]!r}"
        assert headers["content-type"].startswith("application/json"), headers
        return json.loads(data)

    def fails(self, method, path, status, body=None, code=None, says=None, param=None, **kw):
        e = self.json(method, path, body, status, **kw)["error"]
        assert set(e) == {"message", "type", "param", "code"}, e
        assert code is None or e["code"] == code, e
        assert param is None or e["param"] == param, e
        assert says is None or says in e["message"], e
        # No path of the disk; a JSON pointer is none.
        assert "/" not in e["message"].replace("application/json", "").replace("/docs", "").replace("#/", ""), e
        return e

    def chat(self, text="Hello", status=200, **kw):
        messages = kw.pop("messages", None) or [{"role": "user", "content": text}]
        return self.json("POST", "/v1/chat/completions", dict({"messages": messages, "temperature": 0}, **kw), status)

    def stream(self, path, body, connection=None):
        """Yields the events' data, decoded; "[DONE]" as it is."""
        c = connection or self.connect()
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = "Bearer " + self.token
        c.request("POST", path, json.dumps(dict(body, stream=True)), headers)
        r = c.getresponse()
        assert r.status == 200, (r.status, r.read())
        assert r.getheader("content-type") == "text/event-stream"
        yield from events(r)

    def metric(self, name):
        status, headers, data = self.request("GET", "/metrics")
        assert status == 200, (status, headers, data)
        text = data.decode()
        for line in text.splitlines():
            if line.startswith("quire_" + name + " ") or line.startswith("quire_" + name + "{"):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(f"{name} is not in {text!r}")


def events(response):
    for line in response:
        if line.startswith(b"data: "):
            data = line[6:].decode().rstrip("\n")
            yield data if data == "[DONE]" else json.loads(data)
        else:
            assert line == b"\n" or line.startswith(b":") or line.startswith(b"event: "), line


def wait_for(condition, seconds=30):
    """Polls: what is awaited comes from another process, and a deadline is the only way to say that it never came."""
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def run_tests(tests):
    failed = 0
    print(f"1..{len(tests)}")
    only = os.environ.get("QUIRE_TEST")
    for i, t in enumerate(tests, 1):
        name = t.__name__.replace("_", " ")
        if only and only not in t.__name__:
            print(f"ok {i} - {name} # SKIP not asked for")
            continue
        try:
            reason = t()
            print(f"ok {i} - {name}" + (f" # SKIP {reason}" if reason else ""), flush=True)
        except Exception:
            failed += 1
            for line in traceback.format_exc().splitlines():
                print("# " + line)
            print(f"not ok {i} - {name}", flush=True)
    sys.exit(failed > 0)
