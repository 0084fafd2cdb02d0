"""Evaluate rows with pyDMNrules. Input and output are JSON; the environment of `make rule-peers` runs it.

The input is a list of DMN files with rows; the output has for each file the results of its rows by name. A
row for which no rule is found, or for which several are, has the result {}.
"""

import contextlib
import json
import sys

import pyDMNrules


def main() -> None:
    """Evaluate the files of the input."""
    results = []
    for case in json.load(sys.stdin):
        with contextlib.redirect_stdout(sys.stderr):
            engine = pyDMNrules.DMN()
            status = engine.useXML(case["text"])
            if status.get("errors"):
                results.append({"errors": status["errors"]})
                continue
            found = []
            for row in case["rows"]:
                status, decided = engine.decide({name: row.get(name) for name in case["inputs"]})
                last = decided[-1] if isinstance(decided, list) and decided else decided
                none = ("No rules matched", "Multiple rules matched")
                errors = [one for one in status.get("errors", []) if not one.startswith(none)]
                found.append({"errors": errors} if errors else (last or {}).get("Result", {}))
            results.append(found)
    json.dump(results, sys.stdout)


main()
