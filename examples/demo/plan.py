"""How large a demo is, and where its input and output are."""

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
        simulated: what to simulate where no transactions are given.
        trees: boosting rounds of both models.
        depth: of their trees.
        first_log: logged payments that teach the first oracle.
        second_log: logged payments that teach the second.
        payments: replayed through the server, at least.
        most_batch_rows: test transactions scored in batches, at most.
        routing_replay: attempts of the routing log replayed, at most.
        threads: that send requests.
        block: payments that one thread handles at a time.
        swap_at: share of the payments after which the aliases move.
        swap_seconds: for how long the new bundles are waited for.
        learned: payments that each generation learns from, besides all before it.
        judged: payments that judge each generation.
        candidate_trees: boosting rounds of what is learned.
        margin: how much worse than the live policy a candidate may be at worst, as a rate.
        shadow_minutes: how long the shipped model is in the shadow.
        shadow_rate: payments per second meanwhile.
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
    learned: int = 6_000
    judged: int = 6_000
    candidate_trees: int = 300
    margin: float = 0.02
    shadow_minutes: float = 1.0
    shadow_rate: float = 200.0

    @staticmethod
    def full() -> DemoPlan:
        """What `make demo` runs."""
        return DemoPlan(simulated=TransactionPlan(days=77))

    @staticmethod
    def quick() -> DemoPlan:
        """Everything once, small: for tests."""
        return DemoPlan(
            simulated=TransactionPlan(customers=1_200, terminals=4_000, days=45),
            trees=60,
            depth=5,
            first_log=4_000,
            second_log=8_000,
            payments=1_200,
            most_batch_rows=5_000,
            routing_replay=1_500,
            learned=600,
            judged=1_000,
            candidate_trees=40,
            shadow_minutes=0.15,
        )


@dataclass(frozen=True)
class Places:
    """Files read and written.

    Attributes:
        transactions: Parquet file; None: simulate.
        routing: CSV file; None: leave that part out.
        output: folder for everything that the demo writes.
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
        """Where bundles are built."""
        return self.output / "bundles"

    @property
    def decisions(self) -> Path:
        """The decision log."""
        return self.output / "decisions"

    @property
    def settings(self) -> Path:
        """The server's settings file."""
        return self.output / "scorer.toml"

    @property
    def platform_settings(self) -> Path:
        """The platform's settings file."""
        return self.output / "platform.toml"

    @property
    def learning(self) -> Path:
        """A folder for each generation: what taught it, what judged it, the verdict."""
        return self.output / "learning"

    @property
    def learn_settings(self) -> Path:
        """The settings of learning."""
        return self.output / "learn.toml"


def project_root() -> Path:
    """The repository that this package is in."""
    return Path(__file__).resolve().parents[2]


def default_input(name: str) -> Path | None:
    """A data file beside the repository, if it is there."""
    path = project_root().parent / "shared" / "data" / name
    return path if path.is_file() else None
