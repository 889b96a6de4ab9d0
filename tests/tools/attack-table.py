#!/usr/bin/python3
"""The tables of docs/attacks.md, between two marks in the page, from tests/lib/attacks.py.
   attack-table.py update PAGE   makes them anew
   attack-table.py check PAGE    fails when they are not up to date"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lib.attacks import GROUPS, LEVELS  # noqa: E402 pylint: disable=wrong-import-position

BEGIN, END = "<!-- tables: begin -->\n", "<!-- tables: end -->\n"


def shown(answer):
    return "**comes through**" if answer == "through" else answer


def row(attack):
    answers = [shown(setting.expects(attack)) for setting in LEVELS.values()]
    layers = ", ".join(f"{layer} ({answer})" for layer, answer in attack.layers) or "nothing"
    return f"| {attack.what} | {' | '.join(answers)} | {attack.note or layers} |\n"


def tables():
    lines = ""
    for title, attacks in GROUPS.items():
        lines += f"\n### {title}\n\n| attack | {' | '.join(LEVELS)} | what stops it, in the order it is met |\n"
        lines += "| --- " * (len(LEVELS) + 2) + "|\n" + "".join(map(row, attacks))
    return lines + "\n"


def main():
    mode, name = sys.argv[1:]
    page = Path(name)
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    made = before + BEGIN + tables() + END + rest.split(END)[1]
    if mode == "update":
        page.write_text(made, encoding="utf-8")
    elif made != text:
        sys.exit(f"{name}: the tables are not up to date: run `ninja attack-table`")


main()
