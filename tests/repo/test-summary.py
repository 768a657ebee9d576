#!/usr/bin/env python3
"""The closing line counts what failed, also a program that crashed beside a case that failed. TAP.    test-summary.py SOURCE"""
import json
import os
import subprocess
import sys
import tempfile

SUMMARY = os.path.join(sys.argv[1], "tests", "summary.py")
SUITES = """<testsuites>
<testsuite name="quire.app / taps"><testcase name="1 - a"/><testcase name="2 - b"><failure/></testcase></testsuite>
<testsuite name="quire.app / crashes"><testcase name="1 - a"/></testsuite>
<testsuite name="quire.repo"><testcase name="quire.repo / plain"/><testcase name="quire.repo / left"><skipped/></testcase></testsuite>
</testsuites>"""


def summary(results, status):
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "testlog.junit.xml"), "w") as f:
            f.write(SUITES)
        with open(os.path.join(d, "testlog.json"), "w") as f:
            for name, result in results.items():
                f.write(json.dumps({"name": f"quire:app / {name}", "result": result}) + "\n")
        p = subprocess.run([sys.executable, SUMMARY, os.path.join(d, "testlog.junit.xml"), str(status)], capture_output=True, text=True)
        return p.stdout.strip()


cases = [
    ("a case that failed counts once", {"taps": "FAIL", "crashes": "OK", "plain": "OK", "left": "SKIP"}, 1, "3 1 1"),
    ("a crash beside it counts too", {"taps": "FAIL", "crashes": "ERROR", "plain": "OK", "left": "SKIP"}, 2, "3 2 1"),
    ("so does what took too long", {"taps": "FAIL", "crashes": "TIMEOUT", "plain": "TIMEOUT", "left": "SKIP"}, 3, "3 3 1"),
]
print(f"1..{len(cases)}")
for i, (name, results, status, wanted) in enumerate(cases):
    got = summary(results, status)
    print(f"{'ok' if got == wanted else 'not ok'} {i + 1} - {name}" + ("" if got == wanted else f" # {got}"))
