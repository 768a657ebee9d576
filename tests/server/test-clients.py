#!/usr/bin/env python3
"""Clients that others wrote: the `openai` package, curl, headless Chromium. TAP. Usage: test-clients.py QUIRE_CLI MODEL_DIR

What a machine lacks (node, npm or a network to fetch the packages with, a browser) is skipped with its reason. The packages go
to $QUIRE_TEST_CLIENTS, else .cache/server-clients beside the sources. $QUIRE_TEST_SHOTS: a folder for screenshots."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from harness import Server, run_tests  # noqa: E402

CLI, MODEL = sys.argv[1:3]
CACHE = os.environ.get("QUIRE_TEST_CLIENTS") or os.path.join(HERE, "..", "..", ".cache", "server-clients")
CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


def packages():
    """None, or why the npm packages cannot be had."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node:
        return "node is not installed"
    major = int(subprocess.run([node, "--version"], capture_output=True, text=True).stdout.lstrip("v").split(".")[0])
    if major < 20:
        return f"node {major} is too old for these packages; they need 20"
    want = open(os.path.join(HERE, "clients", "package.json")).read()
    stamp = os.path.join(CACHE, "installed.json")
    if not (os.path.exists(stamp) and open(stamp).read() == want):
        if not npm:
            return "npm is not installed"
        os.makedirs(CACHE, exist_ok=True)
        with open(os.path.join(CACHE, "package.json"), "w") as f:
            f.write(want)
        try:
            p = subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=CACHE, capture_output=True,
                               text=True, timeout=120)
        except subprocess.TimeoutExpired:
            return "npm could not fetch the packages in two minutes"
        if p.returncode != 0:
            return "npm could not fetch the packages"
        with open(stamp, "w") as f:
            f.write(want)
    for name in ("openai.mjs", "browser.mjs"):
        shutil.copy(os.path.join(HERE, "clients", name), CACHE)
    return None


def run_node(script, *args):
    # A sanitizer's options are for the server alone.
    env = {k: v for k, v in os.environ.items() if not k.endswith("SAN_OPTIONS")}
    p = subprocess.run(["node", os.path.join(CACHE, script), *args], capture_output=True, text=True, timeout=240, env=env)
    for line in p.stdout.splitlines():
        print("# " + line if not line.startswith("#") else line)
    assert p.returncode == 0 and p.stdout.rstrip().endswith("done"), p.stderr


def curl_speaks_to_it():
    if not shutil.which("curl"):
        return "curl is not installed"
    with Server(CLI, MODEL) as s:
        def curl(*args):
            return subprocess.run(["curl", "-sS", "--max-time", "60", "--noproxy", "*", *args], capture_output=True, check=True).stdout

        body = json.dumps({"messages": [{"role": "user", "content": "What is 27 plus 15?"}], "temperature": 0})
        url = s.uri + "v1/chat/completions"
        json_type = ("-H", "Content-Type: application/json")
        assert "42" in json.loads(curl(url, *json_type, "-d", body))["choices"][0]["message"]["content"]
        streamed = curl("-N", url, *json_type, "-d", body.replace("{", '{"stream": true, ', 1))
        assert streamed.startswith(b"data: {") and streamed.endswith(b"data: [DONE]\n\n")
        assert b'"code":"unsupported_media_type"' in curl(url, "-d", body)
        # A long body makes curl ask first.
        long = json.dumps({"prompt": "x " * 500000})
        assert json.loads(subprocess.run(["curl", "-sS", "--noproxy", "*", "-H", "Expect: 100-continue", *json_type, "-d", "@-", s.uri + "tokenize"],
                                         input=long.encode(), capture_output=True, check=True).stdout)["count"] > 100000
        big = subprocess.run(["curl", "-sS", "--noproxy", "*", *json_type, "-d", "@-", s.uri + "tokenize"], input=b"x" * (20 << 20),
                             capture_output=True).stdout
        assert b"body_too_large" in big, big


def what_the_documents_say_works_as_typed():
    """README's section on the server and the help of `serve`, command by command, by a shell; the port alone is another."""
    if not shutil.which("curl"):
        return "curl is not installed"
    with open(os.path.join(HERE, "..", "..", "README.md")) as f:
        section = f.read().split("\n## Local server\n")[1].split("\n## ")[0]
    blocks = [b.strip() for b in re.findall(r"```sh\n(.*?)```", section, re.S)]
    help_text = subprocess.run([CLI, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    from_help = re.search(r"^  (curl .*?'\n)", help_text, re.S | re.M).group(1)
    assert len(blocks) == 2 and blocks[1].startswith("quire-cli serve "), blocks

    def typed(command, port, home):
        shell = "curl() { command curl -sS --max-time 60 --noproxy '*' \"$@\"; }\n" + command.replace(":8377", f":{port}")
        return json.loads(subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True, env=dict(os.environ, HOME=home)).stdout)

    with tempfile.TemporaryDirectory() as home:
        with Server(CLI, MODEL) as s:
            assert typed(blocks[0], s.port, home)["choices"][0]["message"]["content"]
            assert typed(from_help, s.port, home)["usage"]["completion_tokens"] > 0
        os.mkdir(home + "/.config")
        serve, ask = blocks[1].split("\n")
        options = serve.replace("~", home).split()[2:]
        with Server(CLI, MODEL, *options) as s:
            assert typed(ask, s.port, home)["data"][0]["id"] == os.path.basename(MODEL)
            assert os.stat(home + "/.config/quire-token").st_mode & 0o777 == 0o600


def the_openai_package():
    reason = packages()
    if reason:
        return reason
    with Server(CLI, MODEL) as s:
        run_node("openai.mjs", s.uri)


def chromium_shows_the_pages():
    reason = packages() or (None if CHROMIUM else "no Chromium is installed")
    if reason:
        return reason
    with tempfile.TemporaryDirectory() as folder, Server(CLI, MODEL) as s:
        token_file = os.path.join(folder, "token")
        with Server(CLI, MODEL, "--token-file", token_file) as guarded, open(token_file) as f:
            run_node("browser.mjs", s.uri, CHROMIUM, os.environ.get("QUIRE_TEST_SHOTS", ""), guarded.uri, f.read().strip(), str(guarded.process.pid))


run_tests([curl_speaks_to_it, what_the_documents_say_works_as_typed, the_openai_package, chromium_shows_the_pages])
