"""Two generations of learning on the running server, by the commands of `scorer learn`.

For each generation, training traffic is served and logged, the log is joined with its outcomes, and a
candidate is trained on everything known so far. Then evaluation traffic is served; it is not used for
training, and the gate compares the candidate with the live bundle on it. The verdict decides which bundle is
served next.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from examples.demo.errors import DemoError
from examples.demo.models import Trained
from examples.demo.output import Output
from examples.demo.plan import DemoPlan, Paths
from examples.demo.process import ServerProcess, run_command, run_quietly
from examples.demo.publish import EXPONENTS
from examples.demo.traffic import AUTHORISE, Traffic
from examples.simulators.task import authorise_task
from scorer.control import client as control
from scorer.learn import experience_files
from scorer.learn.experience import concatenate
from scorer.registry import Registry
from scorer.v1 import control_pb2 as pb

GENERATIONS = 2


@dataclass(frozen=True)
class Learned:
    """One generation.

    Attributes:
        number: number of the generation, from 1.
        trained_on: number of settled training decisions.
        auc: AUC of the candidate, out of fold.
        decision: the gate's verdict: promote, mix or wait.
        share: the candidate's share of the traffic if the verdict is to mix.
        value: estimated authorisation rate of the candidate.
        live_value: estimated authorisation rate of the live bundle.
        difference: estimated difference of both rates.
        low: lower bound of its 95 % interval; None: it has none.
        high: upper bound.
        judged: number of payments of the evaluation traffic.
        reasons: reasons of the gate.
        live: digest of the live bundle afterwards.
    """

    number: int
    trained_on: int
    auc: float
    decision: str
    share: float
    value: float
    live_value: float
    difference: float
    low: float | None
    high: float | None
    judged: int
    reasons: tuple[str, ...]
    live: str

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of summary.json."""
        return asdict(self)


class Learning:
    """Runs the learning loop on the demo's server.

    Args:
        paths: files of the run.
        plan: sizes of the run.
        registry: registry that the server follows.
        server: running server.
        trained: first models, with the log that trained them.
        output: destination of the printed lines.
    """

    def __init__(
        self,
        paths: Paths,
        plan: DemoPlan,
        registry: Registry,
        server: ServerProcess,
        trained: Trained,
        output: Output,
    ) -> None:
        self._paths, self._plan = paths, plan
        self._registry, self._server = registry, server
        self._output = output
        self._alias = f"{authorise_task().name}@live"
        self._config = ("--config", str(paths.learn_settings))
        write_settings(paths.learn_settings, plan)
        # The baseline's log is older than every decision of the server.
        self._before = trained.experience(time.time_ns() // 1_000_000)

    def run(self, traffic: Callable[[int], Traffic]) -> list[Learned]:
        """Run every generation, then write the report over all of them.

        Args:
            traffic: returns the payments of part `i`, from 0. Each generation has two parts.

        Raises:
            DemoError: a command failed or the server ended.
        """
        learned = [self._generation(number, traffic) for number in range(GENERATIONS)]
        page = self._paths.output / "learning.html"
        run_quietly("learn", "report", str(self._paths.learning), "--output", str(page))
        return learned

    def _generation(self, number: int, traffic: Callable[[int], Traffic]) -> Learned:
        name = f"generation-{number + 1}"
        folder = self._paths.learning / name
        folder.mkdir(parents=True)
        live = Path(self._registry.show(self._alias).path)
        training, judging = folder / "training.parquet", folder / "experience.parquet"
        self._serve(traffic(2 * number), "training traffic")
        self._join(training)
        experience = concatenate([self._before, experience_files.read(training)])
        experience_files.write(experience, training, experience_files.read_notes(training))
        with self._output.busy(f"training candidate {number + 1}"):
            candidate = self._learn(
                *("train", str(training), "--task", str(live), "--output", str(folder / "candidate")),
                *("--run-id", f"demo-{name}", *self._config),
            )
        judged = self._serve(traffic(2 * number + 1), "evaluation traffic")
        self._join(judging)
        verdict = folder / "verdict"
        with self._output.busy("comparing the candidate with the live bundle"):
            evidence = self._learn(
                *("gate", str(judging), "--candidate", str(folder / "candidate"), "--live", str(live)),
                *("--output", str(verdict), *self._config),
            )
        published = self._learn(
            *("publish", str(verdict), "--experience", str(judging), "--by", "demo"),
            *("--registry", str(self._paths.registry), "--alias", self._alias),
        )
        self._output.line(f"[bold]{_headline(verdict)}[/]")
        if published["decision"] == "promote":
            self._until_live(published["digest"])
        elif published["decision"] == "mix":
            lanes = [f"{alias.partition('@')[2]}={alias}:{share:g}" for alias, share in published["lanes"]]
            run_quietly("lanes", AUTHORISE, *lanes, "--address", self._server.control, "--reason", "the gate")
        difference = evidence["difference"]
        return Learned(
            number=number + 1,
            trained_on=int(candidate["decisions"]["settled"]),
            auc=float(candidate["out_of_fold"]["auc"]),
            decision=str(evidence["decision"]),
            share=float(evidence["share"]),
            value=float(evidence["value"]["value"]),
            live_value=float(evidence["live_value"]["value"]),
            difference=float(difference["value"]),
            low=difference["low"],
            high=difference["high"],
            judged=judged,
            reasons=tuple(evidence["reasons"]),
            live=self._registry.resolve(self._alias).digest,
        )

    def _serve(self, traffic: Traffic, what: str) -> int:
        wanted = len(traffic.contexts)
        with self._output.progress(what, wanted) as reach:
            traffic.start()
            try:
                while not traffic.finished:
                    traffic.check()
                    if not self._server.running:
                        raise DemoError(f"the server ended: {self._server.last_problem or 'no reason given'}")
                    reach(traffic.done)
                    # Progress is polled; nothing depends on the length of this pause.
                    time.sleep(0.02)
            finally:
                traffic.stop()
        rate = float(traffic.answers.authorised[: traffic.done].mean())
        self._output.line(f"{what}: {traffic.done:,} payments, {rate:.1%} authorised")
        return traffic.done

    def _join(self, file: Path) -> None:
        paths = self._paths
        self._learn(
            *("join", "--log", str(paths.decisions), "--registry", str(paths.registry)),
            *("--checkpoint", AUTHORISE, "--output", str(file), *self._config),
        )

    def _learn(self, *words: str) -> dict[str, Any]:
        return run_command("learn", *words)

    def _until_live(self, digest: str) -> None:
        """Wait until the server has followed the alias."""
        deadline = time.monotonic() + self._plan.swap_seconds
        with control.connected(self._server.control) as stub:
            while True:
                listed = control.call(stub.ListLanes, pb.ListLanesRequest(), self._server.control)
                if digest in {lane.bundle for one in listed.checkpoints for lane in one.lanes}:
                    return
                if time.monotonic() > deadline:
                    problem = self._server.last_problem or "the server gave no reason"
                    raise DemoError(
                        f"{digest[:19]} is not served after {self._plan.swap_seconds:g} s: {problem}"
                    )
                time.sleep(0.02)


def _headline(verdict: Path) -> str:
    evidence = json.loads((verdict / "verdict.json").read_text(encoding="utf-8"))["evidence"]
    difference = evidence["difference"]
    low, high = (
        "none" if difference[end] is None else f"{100 * difference[end]:+.2f}" for end in ("low", "high")
    )
    return (
        f"{evidence['decision']}: the candidate's estimated difference to the live policy is"
        f" {100 * difference['value']:+.2f} points (95 % interval {low} to {high})"
    )


def write_settings(path: Path, plan: DemoPlan) -> None:
    """Write learn.toml, so that every step can be repeated manually."""
    lines = [
        "# Written by the demo; `scorer learn config` prints every key.",
        "[train]",
        f"trees = {plan.candidate_trees}",
        f"depth = {plan.depth}",
        "threads = 2",
        "compare = false",
        "",
        "[train.policy]",
        f"exponent = {EXPONENTS[-1]}",
        "",
        "[gate]",
        f"margin = {plan.margin}",
        f"min_rows = {plan.evaluation_traffic // 2}",
        'segments = ["country"]',
        "",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
