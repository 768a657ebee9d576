#!/usr/bin/env python3
"""Many clients at once: every answer is the one that its request gets alone, and memory stays flat. TAP.
Usage: test-load.py QUIRE_CLI MODEL_DIR. QUIRE_LOAD_SECONDS (5), QUIRE_LOAD_CLIENTS (16): ten minutes and 64 by hand."""
import http.client
import json
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server, events, run_tests  # noqa: E402

CLI, MODEL = sys.argv[1:3]
SECONDS = float(os.environ.get("QUIRE_LOAD_SECONDS", "5"))
CLIENTS = int(os.environ.get("QUIRE_LOAD_CLIENTS", "16"))

PREFIX = "You are a helpful assistant. Answer in one short sentence. " * 6
PROMPTS = [[{"role": "user", "content": f"What is {a} plus {b}?"}] for a, b in ((11, 14), (23, 25), (37, 48), (52, 9))]
PROMPTS += [[{"role": "system", "content": PREFIX}, {"role": "user", "content": t}]
            for t in ("What is a KV cache?", "My name is Oda.", "Hello", "What is 27 plus 15?")]
PROMPTS += [[{"role": "user", "content": "My name is Oda and I live in Bergen."},
             {"role": "assistant", "content": "Hello, Oda. I will remember that you live in Bergen."},
             {"role": "user", "content": "Where do I live?"}]]


def body(i, **more):
    return dict({"messages": PROMPTS[i], "temperature": 0, "max_tokens": 48}, **more)


class Client(threading.Thread):
    def __init__(self, server, number, alone, end):
        super().__init__()
        self.server, self.number, self.alone, self.end = server, number, alone, end
        self.n, self.refused, self.wrong, self.first = 0, 0, [], []

    def run(self):
        rng = random.Random(self.number)
        while time.monotonic() < self.end:
            i = rng.randrange(len(PROMPTS))
            kind = rng.choice(["whole", "stream", "stream", "drop", "choices", "fresh"])
            try:
                self.one(i, kind)
            except Exception as e:  # noqa: BLE001 - whatever it was, the test tells
                self.wrong.append((i, kind, repr(e)))

    def one(self, i, kind):
        if kind in ("whole", "choices", "fresh"):
            status, _, data = self.server.request("POST", "/v1/chat/completions", body(i, n=2 if kind == "choices" else 1, use_cache=kind != "fresh"))
            if status == 429:
                self.refused += 1
                time.sleep(0.05)
                return
            a = json.loads(data)
            got = [(c["message"]["content"], c["finish_reason"]) for c in a["choices"]] if status == 200 else [data]
            if any(g != self.alone[i] for g in got):
                self.wrong.append((i, kind, got))
            self.n += 1
            return
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        begun = time.monotonic()
        c.request("POST", "/v1/chat/completions", json.dumps(body(i, stream=True)), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status == 429:
            self.refused += 1
            c.close()
            time.sleep(0.05)
            return
        text, reason, first = "", None, None
        for e in events(r):
            if e == "[DONE]":
                break
            delta = e["choices"][0]["delta"].get("content", "")
            if delta and first is None:
                first = time.monotonic() - begun
                if kind == "drop":
                    c.close()
                    r.close()
                    self.n += 1
                    return
            text += delta
            reason = e["choices"][0]["finish_reason"] or reason
        c.close()
        self.first.append(first)
        self.n += 1
        if (text, reason) != self.alone[i]:
            self.wrong.append((i, kind, (text, reason)))


def rss(process):
    with open(f"/proc/{process.pid}/status") as f:
        return [int(line.split()[1]) for line in f if line.startswith("VmRSS")][0]


def many_clients():
    with Server(CLI, MODEL) as s:
        alone = []
        for i in range(len(PROMPTS)):
            c = s.json("POST", "/v1/chat/completions", body(i, use_cache=False))["choices"][0]
            alone.append((c["message"]["content"], c["finish_reason"]))
        begin = time.monotonic()
        clients = [Client(s, k, alone, begin + SECONDS) for k in range(CLIENTS)]
        [c.start() for c in clients]
        marks = []
        while any(c.is_alive() for c in clients):
            marks.append(rss(s.process))
            time.sleep(min(1, SECONDS / 20))
        [c.join() for c in clients]
        wrong = [w for c in clients for w in c.wrong]
        n = sum(c.n for c in clients)
        first = sorted(1000 * f for c in clients for f in c.first if f)
        at = lambda q: first[min(len(first) - 1, int(q * len(first)))]  # noqa: E731
        half, last = marks[len(marks) // 2], marks[-1]
        print(f"# {CLIENTS} clients, {SECONDS:.0f} s: {n} requests, {sum(c.refused for c in clients)} refused (429); first text p50 {at(0.5):.0f} ms, "
              f"p99 {at(0.99):.0f} ms; memory {marks[0]} KiB at first, {half} in the middle, {last} at the end")
        assert not wrong, wrong[:3]
        assert n > CLIENTS and len(first) > 0
        # What was in use at the half is enough for the other half.
        assert "ASAN_OPTIONS" in os.environ or last - half < 4096 + half * 0.02, marks
        while s.metric("requests_running") + s.metric("requests_queued") > 0:
            time.sleep(0.02)
        assert s.metric("http_connections") == 1


run_tests([many_clients])
