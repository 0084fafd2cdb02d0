"""Evaluate rows with the real zen-engine, in the environment of `make rule-peers`. Input and output are JSON.

The input is a list of graphs with rows; the output has for each graph the results of its rows. A row on which
the engine fails has the result {"error": true}.
"""

import json
import sys

import zen


def main() -> None:
    """Evaluate the graphs of the input."""
    results = []
    for case in json.load(sys.stdin):
        decision = zen.ZenEngine().create_decision(json.dumps(case["graph"]))
        found = []
        for row in case["rows"]:
            try:
                found.append(decision.evaluate(row)["result"])
            except RuntimeError:
                found.append({"error": True})
        results.append(found)
    json.dump(results, sys.stdout)


main()
