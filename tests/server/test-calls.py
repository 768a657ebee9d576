#!/usr/bin/env python3
"""Replies that call functions by themselves, and templates that make the model think: with models that follow a script (see
script_model.py), since the shipped one is too small to call. TAP. Usage: test-calls.py QUIRE_CLI FIXTURES_DIR"""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import script_model  # noqa: E402
from harness import Server, run_tests  # noqa: E402

CLI, FIXTURES = sys.argv[1:3]
QWEN = os.environ.get("QUIRE_TEST_QWEN_TOKENIZER")
tests = []
USER = [{"role": "user", "content": "What is the weather in Ulm?"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "minLength": 1, "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}]
ARGUMENTS = '{"city": "Ulm", "unit": "C"}'
CALL = ["<tool_call>", '\n{"name": "get_weather", "arguments": ', ARGUMENTS, "}\n", "</tool_call>"]
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {
    "type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"], "additionalProperties": False}}}


def test(f):
    tests.append(f)
    return f


class Scripted(Server):
    """A server whose model says @script."""

    def __init__(self, script, **kw):
        self.dir = tempfile.TemporaryDirectory()
        model = os.path.join(self.dir.name, "scripted")
        script_model.make(model, FIXTURES, script, **kw)
        super().__init__(CLI, model)

    def __exit__(self, *exc):
        super().__exit__(*exc)
        self.dir.cleanup()

    def ask(self, **kw):
        """The one choice, which a stream of the same request says piece by piece."""
        whole = self.chat(messages=kw.pop("messages", USER), **kw)["choices"][0]
        streamed = self.streamed(dict({"messages": USER, "temperature": 0}, **kw)) if "messages" not in kw else whole
        calls = [c["function"] for c in whole["message"].get("tool_calls", [])]
        assert streamed["content"] == (whole["message"]["content"] or ""), (streamed, whole)
        assert streamed["reasoning_content"] == whole["message"].get("reasoning_content", ""), (streamed, whole)
        assert streamed["calls"] == calls and streamed["finish_reason"] == whole["finish_reason"], (streamed, whole)
        return whole

    def streamed(self, body):
        out = {"content": "", "reasoning_content": "", "calls": [], "finish_reason": None}
        for e in self.stream("/v1/chat/completions", body):
            if e == "[DONE]":
                continue
            delta = e["choices"][0]["delta"]
            out["finish_reason"] = e["choices"][0]["finish_reason"] or out["finish_reason"]
            for part in ("content", "reasoning_content"):
                out[part] += delta.get(part) or ""
            for piece in delta.get("tool_calls", []):
                assert not (out["finish_reason"] or piece["index"] < len(out["calls"]) - 1), e
                if piece["index"] == len(out["calls"]):
                    assert piece["id"].startswith("call_") and piece["type"] == "function", piece
                    out["calls"].append({"name": piece["function"]["name"], "arguments": ""})
                out["calls"][piece["index"]]["arguments"] += piece["function"]["arguments"]
        return out


def check(call):
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "get_weather":
        assert set(arguments) == {"city", "unit"} and 1 <= len(arguments["city"]) <= 12 and arguments["unit"] in ("C", "F"), call
    else:
        assert call["function"]["name"] == "now" and arguments == {}, call


@test
def text_and_then_a_call_of_its_own_will():
    for control in (script_model.make.__defaults__[-1], ()):  # tags that are control tokens, and tags that are spelled
        with Scripted(["Let me look.\n", *CALL], control=control) as s:
            c = s.ask(tools=TOOLS)
            assert c["message"]["content"] == "Let me look." and c["finish_reason"] == "tool_calls", c
            [call] = c["message"]["tool_calls"]
            assert call["function"] == {"name": "get_weather", "arguments": ARGUMENTS}, c
            assert s.ask(tools=TOOLS, tool_choice="auto", parallel_tool_calls=False)["message"]["tool_calls"][0]["function"] == call["function"]
            # Nobody offered a tool: it is text, whatever it looks like.
            c = s.ask()
            assert "tool_calls" not in c["message"] and c["finish_reason"] == "stop" and ARGUMENTS in c["message"]["content"], c
            # The next turn has the call and what it gave.
            turn = USER + [dict(c["message"], content="Let me look.", tool_calls=[call]),
                           {"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"}]
            turn[1].pop("refusal")
            again = s.chat(messages=turn, tools=TOOLS)["choices"][0]
            assert again["finish_reason"] == "tool_calls" and again["message"]["tool_calls"][0]["function"] == call["function"], again


@test
def no_call_where_none_may_be():
    with Scripted(["Let me look.\n", *CALL]) as s:
        c = s.ask(tools=TOOLS, tool_choice="none")
        assert c["message"]["content"].strip() == "Let me look." and c["finish_reason"] == "stop" and "tool_calls" not in c["message"], c


@test
def a_call_that_goes_wrong_is_bound():
    wrongs = (['\n{"name": "get_wether", "arguments": ', ARGUMENTS, "}\n", "</tool_call>"],
              ['\n{"name": "get_weather", "arguments": ', '{"city": "Ulm", "unit": "K"}', "}\n", "</tool_call>"],
              ['\n{"name": "get_weather", "arguments": ', '{"town": "Ulm"}', "}\n", "</tool_call>"],
              ['\n{"name": "get_weather", "arguments": ', ARGUMENTS, ", and that is all.", "</tool_call>"],
              ["</tool_call>"], [])
    for wrong in wrongs:
        with Scripted(["I call. ", "<tool_call>", *wrong]) as s:
            c = s.ask(tools=TOOLS, max_tokens=200)
            assert c["message"]["content"] == "I call. " and c["finish_reason"] == "tool_calls", (wrong, c)
            assert c["message"]["tool_calls"], (wrong, c)
            [check(call) for call in c["message"]["tool_calls"]]


@test
def a_cut_call_is_none():
    with Scripted(["Let me look.\n", *CALL]) as s:
        for n in range(1, 6):
            c = s.ask(tools=TOOLS, max_tokens=n)
            assert c["finish_reason"] == "length", c
            # Its beginning, as far as it is known, else text.
            assert [x["function"]["name"] for x in c["message"].get("tool_calls", [])] == ["get_weather"] * (n >= 4), (n, c)


@test
def a_format_and_tools_together():
    with Scripted(["Let me look.\n", *CALL]) as s:
        # Text that is neither: the format holds it.
        c = s.ask(tools=TOOLS, response_format=FORMAT)
        assert json.loads(c["message"]["content"])["answer"] in ("yes", "no") and c["finish_reason"] == "stop", c
        c = s.ask(tools=TOOLS, tool_choice="none", response_format=FORMAT)
        assert json.loads(c["message"]["content"])["answer"] in ("yes", "no") and c["finish_reason"] == "stop", c
    with Scripted(CALL) as s:
        for kw in ({}, {"tool_choice": "auto"}, {"tool_choice": "required"}, {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}):
            for form in (FORMAT, {"type": "json_object"}):
                c = s.ask(tools=TOOLS, response_format=form, **kw)
                assert c["message"]["content"] is None and c["finish_reason"] == "tool_calls", (kw, form, c)
                assert [x["function"] for x in c["message"]["tool_calls"]] == [{"name": "get_weather", "arguments": ARGUMENTS}], (kw, c)
        assert json.loads(s.ask(tools=TOOLS, tool_choice="none", response_format=FORMAT)["message"]["content"])["answer"] in ("yes", "no")
        s.fails("POST", "/v1/chat/completions", 400, {"messages": USER, "tools": TOOLS, "response_format": dict(
            FORMAT, json_schema={"schema": {"type": "nonsense"}})}, param="response_format")
    # JSON that has a call in a string has no call.
    with Scripted(['{"answer": "', "<tool_call> {'name': 'now'}", '"}']) as s:
        c = s.ask(tools=TOOLS, response_format={"type": "json_object"})
        assert json.loads(c["message"]["content"]) == {"answer": "<tool_call> {'name': 'now'}"} and c["finish_reason"] == "stop", c


@test
def thoughts_that_the_template_begins():
    if not QWEN:
        return "QUIRE_TEST_QWEN_TOKENIZER is not set: there is no template of that kind"
    template = script_model.template_form(FIXTURES, QWEN, "thinking")
    thought = ["I know Ulm.\n", "</think>", "\n\n"]
    with Scripted([*thought, "It is sunny."], template=template) as s:
        c = s.ask()
        assert c["message"]["reasoning_content"] == "I know Ulm." and c["message"]["content"] == "It is sunny.", c
        # This template has no switch.
        assert s.ask(enable_thinking=False)["message"] == c["message"]
        assert s.ask(chat_template_kwargs={"enable_thinking": True})["message"] == c["message"]
        # A thought that was cut is a thought.
        cut = s.ask(max_tokens=1)
        assert cut["message"] == dict(c["message"], content="") and cut["finish_reason"] == "length", cut
        # Thoughts of former turns are taken back, and left out where the template leaves them out.
        turn = USER + [{"role": "assistant", "content": "It is sunny.", "reasoning_content": "I know Ulm."}, {"role": "user", "content": "Sure?"}]
        bare = USER + [{"role": "assistant", "content": "It is sunny."}, turn[2]]
        a, b = s.chat(messages=turn), s.chat(messages=bare)
        assert a["usage"]["prompt_tokens"] == b["usage"]["prompt_tokens"] and a["choices"] == b["choices"], (a, b)
        # What a format binds is the answer.
        f = s.ask(response_format=FORMAT)["message"]
        assert f["reasoning_content"] == "I know Ulm." and json.loads(f["content"])["answer"] in ("yes", "no"), f
        r = s.ask(tools=TOOLS, tool_choice="required", max_tokens=200)
        assert r["message"]["reasoning_content"] == "I know Ulm." and r["finish_reason"] == "tool_calls", r
        [check(call) for call in r["message"]["tool_calls"]]
    with Scripted([*thought, "Let me look.\n", *CALL], template=template) as s:
        c = s.ask(tools=TOOLS)
        assert c["message"]["reasoning_content"] == "I know Ulm." and c["message"]["content"] == "Let me look.", c
        assert [x["function"] for x in c["message"]["tool_calls"]] == [{"name": "get_weather", "arguments": ARGUMENTS}], c
    # A thought may spell a call; it is none, and binds nothing.
    with Scripted(["I could ", "<tool_call>", " now.\n", "</think>", "\n\n", "It is sunny."], template=template) as s:
        c = s.ask(tools=TOOLS)
        assert c["message"]["reasoning_content"] == "I could <tool_call> now." and c["message"]["content"] == "It is sunny.", c
        assert c["finish_reason"] == "stop" and "tool_calls" not in c["message"], c


if __name__ == "__main__":
    run_tests(tests)
