"""Time of a backtest of rules on a large log: `python -m loadtests.rule_backtest`.

A program writes a log of random scores with 35 features, of which one in five has an outcome. The command
`scorer rules backtest` then decides all of them again with 300 rules of five conditions in a process of its
own. The time includes reading and decoding the log twice, joining outcomes, and comparing all ids.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parent.parent
RULES: Final = 300
NUMBERS, CATEGORIES = 30, 5
COUNTRIES: Final = ("AT", "BE", "DE", "ES", "FR", "IT", "NL", "PL")
LABELS: Final = ("approve", "review", "decline")


def main() -> int:
    """Write the log and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--decisions", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="backtests of each set of rules")
    parser.add_argument(
        "--true", type=float, nargs="*", default=[0.5, 0.8, 1.0], help="shares of true conditions"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rule-backtest-") as folder:
        at = Path(folder)
        fingerprint = build_bundle(at / "bundle")
        print(f"writing {options.decisions:,} decisions", flush=True)
        write_log(at / "log", options.decisions, fingerprint)
        size = sum(file.stat().st_size for file in (at / "log").iterdir())
        print(f"log: {size / 1e9:.2f} GB, {RULES} rules of 5 conditions, {os.cpu_count()} processors\n")
        print("| conditions true | s, each run | decisions/s, median | hits per decision | changed | MiB |")
        print("|--:|---|--:|--:|--:|--:|")
        for share in options.true:
            (at / "rules.toml").write_text(rules(share))
            runs = [backtest(at) for _ in range(options.rounds)]
            times = sorted(seconds for seconds, _ in runs)
            result = runs[0][1]
            if result["decisions"] != options.decisions:
                print(f"error: {result['decisions']} decisions were decided again", file=sys.stderr)
                return 1
            hits = sum(result["hits"].values()) / options.decisions
            memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            shown = ", ".join(f"{seconds:.1f}" for seconds in times)
            rate = options.decisions / times[len(times) // 2]
            changed = result["changed"] / options.decisions
            print(
                f"| {share:.0%} | {shown} | {rate:,.0f} | {hits:.2f} | {changed:.1%} | {memory:,.0f} |",
                flush=True,
            )
    return 0


def rules(share: float) -> str:
    """Return a rule set whose conditions are each true on about a share of the decisions.

    Args:
        share: The share; with 1 every rule fires.
    """
    seeded = random.Random(7)
    text = 'name = "speed"\ndecisions = ["decline", "review", "approve"]\n'
    for number in range(RULES):
        first, second, third, whole = seeded.sample(range(NUMBERS), 4)
        chosen = [f'"{one}"' for one in seeded.sample(COUNTRIES, max(1, round(len(COUNTRIES) * share)))]
        limit = 100 * share
        conditions = [
            f"n{first} <= {limit:.2f}",
            f"n{second} >= {100 - limit:.2f}",
            f"n{whole} < {limit + 0.01:.2f}",
            f"c{seeded.randrange(CATEGORIES)} in [{', '.join(chosen)}]",
            f"n{third} * 2.0 <= {2 * limit:.2f}",
        ]
        effect = f'reason = "R{number}"' if number % 10 else 'decision = "review"'
        text += f"[[rules]]\nid = \"r{number}\"\nwhen = '{' && '.join(conditions)}'\n{effect}\n"
    return text


def build_bundle(directory: Path) -> int:
    """Build a score bundle with the features of the log. Return the fingerprint of its schema.

    Args:
        directory: The bundle's directory.
    """
    import xgboost

    from scorer.bundle import Band, Bundle, Feature, Lineage, SchemaFile, build_score_bundle

    names = [f"n{at}" for at in range(NUMBERS)] + [f"c{at}" for at in range(CATEGORIES)]
    features = [Feature(name=name) for name in names[:NUMBERS]]
    features += [Feature(name=name, type="category", categories=COUNTRIES) for name in names[NUMBERS:]]
    rows = np.random.default_rng(5).random((1000, len(names)), np.float32)
    rows[:, NUMBERS:] = np.floor(rows[:, NUMBERS:] * len(COUNTRIES))
    data = xgboost.DMatrix(rows, label=rows[:, 0] > 0.5, feature_names=names)
    model = xgboost.train({"objective": "binary:logistic", "max_depth": 2, "seed": 1}, data, 4)
    build_score_bundle(
        directory,
        name="backtest",
        model=model,
        schema=SchemaFile(features=features),
        bands=[
            Band(start=0.0, label="approve"),
            Band(start=0.5, label="review"),
            Band(start=0.9, label="decline"),
        ],
        training=rows[:600],
        validation=rows[600:],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="bench", run_id="bench"),
    )
    return Bundle.load(directory).schema_fingerprint


def write_log(directory: Path, decisions: int, fingerprint: int) -> None:
    """Write the log with the program `write_decisions`.

    Args:
        directory: The log's directory.
        decisions: Number of decisions.
        fingerprint: Fingerprint of the decisions' schema.
    """
    program = ["cargo", "run", "--release", "--quiet", "--locked", "-p", "scorer-log"]
    given = [str(directory), str(decisions), str(fingerprint), str(NUMBERS), str(CATEGORIES)]
    subprocess.run([*program, "--example", "write_decisions", "--", *given], cwd=ROOT, check=True)


def backtest(at: Path) -> tuple[float, dict[str, Any]]:
    """Run the command on the log. Return its time in seconds and its report.

    Args:
        at: Directory of the bundle, the rules and the log.
    """
    command = [sys.executable, "-m", "scorer.cli", "rules", "backtest", str(at / "rules.toml"), "--json"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--bundle", str(at / "bundle"), "--log", str(at / "log"), "--amount", "n0"],
        check=True,
        stdout=subprocess.PIPE,
    )
    return time.monotonic() - began, json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
