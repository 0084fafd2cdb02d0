"""Coverage and width of the default interval and of Open Bandit Pipeline's SNIPW interval, on the same logs.

The package bootstraps `r w / mean(w)` with the mean of the whole log, which loses the stability of the ratio.
The normal approximation of its interval is computed on every log. Its own function runs on the first log of
each cell and shows the error of the approximation.
"""

from __future__ import annotations

import math

import numpy as np

from loadtests.figures import Figures
from loadtests.learning import obp
from loadtests.learning.designs import EXPLORATION, RATES, SIZES, Design, design, sample
from loadtests.learning.options import Options
from scorer.learn import ope

_COMMAND = "make bench-learning ARGS=intervals"
# Logs per seed, rate, size and regime: as many as four minutes on one core allow.
_LOGS = {1_000: 50, 5_000: 30, 50_000: 22}
_RESAMPLES = {1_000: 10_000, 5_000: 10_000, 50_000: 1_000}
_Z = 1.959963984540054


def run(figures: Figures, options: Options) -> None:
    """Add two figures per rate and size. The regimes are pooled, and shown separately in the note."""
    for rate in RATES:
        for n in SIZES[:1] if options.quick else SIZES:
            cells = {regime: _cell(design(rate, regime), n, options) for regime in EXPLORATION}
            coverage = {name: 100 * float(cell["covered"].mean()) for name, cell in cells.items()}
            logs = len(cells["usual"]["covered"])
            theirs = 100 * float(np.mean([cell["theirs covered"].mean() for cell in cells.values()]))
            figures.add(
                name=f"rate {rate:g}, {n:,} rows: coverage's distance from 95 %, worst regime",
                ours=max(abs(percent - 95) for percent in coverage.values()),
                unit="points",
                target=2.0,
                command=_COMMAND,
                note=", ".join(f"{name} {percent:.1f} %" for name, percent in coverage.items())
                + f", of {logs:,} logs each (± {196 * math.sqrt(0.95 * 0.05 / logs):.1f} by chance); "
                f"OBP's rule {theirs:.1f} %",
            )
            widths = {
                key: float(np.mean([cell[key] for cell in cells.values()])) for key in ("width", "theirs")
            }
            figures.add(
                name=f"rate {rate:g}, {n:,} rows: width of the interval",
                ours=widths["width"],
                unit="of 1",
                peer="OBP's SNIPW interval",
                theirs=widths["theirs"],
                target=3.0 if rate >= 0.9 else None,
                command=_COMMAND,
                note="OBP over the narrowest that any regular estimator could have: "
                + ", ".join(f"{name} {cell['bound']:.2f}" for name, cell in cells.items())
                + "; "
                + _own(cells),
            )


def _cell(made: Design, n: int, options: Options) -> dict[str, np.ndarray | float | None]:
    covered, widths, theirs, theirs_covered, own = [], [], [], [], None
    for seed in options.seeds:
        rng = np.random.default_rng([seed, n])
        for _ in range(2 if options.quick else _LOGS[n]):
            target = sample(made, n, rng)
            found = ope.dr(target)
            covered.append(found.low <= made.value <= found.high)
            widths.append(found.width)
            rounds = target.weight * target.logged.reward / target.weight.mean()
            half = _Z * float(rounds.std()) / math.sqrt(n)
            theirs.append(2 * half)
            theirs_covered.append(abs(float(rounds.mean()) - made.value) <= half)
            if own is None and not options.quick and obp.load() is not None:
                own = _their_width(target, _RESAMPLES[n]) / (2 * half)
    return {
        "covered": np.array(covered),
        "width": float(np.mean(widths)),
        "theirs": float(np.mean(theirs)),
        "theirs covered": np.array(theirs_covered),
        "own": own,
        "bound": float(np.mean(theirs)) / (2 * _Z * math.sqrt(made.least_variance() / n)),
    }


def _their_width(target: ope.Target, resamples: int) -> float:
    """Return the width of the interval that the package's own function computes."""
    estimator = obp.load().ope.SelfNormalizedInverseProbabilityWeighting()
    found = estimator.estimate_interval(
        reward=target.logged.reward,
        action=target.logged.action,
        action_dist=target.pmf[:, :, None],
        pscore=target.logged.propensity,
        n_bootstrap_samples=resamples,
        random_state=12345,
    )
    return float(found["95.0% CI (upper)"] - found["95.0% CI (lower)"])


def _own(cells: dict[str, dict]) -> str:
    own = [cell["own"] for cell in cells.values() if cell["own"] is not None]
    if not own:
        return "OBP by the normal approximation of its rule, as it is not installed"
    return (
        "OBP by the normal approximation of its rule; "
        f"its own function gives {min(own):.2f} to {max(own):.2f} of that"
    )
