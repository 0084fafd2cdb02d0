"""The demo, step by step."""

from __future__ import annotations

import json
import shutil
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.demo import report, shipping
from examples.demo.data import Data, obtain
from examples.demo.errors import DemoError
from examples.demo.learning import Learned, Learning
from examples.demo.models import ROUTING_TRAINING, Trained, train_all
from examples.demo.output import Output
from examples.demo.plan import WRITTEN, DemoPlan, Paths
from examples.demo.process import Addresses, ServerProcess, run_command
from examples.demo.publish import Published, publish, write_settings
from examples.demo.replay import Batch, RoutingReplay, Swap, drive, replay_routing, score_in_batches
from examples.demo.results import Results, evaluate, routing_value
from examples.demo.shipping import Shipped
from examples.demo.traffic import AUTHORISE, FRAUD, Traffic
from examples.fraud.training import fraud_columns, test_rows
from examples.simulators.payments import Payments, contexts
from scorer.client import Client
from scorer.control import client as control
from scorer.errors import ScorerError
from scorer.registry import Registry
from scorer.v1 import control_pb2 as pb


def run_demo(
    paths: Paths, plan: DemoPlan, seed: int, output: Output | None = None, *, full: bool = False
) -> dict[str, Any]:
    """Run the demo and return its summary.

    Args:
        paths: inputs and the output directory.
        plan: sizes.
        seed: seed of simulation, training and sampling.
        output: destination of the lines; default: stdout.
        full: also learn two generations, and test a model through the platform.

    Raises:
        DemoError: a step failed; the message is one line with the step and the reason.
    """
    output = output or Output()
    _remove_earlier(paths.output)
    try:
        return _Demo(paths, plan, seed, output).run(full=full)
    except ScorerError as error:
        raise DemoError(f"{output.step_name}: {error}") from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise DemoError(f"{output.step_name}: {where}{error.strerror or error}") from error
    except Exception as error:
        trace = paths.output / "traceback.txt"
        trace.write_text(traceback.format_exc(), encoding="utf-8")
        first = (str(error).splitlines() or [""])[0]
        raise DemoError(
            f"{output.step_name}: {type(error).__name__}: {first}; the traceback is in {trace}"
        ) from error


class _Demo:
    def __init__(self, paths: Paths, plan: DemoPlan, seed: int, output: Output) -> None:
        self._paths = paths
        self._plan = plan
        self._seed = seed
        self._output = output
        self._world = Payments()
        # Request ids of two runs must differ if they use the same log.
        self._run_id = f"demo{seed}"
        self._summary: dict[str, Any] = {"seed": seed}

    def run(self, *, full: bool) -> dict[str, Any]:
        output, paths = self._output, self._paths
        with output.step("Data and features"):
            data = obtain(paths, self._plan, self._seed, output)
            self._summary["data"] = data.summary()
        with output.step("Train two versions of a fraud model and of an action model"):
            trained = train_all(
                output, data.transactions, data.rows, data.routing, self._world, self._plan, self._seed
            )
            self._summary["training"] = trained.summary()
        with output.step("Build bundles, push them to a registry, point its aliases to version 1"):
            registry = Registry(paths.registry)
            published = publish(trained, registry, paths, self._run_id, output)
            self._summary["bundles"] = {name: digest for digest, name in published.names().items()}
        addresses = Addresses.free()
        with ExitStack() as running:
            with output.step("Serve them"):
                write_settings(published, paths, addresses)
                server = running.enter_context(ServerProcess(paths.settings, paths.server_log))
                client = running.enter_context(Client(server.address))
                self._show_start(server)
            with output.step("Score payments and choose actions; swap both bundles under the traffic"):
                results = self._replay(data, trained, published, registry, server, client)
                report.show_swap(output, results)
                self._summary |= results.summary()
            with output.step("Results"):
                report.show(output, results)
            token = shipping.set_up(paths, addresses, f"{published.fraud[0].name}@live")
            if full:
                self._go_on(data, trained, registry, server, client, token)
            with output.step("Stop the server, verify and export the decision log"):
                code = server.stop()
                if code != 0:
                    raise DemoError(f"the server ended with code {code}: {server.last_problem}")
                self._check_log()
        self._summary["steps_s"] = output.seconds
        self._summary["total_s"] = round(output.elapsed, 1)
        paths.summary.write_text(json.dumps(self._summary, indent=2) + "\n", encoding="utf-8")
        report.where_next(output, paths, self._summary, f"http://{addresses.pages}", token, full=full)
        return self._summary

    def _go_on(
        self,
        data: Data,
        trained: Trained,
        registry: Registry,
        server: ServerProcess,
        client: Client,
        token: str,
    ) -> None:
        """Run the additional steps of the full demo."""
        output = self._output
        with output.step("Learn two generations from the log, each with a gate before it serves"):
            learned = self._learn(data, trained, registry, server, client)
            self._summary["learning"] = [one.as_dict() for one in learned]
            report.show_learning(output, learned)
        with output.step("Ship a model through the platform with three commands"):
            self._summary["shipping"] = self._ship(data, trained, client, token).as_dict()

    def _status(self, server: ServerProcess) -> pb.GetStatusResponse:
        with control.connected(server.control) as stub:
            return control.call(stub.GetStatus, pb.GetStatusRequest(), server.control)

    def _show_start(self, server: ServerProcess) -> None:
        status = self._status(server)
        self._output.line(
            f"{status.state} on {server.address}: ready after [bold]{status.ready_after_ms:.0f} ms[/],"
            f" [bold]{status.resident_bytes / 2**20:.0f} MB[/] resident with {len(status.bundles)} bundles"
            f" ({status.build_profile} build)"
        )
        self._summary["server"] = {
            "ready_after_ms": round(status.ready_after_ms, 1),
            "resident_mb_at_start": round(status.resident_bytes / 2**20, 1),
            "bundles": len(status.bundles),
            "build_profile": status.build_profile,
        }

    def _replay(
        self,
        data: Data,
        trained: Trained,
        published: Published,
        registry: Registry,
        server: ServerProcess,
        client: Client,
    ) -> Results:
        tested = test_rows(data.transactions, trained.fraud[1].split)[: self._plan.most_batch_rows]
        before = self._batch(client, data, tested, "v1")
        # The first part is always sent. The rest is sent if the swap takes long.
        shuffled = np.random.default_rng([self._seed, 7]).permutation(tested)
        stream = np.concatenate([np.sort(part) for part in np.split(shuffled, [self._plan.payments])])
        traffic = self._traffic(client, data, stream, self._run_id, self._seed + 1)
        swap = self._drive(traffic, server, registry, published)
        after = self._batch(client, data, tested, "v2")
        routed = self._route(client, data)
        return evaluate(
            data.transactions,
            tested,
            stream,
            trained,
            published.names(),
            published.oracle[1].digest,
            traffic,
            swap,
            (before, after),
            routing_value(data.routing, routed) if data.routing and routed else None,
            self._status(server),
        )

    def _learn(
        self, data: Data, trained: Trained, registry: Registry, server: ServerProcess, client: Client
    ) -> list[Learned]:
        plan = self._plan
        rows = test_rows(data.transactions, trained.fraud[1].split)
        rows = np.random.default_rng([self._seed, 8]).permutation(rows)

        def traffic(part: int) -> Traffic:
            wanted = plan.evaluation_traffic if part % 2 else plan.training_traffic
            # A transaction may be used for two payments of one shopper.
            own = np.sort(np.roll(rows, -part * wanted)[:wanted])
            return self._traffic(client, data, own, f"{self._run_id}-l{part}", self._seed + 10 + part)

        return Learning(self._paths, plan, registry, server, trained, self._output).run(traffic)

    def _ship(self, data: Data, trained: Trained, client: Client, token: str) -> Shipped:
        live = trained.fraud[1]
        with self._output.busy("training fraud v3"):
            model = shipping.train(data.transactions, data.rows, live, self._plan, self._seed)
        held_out = model.split.calibration.rows(data.transactions)
        return shipping.ship(
            self._paths,
            self._plan,
            self._output,
            token,
            client,
            model,
            (data.rows[held_out], data.transactions.fraud[held_out].astype(bool)),
            data.rows[test_rows(data.transactions, live.split)],
        )

    def _batch(self, client: Client, data: Data, tested: npt.NDArray[np.intp], name: str) -> Batch:
        batch = score_in_batches(client, data.rows[tested], f"{self._run_id}-batch-{name}")
        self._output.line(
            f"{len(tested):,} test transactions scored in batches on {name}:"
            f" {len(tested) / batch.seconds:,.0f} rows/s"
        )
        return batch

    def _traffic(
        self, client: Client, data: Data, stream: npt.NDArray[np.intp], run: str, seed: int
    ) -> Traffic:
        payments = data.transactions.take(stream)
        return Traffic(
            client=client,
            columns=fraud_columns(),
            payments=payments,
            rows=data.rows[stream],
            contexts=contexts(payments, np.zeros(len(stream)), seed),
            world=self._world,
            run=run,
            threads=self._plan.threads,
            block=self._plan.block,
        )

    def _drive(
        self, traffic: Traffic, server: ServerProcess, registry: Registry, published: Published
    ) -> Swap:
        plan = self._plan
        (fraud_1, fraud_2), (oracle_1, oracle_2) = published.fraud, published.oracle

        def order() -> None:
            registry.alias(fraud_2.name, "live", fraud_2.digest, reason="demo: version 2")
            registry.alias(oracle_2.name, "live", oracle_2.digest, reason="demo: version 2")

        least = min(plan.payments, len(traffic.answers.score))
        with self._output.progress("payments", least) as reach:
            swap = drive(
                traffic,
                server,
                reach,
                least,
                plan.swap_at,
                plan.swap_seconds,
                order,
                old={FRAUD: fraud_1.digest, AUTHORISE: oracle_1.digest},
                new={FRAUD: fraud_2.digest, AUTHORISE: oracle_2.digest},
            )
        calls = sum(len(values) for values in traffic.measured.latency_ms.values())
        self._output.line(
            f"{traffic.done:,} payments, {calls:,} calls from {plan.threads} threads in"
            f" {traffic.seconds:.1f} s; the aliases changed to version 2 meanwhile"
        )
        return swap

    def _route(self, client: Client, data: Data) -> RoutingReplay | None:
        if data.routing is None:
            return None
        log, plan = data.routing, self._plan
        rows = np.arange(int(len(log) * ROUTING_TRAINING), len(log))[: plan.routing_replay]
        with self._output.progress("routing attempts", len(rows)) as reach:
            return replay_routing(client, log, rows, self._run_id, plan.threads, reach)

    def _check_log(self) -> None:
        paths = self._paths
        log = ("--log", str(paths.decisions), "--bundles", str(paths.registry))
        # Both commands only read, so they run in parallel.
        with ThreadPoolExecutor(2) as pool:
            verifying = pool.submit(run_command, "log", "verify", *log)
            exporting = pool.submit(run_command, "log", "export", *log, "--to", str(paths.exported))
            verified, exported = verifying.result(), exporting.result()
        if not verified["ok"]:
            raise DemoError(
                f"the decision log does not verify: {verified['mismatched']} decisions differ,"
                f" {len(verified['findings'])} findings; run `scorer log verify {' '.join(log)}`"
            )
        self._summary["log"] = _log_summary(verified, exported)
        self._output.line(
            f"drained with exit code 0; {verified['verified']:,} of {verified['records']['decision']:,}"
            f" decisions computed again bit for bit on their bundles; {exported['decisions']:,} exported,"
            f" {exported['with_outcome']:,} with an outcome"
        )


def _log_summary(verified: Mapping[str, Any], exported: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "records": verified["records"],
        "verified": verified["verified"],
        "mismatched": verified["mismatched"],
        "exported": exported["decisions"],
        "with_outcome": exported["with_outcome"],
    }


def _remove_earlier(output: Path) -> None:
    """Remove the files of an earlier demo, and no others."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name in WRITTEN:
            if (output / name).is_dir():
                shutil.rmtree(output / name)
            else:
                (output / name).unlink(missing_ok=True)
    except OSError as error:
        raise DemoError(
            f"output {error.filename or output}: {error.strerror or error}; choose another with --output"
        ) from error
