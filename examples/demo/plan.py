"""The demo's sizes and files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from examples.simulators.transactions import TransactionPlan

HANDBOOK = "handbook_transactions_2018-04_to_08.parquet"
ROUTING = "psp_routing_2019-01.csv"


@dataclass(frozen=True)
class DemoPlan:
    """Sizes of one run.

    Attributes:
        simulated: transactions to simulate where none are given.
        trees: boosting rounds of the first models.
        depth: of their trees.
        first_log: logged payments that train version 1 of the action model.
        second_log: logged payments that train version 2.
        payments: payments sent through the server, at least.
        most_batch_rows: test transactions scored in batches, at most.
        routing_replay: attempts of the routing log replayed, at most.
        threads: client threads.
        block: payments that a thread handles at a time.
        swap_at: share of the payments after which the aliases move.
        swap_seconds: time limit in seconds for the new bundles to answer.
        training_traffic: payments that each generation adds to the training data.
        evaluation_traffic: payments that each generation is judged on.
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
        """The sizes of `make demo`."""
        return DemoPlan(simulated=TransactionPlan(days=77))

    @staticmethod
    def quick() -> DemoPlan:
        """Every step on small data, for tests."""
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
        routing: CSV file of routed attempts; None: leave that part out.
        output: folder of everything that the demo writes.
    """

    transactions: Path | None
    routing: Path | None
    output: Path

    @property
    def registry(self) -> Path:
        """The demo's own registry."""
        return self.output / "registry"

    @property
    def bundles(self) -> Path:
        """Bundles as they were built."""
        return self.output / "bundles"

    @property
    def decisions(self) -> Path:
        """The decision log."""
        return self.output / "decisions"

    @property
    def exported(self) -> Path:
        """The decisions as a Parquet file."""
        return self.output / "decisions.parquet"

    @property
    def settings(self) -> Path:
        """The server's settings file."""
        return self.output / "scorer.toml"

    @property
    def server_log(self) -> Path:
        """The server's events."""
        return self.output / "server.log"

    @property
    def platform_settings(self) -> Path:
        """The platform's settings file."""
        return self.output / "platform.toml"

    @property
    def learning(self) -> Path:
        """A folder per generation: training data, evaluation data, candidate, verdict."""
        return self.output / "learning"

    @property
    def learn_settings(self) -> Path:
        """The settings of learning."""
        return self.output / "learn.toml"

    @property
    def summary(self) -> Path:
        """Every figure of the run as JSON."""
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
"""Names in the output folder that a run replaces; every other file there is left alone."""


def project_root() -> Path:
    """The repository that this package is in."""
    return Path(__file__).resolve().parents[2]


def default_input(name: str) -> Path | None:
    """A data file beside the repository, if it is there."""
    path = project_root().parent / "shared" / "data" / name
    return path if path.is_file() else None
