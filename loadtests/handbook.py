"""The figures of the Fraud Detection Handbook's data: `python -m loadtests.handbook --data FILE`.

Protocol of the book: a test week without customers who are known to be compromised, and labels that are known
after 7 days. The book's own model (15 features, a week of training) is measured in the same run. With
--retrain, models that are trained every week are compared with one that is trained once. Exit code 1: a
target is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import xgboost

from examples.fraud.features import features
from examples.fraud.handbook import SETTINGS, TASK, features_of, write_table
from examples.fraud.transactions import Transactions, from_table, read_transactions
from scorer.learn.fraud.candidate import build_fraud
from scorer.learn.fraud.measures import Judge, Measures
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import DAY_MS, FraudTable, read_table
from scorer.learn.fraud.training import train_fraud
from scorer.learn.fraud.value import Thresholds
from scorer.learn.fraud.weeks import WeekResult, compare_retraining
from scorer.learn.fraud.windows import TimeSpan, unblocked

TARGETS: Final = {"auc": 0.89, "average_precision": 0.70, "card_precision": 0.37}
_BOOK = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 4, "learning_rate": 0.1}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, and compare them with the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--data", type=Path, action="append", required=True, help="file; repeat for more months"
    )
    parser.add_argument(
        "--week",
        action="append",
        help="first day of a test week, repeatable; default: 2018-08-08, the book's",
    )
    parser.add_argument("--train-days", type=float, default=28.0, help="length of the training window")
    parser.add_argument(
        "--retrain", metavar="DAY", help="compare weekly retraining from this first test week on"
    )
    options = parser.parse_args(arguments)
    transactions = _read(options.data)
    began = time.perf_counter()
    rows = features_of(transactions)
    print(
        f"{len(transactions):,} transactions, {rows.shape[1]} features in {time.perf_counter() - began:.1f} s"
    )
    settings = SETTINGS.model_copy(update={"train_days": options.train_days})
    book = features(transactions)
    met = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "handbook.parquet"
        write_table(transactions, rows, path)
        table = read_table(path, TASK.features, settings.columns)
        print("\n| test week | model | AUC | average precision | card precision@100 | payments | frauds |")
        print("|---|---|--:|--:|--:|--:|--:|")
        found = []
        for week in options.week or ["2018-08-08"]:
            start = _day(week)
            print(
                _row(week, "the book's, XGBoost 200 × 4", _measure_book(transactions, book, start, settings))
            )
            model = train_fraud(table, TASK, settings, until_ms=start + 7 * DAY_MS)
            found.append(model.measures)
            print(_row(week, f"ours, {settings.train_days:g} days", model.measures), flush=True)
            print(_row(week, "logistic regression, ours", model.baseline), flush=True)
            build_fraud(model, path, Path(folder) / week)
        means = {name: float(np.mean([getattr(one, name).value for one in found])) for name in TARGETS}
        met = all(means[name] >= least for name, least in TARGETS.items())
        print(
            "\n" + ", ".join(f"{name} {means[name]:.4f} (target {least})" for name, least in TARGETS.items())
        )
        if options.retrain:
            met &= _retrain(table, settings, _day(options.retrain))
    return 0 if met else 1


def _retrain(table: FraudTable, settings: FraudSettings, first_ms: int) -> bool:
    print("\n| test week | payments | frauds | trained once | trained every week | difference |")
    print("|---|--:|--:|--:|--:|--:|")

    def at(one: WeekResult) -> None:
        print(
            f"| {one.window} | {one.rows:,} | {one.positives} | {one.once:.4f} | {one.retrained:.4f} | "
            f"{one.retrained - one.once:+.4f} |",
            flush=True,
        )

    difference = compare_retraining(table, settings, first_ms, at=at).difference
    low, high = difference.low or 0.0, difference.high or 0.0
    print(f"\nmean difference of the average precision: {difference.value:+.4f} [{low:+.4f}, {high:+.4f}]")
    return low > 0


def _measure_book(
    transactions: Transactions, rows: np.ndarray, start_ms: int, settings: FraudSettings
) -> Measures:
    """Train the book's model on the week that ends 7 days before, and measure it on the same payments."""
    table = FraudTable(
        features=(),
        rows=rows,
        time_ms=transactions.time_ms,
        label=transactions.fraud == 1,
        weight=np.ones(len(transactions)),
        known_ms=None,
        entity=np.unique(transactions.customer, return_inverse=True)[1],
        amount=transactions.amount,
        repeated=np.zeros(len(transactions), bool),
        digest="",
    )
    train = TimeSpan(start_ms - 14 * DAY_MS, start_ms - 7 * DAY_MS).positions(table.time_ms)
    booster = xgboost.train(_BOOK, xgboost.DMatrix(rows[train], transactions.fraud[train]), 200)
    judged = table.take(unblocked(table, TimeSpan(start_ms, start_ms + 7 * DAY_MS), settings))
    scores = booster.predict(xgboost.DMatrix(judged.rows)).astype(np.float64)
    return Judge(judged, settings).measures(scores, Thresholds(2.0, 2.0))


def _row(week: str, model: str, found: Measures) -> str:
    shown = [
        f"{one.value:.4f} [{one.low:.3f}, {one.high:.3f}]"
        for one in (found.auc, found.average_precision, found.card_precision)
        if one is not None and one.low is not None and one.high is not None
    ]
    return f"| {week} | {model} | {' | '.join(shown)} | {found.rows:,} | {found.positives} |"


def _read(paths: list[Path]) -> Transactions:
    """Read one file, or several ones of the same columns as one."""
    if len(paths) == 1:
        return read_transactions(paths[0])
    import pyarrow as pa
    import pyarrow.parquet as pq

    from examples.fraud.transactions import COLUMNS

    tables = [pq.read_table(path, columns=list(COLUMNS)) for path in paths]
    return from_table(pa.concat_tables(tables, promote_options="permissive"), ", ".join(map(str, paths)))


def _day(text: str) -> int:
    return int(np.datetime64(text, "ms").astype(np.int64))


if __name__ == "__main__":
    sys.exit(main())
