"""False alarms of A/A tests and of off-policy estimates that are read 200 times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadtests.figures import Figures
from loadtests.learning.designs import design, sample
from loadtests.learning.options import Options
from scorer.learn import ope
from scorer.stats import sequences

_COMMAND = "make bench-learning ARGS=peeking"
_LOOKS = 200
# Payments between two looks, both arms together.
_STEP = 200
_RATE = 0.9
_UPLIFT = 0.02
_Z = 1.959963984540054
# Tests and logs per seed.
_TESTS, _LOGS, _BETS = 100, 15, 3


def run(figures: Figures, options: Options) -> None:
    """Measure tests by lanes, then off-policy estimates. The notes show a z-test that is read as often."""
    tests = 10 if options.quick else _TESTS
    ours, theirs, bernstein = _false_alarms(options, tests)
    count = tests * len(options.seeds)
    setting = f"{count:,} A/A tests at rate {_RATE:g}, {_LOOKS} looks {_STEP} payments apart"
    figures.add(
        name="A/A by lanes: false alarms of the asymptotic confidence sequence",
        ours=ours,
        unit="%",
        target=5.0,
        command=_COMMAND,
        note=f"{setting}; a z-test repeated at every look: {theirs:.1f} %",
    )
    figures.add(
        name="A/A by lanes: false alarms of the empirical-Bernstein sequence",
        ours=bernstein,
        unit="%",
        target=5.0,
        command=_COMMAND,
        note=setting,
    )
    found, rows = _detection(options, tests)
    figures.add(
        name=f"A/B by lanes: tests that the sequence decides, at an uplift of {100 * _UPLIFT:g} points",
        ours=found,
        unit="%",
        higher_is_better=True,
        command=_COMMAND,
        note=f"half of all tests were decided after {rows:,} payments or fewer"
        if rows
        else "within 200 looks",
    )
    for regime in ("usual", "narrow"):
        asymptotic, repeated, logs = _off_policy(options, regime)
        figures.add(
            name=f"off-policy, {regime} exploration: sequences that ever lose the true value",
            ours=asymptotic,
            unit="%",
            target=5.0,
            command=_COMMAND,
            note=f"DR, {logs} logs of 20,000 payments read {_LOOKS} times from 500 effective rows on; "
            f"a t-interval read as often: {repeated:.1f} %",
        )
    lost, logs = _bets(options)
    figures.add(
        name="off-policy, usual exploration: betting bounds that ever lose the true value",
        ours=lost,
        unit="%",
        target=5.0,
        command=_COMMAND,
        note=f"{logs} logs of 5,000 payments, read at every payment, forward cross-fitted control",
    )


def _lanes(options: Options, tests: int, uplift: float, salt: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield arm (1: B) and reward of `[tests, rows]` payments, one block per seed."""
    for seed in options.seeds:
        rng = np.random.default_rng([seed, salt])
        arm = rng.integers(0, 2, (tests, _LOOKS * _STEP), dtype=np.int8)
        yield arm, rng.random(arm.shape) < _RATE + uplift * arm


def _scores(arm: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """Return unbiased scores of the difference: AIPW without covariates.

    The mean reward so far is subtracted, which reduces their variance.
    """
    n = np.arange(1, arm.shape[1] + 1)
    before = (0.5 + np.cumsum(reward, axis=1)) / (n + 1)
    before = np.concatenate([np.full((len(arm), 1), 0.5), before[:, :-1]], axis=1)
    return np.where(arm == 1, 2.0, -2.0) * (reward - before)


def _false_alarms(options: Options, tests: int) -> tuple[float, float, float]:
    looks = np.arange(1, _LOOKS + 1) * _STEP - 1
    ours, theirs, bernstein = [], [], []
    for arm, reward in _lanes(options, tests, 0.0, 1):
        scores = _scores(arm, reward)
        found = sequences.asymptotic(scores, best_at=_LOOKS * _STEP // 4)
        ours.append(((found.low > 0) | (found.high < 0)).any(axis=1))
        theirs.append(_z_test(arm, reward, looks).any(axis=1))
        # Scores are between -2 and 2. Each side has half of the error.
        up = sequences.bernstein_lower((scores + 2) / 4, alpha=0.025)
        down = sequences.bernstein_lower((2 - scores) / 4, alpha=0.025)
        bernstein.append(((up > 0.5) | (down > 0.5)).any(axis=1))
    return tuple(100 * float(np.concatenate(alarms).mean()) for alarms in (ours, theirs, bernstein))


def _z_test(arm: np.ndarray, reward: np.ndarray, looks: np.ndarray) -> np.ndarray:
    """Return `[tests, looks]` whether two shares differ at 5 % in a pooled z-test, as on dashboards."""
    rows = np.cumsum(arm, axis=1)[:, looks].astype(np.float64)
    wins = np.cumsum(reward & (arm == 1), axis=1)[:, looks]
    total, all_wins = looks + 1.0, np.cumsum(reward, axis=1)[:, looks]
    pooled = all_wins / total
    error = np.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / (total - rows)))
    return np.abs(wins / rows - (all_wins - wins) / (total - rows)) > _Z * error


def _detection(options: Options, tests: int) -> tuple[float, int]:
    firsts = []
    for arm, reward in _lanes(options, tests, _UPLIFT, 2):
        seen = sequences.asymptotic(_scores(arm, reward), best_at=_LOOKS * _STEP // 4).low > 0
        firsts.append(np.where(seen.any(axis=1), seen.argmax(axis=1) + 1, np.iinfo(np.int64).max))
    first = np.concatenate(firsts)
    decided = float((first < np.iinfo(np.int64).max).mean())
    return 100 * decided, int(np.median(first)) if decided >= 0.5 else 0


def _off_policy(options: Options, regime: str) -> tuple[float, float, int]:
    made, n = design(_RATE, regime), 20_000
    looks = np.arange(1, _LOOKS + 1) * (n // _LOOKS) - 1
    lost, repeated = [], []
    for seed in options.seeds:
        rng = np.random.default_rng([seed, 3])
        for _ in range(2 if options.quick else _LOGS):
            target = sample(made, n, rng)
            pseudo = ope.dr(target).pseudo
            effective = np.cumsum(target.weight) ** 2 / np.maximum(np.cumsum(target.weight**2), 1e-12)
            first = int(np.argmax(effective >= 500)) + 1 if (effective >= 500).any() else n
            found = sequences.asymptotic(pseudo, best_at=n // 2, first=first)
            lost.append(bool(((found.low > made.value) | (found.high < made.value)).any()))
            read = looks[looks >= first - 1]
            mean = np.cumsum(pseudo)[read] / (read + 1)
            spread = np.sqrt(np.cumsum(pseudo**2)[read] / (read + 1) - mean**2)
            repeated.append(bool((np.abs(mean - made.value) > _Z * spread / np.sqrt(read + 1)).any()))
    return 100 * float(np.mean(lost)), 100 * float(np.mean(repeated)), len(lost)


def _bets(options: Options) -> tuple[float, int]:
    made = design(_RATE, "usual")
    lost = []
    for seed in options.seeds:
        rng = np.random.default_rng([seed, 4])
        for _ in range(1 if options.quick else _BETS):
            target = sample(made, 5_000, rng, forward=True)
            found = ope.value_bounds(target)
            lost.append(bool(((found.low > made.value) | (found.high < made.value)).any()))
    return 100 * float(np.mean(lost)), len(lost)
