#!/usr/bin/env python3
"""The API's description: sound in itself, true of the server, and the oracle of a small fuzzer of requests. TAP.
Usage: test-openapi.py QUIRE_CLI MODEL_DIR. QUIRE_FUZZ_RUNS, QUIRE_FUZZ_SEED: more, other requests."""
import json
import os
import random
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server, events, run_tests  # noqa: E402

CLI, MODEL = sys.argv[1:3]
RUNS = int(os.environ.get("QUIRE_FUZZ_RUNS", "300"))
RANDOM = random.Random(int(os.environ.get("QUIRE_FUZZ_SEED", "1")))
METHODS = ("get", "post", "put", "delete", "patch", "head", "options")
server = doc = None


def resolve(node):
    while isinstance(node, dict) and "$ref" in node:
        path = node["$ref"]
        assert path.startswith("#/"), path
        node = doc
        for part in path[2:].split("/"):
            node = node[part]
    return node


def operations():
    for path, item in doc["paths"].items():
        for method, op in item.items():
            if method in METHODS:
                yield path, method, op, item.get("parameters", []) + op.get("parameters", [])


def valid(value, schema, where="$"):
    """None, or what is wrong: the part of JSON Schema that the description uses."""
    s = resolve(schema)
    known = {"type", "properties", "required", "items", "enum", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength",
             "pattern", "additionalProperties", "oneOf", "description", "maxProperties"}
    assert set(s) <= known, set(s) - known
    if "oneOf" in s:
        return None if sum(valid(value, o) is None for o in s["oneOf"]) == 1 else where + ": of no form"
    types = s.get("type", [])
    types = [types] if isinstance(types, str) else types
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    names = {"null": value is None, "boolean": isinstance(value, bool), "string": isinstance(value, str), "array": isinstance(value, list),
             "object": isinstance(value, dict), "number": is_number, "integer": is_number and value == int(value)}
    if types and not any(names[t] for t in types):
        return f"{where}: {value!r} is not {types}"
    if "enum" in s and not any(value == e and type(value) is type(e) for e in s["enum"]):
        return f"{where}: {value!r} is not of {s['enum']}"
    if is_number and not s.get("minimum", value) <= value <= s.get("maximum", value):
        return f"{where}: {value} is out of range"
    if isinstance(value, str):
        if not s.get("minLength", 0) <= len(value) <= s.get("maxLength", 1 << 60) or "pattern" in s and not re.search(s["pattern"], value):
            return where + ": the string"
    if isinstance(value, list):
        if not s.get("minItems", 0) <= len(value) <= s.get("maxItems", 1 << 60):
            return where + ": the length"
        for i, v in enumerate(value):
            if wrong := valid(v, s.get("items", {}), f"{where}[{i}]"):
                return wrong
    if isinstance(value, dict):
        properties = s.get("properties", {})
        if len(value) > s.get("maxProperties", 1 << 60):
            return where + ": the members"
        for name in s.get("required", []):
            if name not in value:
                return f"{where}: {name} is missing"
        for name, v in value.items():
            if name not in properties:
                if s.get("additionalProperties") is False:
                    return f"{where}: {name} is not known"
            elif wrong := valid(v, properties[name], f"{where}.{name}"):
                return wrong
    return None


def example(schema, depth=0):
    """Some value that fits."""
    s = resolve(schema)
    if "oneOf" in s:
        return example(RANDOM.choice(s["oneOf"]), depth)
    if "enum" in s:
        return RANDOM.choice(s["enum"])
    types = s.get("type", "string")
    kind = types if isinstance(types, str) else RANDOM.choice(types)
    if kind == "null":
        return None
    if kind == "boolean":
        return RANDOM.random() < 0.5
    if kind in ("integer", "number"):
        low, high = s.get("minimum", 0), min(s.get("maximum", 100), s.get("minimum", 0) + 30)
        return RANDOM.choice([low, high, RANDOM.randint(int(low + 0.99), int(high))] + ([RANDOM.uniform(low, high)] if kind == "number" else []))
    if kind == "array":
        n = RANDOM.randint(s.get("minItems", 0), min(s.get("maxItems", 3), 3))
        return [example(s.get("items", {}), depth + 1) for _ in range(n)]
    if kind == "object":
        required = s.get("required", [])
        return {k: example(v, depth + 1) for k, v in s.get("properties", {}).items() if k in required or RANDOM.random() < 0.25}
    if "pattern" in s:
        return RANDOM.choice(["a", "x-1", "B.c_", "z" * 64])
    return RANDOM.choice(["Hello", "a", "\u0000x", "\U0001fae0 b", "What is 2 plus 3?", "<|im_end|>"])[:s.get("maxLength", 99)] or "a"


def spoil(value):
    """A value with one thing changed, which may or may not still fit: the description decides."""
    value = json.loads(json.dumps(value))
    odd = [None, True, False, 0, -1, 1.5, 17, 1e18, 2 ** 62, "", "x", "auto", [], ["x"], {}, {"type": "x"}, [[]], [None]]
    spots = []

    def walk(node):
        if isinstance(node, dict):
            spots.extend((node, k) for k in node)
            for v in node.values():
                walk(v)
        elif isinstance(node, list):
            spots.extend((node, i) for i in range(len(node)))
            for v in node:
                walk(v)

    walk(value)
    roll = RANDOM.random()
    if roll < 0.15 or not spots:
        value[RANDOM.choice(["extra", "temprature", "messages", "prompt", "n", "tools"])] = RANDOM.choice(odd)
    else:
        node, key = RANDOM.choice(spots)
        if roll < 0.3:
            del node[key]
        else:
            node[key] = RANDOM.choice(odd)
    return value


def every_reference_leads_somewhere():
    assert doc["openapi"].startswith("3.1")
    n = [0]

    def walk(node):
        if isinstance(node, dict):
            if "$ref" in node:
                assert resolve(node) is not None
                n[0] += 1
            for v in node.values():
                walk(v)
        elif isinstance(node, list):
            for v in node:
                walk(v)

    walk(doc)
    assert n[0] > 50
    used = set(re.findall(r"#/components/(\w+/\w+)", json.dumps(doc)))
    for kind in ("schemas", "responses"):
        for name in doc["components"][kind]:
            assert f"{kind}/{name}" in used, f"{name} is used nowhere"


def operations_are_whole():
    ids = set()
    for path, method, op, parameters in operations():
        assert op["operationId"] not in ids and op["summary"] and op["tags"][0] in [t["name"] for t in doc["tags"]], path
        ids.add(op["operationId"])
        assert any(c.startswith("2") for c in op["responses"]), path
        for code, r in op["responses"].items():
            assert re.fullmatch(r"[2-5]\d\d", code) and resolve(r)["description"], (path, code)
        in_path = set(re.findall(r"{(\w+)}", path))
        assert in_path == {p["name"] for p in parameters if p["in"] == "path"}, path
        if "requestBody" in op:
            media = op["requestBody"]["content"]["application/json"]
            assert media.get("examples") or media.get("example"), path
        bodies = [op["requestBody"]] if "requestBody" in op else []
        for media in (m for r in [*bodies, *map(resolve, op["responses"].values())] for m in r.get("content", {}).values()):
            for e in [e["value"] for e in media.get("examples", {}).values()] + ([media["example"]] if "example" in media else []):
                assert valid(e, media["schema"]) is None, (path, valid(e, media["schema"]), e)


def every_example_is_answered_as_described():
    n = 0
    for path, method, op, _ in operations():
        for name, e in op.get("requestBody", {}).get("content", {}).get("application/json", {}).get("examples", {}).items():
            status, headers, data = server.request("POST", path, e["value"])
            assert status == 200, (path, name, data)
            check_answer(op, status, headers, data)
            n += 1
    assert n >= 8


def every_operation_is_there_and_no_other_method():
    for path, item in doc["paths"].items():
        url = path.replace("{model}", "demo-model").replace("{session_id}", "none").replace("{file}", "none")
        for method in ("GET", "POST", "DELETE", "PUT", "PATCH"):
            if path == "/v1/cache/events" and method == "GET":
                continue
            status, headers, data = server.request(method, url, b"{}" if method in ("POST", "PUT", "PATCH") else None,
                                                   headers={"Content-Type": "application/json"} if method != "GET" else None)
            if method.lower() in item:
                code = str(status)
                assert status != 405 and code in item[method.lower()]["responses"], (method, path, status)
                check_answer(item[method.lower()], status, headers, data)
            else:
                assert status == 405 and method not in headers["allow"], (method, path, status)


def check_answer(op, status, headers, data):
    r = resolve(op["responses"][str(status)])
    kind = headers["content-type"].split(";")[0]
    content = r.get("content", {})
    if kind == "application/json":
        wrong = valid(json.loads(data), content[kind]["schema"])
        assert wrong is None, (op["operationId"], status, wrong)
    elif kind == "text/event-stream":
        check_events(op, content[kind]["schema"], data)
    else:
        assert kind in content or kind.startswith(("text/", "image/")), (op["operationId"], kind)


def check_events(op, schema, data):
    """Each event has the described form; the stream ends as it says, or with an error."""
    found = list(events(data.splitlines(keepends=True)))
    assert found and (found[-1] == "[DONE]" or "error" in found[-1]), (op["operationId"], found[-1:])
    for e in found[:-1] if found[-1] == "[DONE]" else found:
        wrong = valid(e, schema)
        assert wrong is None, (op["operationId"], wrong, e)


def the_cache_is_told_as_described():
    op = doc["paths"]["/v1/cache/events"]["get"]
    c = server.connect()
    c.request("GET", "/v1/cache/events")
    r = c.getresponse()
    first = next(events(r))
    c.close()
    r.close()
    wrong = valid(first, op["responses"]["200"]["content"]["text/event-stream"]["schema"])
    assert wrong is None, (wrong, first)
    assert first["sessions"], "the examples left a session"


def requests_do_what_the_description_says():
    posts = [(p, o) for p, m, o, _ in operations() if m == "post"]
    seen = {}
    for i in range(RUNS):
        path, op = posts[i % len(posts)]
        schema = op["requestBody"]["content"]["application/json"]["schema"]
        body = example(schema)
        if path.endswith("completions"):  # small, so that many can be tried
            body["max_tokens"] = RANDOM.randint(1, 4)
            body.pop("max_completion_tokens", None)
            if RANDOM.random() < 0.8:
                body.pop("model", None)
        if RANDOM.random() < 0.6:
            body = spoil(body)
        fits = valid(body, schema) is None
        if fits and path.endswith("completions"):  # what was spoiled may have been the limit: sixteen replies until the context is full
            limit = [body[k] for k in ("max_tokens", "max_completion_tokens") if body.get(k) is not None]
            if not limit or max(limit) > 17:
                print(f"# unbounded: {json.dumps(body)[:200]}") if os.environ.get("QUIRE_FUZZ_TELL") else None
                body.pop("max_completion_tokens", None)
                body["max_tokens"] = 4
        url = path.replace("{session_id}", RANDOM.choice(["a", "x-1", "B.c_"]))
        status, headers, data = server.request("POST", url, body)
        assert str(status) in op["responses"], (path, body, status, data[:300])
        check_answer(op, status, headers, data)
        if status < 300:
            assert fits, (path, body, "was taken, against the description:", valid(body, schema))
        if not fits and status not in (404, 409):
            assert status == 400, (path, body, status)
        if fits and status == 400:
            # The description cannot say these.
            e = json.loads(data)["error"]
            across = ("only with", "differ", "no token", "is empty", "has no tokens", "model has", "without NUL", "logit_bias:",
                      "response_format:", "tools[", "tools must", "tool_choice:", "There is no tool", "tool_calls: JSON", "not valid JSON")
            assert any(a in e["message"] for a in across), (path, body, e)
        seen[(path, status)] = seen.get((path, status), 0) + 1
    assert {s for _, s in seen} >= {200, 201, 400}, seen
    print("# " + ", ".join(f"{p} {s}: {n}" for (p, s), n in sorted(seen.items())))
    assert server.json("GET", "/health") == {"status": "ok"}


with Server(CLI, MODEL) as server:
    doc = server.json("GET", "/openapi.json")
    run_tests([every_reference_leads_somewhere, operations_are_whole, every_operation_is_there_and_no_other_method,
               every_example_is_answered_as_described, the_cache_is_told_as_described, requests_do_what_the_description_says])
