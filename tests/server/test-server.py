#!/usr/bin/env python3
"""The local server as its clients meet it. TAP. Usage: test-server.py QUIRE_CLI MODEL_DIR"""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server, events, run_tests, wait_for  # noqa: E402

CLI, MODEL = sys.argv[1:3]
MODEL_ID = "demo-model"
tests = []
server = None
LONG = "Tell me a story. " * 40
ENDLESS = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 1.9, "seed": 5, "min_p": 0,
           "top_p": 1, "top_k": 0, "logit_bias": {"6139": -100, "6141": -100}}  # both of its end tokens


def test(f):
    tests.append(f)
    return f


def generate(*args, stdin=b""):
    env = dict(os.environ, QUIRE_MODEL=MODEL, LC_ALL="C.UTF-8")
    p = subprocess.run([CLI, "generate", "--json", *args], input=stdin, capture_output=True, env=env, check=True)
    return json.loads(p.stdout)


@test
def prints_its_address_and_answers():
    assert server.uri == f"http://127.0.0.1:{server.port}/"
    assert server.json("GET", "/health") == {"status": "ok"}
    models = server.json("GET", "/v1/models")
    assert [m["id"] for m in models["data"]] == [MODEL_ID]
    assert server.json("GET", "/v1/models/" + MODEL_ID)["max_model_len"] == 8192
    server.fails("GET", "/v1/models/other", 404, code="model_not_found")


@test
def greedy_answers_equal_the_command_line():
    for text in ("My name is Oda and I live in Bergen.", "What is 27 plus 15?", "What is 12 plus 9? /think"):
        cli = generate("--temperature", "0", "--prompt", text)
        a = server.chat(text)
        m = a["choices"][0]["message"]
        thinking = m.get("reasoning_content", "")
        whole = f"<think>{thinking}</think>{m['content']}" if thinking else m["content"]
        assert whole.split() == cli["text"].replace("<think>", "<think>").split() or \
            "".join(whole.split()) == "".join(cli["text"].split()), (whole, cli["text"])
        assert a["choices"][0]["finish_reason"] == cli["finish_reason"] == "stop"
        assert a["usage"]["prompt_tokens"] == cli["usage"]["prompt_tokens"]
        assert a["usage"]["completion_tokens"] == cli["usage"]["completion_tokens"] == len(cli["ids"])
        assert a["usage"]["total_tokens"] == a["usage"]["prompt_tokens"] + a["usage"]["completion_tokens"]
        assert ("think" in text) == bool(thinking)
        assert a["model"] == MODEL_ID and a["object"] == "chat.completion"
        assert all(set(a[part]) == set(cli[part]) for part in ("usage", "timings", "cache")), (a, cli)
        assert a["timings"]["first_token_ms"] > 0 and a["cache"]["prompt"] == a["usage"]["prompt_tokens"]


@test
def streams_in_openai_form():
    body = {"messages": [{"role": "user", "content": "My name is Oda."}], "temperature": 0}
    whole = server.chat(messages=body["messages"])
    got = list(server.stream("/v1/chat/completions", dict(body, stream_options={"include_usage": True})))
    assert got[-1] == "[DONE]"
    chunks, usage = got[:-2], got[-2]
    assert {c["id"] for c in got[:-1]} == {usage["id"]}
    assert all(c["object"] == "chat.completion.chunk" and c["usage"] is None for c in chunks)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in c["choices"][0]["delta"] for c in chunks[1:])
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1]["choices"][0]["delta"] == {} and chunks[-1]["timings"]["decode_ms"] > 0
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    without = list(server.stream("/v1/chat/completions", body))
    assert all(c["choices"] and "usage" not in c for c in without[:-1])


@test
def streams_thoughts_apart():
    body = {"messages": [{"role": "user", "content": "What is 12 plus 9? /think"}], "temperature": 0}
    m = server.chat(messages=body["messages"])["choices"][0]["message"]
    deltas = [c["choices"][0]["delta"] for c in server.stream("/v1/chat/completions", body) if c != "[DONE]"]
    assert "".join(d.get("content", "") for d in deltas) == m["content"]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == m["reasoning_content"]
    assert "think>" not in json.dumps(deltas) and m["reasoning_content"] and m["content"]
    off = server.chat(messages=body["messages"], enable_thinking=False)["choices"][0]["message"]
    assert "reasoning_content" not in off


@test
def every_split_of_characters_is_whole():
    text = "请用中文打个招呼。你好"
    got = [c for c in server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "temperature": 0})]
    out = "".join(c["choices"][0]["delta"].get("content", "") for c in got[:-1])
    assert "\ufffd" not in out and out


@test
def progress_is_told_on_request():
    body = {"messages": [{"role": "user", "content": LONG * 8}], "temperature": 0, "max_tokens": 2, "return_progress": True,
            "use_cache": False}
    got = list(server.stream("/v1/chat/completions", body))
    progress = [c["prompt_progress"] for c in got if c != "[DONE]" and "prompt_progress" in c]
    done = [p["processed"] for p in progress]
    assert progress and done == sorted(done), progress
    assert not any("prompt_progress" in c for c in server.stream("/v1/chat/completions", dict(body, return_progress=None))
                   if c != "[DONE]")


@test
def finish_reasons_and_limits_of_tokens():
    a = server.chat("Tell me a story.", max_tokens=3)
    assert a["choices"][0]["finish_reason"] == "length" and a["usage"]["completion_tokens"] == 3
    a = server.chat("Tell me a story.", max_completion_tokens=1)
    assert a["usage"]["completion_tokens"] == 1
    for bad in (0, -1, 1.5, "5"):
        server.fails("POST", "/v1/chat/completions", 400, {"messages": [{"role": "user", "content": "x"}], "max_tokens": bad},
                     param="max_tokens")
    assert server.chat("Hello", max_tokens=1e18)["choices"][0]["finish_reason"] == "stop"
    assert server.chat("Hello", max_tokens=None)["choices"][0]["finish_reason"] == "stop"


@test
def stop_strings_end_the_reply():
    whole = server.chat("Tell me a story.")["choices"][0]["message"]["content"]
    word = whole.split()[4]
    for stop in (word, [word], ["zzzz", word, "yyyy", "xxxx"]):
        a = server.chat("Tell me a story.", stop=stop)
        assert a["choices"][0]["message"]["content"] == whole[:whole.index(word)], a
        assert a["choices"][0]["finish_reason"] == "stop"
    for bad in (["a"] * 5, "", [""], 7, [7]):
        server.fails("POST", "/v1/chat/completions", 400,
                     {"messages": [{"role": "user", "content": "x"}], "stop": bad}, param="stop")


@test
def choices_are_forks_of_one_prefill():
    messages = [{"role": "user", "content": LONG}]
    one = [server.chat(messages=messages, temperature=1.2, seed=40 + i, max_tokens=24)["choices"][0]["message"] for i in range(4)]
    a = server.chat(messages=messages, temperature=1.2, seed=40, max_tokens=24, n=4, use_cache=False)
    assert [c["index"] for c in a["choices"]] == [0, 1, 2, 3]
    assert [c["message"] for c in a["choices"]] == one
    assert len({m["content"] for m in one}) > 1
    assert a["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    prompt = a["usage"]["prompt_tokens"]
    before = server.metric("prompt_tokens_cached_total")
    b = server.chat(messages=messages, temperature=1.2, seed=40, max_tokens=24, n=3, use_cache=False)
    # Two forks, each with all but the last open page of the prompt.
    assert server.metric("prompt_tokens_cached_total") - before >= 2 * (prompt - 32), b
    assert server.chat("Hi", n=3)["usage"]["prompt_tokens"] == server.chat("Hi")["usage"]["prompt_tokens"]
    got = list(server.stream("/v1/chat/completions", {"messages": messages, "temperature": 1.2, "seed": 40,
                                                      "max_tokens": 24, "n": 4}))
    for i in range(4):
        mine = [c["choices"][0] for c in got[:-1] if c["choices"][0]["index"] == i]
        assert "".join(c["delta"].get("content", "") for c in mine) == one[i]["content"]
        assert mine[-1]["finish_reason"] and [c["delta"].get("role") for c in mine].count("assistant") == 1


@test
def a_seed_repeats_an_answer():
    a = server.chat("Tell me a story.", temperature=1.3, max_tokens=40)
    b = server.chat("Tell me a story.", temperature=1.3, max_tokens=40, seed=a["seed"])
    assert a["choices"] == b["choices"] and a["seed"] < 2 ** 53


@test
def a_repeated_prompt_is_found_by_its_pages():
    messages = [{"role": "system", "content": "Marker for this test: violet. " * 12}, {"role": "user", "content": "Hello"}]
    first = server.chat(messages=messages)
    again = server.chat(messages=messages)
    n = again["usage"]["prompt_tokens"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] < 16
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= n - 16, again["usage"]
    assert again["cache"]["reused"] + again["cache"]["new"] == n
    assert again["choices"] == first["choices"]
    off = server.chat(messages=messages, use_cache=False)
    assert off["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and off["choices"] == first["choices"]
    # What ran without the cache is not found either.
    other = [{"role": "user", "content": "Marker for this test: umber. " * 12}]
    server.chat(messages=other, use_cache=False)
    assert server.chat(messages=other)["usage"]["prompt_tokens_details"]["cached_tokens"] < 16


@test
def sessions_keep_forget_fork_and_pin():
    s = server.json("POST", "/v1/sessions", {"session_id": "talk", "cache_mode": "session"}, 201)
    assert s["id"] == "talk" and s["requests"] == 0 and not s["pinned"]
    server.fails("POST", "/v1/sessions", 409, {"session_id": "talk"}, code="session_exists")
    messages = [{"role": "user", "content": "My name is Oda and I live in Bergen."}]
    a = server.chat(messages=messages, session_id="talk")
    assert a["session_id"] == "talk"
    messages += [a["choices"][0]["message"], {"role": "user", "content": "Where do I live?"}]
    messages[1].pop("refusal")
    b = server.chat(messages=messages, session_id="talk")
    assert "Bergen" in b["choices"][0]["message"]["content"]
    assert b["usage"]["prompt_tokens_details"]["cached_tokens"] >= a["usage"]["prompt_tokens"]
    wait_for(lambda: server.json("GET", "/v1/sessions/talk")["tokens"] > a["usage"]["total_tokens"])
    f = server.json("POST", "/v1/sessions/talk/fork", {"session_id": "talk-2", "keep_messages": 2}, 201)
    assert f["id"] == "talk-2"
    c = server.chat(messages=messages, session_id="talk-2")
    assert c["choices"] == b["choices"] and c["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert server.json("POST", "/v1/sessions/talk/pin", {})["pinned"]
    assert not server.json("POST", "/v1/sessions/talk/pin", {"pinned": False})["pinned"]
    assert [x["id"] for x in server.json("GET", "/v1/sessions")["data"]] == ["talk", "talk-2"]
    for name in ("talk", "talk-2"):
        assert server.json("DELETE", "/v1/sessions/" + name)["deleted"]
        server.fails("GET", "/v1/sessions/" + name, 404, code="session_not_found")
    for name in ("../x", ".x", "", "a b", "x" * 65, "a\u0000b", 7):
        server.fails("POST", "/v1/sessions", 400, {"session_id": name}, param="session_id")
    assert server.json("POST", "/v1/sessions", None, 201)["id"].startswith("s-")
    for s in server.json("GET", "/v1/sessions")["data"]:
        server.json("DELETE", "/v1/sessions/" + s["id"])


@test
def modes_of_the_cache_say_the_same():
    messages = [{"role": "user", "content": "What is 27 plus 15?"}]
    texts = set()
    for mode in ("auto", "rebuild", "paged", "session", "tiered", "selective"):
        a = server.chat(messages=messages, cache_mode=mode)
        assert a["cache"]["skipped_share"] == 0, a["cache"]  # selective: far below the length up to which it is exact
        texts.add(a["choices"][0]["message"]["content"])
        # On the CPU memory is host memory: without an extra tier, tiered is a session.
        assert a["cache"]["mode"] in ({"auto": ("session", "tiered"), "tiered": ("session", "tiered")}.get(mode) or (mode,)), a["cache"]
    assert len(texts) == 1
    server.fails("POST", "/v1/chat/completions", 400, {"messages": messages, "cache_mode": "magic"}, param="cache_mode")


@test
def a_prompt_that_does_not_fit_is_refused_with_the_counts():
    messages = [{"role": "user", "content": "word " * 9000}]
    for stream in (False, True):
        e = server.fails("POST", "/v1/chat/completions", 400, {"messages": messages, "stream": stream},
                         code="context_length_exceeded")
        assert "8192" in e["message"] and any(int(w) > 8192 for w in e["message"].replace(",", "").split() if w.isdigit())
    server.fails("POST", "/v1/completions", 400, {"prompt": "word " * 9000}, code="context_length_exceeded", param="prompt")


@test
def completions_take_text_and_ids():
    text = "<|im_start|>user\nWhat is 27 plus 15?<|im_end|>\n<|im_start|>assistant\n"
    t = server.json("POST", "/tokenize", {"prompt": text, "parse_special": True})
    plain = server.json("POST", "/tokenize", {"prompt": text})
    assert t["count"] == len(t["tokens"]) < plain["count"] and t["max_model_len"] == 8192
    assert server.json("POST", "/detokenize", {"tokens": plain["tokens"]})["prompt"] == text
    a = server.json("POST", "/v1/completions", {"prompt": text, "temperature": 0})
    b = server.json("POST", "/v1/completions", {"prompt": t["tokens"], "temperature": 0})
    assert a["object"] == "text_completion" and a["choices"] == b["choices"]
    assert a["usage"]["prompt_tokens"] == t["count"]
    cli = generate("--temperature", "0", "--raw", "--added-tokens", "--prompt", text)
    assert a["choices"][0]["text"] == cli["text"]
    got = list(server.stream("/v1/completions", {"prompt": text, "temperature": 0}))
    assert "".join(c["choices"][0]["text"] for c in got[:-1]) == a["choices"][0]["text"] and got[-1] == "[DONE]"
    n = server.json("POST", "/v1/completions", {"prompt": text, "temperature": 0, "n": 2})
    assert [c["text"] for c in n["choices"]] == [a["choices"][0]["text"]] * 2
    for bad in ("", [], ["a", "b"], [[1], [2]], [-1], [1.5], [99999999], 7, None):
        server.fails("POST", "/v1/completions", 400, {"prompt": bad})
    server.fails("POST", "/detokenize", 400, {"tokens": [6143, 99999999]}, param="tokens")


@test
def contents_in_all_their_forms():
    def ask(content, role="user"):
        return server.chat(messages=[{"role": role, "content": content}, {"role": "user", "content": "Hello"}][:1 + (role != "user")],
                           max_tokens=1)["usage"]["prompt_tokens"]

    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "27 plus 15?"}]
    assert ask(parts) == ask("What is 27 plus 15?")
    assert server.chat(messages=[{"role": "user", "content": parts}])["choices"][0]["message"]["content"] == \
        server.chat("What is 27 plus 15?")["choices"][0]["message"]["content"]
    assert ask([]) == ask("")
    assert ask(None, "assistant") == ask("", "assistant")
    assert ask("a", "developer") == ask("a", "system")
    e = server.fails("POST", "/v1/chat/completions", 400,
                     {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
                     code="unsupported_content")
    assert "image_url" in e["message"]
    for bad in (7, {}, [7], [{"text": "x"}], [{"type": "text"}], None):
        server.fails("POST", "/v1/chat/completions", 400, {"messages": [{"role": "user", "content": bad}]}, param="messages")
    for role in ("function", "robot", 7, None):
        server.fails("POST", "/v1/chat/completions", 400, {"messages": [{"role": role, "content": "x"}]}, param="messages")
    for messages in ([], {}, "x", [7], None):
        server.fails("POST", "/v1/chat/completions", 400, {"messages": messages})
    # Control tokens in a message are text.
    assert ask("<|im_end|>") > ask("x") + 2


@test
def strings_of_every_kind():
    url = "/v1/chat/completions"

    def body(content):
        return b'{"max_tokens":1,"temperature":0,"messages":[{"role":"user","content":"' + content + b'"}]}'

    for bad in (rb"cut \ud83e", rb"a \udc4d b", b"\xff", rb"\x", b"\x01", b'"'):
        server.fails("POST", url, 400, body(bad), code="invalid_json")
    server.fails("POST", url, 400, b'{"model":"\xc3","messages":[]}', code="invalid_json")
    face = server.json("POST", url, body(rb"\ud83e\udee0"))["usage"]["prompt_tokens"]
    assert face == server.json("POST", url, body("\U0001fae0".encode()))["usage"]["prompt_tokens"]
    nul = server.json("POST", url, body(rb"a\u0000b"))["usage"]["prompt_tokens"]
    assert nul == server.json("POST", url, body(b"ab"))["usage"]["prompt_tokens"] + 1 or nul > 0
    assert server.json("POST", "/detokenize", {"tokens": server.json("POST", "/tokenize", {"prompt": "a\0b"})["tokens"]}) == \
        {"prompt": "a\0b"}


TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "minLength": 1, "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}]


def check_call(call):
    assert call["type"] == "function" and call["id"].startswith("call_"), call
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "get_weather":
        assert set(arguments) == {"city", "unit"} and 1 <= len(arguments["city"]) <= 12 and arguments["unit"] in "CF", call
    else:
        assert call["function"]["name"] == "now" and arguments == {}, call


@test
def tools_are_called_as_their_schemas_say():
    for seed in range(4):
        a = server.chat("What is the weather in Ulm?", tools=TOOLS, tool_choice="required", max_tokens=400, temperature=1.3, seed=seed)
        c = a["choices"][0]
        [check_call(call) for call in c["message"]["tool_calls"]]
        assert c["finish_reason"] == "tool_calls" and c["message"]["content"] is None, c
        ids = [call["id"] for call in c["message"]["tool_calls"]]
        assert len(set(ids)) == len(ids)
    one = server.chat("What is the weather in Ulm?", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "now"}},
                      parallel_tool_calls=False, n=2)
    for c in one["choices"]:
        assert [x["function"]["name"] for x in c["message"]["tool_calls"]] == ["now"] and c["finish_reason"] == "tool_calls", c
    # A cut call is the beginning of one, and says so.
    cut = server.chat("Hi", tools=TOOLS, tool_choice="required", max_tokens=40, parallel_tool_calls=False)["choices"][0]
    assert cut["finish_reason"] in ("length", "tool_calls"), cut


@test
def a_streamed_call_is_the_whole_one():
    request = {"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS, "tool_choice": "required", "temperature": 1.1,
               "seed": 11, "max_tokens": 400}
    whole = server.json("POST", "/v1/chat/completions", request)["choices"][0]
    calls, content, reason = [], "", None
    for e in server.stream("/v1/chat/completions", request):
        if e == "[DONE]":
            continue
        delta = e["choices"][0]["delta"]
        reason = e["choices"][0]["finish_reason"] or reason
        content += delta.get("content") or ""
        for piece in delta.get("tool_calls", []):
            if piece["index"] == len(calls):
                assert piece["type"] == "function" and piece["function"]["arguments"] == ""
                calls.append({"name": piece["function"]["name"], "arguments": ""})
            else:
                assert piece["index"] == len(calls) - 1 and set(piece) == {"index", "function"}, piece
                calls[-1]["arguments"] += piece["function"]["arguments"]
    assert calls == [c["function"] for c in whole["message"]["tool_calls"]]
    assert content == "" and reason == whole["finish_reason"] == "tool_calls"


@test
def the_prompt_has_tools_calls_and_results():
    user = {"role": "user", "content": "What is the weather in Ulm?"}
    plain = server.chat(messages=[user], max_tokens=1)["usage"]["prompt_tokens"]
    offered = {choice: server.chat(messages=[user], tools=TOOLS, tool_choice=choice, max_tokens=1)["usage"]["prompt_tokens"]
               for choice in ("auto", "none")}
    assert offered["auto"] == offered["none"] > plain + 100, (plain, offered)
    answer = server.chat(messages=[user], tools=TOOLS, tool_choice="required", parallel_tool_calls=False, session_id="tools")
    message = answer["choices"][0]["message"]
    turn = [user, message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "21 degrees"}]
    after = server.chat(messages=turn, tools=TOOLS, session_id="tools", max_tokens=4)
    # What the model wrote is found again, token by token, as far as its thinking switch let it.
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] >= offered["auto"] - 32, (after, offered)
    # Arguments as an object are spelled as Python would.
    spelled = [dict(message, tool_calls=[{"type": "function", "function": {"name": "now", "arguments": a}}]) for a in ('{"a": 1.0}', {"a": 1.0})]
    counts = [server.chat(messages=[user, m, turn[2]], max_tokens=1)["usage"]["prompt_tokens"] for m in spelled]
    assert counts[0] == counts[1]
    server.request("DELETE", "/v1/sessions/tools")


@test
def unknown_and_unsupported_members():
    def fails(code, **kw):
        server.fails("POST", "/v1/chat/completions", 400, dict({"messages": [{"role": "user", "content": "x"}]}, **kw), code=code)

    fails("unknown_parameter", temprature=0)
    fails("unknown_parameter", prompt="x")
    fails("unsupported_parameter", audio={})
    for member, neutral in (("user", "me"), ("metadata", {"a": "b"}), ("store", True), ("service_tier", "auto"),
                            ("parallel_tool_calls", True), ("tool_choice", "none"), ("response_format", {"type": "text"}),
                            ("logprobs", False), ("frequency_penalty", 0), ("tools", []), ("logit_bias", {}), ("n", None)):
        server.chat("Hello", max_tokens=1, **{member: neutral})
    for member, value in (("temperature", 3), ("temperature", "0"), ("top_p", -1), ("top_k", 1.5), ("n", 0), ("n", 17),
                          ("seed", "a"), ("presence_penalty", 9), ("stream", 1), ("use_cache", "no"), ("session_id", ".")):
        server.fails("POST", "/v1/chat/completions", 400, {"messages": [{"role": "user", "content": "x"}], member: value},
                     param=member)
    server.fails("POST", "/v1/chat/completions", 404, {"messages": [{"role": "user", "content": "x"}], "model": "gpt-9"},
                 code="model_not_found")


@test
def log_probabilities_and_biases():
    text = "What is 27 plus 15?"
    plain = server.chat(text)
    a = server.chat(text, logprobs=True, top_logprobs=3)
    assert a["choices"][0]["message"] == plain["choices"][0]["message"] and plain["choices"][0]["logprobs"] is None
    tokens = a["choices"][0]["logprobs"]["content"]
    assert len(tokens) == a["usage"]["completion_tokens"]
    assert b"".join(bytes(t["bytes"]) for t in tokens).decode().startswith(a["choices"][0]["message"]["content"])
    for t in tokens:
        assert t["logprob"] <= 0 and len(t["top_logprobs"]) == 3
        assert t["top_logprobs"][0]["logprob"] >= t["top_logprobs"][2]["logprob"]
        assert t["top_logprobs"][0]["token"] == t["token"]  # greedy
    chunks = list(server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "temperature": 0,
                                                         "logprobs": True, "top_logprobs": 3}))[:-1]
    assert [t for c in chunks for t in c["choices"][0]["logprobs"]["content"]] == tokens
    server.fails("POST", "/v1/chat/completions", 400, {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2},
                 param="top_logprobs")
    first = server.json("POST", "/tokenize", {"prompt": tokens[0]["token"]})["tokens"]
    assert len(first) == 1
    b = server.chat(text, logit_bias={str(first[0]): -100}, logprobs=True)
    assert b["choices"][0]["logprobs"]["content"][0]["token"] != tokens[0]["token"]
    for bad in ({"x": 1}, {"1": 101}, {"1": "a"}, {"-1": 1}, {"1": 1, "01": 1}, [], {"99999999": 1}):
        server.fails("POST", "/v1/chat/completions", 400, {"messages": [{"role": "user", "content": "x"}], "logit_bias": bad})
    server.chat("Hello", frequency_penalty=1.5, max_tokens=4)


@test
def replies_that_are_json():
    for temperature in (0, 1.2):
        a = server.chat("Tell me about Oda.", response_format={"type": "json_object"}, temperature=temperature, seed=3, max_tokens=200)
        c = a["choices"][0]
        assert c["message"]["content"].lstrip().startswith("{")
        if c["finish_reason"] == "stop":
            assert isinstance(json.loads(c["message"]["content"]), dict)
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": [7, 30]}},
              "required": ["name", "age"], "additionalProperties": False}
    for seed in range(4):
        a = server.chat("Who are you?", temperature=1.0, seed=seed, max_tokens=300,
                        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        c = a["choices"][0]
        assert c["finish_reason"] == "stop", c
        v = json.loads(c["message"]["content"])
        assert set(v) == {"name", "age"} and len(v["name"]) <= 12 and v["age"] in (7, 30), v
    for bad in ({"type": "xml"}, {}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}},
                {"type": "json_schema", "json_schema": {"schema": 7}}, "json"):
        server.fails("POST", "/v1/chat/completions", 400, {"messages": [{"role": "user", "content": "x"}], "response_format": bad},
                     param="response_format")


@test
def bodies_that_are_no_request():
    url = "/v1/chat/completions"
    for bad in (b"", b"[]", b"null", b"7", b"{", b'{"a":1,"a":1}', b"{} {}", b'{"extra":' + b"[" * 20000 + b"]" * 20000 + b"}",
                b'{"a":' * 20000 + b"1" + b"}" * 20000, b"[" * 400000, b'{"messages":[' + b"0," * 300000 + b"0]}", b"{'a':1}",
                b'{"n":01}', b'{"n":1e999}', b'{"n":NaN}', b"\xef\xbb\xbf{}"):
        server.fails("POST", url, 400, bad)
    assert server.json("GET", "/health")["status"] == "ok"


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer else None


@test
def lengths_that_lie():
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    got = server.raw(head + b"Content-Length: 10737418240\r\n\r\n0123456789")
    assert status_of(got) == 413 and b"body_too_large" in got, got
    assert status_of(server.raw(head + b"Content-Length: %d\r\n\r\n{" % ((16 << 20) + 1))) == 413
    assert status_of(server.raw(head + b"Content-Length: -1\r\n\r\n{}")) == 400
    assert status_of(server.raw(head + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ")) == 400
    # A body without a length ends at the limit, too.
    piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 30) as s:
        s.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        got = b""
        try:
            for _ in range(20):
                s.sendall(piece)
            got = s.recv(4096)
        except (BrokenPipeError, ConnectionResetError):
            got = got or s.recv(4096)
        assert status_of(got) == 413, got
    got = server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40000 + b"\r\n\r\n", until_closed=False)
    assert status_of(got) in (400, 413, 431), got
    assert server.json("GET", "/health")["status"] == "ok"


@test
def hosts_and_origins_of_others_are_refused():
    port = server.port
    for path in ("/", "/docs", "/openapi.json", "/health", "/metrics", "/v1/models", "/nope", "/web/quire.js", "/v1/cache/events"):
        for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", f"localhost.:{port}",
                     f"192.168.1.5:{port}", "[::2]", "127.0.0.2"):
            server.fails("GET", path, 421, code="host_not_allowed", headers={"Host": host})
    server.fails("POST", "/v1/chat/completions", 421, {"messages": []}, headers={"Host": "evil.example"})
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "LOCALHOST"):
        assert server.json("GET", "/health", headers={"Host": host})
    assert status_of(server.raw(b"GET /health HTTP/1.1\r\n\r\n")) == 400
    assert status_of(server.raw(b"GET /health HTTP/1.1\r\nHost: :8080\r\n\r\n", until_closed=False)) in (400, 421)
    assert status_of(server.raw(b"GET /health HTTP/1.1\r\nHost: localhost:80x\r\n\r\n")) in (400, 421)
    got = server.raw(b"GET http://localhost/health HTTP/1.1\r\nHost: evil.example\r\n\r\n", until_closed=False)
    assert status_of(got) == 421, got
    got = server.raw(b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n", until_closed=False)
    assert status_of(got) == 421, got
    for origin in ("https://evil.example", "null", "http://localhost:1", "http://evil.example", f"https://localhost:{port}"):
        status, headers, _ = server.request("POST", "/v1/chat/completions", {"messages": []},
                                            headers={"Origin": origin, "Host": f"localhost:{port}"})
        assert status == 403 and "access-control-allow-origin" not in headers, (status, headers)
    a = server.request("POST", "/tokenize", {"prompt": "x"}, headers={"Origin": f"http://localhost:{port}", "Host": f"localhost:{port}"})
    assert a[0] == 200
    server.fails("OPTIONS", "/v1/chat/completions", 403, headers={"Origin": "https://evil.example"})
    server.fails("GET", "/v1/cache", 403, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})


@test
def methods_types_and_paths():
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        server.fails("POST", "/v1/chat/completions", 415, b"{}", headers={"Content-Type": kind})
    assert server.request("POST", "/tokenize", {"prompt": "x"}, headers={"Content-Type": "application/json; charset=utf-8"})[0] == 200
    status, headers, _ = server.request("PUT", "/v1/sessions", b"{}", headers={"Content-Type": "application/json"})
    assert status == 405
    status, headers, _ = server.request("DELETE", "/v1/sessions")
    assert status == 405 and headers["allow"] == "GET, POST"
    for path in ("/v1", "/v1/", "/v1/chat/completions/", "/v1/embeddings", "/web/", "/web/x", "/docs/x", "/web/..%2fREADME.md",
                 "/../etc/passwd", "/web/../../etc/passwd", "/%2e%2e/etc/passwd", "//v1/models"):
        status, headers, data = server.request("GET", path)
        assert status in (400, 404), (path, status)
        assert json.loads(data)["error"]["message"], path
    assert server.request("HEAD", "/health")[0] == 200


@test
def every_answer_is_fenced_in():
    for path, kind in (("/", "text/html"), ("/docs", "text/html"), ("/openapi.json", "application/json"), ("/web/quire.js", "text/javascript"),
                       ("/docs/swagger-ui-bundle.js", "text/javascript"), ("/web/quire.css", "text/css"), ("/nope", "application/json")):
        _, headers, data = server.request("GET", path)
        assert headers["content-type"].startswith(kind), headers
        assert headers["x-content-type-options"] == "nosniff" and "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"] and "access-control-allow-origin" not in headers
        assert data and MODEL.encode() not in data
    for page in ("/", "/docs"):
        html = server.request("GET", page)[2].decode()
        assert "http://" not in html.replace("http://www.w3.org", "") and "https://" not in html, page


def active():
    return server.metric("requests_running") + server.metric("requests_queued")


@test
def a_disconnect_cancels():
    def drop(body, read, reset=False):
        before = server.metric('requests_finished_total{finish="cancelled"}')
        data = json.dumps(body).encode()
        s = socket.create_connection(("127.0.0.1", server.port), 30)
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(data) + data)
        got = b""
        while got.count(b"data: ") < read:
            got += s.recv(4096)
        if read == 0:
            wait_for(lambda: active() > 0)
        if reset:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.close()
        wait_for(lambda: server.metric('requests_finished_total{finish="cancelled"}') == before + body.get("n", 1))
        wait_for(lambda: active() == 0)
        assert server.chat("Hello")["choices"][0]["finish_reason"] == "stop"

    drop(dict(ENDLESS, stream=True), 3)
    drop(dict(ENDLESS, stream=True), 3, reset=True)
    drop(ENDLESS, 0)
    drop(ENDLESS, 0, reset=True)
    drop(dict(ENDLESS, n=3, stream=True), 12)
    # While the prompt is computed.
    drop({"messages": [{"role": "user", "content": "again and again " * 2600}], "use_cache": False}, 0)


@test
def a_session_is_free_for_who_stops_and_asks_again():
    said = {"messages": [{"role": "user", "content": "Hello"}], "session_id": "again", "temperature": 0}
    for _ in range(10):
        c = server.connect()
        c.request("POST", "/v1/chat/completions", json.dumps(dict(ENDLESS, session_id="again", stream=True)),
                  {"Content-Type": "application/json"})
        next(events(c.getresponse()))
        c.close()
        assert server.json("POST", "/v1/chat/completions", said)["choices"][0]["finish_reason"] == "stop"
    # One that goes on is in use: after a moment that is the answer, and who goes while he waits leaves nothing.
    c = server.connect()
    c.request("POST", "/v1/chat/completions", json.dumps(dict(ENDLESS, session_id="again", stream=True, n=2)),
              {"Content-Type": "application/json"})
    r = c.getresponse()
    next(events(r))
    waits = server.connect()
    waits.request("POST", "/v1/chat/completions", json.dumps(said), {"Content-Type": "application/json"})
    waits.close()
    server.fails("POST", "/v1/chat/completions", 409, said, code="session_busy")
    r.close()
    c.close()
    wait_for(lambda: active() == 0)
    server.json("DELETE", "/v1/sessions/again")


@test
def a_slow_reader_is_bounded():
    c = server.connect()
    data = json.dumps(dict(ENDLESS, stream=True, n=8, max_tokens=300))
    c.connect()
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.request("POST", "/v1/chat/completions", data, {"Content-Type": "application/json"})
    r = c.getresponse()
    server.chat("Hello")  # others are served meanwhile
    seen = [set(), 0]
    for e in events(r):
        if e != "[DONE]":
            seen[0].add(e["choices"][0]["index"])
            seen[1] += e["choices"][0]["finish_reason"] is not None
    assert seen == [set(range(8)), 8], seen
    c.close()


@test
def a_connection_carries_one_request_and_leaves_nothing():
    status, headers, _ = server.request("GET", "/health")
    assert headers["connection"] == "close"

    def facts():
        with open(f"/proc/{server.process.pid}/status") as f:
            rss = [int(line.split()[1]) for line in f if line.startswith("VmRSS")][0]
        return rss, len(os.listdir(f"/proc/{server.process.pid}/fd"))

    for _ in range(100):
        server.request("GET", "/health")
        server.request("POST", "/tokenize", {"prompt": "x"})
    rss, fds = facts()
    for _ in range(500):
        server.request("GET", "/health")
        server.request("POST", "/tokenize", {"prompt": "x"})
    after, fds_after = facts()
    assert fds_after <= fds + 2, (fds, fds_after)
    # The sanitizer keeps what was freed for a while.
    assert "ASAN_OPTIONS" in os.environ or after - rss < 600, (rss, after)
    assert server.metric("http_connections") == 1


@test
def old_clients_get_a_stream_without_chunks():
    data = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "stream": True}).encode()
    got = server.raw(b"POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(data) + data)
    assert b"chunked" not in got and got.endswith(b"data: [DONE]\n\n"), got[-200:]


@test
def metrics_and_pictures_of_the_cache():
    text = server.request("GET", "/metrics")[2].decode()
    names = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            names.add(line.split()[2])
        elif not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            float(value)
            base = name.split("{")[0]
            assert base in names or base.rsplit("_", 1)[0] in names, line
    assert {"quire_cache_pages", "quire_requests_queued", "quire_first_token_seconds", "quire_generated_tokens_total"} <= names
    assert server.metric("generated_tokens_total") > 0
    server.chat("Hello", session_id="shown")
    wait_for(lambda: any(s["session_id"] == "shown" and s["tokens"] > 0 for s in server.json("GET", "/v1/cache")["sessions"]))
    c = server.connect()
    c.request("GET", "/v1/cache/events")
    stream = events(c.getresponse())
    first = next(stream)
    assert first["page_tokens"] == 16
    mine = [s for s in first["sessions"] if s["session_id"] == "shown"][0]
    assert len(mine["cells"]) == mine["pages"] > 0
    server.json("DELETE", "/v1/sessions/shown")
    while any(s["session_id"] == "shown" for s in next(stream)["sessions"]):
        pass
    c.close()


# ---- Servers with other settings ----


@test
def limits_of_requests_sessions_and_connections():
    with Server(CLI, MODEL, "--max-requests", "2", "--max-sessions", "2", "--max-connections", "6") as s:
        held = []
        for _ in range(2):
            c = s.connect()
            c.request("POST", "/v1/chat/completions", json.dumps(dict(ENDLESS, stream=True, n=1)), {"Content-Type": "application/json"})
            r = c.getresponse()
            next(events(r))
            held.append((c, r))
        status, headers, data = s.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
        # Unless both have ended by themselves already.
        if status != 200:
            assert status == 429 and headers["retry-after"] and json.loads(data)["error"]["code"] == "queue_full", data
        s.fails("POST", "/v1/chat/completions", 429, {"messages": [{"role": "user", "content": "x"}], "n": 3}, code="queue_full")
        for c, _ in held:
            c.close()
            c.sock and c.sock.close()
        held.clear()
        for name in ("a", "b"):
            s.json("POST", "/v1/sessions", {"session_id": name}, 201)
        s.json("POST", "/v1/sessions/a/pin", {})
        s.json("POST", "/v1/sessions", {"session_id": "c"}, 201)
        assert [x["id"] for x in s.json("GET", "/v1/sessions")["data"]] == ["a", "c"]
        s.json("POST", "/v1/sessions/c/pin", {})
        s.fails("POST", "/v1/sessions", 429, {"session_id": "d"}, code="too_many_sessions")
        idle = [socket.create_connection(("127.0.0.1", s.port), 30) for _ in range(12)]
        refused = 0
        for x in idle:
            x.settimeout(0.5)
            try:
                refused += x.recv(4096).startswith(b"HTTP/1.1 503")
            except TimeoutError:
                pass
            x.close()
        assert refused >= 6, refused
        wait_for(lambda: s.request("GET", "/health")[0] == 200)


@test
def a_request_must_come_in_time():
    with Server(CLI, MODEL, "--read-timeout", "1") as s:
        for part in (b"", b"GET /hea", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"):
            got = s.raw(part)  # ends only because the server closes
            assert not got.startswith(b"HTTP/1.1 200"), got


@test
def a_reader_who_takes_nothing_is_let_go():
    with Server(CLI, MODEL, "--write-timeout", "1") as s:
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", s.port))
            data = json.dumps(dict(ENDLESS, stream=True, n=16, seed=11)).encode()
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(data) + data)
            wait_for(lambda: s.metric("requests_running") > 0)
            wait_for(lambda: s.metric("requests_running") + s.metric("requests_queued") == 0, 60)
        assert s.chat("Hello")


@test
def the_token():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "token")
        with Server(CLI, MODEL, "--token-file", path) as s:
            token = open(path).read().strip()
            assert os.stat(path).st_mode & 0o777 == 0o600 and len(token) > 40
            for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic " + token}, {"Authorization": token},
                            {"Authorization": f"Bearer {token}x"}, {"Authorization": f"Bearer {token[:-1]}"}):
                for method, url in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/v1/chat/completions"), ("GET", "/v1/cache"),
                                    ("GET", "/v1/sessions"), ("DELETE", "/v1/sessions/x")):
                    e = s.fails(method, url, 401, b"{}" if method == "POST" else None, headers=headers)
                    assert token not in json.dumps(e)
            for url in ("/", "/docs", "/openapi.json", "/health", "/web/quire.js"):
                assert s.request("GET", url)[0] == 200
            s.token = token
            assert s.chat("Hello")["choices"]
        os.chmod(path, 0o644)
        env = dict(os.environ, QUIRE_MODEL=MODEL)
        p = subprocess.run([CLI, "serve", "--port", "0", "--token-file", path], capture_output=True, env=env, timeout=60)
        assert p.returncode == 2 and b"0600" in p.stderr, p.stderr
        p = subprocess.run([CLI, "serve", "--port", "0", "--host", "0.0.0.0"], capture_output=True, env=env, timeout=60)
        assert p.returncode == 1 and b"token" in p.stderr and p.stdout == b"", p.stderr


@test
def beyond_loopback_names_are_still_checked():
    with tempfile.TemporaryDirectory() as d:
        with Server(CLI, MODEL, "--host", "0.0.0.0", "--token-file", os.path.join(d, "t"), "--allow-host", "desk.lan") as s:
            s.token = open(os.path.join(d, "t")).read().strip()
            for host in ("evil.example", "8.8.8.8", "desk.lan.evil.example"):
                s.fails("GET", "/v1/models", 421, headers={"Host": host})
            for host in ("desk.lan", f"desk.lan:{s.port}", "192.168.1.7", "10.0.0.1:80", "localhost"):
                assert s.json("GET", "/v1/models", headers={"Host": host})


@test
def ends_cleanly_in_the_middle_of_work():
    for sig in (signal.SIGINT, signal.SIGTERM):
        s = Server(CLI, MODEL)
        c = s.connect()
        c.request("POST", "/v1/chat/completions", json.dumps(dict(ENDLESS, stream=True, n=4)), {"Content-Type": "application/json"})
        r = c.getresponse()
        next(events(r))
        watch = s.connect()
        watch.request("GET", "/v1/cache/events")
        watch.getresponse()
        rc, err = s.stop(sig)
        assert (rc, err) == (0, ""), (rc, err)
    p = Server(CLI, MODEL)
    q = subprocess.run([CLI, "serve", "--port", str(p.port)], capture_output=True, env=dict(os.environ, QUIRE_MODEL=MODEL), timeout=60)
    assert q.returncode == 1 and str(p.port) in q.stderr.decode() and q.stdout == b"", q
    assert p.stop() == (0, "")


@test
def many_at_once_say_what_each_says_alone():
    prompts = [f"What is {a} plus {b}?" for a in (11, 23, 37) for b in (14, 25)]
    alone = [server.chat(p)["choices"][0]["message"]["content"] for p in prompts]
    wrong = []

    def ask(i):
        a = server.chat(prompts[i % 6])["choices"][0]["message"]["content"]
        if a != alone[i % 6]:
            wrong.append((prompts[i % 6], a))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(24)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong, wrong


if __name__ == "__main__":
    server = Server(CLI, MODEL)
    try:
        run_tests(tests)
    finally:
        rc, err = server.stop()
        if rc != 0 or err:
            print(f"# the server ended with {rc}: {err}")
            os._exit(1)
