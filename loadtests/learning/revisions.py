"""Time to make the next revision of a bundle, and from its directory to the first answer by it.

It is compared with a bundle that has new forests, as from weekly retraining, on the same server.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np

from loadtests.engine.actions import catalogue
from loadtests.engine.models import FACTORS, FEATURES, Spec, booster, sample
from loadtests.figures import Figures
from loadtests.learning.options import Options

COMMAND: Final = "make bench-learning ARGS=revisions"
CHECKPOINT: Final = "action.authorise"
ORACLE: Final = Spec(500, 6, actions=True)
ACTIONS: Final = 256
SEGMENTS: Final = 50
TURNS: Final = 15
CONTEXT: Final = FEATURES - len(FACTORS)
# An overlay is fitted every few minutes, so its bundle must take only a small part of that time.
TARGET_MS: Final = 1000.0


def run(figures: Figures, options: Options) -> None:
    """Make revisions of revisions, then load them one after the other, then bundles with new forests."""
    turns = 2 if options.quick else TURNS
    with tempfile.TemporaryDirectory(prefix="revisions-") as scratch:
        base = Path(scratch)
        live = _built(base / "live", 0)
        others = [_built(base / f"other-{turn}", 1 + turn) for turn in range(turns)]
        revised, making, last = [], [], live
        for turn in range(turns):
            began = time.perf_counter()
            last = _revised(last, base / f"revised-{turn}", options.seeds[0] + turn)
            making.append(1e3 * (time.perf_counter() - began))
            revised.append(last)
        loading = _Serving(live).loading(revised, others)
    what = f"{ORACLE.words}, {ACTIONS} actions, {SEGMENTS} segments"
    figures.add(
        name=f"revision: fitted overlay to verified bundle, {what}",
        ours=float(np.median(making)),
        unit="ms",
        target=TARGET_MS,
        command=COMMAND,
        note=f"slowest of {turns}: {max(making):.0f} ms",
    )
    of_revision, of_bundle = ({name: _median(lap, name) for name in lap[0]} for lap in loading)
    figures.add(
        name=f"revision: from its directory to the first answer, {what}",
        ours=of_revision["total"],
        unit="ms",
        peer="a bundle with new forests",
        theirs=of_bundle["total"],
        command=COMMAND,
        note=f"assemble {of_revision['assemble_ms']:.1f} ms against {of_bundle['assemble_ms']:.1f}, warm-up "
        f"{of_revision['warm_up_ms']:.0f} against {of_bundle['warm_up_ms']:.0f}",
    )


def _median(lap: list[dict[str, float]], name: str) -> float:
    return float(np.median([one[name] for one in lap]))


class _Serving:
    """The data plane in this process."""

    def __init__(self, live: Path) -> None:
        self._live = live
        self._version = 0

    def loading(self, *kinds: list[Path]) -> tuple[list[dict[str, float]], ...]:
        """Load each bundle of each kind in turn. Return the milliseconds by stage of every bundle."""
        from scorer import bridge
        from scorer.v1.scoring_pb2_grpc import ScoringServiceStub

        settings = {
            "listen": "127.0.0.1:0",
            "threads": 1,
            "checkpoints": {CHECKPOINT: {"kind": "action", "p99_ms": 1000.0, "warmup_max_ratio": 100.0}},
        }
        server = bridge.Server(json.dumps(settings))
        (address,) = json.loads(server.addresses())["grpc"]
        try:
            with grpc.insecure_channel(address) as channel:
                ask = self._asking(ScoringServiceStub(channel))
                # A revision is loaded after the bundle that it was made from.
                self._bring(server, self._live, ask)
                return tuple([self._bring(server, path, ask) for path in paths] for paths in kinds)
        finally:
            server.drain(5.0)

    def _bring(self, server: Any, path: Path, ask: Callable[[], str]) -> dict[str, float]:
        from scorer.bundle import read_manifest

        digest = read_manifest(path).digest
        lanes = [{"name": "live", "bundle": digest, "share": 1.0}]
        self._version += 1
        began = time.perf_counter()
        report = json.loads(server.load(str(path), digest, json.dumps({"checkpoint": CHECKPOINT})))
        server.swap(json.dumps({"version": self._version, "checkpoints": {CHECKPOINT: lanes}}))
        answered = ask()
        total = 1e3 * (time.perf_counter() - began)
        if answered != digest:
            raise RuntimeError(f"{answered} answered, {digest} was swapped in")
        return report["stages"] | {"total": total}

    @staticmethod
    def _asking(stub: Any) -> Callable[[], str]:
        from scorer.v1 import scoring_pb2 as pb

        request = pb.SelectActionRequest(
            checkpoint=CHECKPOINT,
            named=pb.NamedFeatures(
                features=[pb.Feature(name=f"f{i}", number=0.5) for i in range(CONTEXT - 1)]
            ),
        )
        return lambda: str(stub.SelectAction(request, timeout=20, wait_for_ready=True).served.bundle)


def _built(path: Path, variant: int) -> Path:
    """Build an oracle's bundle. Variants differ only in their base score, so that no two share a forest."""
    import xgboost

    from scorer.bundle import Action, Feature, Lineage, PolicySpec, SchemaFile, build_action_bundle

    document = json.loads(bytes(booster(ORACLE).save_raw("json")))
    document["learner"]["learner_model_param"]["base_score"] = f"[{0.4 + 0.01 * variant:.2f}]"
    model = xgboost.Booster({"nthread": 1}, model_file=bytearray(json.dumps(document).encode()))
    data = sample(ORACLE)[0][:2000, :CONTEXT]
    # The last context column is the segment.
    data[:, -1] = np.random.default_rng(variant).integers(0, SEGMENTS, len(data))
    names = [f"f{i}" for i in range(FEATURES)]
    categories = [f"s{i}" for i in range(SEGMENTS)]
    build_action_bundle(
        path,
        name="authorise",
        model=model,
        schema=SchemaFile(
            features=[
                *(Feature(name=name) for name in names[: CONTEXT - 1]),
                Feature(name="segment", type="category", categories=categories),
            ],
            action_features=[Feature(name=name) for name in names[CONTEXT:]],
        ),
        actions=[
            Action(
                id="|".join(f"{at}={value:.0f}" for at, value in enumerate(row)),
                factors={f"factor-{at}": f"{value:.0f}" for at, value in enumerate(row)},
                features=row.tolist(),
            )
            for row in catalogue(ACTIONS)
        ],
        policy=PolicySpec(rule="squarecb", gamma=200, floor=0.02, salt="0" * 32),
        training=data[:1000],
        validation=data[1000:],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="bench"),
    )
    return path


def _revised(live: Path, path: Path, seed: int) -> Path:
    from scorer.bundle import OverlaySpec, revise

    random = np.random.default_rng(seed)

    def offsets() -> dict[str, dict[str, float]]:
        return {
            f"factor-{at}": {str(level): float(random.normal()) for level in range(count)}
            for at, count in enumerate(FACTORS)
        }

    segments = {f"s{i}": offsets() for i in range(SEGMENTS)}
    overlay = OverlaySpec(segment="segment", everywhere=offsets(), segments=segments)
    return revise(live, path, overlay=overlay).path
