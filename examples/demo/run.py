"""The demo, step by step."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.demo import shipping
from examples.demo.data import Data, obtain
from examples.demo.errors import DemoError
from examples.demo.judge import Findings, judge
from examples.demo.learning import Learned, Learning
from examples.demo.models import ROUTING_TRAINING, Trained, train_all
from examples.demo.narrate import Narrator
from examples.demo.page import write_report
from examples.demo.plan import DemoPlan, Places
from examples.demo.process import PlatformProcess, ServerProcess, run_command, run_quietly
from examples.demo.publish import Published, publish, write_settings
from examples.demo.replay import Batch, RoutingReplay, Swap, drive, replay_routing, score_in_batches
from examples.demo.results import routing_value
from examples.demo.shipping import Shipped, Shipping
from examples.demo.terminal import show, show_learning, where_next
from examples.demo.traffic import AUTHORISE, FRAUD, Traffic
from examples.fraud.training import fraud_columns, test_rows
from examples.simulators.payments import Payments, contexts
from scorer.client import Client
from scorer.control import client as control
from scorer.errors import ScorerError
from scorer.registry import Registry
from scorer.v1 import control_pb2 as pb


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
        self._pages = shipping.free_address()
        self._summary: dict[str, Any] = {"seed": seed, "pages": f"http://{self._pages}"}

    def run(self) -> dict[str, Any]:
        began = time.perf_counter()
        narrator = self._narrator
        with narrator.step("Data and features"):
            data = obtain(self._places, self._plan, self._seed, narrator)
            self._summary["data"] = data.summary()
        with narrator.step("Train two versions of a fraud model and of an action oracle"):
            trained = train_all(
                narrator, data.transactions, data.rows, data.routing, self._world, self._plan, self._seed
            )
            self._summary["training"] = trained.summary()
        with narrator.step("Build bundles, push them, point the aliases to version 1"):
            registry = Registry(self._places.registry)
            published = publish(trained, registry, self._places, self._run_id, narrator)
            self._summary["bundles"] = {name: digest for digest, name in published.names().items()}
        with ExitStack() as running:
            with narrator.step("Start the server"):
                write_settings(published, self._places)
                server = running.enter_context(
                    ServerProcess(self._places.settings, self._places.output / "server.log")
                )
                client = running.enter_context(Client(server.address))
                self._show_start(server)
            findings = self._replay(data, trained, published, registry, server, client)
            with narrator.step("What came out"):
                self._summary |= findings.summary()
                show(narrator, findings)
            with narrator.step("Learn from the log: two generations, judged before they serve"):
                learned = self._learn(data, trained, registry, server, client)
                self._summary["learning"] = [one.as_dict() for one in learned]
                show_learning(narrator, learned)
            with narrator.step("Ship a model alone: three commands, from its file to a read-out"):
                shipped = self._ship(data, trained, published, server, client)
                self._summary["shipping"] = shipped.as_dict()
            with narrator.step("Stop the server"):
                code = server.stop()
                if code != 0:
                    raise DemoError(f"the server ended with code {code}: {server.last_problem}")
                narrator.say("drained, log sealed, exit code 0")
        with narrator.step("Check the decision log"):
            self._check_log()
        self._summary["steps_s"] = narrator.seconds
        self._summary["total_s"] = round(time.perf_counter() - began, 1)
        write_report(self._places.output / "report.html", findings, self._summary)
        (self._places.output / "summary.json").write_text(
            json.dumps(self._summary, indent=2) + "\n", encoding="utf-8"
        )
        where_next(narrator, self._places, self._summary, shipped.token)
        if narrator.is_watched:
            self._keep_open(published, shipped)
        return self._summary

    def _keep_open(self, published: Published, shipped: Shipped) -> None:
        """Serves and shows the pages until the reader has seen enough."""
        places = self._places
        with ServerProcess(places.settings, places.output / "server.log") as server:
            self._write_platform(published, server)
            with PlatformProcess(places.platform_settings, places.output / "platform.log") as platform:
                self._narrator.say("")
                self._narrator.say(f"[bold]The pages: {platform.url}/changes/{shipped.change}/readout[/]")
                self._narrator.say(f"  sign in with {shipped.token}; Ctrl-C ends both")
                with suppress(KeyboardInterrupt):
                    while platform.running and server.running:
                        time.sleep(0.2)

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
            traffic = self._traffic(client, data, stream, self._run_id, self._seed + 1)
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

    def _learn(
        self, data: Data, trained: Trained, registry: Registry, server: ServerProcess, client: Client
    ) -> list[Learned]:
        plan = self._plan
        rows = test_rows(data.transactions, trained.fraud[1].split)
        rows = np.random.default_rng([self._seed, 8]).permutation(rows)

        def traffic(part: int) -> Traffic:
            wanted = plan.judged if part % 2 else plan.learned
            # A payment may be made of a transaction that another was made of: its shopper comes back.
            own = np.sort(np.roll(rows, -part * wanted)[:wanted])
            return self._traffic(client, data, own, f"{self._run_id}-l{part}", self._seed + 10 + part)

        return Learning(self._places, plan, registry, server, trained, self._narrator).run(traffic)

    def _write_platform(self, published: Published, server: ServerProcess) -> None:
        alias = f"{published.fraud[0].name}@live"
        shipping.write_settings(self._places, server.control, alias, self._pages)

    def _ship(
        self, data: Data, trained: Trained, published: Published, server: ServerProcess, client: Client
    ) -> Shipped:
        narrator, places = self._narrator, self._places
        live = trained.fraud[1]
        with narrator.busy("fraud v3: fewer trees, the same days"):
            model = shipping.train(data.transactions, data.rows, live, self._plan, self._seed)
        self._write_platform(published, server)
        at = ("--config", str(places.platform_settings))
        token = str(run_command("platform", "init", "--user", shipping.PERSON, *at)["secret"])
        run_quietly("platform", "project", "create", shipping.PROJECT, "--title", "Fraud at checkout", *at)
        held_out = model.split.calibration.rows(data.transactions)
        stream = data.rows[test_rows(data.transactions, live.split)]
        with PlatformProcess(places.platform_settings, places.output / "platform.log") as platform:
            return Shipping(places, self._plan, narrator).run(
                platform,
                token,
                client,
                model,
                data.rows[held_out],
                data.transactions.fraud[held_out].astype(bool),
                stream,
            )

    def _batch(self, client: Client, data: Data, judged: npt.NDArray[np.intp], name: str) -> Batch:
        batch = score_in_batches(client, data.rows[judged], f"{self._run_id}-batch-{name}")
        self._narrator.say(
            f"{len(judged):,} test transactions scored in batches on {name}"
            f" [dim]({len(judged) / batch.seconds:,.0f} rows/s)[/]"
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
        # Side by side: both only read.
        with ThreadPoolExecutor(2) as pool:
            verifying = pool.submit(run_command, "log", "verify", *at)
            exporting = pool.submit(
                run_command, "log", "export", *at, "--to", str(places.output / "decisions.parquet")
            )
            verified, exported = verifying.result(), exporting.result()
        if not verified["ok"]:
            raise DemoError(
                f"the decision log does not verify: {verified['mismatched']} decisions differ,"
                f" {len(verified['findings'])} findings; run `scorer log verify {' '.join(at)}`"
            )
        narrator.say(
            f"verified: {verified['verified']:,} of {verified['records']['decision']:,} decisions repeated"
            f" on their bundles bit for bit, {sum(verified['records'].values()):,} records in all"
        )
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


_OURS = ("registry", "bundles", "decisions", "state", "learning", "platform", "fraud-v3")
_OUR_FILES = (
    "scorer.toml",
    "learn.toml",
    "platform.toml",
    "server.log",
    "platform.log",
    "readout.html",
    "report.html",
    "learning.html",
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
