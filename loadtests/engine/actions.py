"""One context, hundreds of actions: our evaluator beside peers that score one row per action."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np

from loadtests.engine import models, native, rivals
from loadtests.engine.models import FEATURES, Rows, Spec
from loadtests.engine.race import Call, Lap, race
from loadtests.figures import Figures
from loadtests.options import Options
from scorer import Forest

COMMAND: Final = "make bench ARGS=engine"
SPEC: Final = Spec(500, 6, actions=True)
# Contexts that the peers answer for; ours draws its own, as many as there are in `Lap`s.
CONTEXTS: Final = 4
LEAST: Final = {"avx512": {"XGBoost": 150.0, "ONNX Runtime": 110.0}, "avx2": {"XGBoost": 60.0}}
SIZES: Final = (16, 64, 256, 1024)


@dataclass(frozen=True)
class Field:
    """The oracle, its packed file, and its peers."""

    forest: Forest
    packed: str
    peers: Mapping[str, rivals.Predict]


def catalogue(actions: int) -> Rows:
    """The features of so many actions; every one of them a combination of the factors."""
    every = np.array(list(product(*map(range, models.FACTORS))), dtype=np.float32)
    chosen = np.random.default_rng(2).permutation(len(every))[:actions]
    return np.ascontiguousarray(every[np.sort(chosen)])


def enter(*, quick: bool) -> Field:
    """Trains the oracle and checks the peers.

    Raises:
        RuntimeError: Somebody answers for another model.
    """
    model = models.booster(SPEC)
    forest = Forest.from_xgboost(model)
    peers = {"XGBoost": rivals.xgboost(model), "ONNX Runtime": rivals.onnxruntime(model)}
    if not quick:
        peers["Treelite GTIL"] = rivals.treelite(model)
    rows, _ = models.sample(SPEC)
    if not np.array_equal(forest.predict(rows, margin=True).reshape(-1), rivals.xgboost_margins(model, rows)):
        raise RuntimeError("the oracle's margins differ from XGBoost's; fix the engine before measuring it")
    rivals.check(peers, rows[:64], forest.predict(rows[:64]), SPEC.words)
    return Field(forest, str(native.kept("oracle.bin", forest.to_bytes())), peers)


def ours(
    field: Field, actions: int, *, isa: str = "", share: float = 1.0, check: bool = False
) -> dict[str, Any]:
    """What the evaluator needs; `check` also compares its margins with a walk per action, bit by bit.

    Raises:
        RuntimeError: They differ.
    """
    rows = native.kept(f"catalogue-{actions}.f32", catalogue(actions).tobytes())
    more = (["--isa", isa] if isa else []) + (["--compare"] if check else [])
    found = native.measured(
        "actions_cost", "--forest", field.packed, "--context", FEATURES - len(models.FACTORS),
        "--rows", rows, "--share", share, "--repeat", 4000, *more,
    )  # fmt: skip
    if not found.get("equal", True):
        raise RuntimeError(f"{actions} actions: margins differ from those of single rows")
    return found


def theirs(
    field: Field, actions: int, seconds: float, extra: Mapping[str, Call] | None = None
) -> dict[str, Lap]:
    """What peers need for as many rows, exploded beforehand: making them is not counted."""
    contexts = models.sample(SPEC)[0][:CONTEXTS, : FEATURES - len(models.FACTORS)]
    features = catalogue(actions)
    exploded = [
        np.ascontiguousarray(np.hstack([np.repeat(context[None], actions, axis=0), features]))
        for context in contexts
    ]
    calls: dict[str, list[Call]] = {
        name: [lambda predict=predict, rows=rows: predict(rows) for rows in exploded]
        for name, predict in field.peers.items()
    }
    calls |= {name: [call] * CONTEXTS for name, call in (extra or {}).items()}
    return race(calls, seconds=seconds, clock=time.process_time_ns)


def run(figures: Figures, options: Options) -> None:
    """256 actions beside the peers; fewer vector instructions, more actions, fewer eligible."""
    field = enter(quick=options.quick)
    turns, seconds = (3, 1.5) if options.quick else (4, 4.0)
    extra: dict[str, Call] = {} if options.quick else vowpal_wabbit(catalogue(256))
    checked = ours(field, 256, check=True)
    best, laps = native.in_turns(lambda: ours(field, 256), lambda: theirs(field, 256, seconds, extra), turns)
    isa = str(best["isa"]).lower()
    _beside(figures, options, f"{SPEC.words}, 256 actions × one context", best, laps, LEAST.get(isa, {}))
    if isa == "avx512":
        name = f"{SPEC.words}, 256 actions × one context, AVX2 alone"
        slower = _best(lambda: ours(field, 256, isa="avx2"), turns)
        _beside(figures, options, name, slower, {"XGBoost": laps["XGBoost"]}, LEAST["avx2"])
    _proportion(
        figures, options, "time of 1,024 actions, that of 256 being 1", 3.0,
        lambda: ours(field, 1024), lambda: ours(field, 256), turns,
    )  # fmt: skip
    _proportion(
        figures, options, "time with one action in ten eligible, that with all being 1", 1.05,
        lambda: ours(field, 256, share=0.1), lambda: ours(field, 256), turns,
    )  # fmt: skip
    if not options.quick:
        by_row = "one row per action"
        _beside(
            figures, options, f"{SPEC.words}, 256 actions × one context, our own evaluators", best,
            {by_row: Lap(checked["rows_min_ns"] / 1e9, checked["rows_median_ns"] / 1e9)}, {},
        )  # fmt: skip
        _curve(figures, field)


def vowpal_wabbit(features: Rows) -> dict[str, Call]:
    """SquareCB over a linear model of the same context and actions, a little trained."""
    import vowpalwabbit as vw

    random = np.random.default_rng(3)
    learner = vw.Workspace("--cb_explore_adf --squarecb --gamma_scale 500 -q CA --quiet --random_seed 1")
    contexts = models.sample(SPEC)[0][:200, : FEATURES - len(models.FACTORS)]

    def described(context: Rows, chosen: int | None = None) -> list[str]:
        shared = " ".join(f"c{i}:{value:.4f}" for i, value in enumerate(context) if not np.isnan(value))
        lines = [f"shared |C {shared}"]
        for number, action in enumerate(features):
            label = f"0:{-float(random.random() < 0.7)}:{1 / len(features)} " if number == chosen else ""
            lines.append(label + "|A " + " ".join(f"f{i}={value:.0f}" for i, value in enumerate(action)))
        return lines

    for context in contexts:
        learner.learn(described(context, int(random.integers(len(features)))))
    text = described(contexts[0])
    parsed = learner.parse(text)
    if len(learner.predict(text)) != len(features):
        raise RuntimeError("Vowpal Wabbit answered for another catalogue")
    return {
        "Vowpal Wabbit SquareCB (linear model, parsed before)": lambda: learner.predict(parsed),
        "Vowpal Wabbit SquareCB (linear model, from text)": lambda: learner.predict(text),
    }


def _beside(
    figures: Figures,
    options: Options,
    name: str,
    best: dict[str, Any],
    laps: dict[str, Lap],
    least: dict[str, float],
) -> None:
    for peer, lap in laps.items():
        if options.wants(f"{name} | {peer}"):
            figures.add(
                name=name, ours=best["median_ns"] / 1e3, unit="µs", peer=peer, theirs=lap.best * 1e6,
                target=least.get(peer), command=COMMAND,
            )  # fmt: skip


def _proportion(
    figures: Figures,
    options: Options,
    what: str,
    most: float,
    one: Callable[[], dict[str, Any]],
    other: Callable[[], dict[str, Any]],
    turns: int,
) -> None:
    name = f"{SPEC.words}, {what}"
    if not options.wants(name):
        return
    pairs = [(one()["median_ns"], other()["median_ns"]) for _ in range(turns + 2)]
    figures.add(
        name=name,
        ours=min(above for above, _ in pairs) / min(below for _, below in pairs),
        unit="×",
        target=most,
        command=COMMAND,
    )


def _best(measure: Callable[[], dict[str, Any]], turns: int) -> dict[str, Any]:
    return min((measure() for _ in range(turns)), key=lambda line: line["median_ns"])


def _curve(figures: Figures, field: Field) -> None:
    for actions in SIZES:
        best, laps = native.in_turns(
            lambda actions=actions: ours(field, actions),
            lambda actions=actions: theirs(field, actions, 1.5),
            2,
        )
        for peer, lap in laps.items():
            figures.add(
                name="one context, many actions", ours=best["median_ns"] / 1e3, unit="µs", peer=peer,
                theirs=lap.best * 1e6, command=COMMAND, plot="actions", x=actions,
            )  # fmt: skip
