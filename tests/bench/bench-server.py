#!/usr/bin/env python3
"""The local server under load, alone or beside llama.cpp's server on the same weights: first token and tokens a second.

    bench-server.py --cli build/app/cli/quire-cli --model DIR [--peer LLAMA_SERVER --gguf FILE] [--clients 1,8,64] [--rounds 3]

FILE is what to-gguf.py makes of DIR. Clients of one thread keep one streaming request each under way, on a connection of
its own, until their share is done; both sides get the same requests in the same order, and take turns: in every round, for each
number of clients, one server is started, warmed up, measured and stopped, then the other, so that what else runs on the machine
meets both. Two loads:

  fresh   a prompt of its own of about 128 tokens, 32 tokens of reply: nothing can be reused
  turns   conversations of four turns behind a system prompt that all share, 32 tokens a reply: what is cached can be reused

First token: from before the connection is made until the first text is here. CPU: what the server's process used,
by all its threads, which another program's load changes little. --json FILE keeps every figure."""
import argparse
import json
import os
import random
import re
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time

WORDS = ("river stone garden window letter morning silver harbour winter candle forest market bridge station paper orange "
         "music kitchen travel quiet number island mountain village summer engine story cache memory page token").split()
SYSTEM = ("You are a helpful assistant on somebody's own computer. You answer in short sentences, you say so when you do not know "
          "something, you remember what the user told you in this conversation, and you never make up names. ") * 3
ASKS = ["Tell me a story about a {} and a {}.", "Now one about a {} that met a {}.", "And one of a {} without any {}.", "Tell me a long story of a {} beside a {}."]
REPLY_TOKENS = 32
FIRST_TEXT = re.compile(rb'"content": ?"[^"]')
USAGE = re.compile(rb'"prompt_tokens": ?(\d+)')
MADE = re.compile(rb'"completion_tokens": ?(\d+)')
CACHED = re.compile(rb'"cached_tokens": ?(\d+)')


class Client:
    """A list of conversations, asked one request after the other on one connection."""

    def __init__(self, load, number, n_requests):
        self.rng, self.load, self.left, self.messages = random.Random(f"{load} {number}"), load, n_requests, []
        self.first, self.texts, self.prompt, self.made, self.cached = [], [], 0, 0, 0

    def next_body(self):
        word = lambda: self.rng.choice(WORDS)  # noqa: E731
        if self.load == "fresh":
            text = " ".join(word() for _ in range(100)) + ". " + ASKS[0].format(word(), word())
            self.messages = [{"role": "user", "content": text}]
        else:
            if len(self.messages) in (0, 9):  # a system prompt and four turns
                self.messages = [{"role": "system", "content": SYSTEM}]
            self.messages.append({"role": "user", "content": ASKS[len(self.messages) // 2].format(word(), word())})
        return json.dumps({"messages": self.messages, "temperature": 0, "max_tokens": REPLY_TOKENS, "stream": True, "stream_options": {"include_usage": True}})


def run_load(port, load, n_clients, n_requests):
    """Asks it all; returns (clients, seconds)."""
    s = selectors.DefaultSelector()
    clients = [Client(load, k, n_requests) for k in range(n_clients)]
    begun = time.perf_counter()

    def send(c):
        body = c.next_body().encode()
        c.data, c.seen, c.at = b"", False, time.perf_counter()
        c.socket = socket.create_connection(("127.0.0.1", port))
        c.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.register(c.socket, selectors.EVENT_READ, c)
        c.socket.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                         % (port, len(body)) + body)

    for c in clients:
        send(c)
    open_clients = n_clients
    while open_clients:
        ready = s.select(600)
        if not ready:
            raise RuntimeError("no answer for ten minutes")
        for key, _ in ready:
            c = key.data
            piece = c.socket.recv(1 << 16)
            now = time.perf_counter()
            c.data += piece
            if not c.seen and FIRST_TEXT.search(c.data):
                c.seen = True
                c.first.append(1000 * (now - c.at))
            if not piece or (b" 200 " not in c.data[:16] and b"\r\n\r\n" in c.data):
                raise RuntimeError(f"refused: {c.data[:500]!r}")
            if not c.data.endswith(b"0\r\n\r\n"):
                continue
            text = ""
            for line in c.data.split(b"\n"):
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
            c.texts.append(text)
            c.messages.append({"role": "assistant", "content": text})
            c.prompt += int(USAGE.search(c.data).group(1))
            c.made += int(MADE.search(c.data).group(1))
            cached = CACHED.search(c.data)
            c.cached += int(cached.group(1)) if cached else 0
            s.unregister(c.socket)
            c.socket.close()
            c.left -= 1
            if c.left:
                send(c)
            else:
                open_clients -= 1
    return clients, time.perf_counter() - begun


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid):
    with open(f"/proc/{pid}/status") as f:
        return [int(line.split()[1]) for line in f if line.startswith("VmHWM")][0] // 1024


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until_up(process, port):
    end = time.monotonic() + 120
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as s:
                s.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % port)
                if b" 200 " in s.recv(64):
                    return
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError("the server did not come up")
        time.sleep(0.05)


def measure(command, port, load, n_clients, n_requests):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_up(process, port)
        run_load(port, "warm " + load, 2, 2)
        cpu, mine = cpu_seconds(process.pid), time.process_time()
        clients, seconds = run_load(port, load, n_clients, n_requests)
        cpu, mine = cpu_seconds(process.pid) - cpu, time.process_time() - mine
        peak = resident(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    first = sorted(f for c in clients for f in c.first)
    made, n = sum(c.made for c in clients), n_clients * n_requests
    at = lambda q: first[min(len(first) - 1, int(q * len(first)))]  # noqa: E731
    return {"load": load, "clients": n_clients, "requests": n, "p50": at(0.5), "p99": at(0.99), "tokens_per_s": made / seconds, "seconds": seconds,
            "prompt": sum(c.prompt for c in clients), "made": made, "cached": sum(c.cached for c in clients), "cpu_ms_a_request": 1000 * cpu / n,
            "client_cpu_ms_a_request": 1000 * mine / n, "peak_mib": peak, "texts": [t for c in clients for t in c.texts]}


def median(values):
    v = sorted(values)
    return v[len(v) // 2] if len(v) % 2 else (v[len(v) // 2 - 1] + v[len(v) // 2]) / 2


def report(rows, sides):
    for load in dict.fromkeys(r["load"] for r in rows):
        print(f"\n{load}\n\n| clients | | first token p50, ms | p99, ms | tokens/s | server's CPU a request, ms | prompt tokens reused | peak memory, MiB |")
        print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for n in dict.fromkeys(r["clients"] for r in rows):
            for side in sides:
                some = [r for r in rows if (r["load"], r["clients"], r["side"]) == (load, n, side)]
                if not some:
                    continue
                m = lambda key: median([r[key] for r in some])  # noqa: E731
                print(f"| {n} | {side} | {m('p50'):.1f} | {m('p99'):.0f} | {m('tokens_per_s'):,.0f} | {m('cpu_ms_a_request'):.1f} | "
                      f"{100 * m('cached') / m('prompt'):.0f}% | {m('peak_mib'):.0f} |")
    if len(sides) > 1:
        same = total = 0
        for r in rows:
            if r["side"] == sides[0] and r["load"] == "fresh":
                other = next(q for q in rows if q["side"] == sides[1] and all(q[k] == r[k] for k in ("load", "clients", "round")))
                same += sum(a == b for a, b in zip(r["texts"], other["texts"]))
                total += len(r["texts"])
        print(f"\nfresh: {same} of {total} replies are the same text on both sides")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cli", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--peer", help="a llama-server")
    p.add_argument("--gguf", help="as the peer sees it")
    p.add_argument("--peer-args", default="-np 64 -c 65536 -no-kvu --reasoning on", help="its slots and context (default: %(default)s)")
    p.add_argument("--clients", default="1,8,64")
    p.add_argument("--loads", default="fresh,turns")
    p.add_argument("--requests", default="32,16,8", help="of one client, for each number of clients (default: %(default)s)")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--json")
    o = p.parse_args()
    sides = ["Quire"] + (["llama.cpp"] if o.peer else [])
    n_clients, n_requests = ([int(x) for x in s.split(",")] for s in (o.clients, o.requests))
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    rows = []
    for k in range(o.rounds):
        for load in o.loads.split(","):
            for n, each in zip(n_clients, n_requests):
                for side in sides if k % 2 == 0 else sides[::-1]:
                    port = free_port()
                    ours = [o.cli, "serve", "--port", str(port), "--model", o.model, "--threads", str(o.threads)]
                    peer = [o.peer, "-m", o.gguf, "--host", "127.0.0.1", "--port", str(port), "-t", str(o.threads), "--log-disable", *o.peer_args.split()]
                    r = dict(measure(ours if side == "Quire" else peer, port, load, n, each), side=side, round=k, load_average=os.getloadavg()[0])
                    rows.append(r)
                    print(f"# round {k + 1}, {load}, {n} clients, {side}: p50 {r['p50']:.1f} ms, p99 {r['p99']:.0f} ms, {r['tokens_per_s']:.0f} tokens/s, "
                          f"CPU {r['cpu_ms_a_request']:.1f} ms a request (client {r['client_cpu_ms_a_request']:.1f}), {r['prompt'] / r['requests']:.0f} + "
                          f"{r['made'] / r['requests']:.0f} tokens, load average {r['load_average']:.1f}", file=sys.stderr, flush=True)
                    if o.json:
                        with open(o.json, "w") as f:
                            json.dump(rows, f)
    report(rows, sides)


main()
