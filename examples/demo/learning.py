"""Two generations of learning on the running server: its own log in, a judged bundle out.

For each generation payments are served and logged, the log is joined with its
outcomes, a candidate is trained on everything known so far, more payments are
served, and those, which taught nobody, judge the candidate against what is
live. The gate's verdict decides what is served next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.errors import DemoError
from examples.demo.models import Trained
from examples.demo.narrate import Narrator
from examples.demo.plan import DemoPlan, Places
from examples.demo.process import ServerProcess
from examples.demo.publish import EXPONENTS
from examples.demo.traffic import AUTHORISE, Traffic
from examples.simulators.task import authorise_task
from scorer.control import client as control
from scorer.durable import write_atomically
from scorer.learn import experience_files, settings
from scorer.learn.bundles import build_candidate
from scorer.learn.experience import Experience, concatenate
from scorer.learn.gate.judge import judge
from scorer.learn.gate.publish import publish
from scorer.learn.gate.verdict import Verdict
from scorer.learn.gate.write import write_verdict
from scorer.learn.join.joining import join
from scorer.learn.report.history import history_page, read_runs
from scorer.learn.training import Generation, fit
from scorer.learn.training import Trained as Candidate
from scorer.log import BundleShelf
from scorer.registry import Registry
from scorer.v1 import control_pb2 as pb

GENERATIONS = 2


@dataclass(frozen=True)
class Learned:
    """One generation.

    Attributes:
        number: from 1.
        trained: the candidate.
        verdict: what the gate decided.
        digest: what is live after it.
        judged: payments that judged.
    """

    number: int
    trained: Candidate
    verdict: Verdict
    digest: str
    judged: int

    def as_dict(self) -> dict[str, Any]:
        """For summary.json."""
        evidence = self.verdict.evidence
        return {
            "number": self.number,
            "settled": int(self.trained.metrics["rows"]),
            "auc": self.trained.metrics["auc"],
            "tau": self.trained.weights.tau,
            "decision": evidence.decision,
            "share": evidence.share,
            "difference": evidence.difference.model_dump(),
            "value": evidence.value.model_dump(),
            "live_value": evidence.live_value.model_dump(),
            "judged": self.judged,
            "reasons": list(evidence.reasons),
            "live": self.digest,
        }


class Learning:
    """Turns the loop on the demo's server."""

    def __init__(
        self,
        places: Places,
        plan: DemoPlan,
        registry: Registry,
        server: ServerProcess,
        trained: Trained,
        narrator: Narrator,
    ) -> None:
        self._places, self._plan = places, plan
        self._registry, self._server = registry, server
        self._narrator = narrator
        self._task = authorise_task()
        self._alias = f"{self._task.name}@live"
        self._settings = settings.parse(write_settings(places.learn_settings, plan))
        # The baseline's log is older than anything that the server decided.
        self._before = trained.experience(time.time_ns() // 1_000_000)

    def run(self, traffic: Callable[[int], Traffic]) -> list[Learned]:
        """Every generation, then the report over all of them.

        Args:
            traffic: makes the payments of part `i`, from 0; two parts are served per generation.
        """
        places = self._places
        found = [self._generation(number, traffic) for number in range(GENERATIONS)]
        page = history_page(read_runs(places.learning))
        write_atomically(places.output / "learning.html", page.encode())
        return found

    def _generation(self, number: int, traffic: Callable[[int], Traffic]) -> Learned:
        name = f"generation-{number + 1}"
        folder = self._places.learning / name
        folder.mkdir(parents=True)
        live = Path(self._registry.show(self._alias).path)
        self._serve(traffic(2 * number), "to learn from")
        logged, notes = self._join()
        training = concatenate([self._before, logged])
        experience_files.write(training, folder / "training.parquet", notes)
        with self._narrator.busy(f"candidate {number + 1} trained on {len(training):,} decisions"):
            trained = fit(self._task, training, self._settings.train, Generation.of_bundle(live), notes=notes)
            candidate = build_candidate(trained, folder / "candidate", f"demo-{name}")
        self._say_training(trained)
        judged = self._serve(traffic(2 * number + 1), "to judge it")
        experience, notes = self._join()
        file = folder / "experience.parquet"
        experience_files.write(experience, file, notes)
        verdict = self._judge(file, candidate.path, live, folder / "verdict")
        done = publish(folder / "verdict", self._registry, self._alias, experience=file, by="demo")
        if done.decision == "promote":
            self._until_live(done.digest)
        elif done.decision == "mix":
            self._set_lanes(done.lanes, verdict.headline)
        return Learned(number + 1, trained, verdict, self._registry.resolve(self._alias).digest, judged)

    def _serve(self, traffic: Traffic, what: str) -> int:
        wanted = len(traffic.contexts)
        with self._narrator.progress(f"payments {what}", wanted) as bar:
            traffic.start()
            try:
                while not traffic.finished:
                    traffic.check()
                    if not self._server.running:
                        raise DemoError(f"the server died: {self._server.last_problem or 'no reason given'}")
                    bar.reach(traffic.done)
                    # Progress is looked at, not waited on: nothing depends on how long this is.
                    time.sleep(0.02)
            finally:
                traffic.stop()
            bar.reach(traffic.done)
        rate = float(traffic.answers.authorised[: traffic.done].mean())
        self._narrator.say(f"{traffic.done:,} payments served {what}: {rate:.1%} authorised")
        return traffic.done

    def _join(self) -> tuple[Experience, dict[str, Any]]:
        section = self._settings.join
        joined = join(
            self._places.decisions,
            BundleShelf([self._places.registry]),
            section,
            as_of_ms=time.time_ns() // 1_000_000,
            checkpoint=AUTHORISE,
        )
        return joined.experience, joined.notes(section)

    def _judge(self, experience: Path, candidate: Path, live: Path, output: Path) -> Verdict:
        logged = experience_files.read(experience)
        with self._narrator.busy("judged against what is live"):
            verdict = judge(
                logged,
                candidate,
                live,
                self._settings.gate,
                self._settings.guardrails,
                experience_digest=logged.digest(),
            )
            verdict = write_verdict(verdict, candidate, output)
        self._narrator.say(f"[bold]{verdict.headline}[/]")
        for check in verdict.evidence.checks:
            if not check.passed:
                self._narrator.say(f"  not met: {check.says}")
        return verdict

    def _say_training(self, trained: Candidate) -> None:
        metrics = trained.metrics
        self._narrator.say(
            f"  out of fold: AUC {metrics['auc']:.3f} · log loss {metrics['log_loss']:.3f}"
            f" · weights min(p^-{trained.weights.tau:g}, {trained.weights.clip:g})"
        )

    def _until_live(self, digest: str) -> None:
        """Until the server has followed the alias."""
        deadline = time.monotonic() + self._plan.swap_seconds
        with control.connected(self._server.control) as stub:
            while True:
                found = control.call(stub.ListLanes, pb.ListLanesRequest(), self._server.control)
                served = {lane.bundle for one in found.checkpoints for lane in one.lanes}
                if digest in served:
                    return
                if time.monotonic() > deadline:
                    problem = self._server.last_problem or "the server gave no reason"
                    raise DemoError(
                        f"{digest[:19]} is not served after {self._plan.swap_seconds:g} s: {problem}"
                    )
                time.sleep(0.02)

    def _set_lanes(self, lanes: tuple[tuple[str, float], ...], reason: str) -> None:
        wanted = pb.SetLanesRequest(
            checkpoint=AUTHORISE,
            lanes=[
                pb.Lane(name=alias.partition("@")[2], bundle=alias, share=share) for alias, share in lanes
            ],
            reason=reason,
        )
        with control.connected(self._server.control) as stub:
            control.call(stub.SetLanes, wanted, self._server.control)


def write_settings(path: Path, plan: DemoPlan) -> str:
    """Writes the learn.toml of the demo, so that its steps can be repeated by hand."""
    text = "\n".join(
        [
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
            f"min_rows = {plan.judged // 2}",
            'segments = ["country"]',
            "",
        ]
    )
    write_atomically(path, text.encode())
    return text
