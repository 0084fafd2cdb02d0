"""Sizes and files of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from examples.simulators.transactions import TransactionPlan


@dataclass(frozen=True)
class DemoPlan:
    """Sizes of one run.

    Attributes:
        simulated: sizes of the simulation if no transactions are given.
        trees: boosting rounds of the first models.
        depth: depth of their trees.
        first_log: logged payments that train version 1 of the action model.
        second_log: logged payments that train version 2.
        payments: smallest number of payments sent to the server.
        most_batch_rows: largest number of test transactions scored in batches.
        routing_replay: largest number of replayed attempts of the routing log.
        threads: client threads.
        block: payments that a thread handles at a time.
        swap_at: share of the payments after which the aliases change.
        swap_seconds: time limit in seconds for the new bundles to answer.
        training_traffic: payments that each generation adds to the training data.
        evaluation_traffic: payments on which the gate of each generation is evaluated.
        candidate_trees: boosting rounds of a generation.
        margin: largest accepted loss of a candidate against the live policy, as a rate.
        shadow_minutes: length of the TEST in minutes.
        shadow_rate: payments per second during the TEST.
    """

    simulated: TransactionPlan
    trees: int = 500
    depth: int = 6
    first_log: int = 20_000
    second_log: int = 60_000
    payments: int = 12_000
    most_batch_rows: int = 100_000
    routing_replay: int = 25_000
    threads: int = 4
    block: int = 32
    swap_at: float = 0.5
    swap_seconds: float = 30.0
    training_traffic: int = 6_000
    evaluation_traffic: int = 6_000
    candidate_trees: int = 300
    margin: float = 0.02
    shadow_minutes: float = 1.0
    shadow_rate: float = 200.0

    @staticmethod
    def normal() -> DemoPlan:
        """Return the sizes of `make demo`."""
        return DemoPlan(simulated=TransactionPlan(days=77))

    @staticmethod
    def quick() -> DemoPlan:
        """Return small sizes, for tests of every step."""
        return DemoPlan(
            simulated=TransactionPlan(customers=1_200, terminals=4_000, days=45),
            trees=60,
            depth=5,
            first_log=4_000,
            second_log=8_000,
            payments=1_200,
            most_batch_rows=5_000,
            routing_replay=1_500,
            training_traffic=600,
            evaluation_traffic=1_000,
            candidate_trees=40,
            shadow_minutes=0.15,
        )


@dataclass(frozen=True)
class Paths:
    """Files that the demo reads and writes.

    Attributes:
        transactions: Parquet file of transactions; None: simulate them.
        routing: CSV file of routed attempts; None: skip that part.
        output: directory for all files of the demo.
    """

    transactions: Path | None
    routing: Path | None
    output: Path

    @property
    def registry(self) -> Path:
        """Registry of the demo."""
        return self.output / "registry"

    @property
    def bundles(self) -> Path:
        """Directory of the built bundles."""
        return self.output / "bundles"

    @property
    def decisions(self) -> Path:
        """Directory of the decision log."""
        return self.output / "decisions"

    @property
    def exported(self) -> Path:
        """Parquet file of the exported decisions."""
        return self.output / "decisions.parquet"

    @property
    def settings(self) -> Path:
        """Settings file of the server."""
        return self.output / "scorer.toml"

    @property
    def server_log(self) -> Path:
        """File with the events of the server."""
        return self.output / "server.log"

    @property
    def platform_settings(self) -> Path:
        """Settings file of the platform."""
        return self.output / "platform.toml"

    @property
    def learning(self) -> Path:
        """Directory of the generations, each with its data, candidate and verdict."""
        return self.output / "learning"

    @property
    def learn_settings(self) -> Path:
        """Settings file of learning."""
        return self.output / "learn.toml"

    @property
    def summary(self) -> Path:
        """JSON file with all figures of the run."""
        return self.output / "summary.json"


WRITTEN = (
    "registry",
    "bundles",
    "decisions",
    "state",
    "learning",
    "platform",
    "fraud-v3",
    "scorer.toml",
    "learn.toml",
    "platform.toml",
    "server.log",
    "platform.log",
    "readout.html",
    "learning.html",
    "learning-pages",
    "up-scorer.toml",
    "up-platform.toml",
    "summary.json",
    "traceback.txt",
    "decisions.parquet",
)
"""Names in the output directory that a run replaces. Other files there are not changed."""


def project_root() -> Path:
    """Return the root directory of the repository."""
    return Path(__file__).resolve().parents[2]
