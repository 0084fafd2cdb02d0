"""The figures of the Fraud Detection Handbook's data: `python -m loadtests.handbook --data FILE`.

Protocol of the book: a test week without customers who are known to be compromised, and labels that are known
after 7 days. The book's own model (15 features, a week of training) is measured in the same run, and so is a
score that knows every fraud which can be known (`examples/fraud/knowable.py`) and nothing about the others.

Settings are chosen on the development weeks (--development, June and July 2018) alone; August is for the last
look. With --retrain, models that are trained every week on all days until then are compared with one that is
trained once, on the 7 days of the book (--once-days), before each of the given first test weeks. Exit code 1:
a target is missed.
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
from examples.fraud.knowable import knowable
from examples.fraud.training import table_of
from examples.fraud.transactions import Transactions, from_table, read_transactions
from scorer.learn.fraud.candidate import build_fraud
from scorer.learn.fraud.learners import FittedScore
from scorer.learn.fraud.measures import Judge, Measures
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import DAY_MS, FraudTable, read_table
from scorer.learn.fraud.training import train_fraud
from scorer.learn.fraud.value import Thresholds
from scorer.learn.fraud.weeks import compare_retraining
from scorer.learn.fraud.windows import TimeSpan, unblocked

TARGETS: Final = {"auc": 0.89, "average_precision": 0.70, "card_precision": 0.37}
DEVELOPMENT: Final = (
    "2018-06-06",
    "2018-06-13",
    "2018-06-20",
    "2018-06-27",
    "2018-07-04",
    "2018-07-11",
    "2018-07-18",
    "2018-07-25",
)
"""First days of the weeks on which settings are chosen."""
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
    parser.add_argument(
        "--development", action="store_true", help=f"test the {len(DEVELOPMENT)} weeks of June and July"
    )
    parser.add_argument("--train-days", type=float, default=28.0, help="length of the training window")
    parser.add_argument(
        "--retrain",
        metavar="DAY",
        action="append",
        default=[],
        help="compare weekly retraining from this first test week on, repeatable; no weeks are tested then",
    )
    parser.add_argument(
        "--once-days",
        type=float,
        default=7.0,
        help="training days of the model that is trained once; 0: all days before its first week",
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
        if options.retrain:
            return 0 if _retrain(table, settings, options.retrain, options.once_days) else 1
        known = knowable(transactions)
        print("\n| test week | model | AUC | average precision | card precision@100 | payments | frauds |")
        print("|---|---|--:|--:|--:|--:|--:|")
        found, best = [], []
        for week in DEVELOPMENT if options.development else options.week or ["2018-08-08"]:
            start = _day(week)
            judged = _Week(transactions, start, settings)
            best.append(judged.measures(known.astype(np.float64)))
            print(_row(week, "all that can be known", best[-1]))
            print(_row(week, "the book's, XGBoost 200 × 4", judged.measures_of_book(book)))
            model = train_fraud(table, TASK, settings, until_ms=start + 7 * DAY_MS)
            found.append(model.measures)
            print(_row(week, f"ours, {settings.train_days:g} days", model.measures), flush=True)
            print(_row(week, "logistic regression, ours", model.baseline), flush=True)
            build_fraud(model, path, Path(folder) / week)
        print(f"\n| {len(found)} weeks | mean | least | weeks below | knowable, mean | knowable, least |")
        print("|---|--:|--:|--:|--:|--:|")
        for name, least in TARGETS.items():
            ours, most = (np.array([getattr(one, name).value for one in some]) for some in (found, best))
            met &= bool(ours.mean() >= least)
            below = int((ours < least).sum())
            print(
                f"| {name} (target {least}) | {ours.mean():.4f} | {ours.min():.4f} | {below} | "
                f"{most.mean():.4f} | {most.min():.4f} |"
            )
    return 0 if met else 1


def _retrain(table: FraudTable, settings: FraudSettings, firsts: list[str], once_days: float) -> bool:
    """Compare retraining with training once from several first weeks on. True: all bounds are above 0."""
    print("\n| first test week | weeks | trained once | trained every week | difference | weeks better |")
    print("|---|--:|--:|--:|--:|--:|")
    every = settings.model_copy(update={"train_days": 0.0})
    lows, models = [], dict[int, FittedScore]()
    for first in firsts:
        found = compare_retraining(table, every, _day(first), once_days=once_days, models=models)
        weeks = found.weeks if once_days else found.weeks[1:]
        once, often = (np.array([getattr(one, name) for one in weeks]) for name in ("once", "retrained"))
        low, high = found.difference.low or 0.0, found.difference.high or 0.0
        lows.append(low)
        print(
            f"| {first} | {len(weeks)} | {once.mean():.4f} | {often.mean():.4f} | "
            f"{found.difference.value:+.4f} [{low:+.4f}, {high:+.4f}] | {int((often > once).sum())} |",
            flush=True,
        )
    return min(lows) > 0


class _Week:
    """The payments of a test week without customers who are known to be compromised.

    Args:
        transactions: All transactions.
        start_ms: Beginning of the week.
        settings: The delay of labels, and which customers are left out.
    """

    def __init__(self, transactions: Transactions, start_ms: int, settings: FraudSettings) -> None:
        self._transactions, self._start_ms = transactions, start_ms
        table = table_of(transactions, np.zeros((len(transactions), 0), np.float32))
        self._rows = unblocked(table, TimeSpan(start_ms, start_ms + 7 * DAY_MS), settings)
        self._judge = Judge(table.take(self._rows), settings)

    def measures(self, scores: np.ndarray) -> Measures:
        """Return the measures of the scores `[n]` of all transactions."""
        return self._judge.measures(scores[self._rows], Thresholds(2.0, 2.0))

    def measures_of_book(self, rows: np.ndarray) -> Measures:
        """Train the book's model on the week that ends 7 days before, and measure it.

        Args:
            rows: `[n, 15]` features of all transactions.
        """
        fraud = self._transactions.fraud
        span = TimeSpan(self._start_ms - 14 * DAY_MS, self._start_ms - 7 * DAY_MS)
        train = span.positions(self._transactions.time_ms)
        booster = xgboost.train(_BOOK, xgboost.DMatrix(rows[train], fraud[train]), 200)
        scores = np.zeros(len(fraud))
        scores[self._rows] = booster.predict(xgboost.DMatrix(rows[self._rows]))
        return self.measures(scores)


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
