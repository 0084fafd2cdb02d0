"""Compare our evaluator of many actions for one context with peers that score one row per action.

All get the same contexts and actions, return probabilities and take turns (race.py). The peers' rows, one per
action, are created before the measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtests.engine import models, native, rivals
from loadtests.engine.forests import BLOCKS, OURS, beside, smoked, xgboost_commands
from loadtests.engine.models import FEATURES, Rows, Spec
from loadtests.engine.race import Call, Lap, Program, PythonCalls, Racer, race, running
from loadtests.figures import Figures
from loadtests.options import Options
from scorer import Forest

COMMAND: Final = "make bench ARGS=engine"
SPEC: Final = Spec(500, 6, actions=True)
CONTEXTS: Final = 16
CONTEXT: Final = FEATURES - len(models.FACTORS)
LEAST: Final = {
    "avx512": {"XGBoost C API": 150.0, "ONNX Runtime C API": 110.0},
    "avx2": {"XGBoost C API": 60.0},
}
SIZES: Final = (16, 64, 256, 1024)


@dataclass(frozen=True)
class Field:
    """The oracle, our forest of it and the Python calls of the peers."""

    model: Any
    forest: Forest
    peers: Mapping[str, rivals.Predict]


def catalogue(actions: int) -> Rows:
    """Return the features of a number of actions, each a combination of the factors."""
    every = np.array(list(product(*map(range, models.FACTORS))), dtype=np.float32)
    chosen = np.random.default_rng(2).permutation(len(every))[:actions]
    return np.ascontiguousarray(every[np.sort(chosen)])


def enter(spec: Spec) -> Field:
    """Train the oracle and check the peers.

    Raises:
        RuntimeError: Our margins differ from XGBoost's, or a peer evaluates another model.
    """
    model = models.booster(spec)
    forest = Forest.from_xgboost(model)
    peers = {"Treelite GTIL": rivals.treelite(model), "oneDAL (daal4py)": rivals.daal4py(model)}
    rows, _ = models.sample(spec)
    if not np.array_equal(forest.predict(rows, margin=True).reshape(-1), rivals.xgboost_margins(model, rows)):
        raise RuntimeError("the oracle's margins differ from XGBoost's; fix the engine before measuring it")
    rivals.check(peers, rows[:64], forest.predict(rows[:64]), spec.words)
    return Field(model, forest, peers)


def contexts_of(spec: Spec) -> Rows:
    """Return the contexts, the same for ours and all peers. Their action features are missing."""
    rows = models.sample(spec)[0][:CONTEXTS].copy()
    rows[:, CONTEXT:] = np.nan
    return np.ascontiguousarray(rows)


def exploded(spec: Spec, actions: int) -> list[Rows]:
    """Return a row per action for each context, as peers need them."""
    features = catalogue(actions)
    return [
        np.ascontiguousarray(np.hstack([np.repeat(context[None, :CONTEXT], actions, axis=0), features]))
        for context in contexts_of(spec)
    ]


@contextmanager
def native_racers(field: Field, spec: Spec, actions: int) -> Iterator[dict[str, Program]]:
    """Run the programs and check that each gives the same probabilities as ours."""
    packed = native.kept("oracle.bin", field.forest.to_bytes())
    contexts = native.kept("contexts.f32", contexts_of(spec).tobytes())
    features = native.kept(f"catalogue-{actions}.f32", catalogue(actions).tobytes())
    blocks = exploded(spec, actions)
    rows = native.kept(f"exploded-{actions}.f32", np.vstack(blocks).tobytes())
    ours: list[str | Path] = [native.program("turns"), "--forest", packed, "--rows", contexts]
    ours += ["--catalogue", features, "--context", str(CONTEXT)]
    commands: dict[str, list[str | Path]] = {OURS: ours}
    if "avx512" in native.isa_names(packed, contexts):
        commands[f"{OURS}, AVX2 alone"] = [*ours, "--isa", "avx2"]
    commands |= xgboost_commands(field.model, "oracle", rows, str(FEATURES), actions, categorical=False)
    with ExitStack() as opened:
        programs = {
            name: opened.enter_context(running(command, CONTEXTS)) for name, command in commands.items()
        }
        expected = field.forest.predict(np.vstack(blocks))
        answers = {name: lambda _, program=program: program.answers() for name, program in programs.items()}
        rivals.check(answers, np.vstack(blocks), expected, spec.words)
        yield programs


def run(figures: Figures, options: Options) -> None:
    """Compare 256 actions with the peers, also with AVX2 only, and vary the numbers of actions."""
    spec = smoked(SPEC) if options.smoke else SPEC
    field = enter(spec)
    seconds = 0.1 if options.smoke else 6.0 if options.quick else 20.0
    with native_racers(field, spec, 256) as programs:
        isa = str(programs[OURS].about["isa"]).lower()
        racers: dict[str, Racer] = dict(programs)
        if not options.quick:
            blocks = exploded(spec, 256)
            for name, predict in field.peers.items():
                calls = [lambda predict=predict, rows=rows: predict(rows) for rows in blocks]
                racers[name] = PythonCalls(calls)
            for name, call in ({} if options.smoke else vowpal_wabbit(catalogue(256))).items():
                racers[name] = PythonCalls([call] * CONTEXTS)
        laps = race(racers, seconds=seconds, blocks=3 if options.smoke else BLOCKS)
    name = f"{spec.words}, 256 actions, native"
    narrow = laps.pop(f"{OURS}, AVX2 alone", None)
    least = LEAST.get(isa, {})
    for peer, lap in laps.items():
        native_peer = peer in programs
        if peer == OURS or not options.wants(f"{name} | {peer}"):
            continue
        figure_name = name if native_peer else f"{name} beside Python"
        beside(figures, figure_name, laps[OURS], peer, lap, least.get(peer) if native_peer else None)
        if narrow and peer in LEAST["avx2"]:
            beside(figures, f"{name}, AVX2 alone", narrow, peer, lap, LEAST["avx2"][peer])
    _proportions(field, figures, options)
    if not options.quick:
        _curve(figures, field, spec, options)


def _proportions(field: Field, figures: Figures, options: Options) -> None:
    """Compare times of our evaluator: with more actions, and with fewer eligible ones."""
    packed = native.kept("oracle.bin", field.forest.to_bytes())

    def ours(actions: int, share: float = 1.0) -> float:
        rows = native.kept(f"catalogue-{actions}.f32", catalogue(actions).tobytes())
        found = native.measured(
            "actions_cost", "--forest", packed, "--context", CONTEXT, "--rows", rows, "--share", share,
            "--repeat", 200 if options.smoke else 4000,
        )  # fmt: skip
        return float(found["median_ns"])

    turns = 2 if options.smoke else 5 if options.quick else 9
    for what, most, actions, share in (
        ("time of 1,024 actions, that of 256 being 1", 3.0, 1024, 1.0),
        ("time with one action in ten eligible, that with all being 1", 1.05, 256, 0.1),
    ):
        name = f"{SPEC.words}, {what}"
        if options.wants(name):
            values = [ours(actions, share) / ours(256) for _ in range(turns)]
            figures.add(name=name, ours=values, unit="×", target=most, command=COMMAND)


def _curve(figures: Figures, field: Field, spec: Spec, options: Options) -> None:
    for actions in SIZES[:2] if options.smoke else SIZES:
        with native_racers(field, spec, actions) as programs:
            laps: dict[str, Lap] = race(programs, seconds=0.1 if options.smoke else 4.0, blocks=3)
        for peer, lap in laps.items():
            if not peer.startswith(OURS):
                figures.add(
                    name="one context, many actions", ours=laps[OURS].scaled(1e6), unit="µs", peer=peer,
                    theirs=lap.scaled(1e6), command=COMMAND, plot="actions", x=actions,
                )  # fmt: skip


def vowpal_wabbit(features: Rows) -> dict[str, Call]:
    """Return calls of SquareCB on a linear model of the same contexts and actions, with a short training."""
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
