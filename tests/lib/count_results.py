"""Prints "passed failed skipped" summed over JUnit files, for contrib/check.

A skipped test counts as failed unless its reason starts with "optional:": what the tests
declare they need is part of the environment that contrib/check has just made, so a skip would
hide that something is no longer tested. What is not as it should be is told on stderr.
"""

import sys
import xml.etree.ElementTree as xml


def count(path):
    passed = failed = skipped = 0
    for case in xml.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')} {case.get('name', '')}".strip()
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
            print(f"    failed: {name}", file=sys.stderr)
        elif skip is not None:
            reason = skip.get("message") or ""
            if reason.startswith("optional:"):
                skipped += 1
            else:
                failed += 1
                print(f"    skipped, which counts as failed: {name}: {reason}", file=sys.stderr)
        else:
            passed += 1
    return passed, failed, skipped


def main():
    totals = [0, 0, 0]
    for path in sys.argv[1:]:
        try:
            found = count(path)
        except (OSError, xml.ParseError) as error:
            print(f"    failed: no results in {path}: {error}", file=sys.stderr)
            found = (0, 1, 0)
        if sum(found) == 0:
            print(f"    failed: {path} holds no test", file=sys.stderr)
            found = (0, 1, 0)
        totals = [left + right for left, right in zip(totals, found)]
    print(*totals)


if __name__ == "__main__":
    main()
