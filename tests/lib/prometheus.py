"""The text format of Prometheus, 0.0.4, read strictly: what its documentation does not allow is an
error, and so is what its own checker complains of (a name without help, a counter that is not called
one, lines of one metric that do not stand together)."""

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9]+(?:\.[0-9]+)?)")


def parse(text):
    """{(name, labels as written): value}"""
    assert text.endswith("\n") and "\r" not in text
    samples, types, helped, order = {}, {}, set(), []
    for line in text[:-1].split("\n"):
        if match := re.fullmatch(rf"# HELP ({NAME}) (\S.*\S)", line):
            assert match[1] not in helped, f"two helps: {line}"
            helped.add(match[1])
            order.append(match[1])
        elif match := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", line):
            assert match[1] not in types and match[1] == order[-1], f"out of place: {line}"
            types[match[1]] = match[2]
        else:
            match = SAMPLE.fullmatch(line)
            assert match, f"no sample: {line}"
            name, labels, value = match.groups()
            assert order[-1] == name and name in types, f"out of place: {line}"
            assert (types[name] == "counter") == name.endswith("_total"), f"named as something else: {line}"
            assert types[name] != "counter" or float(value) >= 0, line
            names = re.findall(r'(\w+)="', labels or "")
            assert len(names) == len(set(names)), f"a label given twice: {line}"
            assert (name, labels) not in samples, f"given twice: {line}"
            samples[name, labels] = float(value)
    assert helped == set(types)
    return samples
