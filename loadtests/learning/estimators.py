"""Our estimators and Open Bandit Pipeline's on identical inputs, and its published digits table."""

from __future__ import annotations

import sys

import numpy as np

from loadtests.figures import Figures
from loadtests.learning import digits, obp
from loadtests.learning.options import Options

_COMMAND = "make bench-learning ARGS=estimators"
# The estimators by their settings in `obp.estimates`.
_SEVEN = {
    "IPW": ("ipw", "ipw-clipped"),
    "SNIPW": ("snipw",),
    "DM": ("dm",),
    "DR": ("dr",),
    "SNDR": ("sndr",),
    "Switch-DR": tuple(f"switch-dr-{value:g}" for value in obp.LAMBDAS),
    "DRos": tuple(f"dr-os-{value:g}" for value in obp.LAMBDAS),
    "MIPS": ("mips",),
    "SLOPE's choice of Switch-DR and DRos": ("switch-dr-slope", "dr-os-slope"),
}


def run(figures: Figures, options: Options) -> None:
    """Compare the estimators on identical inputs, then with the published table."""
    _parity(figures, options)
    _digits(figures, options)


def _parity(figures: Figures, options: Options) -> None:
    shapes = [(1_000, 5), (5_000, 20)] if options.quick else [(1_000, 5), (5_000, 20), (20_000, 50)]
    worst: dict[str, float] = {}
    logs = 0
    for seed in options.seeds[:5]:
        for n, actions in shapes:
            given = obp.inputs(seed, n, actions)
            theirs = obp.reference(given)
            if theirs is None:
                sys.stdout.write(
                    f"   skipped: obp {obp.VERSION} is not installed (make learning-peers); "
                    "tests/parity/test_ope_obp.py compares with stored numbers\n"
                )
                return
            ours = obp.ours(given)
            logs += 1
            for name, value in theirs.items():
                worst[name] = max(worst.get(name, 0.0), abs(ours[name] - value))
    for name, settings in _SEVEN.items():
        figures.add(
            name=f"{name}: largest difference to Open Bandit Pipeline on identical inputs",
            ours=max(worst[setting] for setting in settings),
            unit="absolute",
            target=1e-9,
            command=_COMMAND,
            note=f"{logs} logs of 1,000 to {shapes[-1][0]:,} rows; obp {obp.VERSION} itself"
            + ("" if len(settings) == 1 else f"; {len(settings)} settings"),
        )


def _digits(figures: Figures, options: Options) -> None:
    runs = 3 if options.quick else digits.RUNS
    errors = [digits.relative_errors(run) for run in range(runs)]
    for name, (mean, spread) in digits.PUBLISHED.items():
        ours = np.array([error[name] for error in errors])
        figures.add(
            name=f"digits, {name}: distance to the published relative error, in its standard deviations",
            ours=abs(float(ours.mean()) - mean) / spread,
            unit="sd",
            target=1.0,
            command=_COMMAND,
            note=f"ours {ours.mean():.4f} ({ours.std(ddof=1):.4f}), published {mean:.4f} ({spread:.4f}); "
            f"{runs} runs",
        )
