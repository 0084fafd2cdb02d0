"""The files of a small learning loop in one folder: a decision log, a registry, learn.toml."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from learning import START_MS, contexts, logged, small_task
from logs import write_segment

from scorer.bundle import inspect
from scorer.learn import settings as learn_settings
from scorer.learn.training.fitting import fit
from scorer.learn.training.trained import build_candidate
from scorer.registry import Registry
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord

POINT = "action.authorise"
START = START_MS + 29 * 86_400_000
DAY = 86_400_000
AS_OF = START + 15 * DAY
ROWS = 2400

LEARN = """
[join]
families = []
hours = 1.0
[train]
tau = [0.0]
folds = 2
trees = 30
compare = false
threads = 1
[gate]
window_days = 4.0
min_rows = 100
min_effective = 50.0
margin = 0.05
[overlay]
segment = "country"
family = ""
[schedule]
alias = "small@live"
"""


def write_log(
    directory: Path,
    bundle: Path,
    *,
    rows: int = ROWS,
    seed: int = 0,
    segment: int = 1,
    first_day: float = 0.0,
    days: float = 14.0,
    turned: bool = False,
) -> None:
    """Write uniform choices that a bundle made.

    Route A is authorised far more often, or (`turned`) far less.
    """
    info = inspect(bundle)
    actions = [action.id for action in info.actions]
    random = np.random.default_rng(seed)
    drawn = contexts(rows, seed=seed)
    payloads = []
    times = np.sort(random.integers(START, START + round(days * DAY), rows)) + round(first_day * DAY)
    taken = random.integers(0, len(actions), rows)
    good = random.random(rows) < np.where((taken == 0) != turned, 0.9, 0.5)
    for at in range(rows):
        decided = int(times[at]) * 1000
        decision = DecisionRecord(
            decision_id=f"d{segment}-{at}",
            checkpoint=POINT,
            lane="live",
            bundle=bytes.fromhex(info.digest.removeprefix("sha256:")),
            decided_at_us=decided,
            entity=f"shopper-{at}",
            features=drawn[at].tolist(),
            schema_fingerprint=int(info.schema_fingerprint, 16),
            pmf=[1 / len(actions)] * len(actions),
            action_index=int(taken[at]),
            action=actions[taken[at]],
            propensity=1 / len(actions),
        )
        payloads.append(LogRecord(decision=decision).SerializeToString())
        outcome = OutcomeRecord(
            checkpoint=POINT,
            decision_id=f"d{segment}-{at}",
            kind="authorised",
            value=float(good[at]),
            received_at_us=decided + 1_000_000,
        )
        payloads.append(LogRecord(outcome=outcome).SerializeToString())
    write_segment(directory, segment, 1 + (segment - 1) * 2 * ROWS, payloads)


def make_loop(base: Path) -> Path:
    """Create a loop's folder. The live bundle ``small@live`` predicts the same reward for all routes."""
    base.mkdir(parents=True, exist_ok=True)
    (base / "learn.toml").write_text(LEARN)
    plan = learn_settings.load(base / "learn.toml").train
    alike = logged(600, truth=lambda rows: np.full((len(rows), 3), 0.7))
    first = build_candidate(fit(small_task(), alike, plan), base / "first", "first")
    registry = Registry(base / "registry")
    registry.alias("small", "live", registry.push(first.path))
    write_log(base / "decisions", first.path)
    return base
