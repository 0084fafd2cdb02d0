"""The demo, step by step."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.client import Client
from scorer.control import client as control
from scorer.demo import present
from scorer.demo.errors import DemoError
from scorer.demo.judge import Findings, judge
from scorer.demo.models import (
    ROUTING_TRAINING,
    Trained,
    log_payments,
    train_frauds,
    train_oracles,
    train_routing,
)
from scorer.demo.narrate import Narrator
from scorer.demo.plan import DemoPlan, Places
from scorer.demo.process import ServerProcess, run_command
from scorer.demo.replay import ROUTE, Batch, RoutingReplay, Swap, drive, replay_routing, score_in_batches
from scorer.demo.results import routing_value
from scorer.demo.traffic import AUTHORISE, FRAUD, Traffic
from scorer.errors import ScorerError
from scorer.learn.bundles import Built, build_fraud, build_oracle, near_greedy
from scorer.learn.features import features
from scorer.learn.fraud import fraud_columns, test_rows
from scorer.learn.oracle import Oracle
from scorer.learn.routing import RoutingLog, read_routing
from scorer.learn.transactions import Transactions, read_transactions
from scorer.registry import Registry
from scorer.simulate.payments import Payments, contexts
from scorer.simulate.transactions import simulate_transactions
from scorer.v1 import control_pb2 as pb

# What each version explores: the first knows little, so it tries more.
EPSILONS = (0.05, 0.02)


@dataclass(frozen=True)
class Data:
    """The demo's input.

    Attributes:
        source: where the transactions come from, for people.
        transactions: all of them.
        rows: their features.
        routing: the real routing log, if there is one.
    """

    source: str
    transactions: Transactions
    rows: npt.NDArray[np.float32]
    routing: RoutingLog | None


@dataclass(frozen=True)
class Published:
    """Bundles in the registry: version one and two of what is swapped, and the routing bundle."""

    fraud: tuple[Built, Built]
    oracle: tuple[Built, Built]
    routing: Built | None

    def names(self) -> dict[str, str]:
        """Digest to a name for people."""
        named = {
            self.fraud[0].digest: "fraud v1",
            self.fraud[1].digest: "fraud v2",
            self.oracle[0].digest: "action v1",
            self.oracle[1].digest: "action v2",
        }
        return named | ({self.routing.digest: "route v1"} if self.routing else {})


def run_demo(places: Places, plan: DemoPlan, seed: int, narrator: Narrator | None = None) -> dict[str, Any]:
    """Runs everything and returns the summary.

    Raises:
        DemoError: a step failed; the message has the step and one line of why.
    """
    narrator = narrator or Narrator()
    _fresh_output(places.output)
    try:
        return _Demo(places, plan, seed, narrator).run()
    except ScorerError as error:
        raise DemoError(f"{narrator.step_name}: {error}") from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise DemoError(f"{narrator.step_name}: {where}{error.strerror or error}") from error
    except Exception as error:
        trace = places.output / "traceback.txt"
        trace.write_text(traceback.format_exc(), encoding="utf-8")
        first = (str(error).splitlines() or [""])[0]
        raise DemoError(
            f"{narrator.step_name}: {type(error).__name__}: {first}; the traceback is in {trace}"
        ) from error


class _Demo:
    def __init__(self, places: Places, plan: DemoPlan, seed: int, narrator: Narrator) -> None:
        self._places = places
        self._plan = plan
        self._seed = seed
        self._narrator = narrator
        self._world = Payments()
        # Request ids of two runs must not meet, should they ever share a log.
        self._run_id = f"demo{seed}"
        self._summary: dict[str, Any] = {"seed": seed}

    def run(self) -> dict[str, Any]:
        began = time.perf_counter()
        narrator = self._narrator
        with narrator.step("Data and features"):
            data = self._data()
        with narrator.step("Train two versions of a fraud model and of an action oracle"):
            trained = self._train(data)
        with narrator.step("Build bundles, push them, point the aliases to version 1"):
            registry = Registry(self._places.registry)
            published = self._publish(trained, registry)
        with ExitStack() as running:
            with narrator.step("Start the server"):
                self._write_settings(published)
                server = running.enter_context(
                    ServerProcess(self._places.settings, self._places.output / "server.log")
                )
                client = running.enter_context(Client(server.address))
                self._show_start(server)
            findings = self._replay(data, trained, published, registry, server, client)
            with narrator.step("What came out"):
                self._summary |= findings.summary()
                present.show(narrator, findings)
            with narrator.step("Stop the server"):
                code = server.stop()
                if code != 0:
                    raise DemoError(f"the server ended with code {code}: {server.last_problem}")
                narrator.say("drained, log sealed, exit code 0")
        with narrator.step("Check the decision log"):
            self._check_log()
        self._summary["steps_s"] = narrator.seconds
        self._summary["total_s"] = round(time.perf_counter() - began, 1)
        present.write_report(self._places.output / "report.html", findings, self._summary)
        (self._places.output / "summary.json").write_text(
            json.dumps(self._summary, indent=2) + "\n", encoding="utf-8"
        )
        present.where_next(narrator, self._places, self._summary)
        return self._summary

    def _data(self) -> Data:
        narrator, places = self._narrator, self._places
        if places.transactions is None:
            plan = self._plan.simulated
            with narrator.busy(
                f"simulated {plan.customers:,} customers, {plan.terminals:,} terminals, {plan.days} days"
            ):
                transactions = simulate_transactions(plan, self._seed)
            source = "simulated by this project"
        else:
            with narrator.busy(f"read {places.transactions}"):
                transactions = read_transactions(places.transactions)
            source = places.transactions.name
        fraud = float(transactions.fraud.mean())
        narrator.say(
            f"{len(transactions):,} transactions, {transactions.date(0)} to"
            f" {transactions.date(transactions.days - 1)}, {fraud:.2%} fraud"
        )
        with narrator.busy("15 features per transaction"):
            rows = features(transactions)
        routing = None
        if places.routing is not None:
            routing = read_routing(places.routing)
            narrator.say(
                f"{len(routing):,} payment attempts over {len(routing.providers)} providers from"
                f" {places.routing.name}, {routing.success.mean():.1%} successful"
            )
        self._summary["data"] = {
            "source": source,
            "transactions": len(transactions),
            "first_day": transactions.date(0),
            "last_day": transactions.date(transactions.days - 1),
            "fraud_rate": fraud,
            "digest": transactions.digest(),
            "routing_attempts": len(routing) if routing else 0,
        }
        return Data(source, transactions, rows, routing)

    def _train(self, data: Data) -> Trained:
        narrator, plan, seed = self._narrator, self._plan, self._seed
        frauds = train_frauds(narrator, data.transactions, data.rows, plan, seed)
        with narrator.busy("payments under the baseline policy"):
            logged = log_payments(data.transactions, data.rows, frauds[0], self._world, plan, seed)
        oracles = train_oracles(narrator, logged, plan, seed)
        routing = train_routing(narrator, data.routing, plan, seed) if data.routing else None
        self._summary["training"] = {
            "fraud": [model.metrics.as_dict() for model in frauds],
            "oracle": [dict(oracle.metrics) for oracle in oracles],
            "routing": dict(routing.metrics) if routing else None,
        }
        return Trained(frauds, oracles, logged, routing)

    def _publish(self, trained: Trained, registry: Registry) -> Published:
        narrator, at = self._narrator, self._places.bundles
        at.mkdir()
        with narrator.busy("built, with golden cases from XGBoost's own predictions"):
            frauds = [
                build_fraud(model, at / f"fraud-v{number}", f"{self._run_id}-fraud-v{number}")
                for number, model in enumerate(trained.fraud, 1)
            ]
            oracles = [
                self._build_oracle(oracle, epsilon, f"action-v{number}")
                for number, (oracle, epsilon) in enumerate(zip(trained.oracle, EPSILONS, strict=True), 1)
            ]
            routing = None
            if trained.routing is not None:
                routing = self._build_oracle(trained.routing, EPSILONS[0], "route-v1")
        for built in (*frauds, *oracles, *([routing] if routing else [])):
            digest = registry.push(built.path)
            if digest != built.digest:
                raise DemoError(f"the registry calls {built.path.name} {digest}, the builder {built.digest}")
        for built in (frauds[0], oracles[0], *([routing] if routing else [])):
            registry.alias(built.name, "live", built.digest, reason="demo: first version")
        published = Published((frauds[0], frauds[1]), (oracles[0], oracles[1]), routing)
        narrator.table(
            ("bundle", "digest", "size"),
            [
                (
                    f"{name}",
                    digest.removeprefix("sha256:")[:12],
                    f"{_size(registry.resolve(digest).path):.1f} MB",
                )
                for digest, name in published.names().items()
            ],
        )
        self._summary["bundles"] = {name: digest for digest, name in published.names().items()}
        return published

    def _build_oracle(self, oracle: Oracle, epsilon: float, name: str) -> Built:
        run_id = f"{self._run_id}-{name}"
        return build_oracle(oracle, near_greedy(epsilon, run_id), self._places.bundles / name, run_id)

    def _write_settings(self, published: Published) -> None:
        sections = [
            "# Written by the demo; ports are chosen by the system.",
            "[server]",
            'listen = "127.0.0.1:0"',
            'control_listen = "127.0.0.1:0"',
            'metrics_listen = "127.0.0.1:0"',
            'state_dir = "state"',
            "",
            "[registry]",
            'path = "registry"',
            "poll_ms = 100",
            "",
            "[log]",
            'dir = "decisions"',
            "",
            f'[checkpoints."{FRAUD}"]',
            'kind = "score"',
            f'alias = "{published.fraud[0].name}@live"',
            "",
            f'[checkpoints."{AUTHORISE}"]',
            'kind = "action"',
            f'alias = "{published.oracle[0].name}@live"',
        ]
        if published.routing is not None:
            sections += [
                "",
                f'[checkpoints."{ROUTE}"]',
                'kind = "action"',
                f'alias = "{published.routing.name}@live"',
            ]
        self._places.settings.write_text("\n".join(sections) + "\n", encoding="utf-8")

    def _status(self, server: ServerProcess) -> pb.GetStatusResponse:
        with control.connected(server.control) as stub:
            return control.call(stub.GetStatus, pb.GetStatusRequest(), server.control)

    def _show_start(self, server: ServerProcess) -> None:
        found = self._status(server)
        self._narrator.say(
            f"{found.state} on {server.address}: ready after [bold]{found.ready_after_ms:.0f} ms[/],"
            f" [bold]{found.resident_bytes / 2**20:.0f} MB[/] resident with {len(found.bundles)} bundles"
            f" ({found.build_profile} build)"
        )
        self._summary["server"] = {
            "ready_after_ms": round(found.ready_after_ms, 1),
            "resident_mb_at_start": round(found.resident_bytes / 2**20, 1),
            "bundles": len(found.bundles),
            "build_profile": found.build_profile,
        }

    def _replay(
        self,
        data: Data,
        trained: Trained,
        published: Published,
        registry: Registry,
        server: ServerProcess,
        client: Client,
    ) -> Findings:
        judged = test_rows(data.transactions, trained.fraud[1].split)[: self._plan.most_batch_rows]
        with self._narrator.step("Replay through the client, swap both bundles on the way"):
            before = self._batch(client, data, judged, "v1")
            # The first part is what is wanted; the rest is for a swap that takes long.
            shuffled = np.random.default_rng([self._seed, 7]).permutation(judged)
            stream = np.concatenate([np.sort(part) for part in np.split(shuffled, [self._plan.payments])])
            traffic = self._traffic(client, data, stream)
            swap = self._drive(traffic, server, registry, published)
            after = self._batch(client, data, judged, "v2")
            routed = self._route(client, data)
        return judge(
            data.transactions,
            judged,
            stream,
            trained,
            published.names(),
            traffic,
            swap,
            (before, after),
            routing_value(data.routing, routed) if data.routing and routed else None,
            self._status(server),
            self._seed,
        )

    def _batch(self, client: Client, data: Data, judged: npt.NDArray[np.intp], name: str) -> Batch:
        batch = score_in_batches(client, data.rows[judged], f"{self._run_id}-batch-{name}")
        self._narrator.say(
            f"{len(judged):,} test transactions scored in batches on {name}"
            f" [dim]({len(judged) / batch.seconds:,.0f} rows/s)[/]"
        )
        return batch

    def _traffic(self, client: Client, data: Data, stream: npt.NDArray[np.intp]) -> Traffic:
        payments = data.transactions.take(stream)
        return Traffic(
            client=client,
            columns=fraud_columns(),
            payments=payments,
            rows=data.rows[stream],
            contexts=contexts(payments, np.zeros(len(stream)), self._seed + 1),
            world=self._world,
            run=self._run_id,
            threads=self._plan.threads,
            block=self._plan.block,
        )

    def _drive(
        self, traffic: Traffic, server: ServerProcess, registry: Registry, published: Published
    ) -> Swap:
        narrator, plan = self._narrator, self._plan
        (fraud_1, fraud_2), (oracle_1, oracle_2) = published.fraud, published.oracle

        def order() -> None:
            registry.alias(fraud_2.name, "live", fraud_2.digest, reason="demo: second version")
            registry.alias(oracle_2.name, "live", oracle_2.digest, reason="demo: second version")

        with narrator.progress("payments", min(plan.payments, len(traffic.answers.score))) as bar:
            swap = drive(
                traffic,
                server,
                bar,
                bar.total,
                plan.swap_at,
                plan.swap_seconds,
                order,
                old={FRAUD: fraud_1.digest, AUTHORISE: oracle_1.digest},
                new={FRAUD: fraud_2.digest, AUTHORISE: oracle_2.digest},
            )
        calls = sum(len(values) for values in traffic.measured.latency_ms.values())
        narrator.say(
            f"{traffic.done:,} payments, {calls:,} calls from {plan.threads} threads"
            f" in {traffic.seconds:.1f} s; both bundles swapped on the way"
        )
        return swap

    def _route(self, client: Client, data: Data) -> RoutingReplay | None:
        if data.routing is None:
            return None
        log, plan = data.routing, self._plan
        rows = np.arange(int(len(log) * ROUTING_TRAINING), len(log))[: plan.routing_replay]
        with self._narrator.progress("routing attempts", len(rows)) as bar:
            return replay_routing(client, log, rows, self._run_id, plan.threads, bar)

    def _check_log(self) -> None:
        narrator, places = self._narrator, self._places
        at = ("--log", str(places.decisions), "--bundles", str(places.registry))
        verified = run_command("log", "verify", *at)
        if not verified["ok"]:
            raise DemoError(
                f"the decision log does not verify: {verified['mismatched']} decisions differ,"
                f" {len(verified['findings'])} findings; run `scorer log verify {' '.join(at)}`"
            )
        narrator.say(
            f"verified: {verified['verified']:,} of {verified['records']['decision']:,} decisions repeated"
            f" on their bundles bit for bit, {sum(verified['records'].values()):,} records in all"
        )
        exported = run_command("log", "export", *at, "--to", str(places.output / "decisions.parquet"))
        narrator.say(
            f"exported: {exported['decisions']:,} decisions to decisions.parquet,"
            f" {exported['with_outcome']:,} of them with an outcome"
        )
        self._summary["log"] = {
            "records": verified["records"],
            "verified": verified["verified"],
            "mismatched": verified["mismatched"],
            "exported": exported["decisions"],
            "with_outcome": exported["with_outcome"],
        }


def _size(directory: Path) -> float:
    """Megabytes of a bundle."""
    return sum(file.stat().st_size for file in directory.iterdir()) / 1e6


_OURS = ("registry", "bundles", "decisions", "state")
_OUR_FILES = (
    "scorer.toml",
    "server.log",
    "report.html",
    "summary.json",
    "traceback.txt",
    "decisions.parquet",
)


def _fresh_output(output: Path) -> None:
    """Removes what an earlier demo left, and nothing else."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name in _OURS:
            if (output / name).is_dir():
                shutil.rmtree(output / name)
        for name in _OUR_FILES:
            (output / name).unlink(missing_ok=True)
    except OSError as error:
        raise DemoError(
            f"output {error.filename or output}: {error.strerror or error}; give another folder with --output"
        ) from error
