#!/usr/bin/env python3
"""quire-cli as a Unix user meets it: results, errors, exit statuses. TAP. Usage: test-cli.py QUIRE_CLI MODEL_DIR"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

CLI, MODEL = sys.argv[1:3]
REPORT = json.load(open(os.path.join(MODEL, "training", "report.json")))
GOLDEN = REPORT["golden"]
PLAIN_CHAT = re.compile(r"<\|im_start\|>user\n(.*)<\|im_end\|>\n<\|im_start\|>assistant\n", re.S)
tests = []


def test(f):
    tests.append(f)
    return f


def run(*args, stdin=b"", env=None, timeout=300):
    full = dict(os.environ, QUIRE_MODEL=MODEL, LC_ALL="C.UTF-8", **(env or {}))
    p = subprocess.run([CLI, *args], input=stdin, capture_output=True, env=full, timeout=timeout)
    return p.returncode, p.stdout.decode("utf-8"), p.stderr.decode("utf-8")


def ok(*args, **kw):
    rc, out, err = run(*args, **kw)
    assert rc == 0, f"{args}: exit {rc}: {err}"
    return out


def fails(rc_expected, *args, says=(), **kw):
    rc, out, err = run(*args, **kw)
    assert rc == rc_expected, f"{args}: expected exit {rc_expected}, found {rc}: {err}"
    assert err.startswith("quire-cli: "), err
    for word in says:
        assert word in err, f"{args}: {word!r} is not in: {err}"
    return out, err


def greedy(messages, n=64):
    out = ok("generate", "--json", "--temperature", "0", "-n", str(n), "--messages", "-",
             stdin=json.dumps(messages).encode())
    return json.loads(out)


@test
def help_and_usage():
    assert "Commands:" in ok("--help")
    assert ok("--version").startswith("quire-cli ")
    for c in ("generate", "chat", "tokenize", "logits", "bench", "info"):
        assert "--" in ok(c, "--help-all")
    fails(2, "nonsense", says=["nonsense"])
    fails(2, "generate", says=["--prompt"])
    fails(2, "generate", "--no-such-option", says=["--no-such-option"])
    fails(2, "generate", "--prompt", "a", "--messages", "b", says=["exactly one"])
    assert run()[0] == 2


@test
def bad_values_name_the_field():
    for option, value in (("--temperature", "-1"), ("--top-p", "1.5"), ("--min-p", "-0.1"), ("--seed", "abc"),
                          ("--repetition-penalty", "0"), ("--temperature", "nan"), ("--temperature", "hot"),
                          ("--max-tokens", "-5"), ("--thinking", "maybe"), ("--kv", "int3"), ("--threads", "-1")):
        _, err = fails(2, "generate", "--prompt", "Hi", option, value)
        word = option.lstrip("-")
        assert word in err or word.replace("-", "_") in err, f"{option}: {err}"


@test
def golden_greedy_texts():
    for g in GOLDEN:
        m = PLAIN_CHAT.fullmatch(g["text"])
        if m and "<|im_" not in m.group(1):
            out = ok("generate", "--prompt", m.group(1), "--temperature", "0", "-n", str(len(g["greedy"])))
            assert out.rstrip("\n") == g["greedy_text"].rstrip("\n"), (out, g["greedy_text"])
        raw = json.loads(ok("generate", "--raw", "--added-tokens", "--prompt", "-", "--temperature", "0", "-n",
                            str(len(g["greedy"])), "--json", stdin=g["text"].encode()))
        n = len(g["greedy"])
        assert raw["ids"][:n] == g["greedy"], (raw["ids"], g["greedy"])
        assert raw["usage"]["prompt_tokens"] == len(g["ids"])


@test
def raw_without_added_tokens_has_no_control_token():
    plain = json.loads(ok("tokenize", "--json", "<|im_start|>user"))["ids"]
    added = json.loads(ok("tokenize", "--json", "--added-tokens", "<|im_start|>user"))["ids"]
    assert max(plain) < 6139 and added[0] == 6140, (plain, added)


@test
def golden_logits():
    for g in GOLDEN:
        out = json.loads(ok("logits", "--json", "--kv", "f32", "--top", "8", "--ids", ",".join(map(str, g["ids"]))))
        assert [t["id"] for t in out["top"]] == [i for i, _ in g["top"]]
        for t, (_, v) in zip(out["top"], g["top"]):
            assert abs(t["logit"] - v) < 2e-3, (t, v)
    fails(2, "logits", "--ids", "1,x", says=["--ids", "x"])
    fails(2, "logits", "--ids", "6144", says=["6143"])
    fails(2, "logits", says=["--ids"])


@test
def tokenize_golden_and_back():
    for g in GOLDEN:
        out = json.loads(ok("tokenize", "--json", "--added-tokens", "-", stdin=g["text"].encode()))
        assert out["ids"] == g["ids"]
        assert json.loads(ok("tokenize", "--json", "--decode", ",".join(map(str, g["ids"]))))["text"] == g["text"]


@test
def tokenize_batch():
    texts = ["", "Hello!", "a\0b", "\U0001fae0", "你好", "\"quoted\\\" \n", "<|im_end|>"]
    out = json.loads(ok("tokenize", "--batch", stdin=json.dumps(texts).encode()))
    assert len(out) == len(texts) and out[0] == []
    for text, ids in zip(texts, out):
        back = json.loads(ok("tokenize", "--json", "--decode", " ".join(map(str, ids)))) if ids else {"text": ""}
        assert back["text"] == text, (back, text)
    assert ok("tokenize", "--batch", stdin=b"[]").strip() == "[]"
    for bad, word in ((b'["a"', "end of the input"), (b'["\\ud83e"]', "surrogate"), (b'["\\udc4d"]', "surrogate"),
                      (b'[1]', "string"), (b'{"a":1}', "array"), (b'["\xff"]', "UTF-8"), (b'["a"] x', "nothing"),
                      (b'["\\q"]', "escape"), (b'["a\nb"]', "control"), (b'', "end of the input")):
        fails(1, "tokenize", "--batch", stdin=bad, says=["standard input", word])


@test
def tokenize_needs_only_the_tokenizer():
    with tempfile.TemporaryDirectory() as d:
        shutil.copy(os.path.join(MODEL, "tokenizer.json"), d)
        assert ok("tokenize", "--model", d, "Hello!").split() == [str(i) for i in GOLDEN[0]["ids"][3:5]]
        fails(1, "generate", "--model", d, "--prompt", "x", says=[d])


@test
def conversation_from_a_file():
    r = greedy([{"role": "user", "content": "My name is Mira."},
                {"role": "assistant", "content": "Got it, your name is Mira."},
                {"role": "user", "content": "What is my name?"}])
    assert "Mira" in r["text"] and r["finish_reason"] == "stop", r
    assert r["usage"]["total_tokens"] == r["usage"]["prompt_tokens"] + r["usage"]["completion_tokens"]
    assert r["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert r["timings"]["first_token_ms"] > 0
    wrapped = ok("generate", "--temperature", "0", "--messages", "-",
                 stdin=b'{"messages": [{"content": "Hello!", "role": "user"}]}')
    assert wrapped.strip() == GOLDEN[0]["greedy_text"].strip()
    for bad, word in ((b'[{"role": "robot", "content": "x"}]', "robot"), (b'[{"role": "user"}]', "content"),
                      (b'[{"role": "user", "content": "x", "name": "y"}]', "role"), (b'[]', "object"),
                      (b'[{"role": "user", "content": 7}]', "string"), (b'[' * 20000, "object")):
        fails(1, "generate", "--messages", "-", stdin=bad, says=[word])
    fails(1, "generate", "--messages", "no-such-file.json", says=["no-such-file.json"])


@test
def limits_are_told():
    r = json.loads(ok("generate", "--prompt", "Tell me a short story about a fox.", "-n", "5", "--json"))
    assert r["finish_reason"] == "length" and len(r["ids"]) == 5
    _, err = fails(1, "generate", "--context", "32", "--prompt", "word " * 200)
    assert re.search(r"\b32\b", err), err
    full = json.loads(ok("generate", "--context", "40", "--temperature", "0", "--json", "--prompt",
                         "Tell me a short story about a fox."))
    assert full["finish_reason"] == "length"
    assert full["usage"]["total_tokens"] <= 40


@test
def stop_strings():
    whole = ok("generate", "--prompt", "Tell me a short story about a fox.", "--temperature", "0").strip()
    word = whole.split()[6]
    cut = ok("generate", "--prompt", "Tell me a short story about a fox.", "--temperature", "0", "--stop", word)
    assert cut.rstrip("\n") == whole[:whole.index(word)].rstrip("\n"), (cut, whole)


@test
def seeds_repeat():
    args = ("generate", "--prompt", "Tell me a story.", "--temperature", "1", "-n", "24", "--json")
    a, b, c = (json.loads(ok(*args, "--seed", s)) for s in ("7", "7", "8"))
    assert a["ids"] == b["ids"] and a["seed"] == 7 and a["ids"] != c["ids"]
    drawn = json.loads(ok(*args))
    again = json.loads(ok(*args, "--seed", str(drawn["seed"])))
    assert drawn["ids"] == again["ids"]


@test
def broken_models():
    fails(1, "generate", "--model", "/nonexistent", "--prompt", "x", says=["/nonexistent"])
    with tempfile.TemporaryDirectory() as d:
        copy = os.path.join(d, "model")
        shutil.copytree(MODEL, copy)
        shard = os.path.join(copy, "model-00002-of-00002.safetensors")
        with open(shard, "r+b") as f:
            f.truncate(os.path.getsize(shard) - 100)
        fails(1, "generate", "--model", copy, "--prompt", "x", says=["model-00002-of-00002.safetensors"])
        rc, out, err = run("info", "--json", "--model", copy)
        assert rc == 1 and "model-00002" in json.loads(out)["model_error"]
        os.remove(os.path.join(copy, "config.json"))
        fails(1, "generate", "--model", copy, "--prompt", "x", says=["config.json"])


@test
def chat_keeps_its_session():
    rc, out, err = run("chat", "--temperature", "0", stdin="My name is Oda.\nWhat is my name?\n/again\n".encode())
    assert rc == 0, err
    assert "Oda" in out.splitlines()[-1], out
    assert out.splitlines()[-1] == out.splitlines()[-2], out
    receipts = [tuple(map(int, m)) for m in re.findall(r"(\d+) new, (\d+) reused", err)]
    assert len(receipts) == 3, err
    (new1, reused1), (new2, reused2), (new3, reused3) = receipts
    assert reused1 == 0 and new2 < new1 + 40 and reused2 >= new1, receipts
    # Asking again computes one token: the one whose logits choose the first of the reply.
    assert new3 == 1 and reused3 == new2 + reused2 - 1, receipts


@test
def ctrl_c_stops_and_keeps_the_text():
    env = dict(os.environ, QUIRE_MODEL=MODEL)
    p = subprocess.Popen([CLI, "generate", "--raw", "--prompt", "Once there was a", "--temperature", "1",
                          "--isa", "reference", "--threads", "1", "--seed", "1", "--stop", "no such text ever"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    first = p.stdout.read(1)
    p.send_signal(signal.SIGINT)
    rest, err = p.communicate(timeout=60)
    # A reply that ended by itself before the signal came is fine too; then the status is 0.
    assert p.returncode in (130, 0), (p.returncode, err)
    assert first + rest


@test
def closed_pipe_ends_quietly():
    p = subprocess.Popen([CLI, "generate", "--prompt", "Tell me a story.", "-n", "64"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env=dict(os.environ, QUIRE_MODEL=MODEL))
    p.stdout.close()
    p.wait(timeout=120)
    assert p.returncode != 0, p.returncode
    assert b"Sanitizer" not in p.stderr.read()


@test
def info_tells_backends():
    d = json.loads(ok("info", "--json"))
    cpu = [b for b in d["backends"] if b["name"] == "cpu"][0]
    assert cpu["available"] and cpu["device"]
    for b in d["backends"]:
        assert b["available"] or b["reason"].endswith(".")
    assert d["model"]["parameters"] == REPORT["parameters"] and d["model"]["weight_bytes"] == REPORT["bytes"]
    assert d["model"]["kv_bytes_per_token"] == 8 * 2 * 2 * 64 * 2
    assert "parameters" in ok("info")


@test
def bench_is_json():
    d = json.loads(ok("bench", "--json", "--prompt", "8", "--gen", "4", "--depth", "0,40", "--turns", "3",
                      "--repeats", "1"))
    assert [x["depth"] for x in d["depths"]] == [0, 40]
    assert all(x["decode"]["ms_per_token"] > 0 and x["prompt"]["ttft_ms"] > 0 for x in d["depths"])
    # Turn n: 8 new tokens and the last generated one, whose KV no step has written yet.
    assert [t["new"] for t in d["turns"]] == [8, 9, 9], d["turns"]
    assert [t["reused"] for t in d["turns"]] == [0, 11, 23], d["turns"]
    assert d["peak_rss_bytes"] > 0 and d["machine"]["read_gb_per_s"] > 0
    assert d["load"]["first_s"] > 0 and "again_s" not in d["load"] and "cold" not in d


@test
def bench_of_more_than_depths():
    d = json.loads(ok("bench", "--json", "--prompt", "8", "--gen", "96", "--repeats", "1", "--cold", "5,40", "--e2e", "6",
                      "--temperature", "0.7", "--top-p", "0.9", "--batch", "2,3", "--batch-depth", "20", "--reload",
                      "--step-rows", "32"))
    assert [c["n"] for c in d["cold"]] == [5, 40] and all(c["ttft_ms"] > 0 for c in d["cold"])
    assert [(e["gen"], e["temperature"]) for e in d["e2e"]] == [(6, 0), (6, 0.7)] and all(e["ms"] > 0 for e in d["e2e"])
    assert [b["n"] for b in d["batches"]] == [2, 3] and all(b["tokens_per_s"] > 0 for b in d["batches"])
    assert d["load"]["again_s"] > 0 and d["kv_bytes_reserved"] > 0 and d["weight_bytes"] == REPORT["bytes"]
    for bad in (("--batch", "0"), ("--batch", "2,x"), ("--cold", "999999"), ("--batch", "257")):
        fails(1, "bench", "--prompt", "8", "--gen", "2", "--repeats", "1", *bad, says=(bad[0],))


print(f"1..{len(tests)}")
failed = 0
for i, f in enumerate(tests, 1):
    begin = time.monotonic()
    try:
        f()
        print(f"ok {i} - {f.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
    except Exception as e:  # a test that breaks is a failed test
        failed += 1
        for line in f"{type(e).__name__}: {e}".splitlines()[:20]:
            print("#", line[:500])
        print(f"not ok {i} - {f.__name__}", flush=True)
sys.exit(1 if failed else 0)
