"""Training on decisions in files: rates measured on one core, and a plan for a larger data set.

`make bench-training` writes a small experience, trains on it with XGBoost's external memory on one thread,
and measures the processor time of each step per value (a row times a column). The plan multiplies these
times. It assumes that they are proportional to the number of values and trees, and that all cores are busy.
The plan uses the last size that is measured. With more rows a tree costs less per value, because the work for
each node does not grow with the rows. Options give the data set and the price of a core-hour.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from examples.columns import column
from scorer.bundle import Action
from scorer.learn.experience import Experience, State
from scorer.learn.experience_files import write
from scorer.learn.experience_store import open_stored
from scorer.learn.oracle import OracleTask
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.trainers import DiskTrainer, page_rows

_ACTIONS = 8
_BINS = 256
_HISTOGRAM_BYTES = 16
"""Of one bin: two float64 sums."""
_ROW_BYTES = 450
"""Of this process for each decision, in arrays; measured beside a run with 400,000 decisions."""


@dataclass(frozen=True)
class Rates:
    """Processor time on one core.

    Attributes:
        read: nanoseconds to read and decode a value from Parquet.
        bins: nanoseconds to turn a value into a bin, all passes with their reading included.
        tree: nanoseconds per value for one tree, of all rows and columns before sampling.
        size: bytes of the bins per value.
    """

    read: float
    bins: float
    tree: float
    size: float


@dataclass(frozen=True)
class Load:
    """A data set, and what a generation trains on it.

    Attributes:
        rows: settled decisions.
        columns: of the context and the action.
        trainings: trainings, each counted by its share of the rows.
    """

    rows: int
    columns: int
    trainings: float

    @property
    def values(self) -> float:
        """Rows times columns."""
        return float(self.rows) * self.columns


def trainings_of(plan: TrainSettings, weeks: int) -> float:
    """Return how many times a generation trains on all rows; a training on a part counts as its share.

    Args:
        plan: the settings.
        weeks: length of the data, of which progressive validation holds back the last ones.
    """
    judged = 0.0
    if len(plan.tau) > 1:
        judged = len(plan.tau) * sum(
            1 - (back + 1) / weeks for back in range(min(plan.judged_weeks, weeks - 1))
        )
    # A Poisson(1) redraw leaves out a share of 1/e of the rows, double-or-nothing a half.
    share = 1 - np.exp(-1) if plan.member_weights == "poisson" else 0.5
    return float(judged + (plan.folds - 1) + 1 + plan.members * share)


def core_hours(load: Load, rates: Rates, trees: int) -> tuple[float, float, float]:
    """Return the hours of one core for bins, for trees, and for predictions out of fold."""
    nanoseconds = load.values * load.trainings
    hours = 1e9 * 3600
    # Reading dominates a prediction on the rows of a fold; each row is predicted once.
    return (
        nanoseconds * rates.bins / hours,
        nanoseconds * rates.tree * trees / hours,
        load.values * rates.read / hours,
    )


def table(
    load: Load, rates: Rates, plan: TrainSettings, machines: Sequence[tuple[int, int]], price: float
) -> str:
    """Return the plan as tables in Markdown.

    Args:
        load: the data set.
        rates: measured.
        plan: the settings.
        machines: number of machines and cores of each.
        price: of a core-hour.
    """
    parts = core_hours(load, rates, plan.trees)
    total = sum(parts)
    bins_gb = load.values * rates.size / 1e9
    nodes = 2 ** (plan.depth - 1)
    exchanged = plan.trees * load.trainings * nodes * load.columns * _BINS * _HISTOGRAM_BYTES / 1e9
    lines = [
        "| quantity | value |",
        "|---|--:|",
        f"| values (rows × columns) | {load.values:.3g} |",
        f"| contexts as float32 | {4 * load.values / 1e12:.2f} TB |",
        f"| bins of external memory, over all workers | {bins_gb:,.0f} GB |",
        f"| memory of the driver | {load.rows * _ROW_BYTES / 1e9:,.0f} GB |",
        f"| trainings of a generation, by their share of the rows | {load.trainings:.1f} |",
        f"| core-hours: bins / trees / predictions | {parts[0]:,.0f} / {parts[1]:,.0f} / {parts[2]:,.0f} |",
        f"| core-hours in all | {total:,.0f} |",
        f"| histograms that each worker sends in a generation | {exchanged:,.0f} GB |",
        "",
        "| machines | cores | bins on each | hours | cost |",
        "|--:|--:|--:|--:|--:|",
    ]
    for count, cores in machines:
        lines.append(
            f"| {count} | {count * cores} | {bins_gb / count:,.0f} GB | {total / (count * cores):,.1f} "
            f"| {total * price:,.0f} |"
        )
    return "\n".join(lines)


def measure(rows: int, columns: int, plan: TrainSettings, folder: Path) -> Rates:
    """Measure once, on one thread.

    Args:
        rows: of the experience.
        columns: of the context and the action.
        plan: the settings.
        folder: for the experience and the bins.
    """
    task, experience = _task(columns), _experience(rows, columns)
    write(experience, folder / "experience.parquet")
    stored = open_stored(folder / "experience.parquet")
    values = rows * columns
    began = time.process_time()
    for _ in stored.blocks(page_rows(task)):
        pass
    read = time.process_time() - began
    weights = np.ones(rows)
    took: list[float] = []
    sizes: list[int] = []
    few, many = 1, 1 + plan.trees
    for trees in (few, many):
        given = plan.model_copy(update={"trees": trees, "threads": 1})
        trainer = DiskTrainer(task, given, folder, lambda _, __: sizes.append(_bytes(folder)))
        began = time.process_time()
        trainer.train(stored, weights)
        took.append(time.process_time() - began)
    tree = (took[1] - took[0]) / (many - few)
    return Rates(
        1e9 * read / values, 1e9 * (took[0] - tree) / values, 1e9 * tree / values, max(sizes) / values
    )


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("pages-*/*"))


def _task(columns: int) -> OracleTask:
    actions = [f"a{at}" for at in range(_ACTIONS)]
    return OracleTask(
        name="measured",
        context=tuple(column(f"x{at}", minimum=-10.0, maximum=10.0) for at in range(columns - 1)),
        action=(column("action", "category", tuple(actions)),),
        actions=tuple(
            Action(id=name, factors={"a": name}, features=[float(at)]) for at, name in enumerate(actions)
        ),
    )


def _experience(rows: int, columns: int) -> Experience:
    random = np.random.default_rng(0)
    context = random.standard_normal((rows, columns - 1), np.float32).clip(-9.9, 9.9)
    known = context.copy()
    # A twentieth of the values is missing.
    context[random.random(context.shape) < 0.05] = np.nan
    action = random.integers(0, _ACTIONS, rows)
    chance = 1 / (1 + np.exp(-(known[:, 0] + known[:, 1] * known[:, 2] + (action % 3 - 1))))
    return Experience(
        decision_id=np.array([f"order-{at}" for at in range(rows)]),
        entity=np.array([f"shopper-{at % 1000}" for at in range(rows)]),
        time_ms=np.arange(rows),
        settled_ms=np.arange(rows),
        context=context,
        eligible=np.ones((rows, _ACTIONS), np.bool_),
        pmf=np.full((rows, _ACTIONS), 1 / _ACTIONS, np.float32),
        action=action,
        propensity=np.full(rows, 1 / _ACTIONS),
        reward=(random.random(rows) < chance).astype(np.float64),
        state=np.full(rows, State.SETTLED, np.int8),
        bundle=np.zeros(rows, np.int64),
        lane=np.zeros(rows, np.int64),
        bundles=("measured",),
        lanes=("live",),
        actions=tuple(f"a{at}" for at in range(_ACTIONS)),
    )


def main() -> int:
    """Measure, and print the rates and the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=float, default=200e6, help="settled decisions of the plan")
    parser.add_argument("--columns", type=int, default=1_500, help="columns of the plan")
    parser.add_argument("--weeks", type=int, default=8, help="length of the plan's data")
    parser.add_argument("--price", type=float, default=0.05, help="price of a core-hour")
    parser.add_argument(
        "--machines", nargs="+", default=["1x64", "4x32", "16x32"], help="machines and cores of each, as 4x32"
    )
    parser.add_argument(
        "--measure", nargs="+", default=["25000x200", "100000x200"], help="rows and columns that are measured"
    )
    parser.add_argument("--trees", type=int, default=10, help="trees that are measured")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each size")
    options = parser.parse_args()
    plan = TrainSettings(storage="disk", compare=False)
    print("| rows × columns | read, ns/value | bins, ns/value | tree, ns/value | bins, bytes/value |")
    print("|---|--:|--:|--:|--:|")
    rates = []
    for size in options.measure:
        rows, columns = map(int, size.split("x"))
        found = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="bench-training-") as folder:
                given = plan.model_copy(update={"trees": options.trees})
                found.append(measure(rows, columns, given, Path(folder)))
        rate = Rates(*(median(each) for each in zip(*map(dataclasses.astuple, found), strict=True)))
        spans = [
            f"{value:.1f} ({min(each):.1f} to {max(each):.1f})"
            for value, each in zip(
                dataclasses.astuple(rate), zip(*map(dataclasses.astuple, found), strict=True), strict=True
            )
        ]
        print(f"| {rows:,} × {columns} | {' | '.join(spans)} |", flush=True)
        rates.append(rate)
    load = Load(int(options.rows), options.columns, trainings_of(plan, options.weeks))
    machines = [(int(count), int(cores)) for count, cores in (each.split("x") for each in options.machines)]
    print(f"\n{table(load, rates[-1], plan, machines, options.price)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
