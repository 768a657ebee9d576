#!/usr/bin/env python3
"""Counts a test run from Meson's JUnit log, down to the single TAP case.

    summary.py LOG EXIT_STATUS     prints "passed failed skipped"; a program that failed without a failed case (it crashed, or
                                   took too long) counts one, and so does a failing run without any. What was skipped and
                                   why goes to standard error, once a reason. Beside LOG is Meson's testlog.json
    summary.py --add FILE...       adds such lines up, prints "N passed, N failed, N skipped", exits 1 on failures
"""
import json
import os
import sys
import xml.etree.ElementTree as ET


def reason_of(case):
    """What a skipped case says of itself."""
    text = (case.findtext("system-out") or "").strip()
    return text.rpartition("# SKIP")[2].strip() or "no reason given"


def failed_programs(log):
    """The names of all test programs that did not end well."""
    names = set()
    with open(os.path.join(os.path.dirname(log), "testlog.json"), encoding="utf-8") as f:
        for line in f:
            test = json.loads(line)
            if test["result"] not in ("OK", "SKIP", "EXPECTEDFAIL"):
                names.add(test["name"].rpartition(" / ")[2])
    return names


def count(log, status):
    passed = failed = skipped = 0
    reasons = {}
    told = set()
    try:
        suites = ET.parse(log).getroot().iter("testsuite")
    except (OSError, ET.ParseError) as e:
        print(f"summary: {log}: {e}", file=sys.stderr)
        return 0, 1, 0
    for suite in suites:
        for case in suite.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
                told.add((case.get("name") if " / " not in suite.get("name", "") else suite.get("name")).rpartition(" / ")[2])
            elif case.find("skipped") is not None:
                skipped += 1
                test = case.get("name") if " / " not in suite.get("name", "") else suite.get("name")
                reasons.setdefault(reason_of(case), []).append(test.rpartition(" / ")[2])
            else:
                passed += 1
    for reason, tests in reasons.items():
        print(f"skipped, {', '.join(sorted(set(tests)))}: {reason}", file=sys.stderr)
    try:
        failed += len(failed_programs(log) - told)
    except (OSError, ValueError) as e:
        print(f"summary: {log}: {e}", file=sys.stderr)
    if status != 0 and failed == 0:
        failed = 1
    return passed, failed, skipped


def main():
    if sys.argv[1] == "--add":
        rows = [[int(x) for x in open(f).read().split()] for f in sys.argv[2:]]
        passed, failed, skipped = (sum(c) for c in zip(*rows))
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
        sys.exit(1 if failed or not passed else 0)
    print(*count(sys.argv[1], int(sys.argv[2])))


main()
