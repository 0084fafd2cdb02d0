"""Measure Delta CV on simulated adoptions of known value.

::

    python -m loadtests.delta_cv                       # 6 simulators, 200 seeds each
    python -m loadtests.delta_cv --seeds 20 --jobs 2
    python -m loadtests.delta_cv --causalpy 10         # with CausalPy on the first 10 seeds of each
    python -m loadtests.delta_cv --output seeds.jsonl  # continues with the seeds that the file lacks

Each seed has a world of its own: size, tails, noise, season, strength and kind of selection, and share of
adopters are drawn. Measured are, over 12 months: coverage of the 95 % interval, the mean error as a share of
the effect, how often the estimate is flagged as unreliable, and false alarms of the placebo in time in worlds
without effect. Beside them are the naive difference, the difference in differences, matching without
correction, and CausalPy (regression of the adopters' mean on matched units, without MCMC) where its
environment can be installed.

Targets: coverage of 93 to 97 % and a mean error of at most 10 % where the assumptions hold, flagged in at
least 95 % where they do not, and at most 5 % false alarms. `late` has no target, because a cause that
begins shortly before adoption cannot always be seen. Shares have Wilson intervals of 95 %. A target is
settled if the whole interval of the share is within it or outside it; otherwise, other seeds could give the
other result.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from examples.simulators.adoption import EFFECTS, HOLDING, LEADS, Effect, simulate_adoption, varied
from scorer.causal.analysis import analyse
from scorer.causal.matching import match
from scorer.causal.settings import CausalSettings
from scorer.stats.proportions import wilson

HORIZON: Final = 12
COVERAGE: Final = (0.93, 0.97)
MOST_BIAS: Final = 0.10
LEAST_FLAGGED: Final = 0.95
MOST_ALARMS: Final = 0.05
_CONFIDENCE: Final = 0.975
"""One-sided, so that intervals of shares have 95 %."""
_PROGRAM: Final = Path(__file__).with_name("peers") / "programs/causalpy_effect.py"


@dataclass(frozen=True)
class Outcome:
    """What one seed gave."""

    effect: Effect
    seed: int
    truth: float
    mean: float
    low: float
    high: float
    median: float
    naive: float
    differences: float
    plain: float
    unreliable: bool
    alarm: bool
    reasons: tuple[str, ...]
    lead: int

    @property
    def covered(self) -> bool:
        """Whether the interval contains the effect."""
        return self.low <= self.truth <= self.high


@dataclass(frozen=True)
class Share:
    """A share of the seeds with its interval.

    Attributes:
        hits: Number of seeds that count.
        seeds: Number of seeds.
    """

    hits: int
    seeds: int

    @classmethod
    def of(cls, values: Sequence[bool]) -> Share:
        """Return the share of the values that are true."""
        return cls(sum(values), len(values))

    @property
    def value(self) -> float:
        """The share; 0 without seeds."""
        return self.hits / max(self.seeds, 1)

    def settles(self, low: float, high: float) -> bool:
        """Return whether the interval lies wholly within or wholly outside the limits."""
        bounds = wilson(self.hits, self.seeds, _CONFIDENCE)
        inside = low <= bounds.low and bounds.high <= high
        return inside or bounds.high < low or bounds.low > high

    def __str__(self) -> str:
        bounds = wilson(self.hits, self.seeds, _CONFIDENCE)
        return f"{self.value:.1%} of {self.seeds:,} seeds ({bounds.low:.1%} to {bounds.high:.1%})"


def measure(given: tuple[Effect, int]) -> Outcome:
    """Analyse one world."""
    effect, seed = given
    drawn = varied(effect, seed)
    world = simulate_adoption(drawn)
    settings = CausalSettings(seed=seed, features=("transactions",), cohort="all")
    found = analyse(world.panel, settings)
    one = found.effect(HORIZON)
    return Outcome(
        effect=effect,
        seed=seed,
        truth=world.truth[HORIZON],
        mean=one.mean.value,
        low=one.mean.low if one.mean.low is not None else -np.inf,
        high=one.mean.high if one.mean.high is not None else np.inf,
        median=one.median.value,
        naive=one.naive,
        differences=one.differences,
        plain=one.plain_mean,
        unreliable=found.verdict == "unreliable",
        alarm=found.in_time is not None and found.in_time.p_value < settings.placebo_level,
        reasons=tuple(reason.name for reason in found.reasons),
        lead=drawn.lead,
    )


def causalpy(effect: Effect, seeds: Sequence[int], python: Path) -> list[float]:
    """Return CausalPy's estimates from the means of adopters and of matched units; none if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "tables.json"
        place.write_text(json.dumps([_means(effect, seed) for seed in seeds]))
        # One process for all worlds, because most of its time is the start.
        done = subprocess.run(
            [str(python), str(_PROGRAM), str(place)],
            capture_output=True,
            text=True,
            check=False,
            timeout=300 + 30 * len(seeds),
        )
    if done.returncode:
        sys.stderr.write(f"   CausalPy failed: {done.stderr.strip().splitlines()[-1:]}\n")
        return []
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"effect"')]
    return [float(json.loads(line)["effect"]) for line in lines]


def _means(effect: Effect, seed: int) -> dict[str, Any]:
    """Return the mean values by month of adopters with three neighbours, and of these neighbours."""
    panel = simulate_adoption(varied(effect, seed)).panel
    own, donors = [], []
    for month in np.unique(panel.adopted[panel.adopted >= 0]):
        at = int(month)
        if at + HORIZON > len(panel.months):
            continue
        block = match(panel, panel.adopters(at), panel.controls, (at - 12, at), CausalSettings(), month=at)
        window, whole = slice(at - 12, at + HORIZON), block.neighbours[:, 2] >= 0
        own.append(panel.values[block.treated[whole], window])
        nearest = block.neighbours[whole, :3]
        donors.append(np.stack([panel.values[nearest[:, place], window] for place in range(3)], axis=1))
    return {
        "treated": np.concatenate(own).mean(axis=0).tolist(),
        "donors": np.concatenate(donors).mean(axis=0).tolist(),
    }


def summary(found: list[Outcome]) -> dict[str, Any]:
    """Return the figures of one simulator."""
    truth = float(np.mean([one.truth for one in found]))
    scale = truth or 12.0

    def error(values: list[float]) -> float:
        return float(np.mean([value - one.truth for value, one in zip(values, found, strict=True)]) / scale)

    return {
        "seeds": len(found),
        "truth": truth,
        "coverage": Share.of([one.covered for one in found]),
        "bias": error([one.mean for one in found]),
        "median_bias": error([one.median for one in found]),
        "flagged": Share.of([one.unreliable for one in found]),
        "alarms": Share.of([one.alarm for one in found]),
        "naive": error([one.naive for one in found]),
        "differences": error([one.differences for one in found]),
        "plain": error([one.plain for one in found]),
        "reasons": dict(Counter(name for one in found for name in set(one.reasons))),
    }


def main() -> int:
    """Measure, print the table, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="First seed.")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=EFFECTS, action="append")
    parser.add_argument("--causalpy", type=int, default=0, help="Seeds that CausalPy estimates too.")
    parser.add_argument(
        "--output",
        type=Path,
        help="File of the outcomes, one JSON line per seed. Seeds that it has are not measured again.",
    )
    chosen = parser.parse_args()
    python = _causalpy_python() if chosen.causalpy else None
    everything: list[Outcome] = []
    missed = []
    head = (
        "simulator",
        "truth",
        "coverage",
        "error",
        "median",
        "flagged",
        "placebo",
        "naive",
        "DiD",
        "plain",
    )
    sys.stdout.write("  ".join(f"{name:>10}" for name in (*head, "CausalPy")) + "\n")
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for effect in chosen.only or EFFECTS:
            seeds = range(chosen.first, chosen.first + chosen.seeds)
            found = list(_outcomes(pool, effect, seeds, chosen.output))
            everything += found
            one = summary(found)
            peer = "-"
            if python is not None:
                peers = causalpy(effect, seeds[: chosen.causalpy], python)
                errors = [value - outcome.truth for value, outcome in zip(peers, found, strict=False)]
                peer = f"{np.mean(errors) / (one['truth'] or 12.0):+.1%}" if errors else "failed"
            coverage, flagged, alarms = one["coverage"], one["flagged"], one["alarms"]
            cells = [effect, f"{one['truth']:.1f}", f"{coverage.value:.1%}", f"{one['bias']:+.1%}"]
            cells += [f"{one['median_bias']:+.1%}", f"{flagged.value:.1%}", f"{alarms.value:.1%}"]
            cells += [f"{one[name]:+.1%}" for name in ("naive", "differences", "plain")] + [peer]
            sys.stdout.write("  ".join(f"{cell:>10}" for cell in cells) + "\n")
            settled = "settled" if coverage.settles(*COVERAGE) else "not settled"
            shown = f" ({settled})" if effect in HOLDING else ""
            sys.stdout.write(f"{'':>10}  coverage {coverage}{shown}, flagged {flagged}\n")
            sys.stdout.write(f"{'':>10}  flagged for: {one['reasons'] or 'nothing'}\n")
            if effect == "late":
                for lead in LEADS:
                    own = Share.of([seed.unreliable for seed in found if seed.lead == lead])
                    sys.stdout.write(f"{'':>10}  flagged if it begins {lead} months before: {own}\n")
            sys.stdout.flush()
            missed += _missed(effect, one)
    sys.stdout.write("Errors are shares of the effect; without an effect, of 12.0.\n")
    if holding := [one.covered for one in everything if one.effect in HOLDING]:
        sys.stdout.write(f"Coverage where the assumptions hold, together: {Share.of(holding)}\n")
    for line in missed:
        sys.stdout.write(f"MISSED: {line}\n")
    sys.stdout.write("all targets are met\n" if not missed else "")
    return 1 if missed else 0


def _outcomes(
    pool: ProcessPoolExecutor, effect: Effect, seeds: Sequence[int], output: Path | None
) -> Iterator[Outcome]:
    """Measure seeds, apart from those whose outcomes a file has; append the others to it."""
    known = {}
    if output is not None and output.exists():
        for line in output.read_text().splitlines():
            row = json.loads(line)
            known[row["effect"], row["seed"]] = Outcome(**{**row, "reasons": tuple(row["reasons"])})
    lacking = [(effect, seed) for seed in seeds if (effect, seed) not in known]
    for one in pool.map(measure, lacking, chunksize=2):
        known[effect, one.seed] = one
        if output is not None:
            with output.open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")
    return (known[effect, seed] for seed in seeds)


def _missed(effect: Effect, one: dict[str, Any]) -> list[str]:
    lines = []

    def limited(name: str, share: Share, low: float, high: float) -> None:
        if not low <= share.value <= high:
            settled = "settled" if share.settles(low, high) else "not settled"
            lines.append(f"{effect}: {name} {share}, target {low:.0%} to {high:.0%}, {settled}")

    if effect in HOLDING:
        limited("coverage", one["coverage"], *COVERAGE)
        if abs(one["bias"]) > MOST_BIAS:
            lines.append(f"{effect}: mean error {one['bias']:+.1%}, target within {MOST_BIAS:.0%}")
    elif effect != "late":
        limited("flagged", one["flagged"], LEAST_FLAGGED, 1.0)
    if effect == "none":
        limited("false alarms of the placebo in time", one["alarms"], 0.0, MOST_ALARMS)
    return lines


def _causalpy_python() -> Path | None:
    from loadtests.peers.environments import python_of

    try:
        return python_of("causal")
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stdout.write(f"   skipped: CausalPy cannot be installed ({error})\n")
        return None


if __name__ == "__main__":
    sys.exit(main())
