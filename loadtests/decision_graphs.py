"""The graph of `loadtests.graph`: bundles with transforms, forests, rules and a policy, and payments.

Everything is drawn from fixed seeds, so that each run measures the same graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scorer.bundle import Feature
    from scorer.bundle.models import TransformStep
    from scorer.bundle.rules import BundleRules

Rows = npt.NDArray[np.float32]

FRAUD: Final = "fraud.checkout"
ACTION: Final = "action.authorise"
PASSED: Final = "fraud_score"
SAMPLES: Final = 20_000
CONDITIONS: Final = 5
FACTORS: Final = (4, 4, 8, 2)
"""Number of values of each factor of an action; 256 actions in total."""
COUNTRIES: Final = ("NL", "DE", "FR", "BE", "ES", "IT", "PT", "AT", "PL", "SE", "DK", "FI")
CHANNELS: Final = ("web", "app", "moto", "terminal")
_AMOUNTS, _COUNTS, _NUMBERS = 8, 8, 6
_SALT: Final = "00112233445566778899aabbccddeeff"
_MISSING: Final = 0.05


@dataclass(frozen=True)
class Sizes:
    """Sizes of a graph.

    Attributes:
        trees: Trees of each of the two forests.
        depth: Their depth.
        rules: Number of rules.
    """

    trees: int = 200
    depth: int = 6
    rules: int = 100


@dataclass(frozen=True)
class Graph:
    """A graph as two bundles.

    Attributes:
        words: What it consists of.
        bundles: The directory of each bundle, by its checkpoint; a request runs them in this order.
        rows: For each bundle the rows of the requests ``[n, features]``.
    """

    words: str
    bundles: dict[str, Path]
    rows: list[Rows]


def decide_graph(folder: Path, sizes: Sizes) -> Graph:
    """Build the graph of one `Decide` request: a score with transforms and rules, then a policy.

    Args:
        folder: Where the bundles are written.
        sizes: The sizes.
    """
    rows, names = payments(), [feature.name for feature in payment_features()]
    scores = _score_bundle(folder / "fraud", rows, sizes)
    # The server passes the score on. Alone, the action bundle is measured with the scores of these rows.
    context = np.column_stack([rows, scores]).astype(np.float32)
    own = [*payment_features(), _number(PASSED)]
    _action_bundle(folder / "action", own, context, sizes)
    words = (
        f"a Decide request with {len(names)} features: {len(payment_steps())} transforms, a forest of "
        f"{sizes.trees} trees of depth {sizes.depth} over {len(names) + _added(payment_steps())} columns, "
        f"isotonic calibration, {sizes.rules} rules of {CONDITIONS} conditions, bands; then a forest of "
        f"{sizes.trees} trees of depth {sizes.depth} over {len(own) + len(FACTORS)} columns and SquareCB on "
        f"{_actions()} actions"
    )
    bundles = {FRAUD: folder / "fraud", ACTION: folder / "action"}
    return Graph(words, bundles, [rows[:512], context[:512]])


def payment_features() -> list[Feature]:
    """Return the features of a payment."""
    from scorer.bundle import Feature

    return [
        *(Feature(name=f"amount_{at}", minimum=0.0) for at in range(_AMOUNTS)),
        *(Feature(name=f"count_{at}", minimum=0.0) for at in range(_COUNTS)),
        *(_number(f"number_{at}") for at in range(_NUMBERS)),
        # A date needs bounds. These are those of the rows with some space.
        Feature(name="at", minimum=1_780_000_000.0, maximum=1_800_000_000.0),
        Feature(name="country", type="category", categories=list(COUNTRIES)),
        Feature(name="channel", type="category", categories=list(CHANNELS)),
        Feature(name="stored", type="flag"),
        Feature(name="known", type="flag"),
    ]


def payments() -> Rows:
    """Return payments ``[SAMPLES, features]`` in the order of `payment_features`, with missing numbers."""
    random = np.random.default_rng(5)
    columns = [
        random.lognormal(3.5, 1.2, (SAMPLES, _AMOUNTS)),
        random.poisson(2.0, (SAMPLES, _COUNTS)),
        np.where(
            random.random((SAMPLES, _NUMBERS)) < _MISSING, np.nan, random.normal(size=(SAMPLES, _NUMBERS))
        ),
        random.integers(1_790_000_000, 1_797_000_000, (SAMPLES, 1)),
        random.integers(0, len(COUNTRIES), (SAMPLES, 1)),
        random.integers(0, len(CHANNELS), (SAMPLES, 1)),
        random.integers(0, 2, (SAMPLES, 2)),
    ]
    return np.ascontiguousarray(np.hstack(columns), dtype=np.float32)


def payment_steps() -> list[TransformStep]:
    """Return 20 transforms of all kinds; 14 of them add a column."""
    from scorer.bundle import (
        Arithmetic,
        Bucket,
        Clip,
        DatePart,
        FeatureRatio,
        Log1p,
        MissingFlag,
        Standardise,
        TableLookup,
    )

    edges = [5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0]
    return [
        Clip(feature="amount_0", high=5000.0),
        Clip(feature="amount_1", high=5000.0),
        FeatureRatio(left="amount_0", right="amount_1", zero="missing", output="to_mean"),
        FeatureRatio(left="count_0", right="count_1", zero=0.0, output="to_day"),
        Arithmetic(function="multiply", left="amount_0", right="count_0", output="spent"),
        Arithmetic(function="subtract", left="amount_2", right="amount_3", output="change"),
        Arithmetic(function="add", left="count_2", right="count_3", output="attempts"),
        Bucket(feature="amount_0", edges=edges, output="amount_class"),
        Bucket(feature="amount_4", edges=edges, output="limit_class"),
        MissingFlag(feature="number_0", output="number_0_unknown"),
        MissingFlag(feature="number_1", output="number_1_unknown"),
        TableLookup(feature="country", table="risk", output="country_risk"),
        TableLookup(feature="channel", table="channel_risk", output="channel_risk"),
        DatePart(feature="at", part="hour", output="hour"),
        DatePart(feature="at", part="weekday", output="weekday"),
        Log1p(feature="amount_5", output="log_amount"),
        Log1p(feature="amount_6"),
        Log1p(feature="count_4"),
        Standardise(feature="number_2", mean=0.1, scale=1.1),
        Standardise(feature="number_3", mean=-0.2, scale=0.9),
    ]


def payment_rules(count: int) -> BundleRules:
    """Return rules on a payment and its score, of which about one in 30 fires.

    Args:
        count: Number of rules.
    """
    from scorer.bundle.rules import BundleRules

    effects = ('reason = "R{0}"', 'reason = "R{0}"\nqueue = "level_2"', 'reason = "R{0}"\nfloor = 0.3')
    random, rows = np.random.default_rng(7), payments()
    names = [feature.name for feature in payment_features() if feature.type == "number"]
    columns = {feature.name: at for at, feature in enumerate(payment_features())}
    text = 'name = "measured"\ndecisions = ["decline", "review", "approve"]\n'
    for number in range(count):
        # Each of these holds for about half of the payments.
        parts = [
            f"{name} {random.choice(['<', '>'])} {np.nanmedian(rows[:, columns[name]]):.6f}"
            for name in random.choice(names, CONDITIONS - 1, replace=False).tolist()
        ]
        country = COUNTRIES[number % len(COUNTRIES)]
        parts.append(f"score > 0.0{number % 9 + 1}" if number % 2 else f'country != "{country}"')
        effect = effects[number % len(effects)].format(number)
        text += f"\n[[rules]]\nid = \"rule_{number}\"\nwhen = '{' && '.join(parts)}'\n{effect}\n"
    return BundleRules(text)


def _score_bundle(target: Path, rows: Rows, sizes: Sizes) -> npt.NDArray[np.float64]:
    """Build the bundle of the score, and return its scores of the rows."""
    from scorer.bundle import (
        Band,
        CategoryTable,
        HeldOut,
        Lineage,
        SchemaFile,
        build_score_bundle,
        transform,
        verify,
    )

    features, steps = payment_features(), payment_steps()
    tables = {
        "risk": CategoryTable(values=dict(zip(COUNTRIES, np.linspace(0.01, 0.2, 12).tolist(), strict=True))),
        "channel_risk": CategoryTable(values={"web": 0.1, "moto": 0.2}, default=0.05),
    }
    labels = _labels(rows, np.random.default_rng(8))
    fitted, held = slice(0, 15_000), slice(15_000, None)
    build_score_bundle(
        target,
        name="fraud-checkout",
        model=_train(transform(features, steps, rows[fitted], tables), labels[fitted], sizes),
        schema=SchemaFile(features=features),
        bands=[
            Band(start=start, label=label)
            for label, start in (("approve", 0.0), ("review", 0.5), ("decline", 0.95))
        ],
        training=rows[:4000],
        validation=rows[held],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="measured", run_id="fraud"),
        calibration=HeldOut(rows[held], labels[held]),
        steps=steps,
        tables=tables,
        rules=payment_rules(sizes.rules),
        golden_cases=256,
    )
    return np.asarray(verify(target).score(rows).scores, np.float64)


def _action_bundle(target: Path, features: list[Feature], rows: Rows, sizes: Sizes) -> None:
    from scorer.bundle import Action, Lineage, PolicySpec, SchemaFile, build_action_bundle

    random = np.random.default_rng(9)
    catalogue = np.stack(np.unravel_index(np.arange(_actions()), FACTORS), axis=1)
    taken = random.integers(0, _actions(), len(rows))
    odds = catalogue[taken] @ np.array([0.2, -0.3, 0.1, 0.5]) * (1 + np.nan_to_num(rows[:, 16]))
    own = [_number(f"f{at}") for at in range(len(FACTORS))]
    build_action_bundle(
        target,
        name="action-authorise",
        model=_train(
            np.hstack([rows, catalogue[taken]]).astype(np.float32), _labels(rows, random, odds), sizes
        ),
        schema=SchemaFile(features=features, action_features=own),
        actions=[
            Action(
                id="|".join(f"f{at}={value}" for at, value in enumerate(values)),
                factors={f"f{at}": str(value) for at, value in enumerate(values)},
                features=[float(value) for value in values],
            )
            for values in catalogue.tolist()
        ],
        policy=PolicySpec(rule="squarecb", gamma=50.0, floor=0.0005, salt=_SALT),
        training=rows[:1000],
        validation=rows[1000:1500],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="measured", run_id="action"),
        golden_cases=256,
    )


def _labels(
    rows: Rows, random: np.random.Generator, more: npt.NDArray[np.float64] | float = 0.0
) -> npt.NDArray[np.int64]:
    """Draw outcomes that depend on single features and on pairs."""
    known = np.nan_to_num(rows.astype(np.float64))
    odds = (
        np.log1p(known[:, 0]) - 4.0 + known[:, 16] * known[:, 17] + np.sin(3 * known[:, 18]) + known[:, 8] / 4
    )
    return (random.random(len(rows)) < 1 / (1 + np.exp(-odds - more))).astype(np.int64)


def _train(rows: Rows, labels: npt.NDArray[np.int64], sizes: Sizes) -> Any:
    import xgboost

    settings = {
        "objective": "binary:logistic",
        "max_depth": sizes.depth,
        # With these, late trees reach their full depth, as they would with more data.
        "eta": 0.02,
        "min_child_weight": 0.2,
        "subsample": 0.3,
        "nthread": 1,
        "seed": 1,
    }
    return xgboost.train(settings, xgboost.QuantileDMatrix(rows, labels), sizes.trees)


def _added(steps: list[TransformStep]) -> int:
    from scorer.bundle import added_columns

    return len(added_columns(steps))


def _actions() -> int:
    return int(np.prod(FACTORS))


def _number(name: str) -> Feature:
    from scorer.bundle import Feature

    return Feature(name=name)
