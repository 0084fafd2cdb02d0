"""Simulated logs as files for use outside the demo: payments of the baseline, and weeks as experience."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from examples.simulators.actions import catalogue
from examples.simulators.outcomes import as_of, decide
from examples.simulators.payments import Logged, Payments, baseline_pmf, contexts, log_baseline
from examples.simulators.transactions import TransactionPlan, simulate_transactions
from examples.simulators.weeks import Market, WeeksPlan
from examples.simulators.worlds import OWN, WorldSpec
from scorer.learn import experience_files
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, concatenate


def write_baseline_log(path: Path, rows: int, seed: int) -> Logged:
    """Simulate payments, run the baseline on them, and write the columns that a real log would contain.

    The risk column represents the score of a fraud model. It is low for most payments and high for most
    frauds.

    Args:
        path: Parquet file to write.
        rows: Number of payments.
        seed: Seed of transactions, risks, contexts and choices.

    Raises:
        DataError: There are fewer transactions than `rows`, or the file cannot be written.
    """
    # There are about two purchases per customer and day.
    plan = TransactionPlan(customers=max(50, rows // 20), terminals=10_000, days=14)
    stream = simulate_transactions(plan, seed)
    if len(stream) < rows:
        raise DataError(f"{rows} payments were asked for and {len(stream)} came out; try another seed")
    stream = stream.take(np.arange(rows))
    rng = np.random.default_rng([seed, 2])
    risk = np.where(stream.fraud == 1, rng.beta(2, 2, rows), rng.beta(0.3, 20, rows))
    given = contexts(stream, risk, seed)
    logged = log_baseline(Payments(), given, seed)
    columns = {name: pa.array(values) for name, values in given.columns().items()}
    columns["action"] = pa.array([catalogue()[index].id for index in logged.action])
    columns["propensity"] = pa.array(logged.propensity)
    columns["authorised"] = pa.array(logged.authorised.astype(np.int8))
    try:
        pq.write_table(pa.table(columns), path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error
    return logged


def write_weeks(path: Path, plan: WeeksPlan, seed: int, world: WorldSpec = OWN) -> Experience:
    """Simulate weeks under the baseline and write what is known at the end of the last one.

    Args:
        path: Parquet file to write.
        plan: The plan of the simulation.
        seed: Seed of the traffic.
        world: The shoppers and the responses of issuers.

    Raises:
        DataError: The file cannot be written.
    """
    market = Market(plan, seed, world)
    weeks = []
    for week in range(1, plan.weeks + 1):
        arrivals = market.week(week)
        weeks.append(decide(market, arrivals, baseline_pmf(arrivals.contexts), "baseline"))
    known = as_of(concatenate(weeks), plan.week_ms(plan.weeks + 1))
    try:
        experience_files.write(known, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error
    return known
