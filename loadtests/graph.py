"""Measure a graph of two forests, 20 transforms, 100 rules and a policy of 256 actions.

``python -m loadtests.graph`` builds the graph (`loadtests.decision_graphs`) as one `Decide` request runs it:
a score bundle with the transforms, a forest and the rules, and then an action bundle with a forest and the
policy, which reads the score. It is measured

* alone, in Rust on one thread: the time of a request's evaluations, and of each node. Passes whose nodes are
  measured take turns with passes whose nodes are not, which gives the cost of measuring;
* in `scorer serve` at half of its capacity, open loop. Server and load generator have a core each. The times
  of the nodes are those that the server reports.

Transforms of an action bundle that add columns from the context would make the server run the program once
per action, so they belong into the score bundle.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from loadtests.decision_graphs import ACTION, FRAUD, PASSED, Graph, Sizes, decide_graph
from loadtests.lists import say
from loadtests.openloop import Load, Method, capacity, on_generators_core
from loadtests.options import Options
from loadtests.peers import servers
from scorer.bundle import Bundle
from scorer.bundle.graph import time_text
from scorer.bundle.times import NodeTime, measure
from scorer.loadtest.ratesearch import median_rate

MOST_P50_US: Final = 60.0
SLA_MS: Final = 10.0
LATE_SHARE: Final = 0.01
"""The share of requests that may be later than a p99."""
SECONDS: Final = 5.0
LOAD_SECONDS: Final = 10.0
ROUNDS: Final = 5
TIMED: Final = 61
"""A server's thread measures the nodes of one decision in this many."""
SHARE_SHOWN: Final = 0.02
"""Nodes with a smaller part of the time are shown together."""
_CHECKED: Final = 64
"""Answers that are checked before the measurement."""
_DECIDE: Final = "/scorer.v1.ScoringService/Decide"


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        sizes: Sizes of the graph.
        seconds: Length of the measurement alone.
        load_seconds: Length of one measurement of the server.
        rounds: Number of measurements of the server.
        sla_ms: SLA of each checkpoint: p99 in milliseconds.
        rate: Requests per second; 0: half of the measured capacity.
    """

    sizes: Sizes
    seconds: float
    load_seconds: float
    rounds: int
    sla_ms: float
    rate: float


def main() -> int:
    """Measure with the options of the command line; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = Sizes()
    parser.add_argument("--trees", type=int, default=sizes.trees, help="trees of each forest")
    parser.add_argument("--depth", type=int, default=sizes.depth, help="depth of the trees")
    parser.add_argument("--rules", type=int, default=sizes.rules, help="number of rules")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of the measurement alone")
    parser.add_argument(
        "--load-seconds", type=float, default=LOAD_SECONDS, help="length of one measurement of the server"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measurements of the server")
    parser.add_argument("--sla-ms", type=float, default=SLA_MS, help="SLA of each checkpoint")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="requests per second; 0: half of the capacity"
    )
    given = parser.parse_args()
    plan = Plan(
        Sizes(given.trees, given.depth, given.rules),
        given.seconds,
        given.load_seconds,
        given.rounds,
        given.sla_ms,
        given.rate,
    )
    with tempfile.TemporaryDirectory(prefix="graph-") as folder:
        return 0 if measure_graph(decide_graph(Path(folder), plan.sizes), plan) else 1


def measure_graph(graph: Graph, plan: Plan) -> bool:
    """Measure a graph alone and in a server, print the figures, and return whether the targets are met."""
    say(f"graph: {graph.words}")
    alone = _alone(graph, plan)
    with on_generators_core():
        return _served(graph, plan) and alone


def _alone(graph: Graph, plan: Plan) -> bool:
    found = measure(list(graph.bundles.values()), plan.seconds, rows=graph.rows)
    p50, p99 = np.percentile(found.plain_us, [50, 99])
    ratio = median(found.ratios())
    verdict = p50 <= MOST_P50_US
    say(
        f"  alone, one thread, {len(found.plain_us):,} requests: p50 {time_text(p50)}, p99 {time_text(p99)}; "
        f"{_verdict(verdict)}: p50 at most {MOST_P50_US:g} µs"
    )
    say(
        f"  cost of measuring: with measured nodes {ratio:.3f}× (median of {len(found.ratios())} passes; "
        f"p50 {time_text(float(np.percentile(found.timed_us, 50)))}), of one decision in {TIMED} "
        f"{1 + (ratio - 1) / TIMED:.4f}×"
    )
    for checkpoint, nodes in zip(graph.bundles, found.nodes, strict=True):
        _print_nodes(checkpoint, nodes)
    return bool(verdict)


def _served(graph: Graph, plan: Plan) -> bool:
    with serving(graph, plan.sla_ms) as (load, metrics):
        check(graph, load)
        # The SLA of a Decide is the sum of those of its checkpoints.
        sla_ms = plan.sla_ms * len(graph.bundles)
        rate = plan.rate or _half_of_capacity(load, sla_ms)
        before = _fallbacks(metrics)
        reports = [load.run(rate, plan.load_seconds, warmup_seconds=0.5) for _ in range(plan.rounds)]
        fallbacks = _fallbacks(metrics) - before
        failures = sum((Counter(report.errors) for report in reports), Counter[str]())
        p50, p99 = (
            median(getattr(report.latency_us, share) for report in reports) for share in ("p50", "p99")
        )
        # A rejected request counts as a late one, of which a p99 allows one in a hundred.
        rejected = failures["RESOURCE_EXHAUSTED"]
        requests = sum(report.requests for report in reports)
        answered = rejected <= LATE_SHARE * requests and failures.total() == rejected and not fallbacks
        verdict = p99 <= sla_ms * 1e3 and answered
        say(
            f"  server at {rate:,.0f} requests/s{'' if plan.rate else ', half of its capacity'}: "
            f"p50 {time_text(p50)}, p99 {time_text(p99)} (rounds: "
            + ", ".join(time_text(report.latency_us.p99) for report in reports)
            + f"); {_failed(failures)}, {fallbacks:.0f} fallbacks; "
            + f"{_verdict(verdict)}: p99 at most {sla_ms:g} ms"
        )
        for checkpoint, nodes in _node_times(load.target).items():
            _print_nodes(f"{checkpoint} in the server", nodes)
    return bool(verdict)


@contextmanager
def serving(graph: Graph, sla_ms: float) -> Iterator[tuple[Load, str]]:
    """Run `scorer serve` with the bundles of a graph.

    Args:
        graph: The graph.
        sla_ms: SLA of each checkpoint.

    Yields:
        The load, and the address of the server's metrics.
    """
    from scorer.registry import Registry

    with servers.scratch() as directory:
        text = '[server]\nlisten = "127.0.0.1:0"\ncontrol_listen = "127.0.0.1:0"\n'
        text += 'metrics_listen = "127.0.0.1:0"\n'
        with ExitStack() as opened:
            registry = Registry(directory / "registry")
            opened.callback(registry.close)
            for checkpoint, bundle in graph.bundles.items():
                name = checkpoint.replace(".", "-")
                registry.alias(name, "live", registry.push(bundle), reason="measured")
                kind = "score" if checkpoint == FRAUD else "action"
                text += f'[checkpoints."{checkpoint}"]\nkind = "{kind}"\nalias = "{name}@live"\n'
                text += f"p99_ms = {sla_ms}\n"
        (directory / "scorer.toml").write_text(text)
        command: list[str | Path] = [sys.executable, "-m", "scorer.cli", "serve", "--config", "scorer.toml"]
        with servers.process(command, directory=directory) as running:
            said = servers.event(running, "serving")
            target = next(address for address in said["grpc"] if not address.startswith("unix:"))
            yield Load(target=target, methods=[_method(graph)]), said["metrics"]


def _method(graph: Graph) -> Method:
    fingerprints = [Bundle.load(bundle).schema_fingerprint for bundle in graph.bundles.values()]
    pairs = zip(*graph.rows, strict=True)
    requests = [_request(fingerprints, score, action).SerializeToString() for score, action in pairs]
    return Method(name="decide", path=_DECIDE, requests=requests)


def _request(fingerprints: Sequence[int], score: Any, action: Any) -> Any:
    from scorer.v1 import scoring_pb2 as pb

    def dense(fingerprint: int, values: list[float]) -> Any:
        return pb.DenseFeatures(schema_fingerprint=fingerprint, values=values)

    # The server fills in the last feature of the action, which is the score.
    rest = [*action[:-1].tolist(), float("nan")]
    return pb.DecideRequest(
        score=pb.ScoreStep(checkpoint=FRAUD, dense=dense(fingerprints[0], score.tolist())),
        action=pb.ActionStep(checkpoint=ACTION, dense=dense(fingerprints[1], rest)),
        score_feature=PASSED,
        action_if_declined=True,
    )


def check(graph: Graph, load: Load) -> None:
    """Check that the first scores are those of the bundle, that actions are selected, and that rules fire.

    Raises:
        servers.ServerError: An answer is not as expected.
    """
    from scorer.credentials import channel
    from scorer.v1 import scoring_pb2 as pb

    (method,) = load.methods
    expected = Bundle.load(graph.bundles[FRAUD]).score(graph.rows[0][:_CHECKED]).scores
    fired = drawn = 0
    with channel(load.target, None) as opened:
        call = opened.unary_unary(method.path, None, None)
        for row, (request, score) in enumerate(zip(method.requests, expected, strict=False)):
            answer = pb.DecideResponse.FromString(call(request, timeout=10))
            if answer.score.score != score:
                raise servers.ServerError(
                    f"row {row}: the server's score is {answer.score.score}, not {score}"
                )
            fired += len(answer.score.rules.fired)
            drawn += bool(answer.action.action) and not answer.action.served.fallback_source
    if not (fired and drawn):
        raise servers.ServerError(f"{fired} rules fired and the policy drew {drawn} actions; both must work")


def _half_of_capacity(load: Load, sla_ms: float) -> float:
    rate, _ = median_rate(capacity(load, sla_ms, start=4000.0, options=Options()))
    if rate <= 0:
        raise servers.ServerError(f"no rate keeps the p99 within {sla_ms:g} ms; use a faster machine")
    return rate / 2


def _fallbacks(metrics: str) -> float:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    values = [
        line.partition(" # ")[0].rpartition(" ")[2] for line in lines if "scorer_fallbacks_total{" in line
    ]
    return sum(map(float, values))


def _node_times(target: str) -> dict[str, dict[str, NodeTime]]:
    from scorer.client import Client

    with Client(target, timeout=10.0) as client:
        return {
            one.checkpoint: {node.name: NodeTime(node.mean_us, node.timed) for node in one.nodes}
            for one in client.checkpoints()
        }


def _print_nodes(title: str, nodes: Mapping[str, NodeTime]) -> None:
    measured = {name: time.mean_us for name, time in nodes.items() if time.timed}
    total = sum(measured.values())
    shown = {name: mean for name, mean in measured.items() if mean >= SHARE_SHOWN * total}
    parts = [f"{name} {time_text(mean)}" for name, mean in shown.items()]
    if len(shown) < len(measured):
        rest = sum(mean for name, mean in measured.items() if name not in shown)
        parts.append(f"{len(measured) - len(shown)} others {time_text(rest)}")
    counted = max((time.timed for time in nodes.values()), default=0)
    say(f"  {title}, mean times of {counted:,}: " + (", ".join(parts) or "none measured"))


def _failed(failures: Mapping[str, int]) -> str:
    by_reason = ", ".join(f"{reason} {number}" for reason, number in sorted(failures.items()))
    return f"{sum(failures.values())} failed" + (f" ({by_reason})" if failures else "")


def _verdict(met: bool | np.bool_) -> str:
    return "PASS" if met else "FAIL"


if __name__ == "__main__":
    sys.exit(main())
