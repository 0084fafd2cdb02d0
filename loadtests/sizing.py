"""Compute what 1,000, 100,000 and 1,000,000 decisions per second need, from measured costs.

::

    python -m loadtests.sizing            # print the tables
    python -m loadtests.sizing --write    # replace them in docs/scaling.md

The costs are those that ``python -m loadtests.scaling --save loadtests/scaling-costs.json`` measured.
`FORMULAS` states how each row is computed, and docs/scaling.md shows it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtests.figures import ROOT

COSTS: Final = ROOT / "loadtests/scaling-costs.json"
PAGE: Final = ROOT / "docs/scaling.md"
RATES: Final = (1_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Costs:
    """Measured costs of a decision (`loadtests.scaling`).

    Attributes:
        server_us: Processor time of a server per Score, with its decision log, µs.
        nginx_us, haproxy_us: Processor time of the balancer per request, µs.
        request_bytes, reply_bytes: Bytes on a kept connection, with headers.
        log_bytes: Bytes in the decision log.
        ship_us: Processor time of the shipper, µs.
        table_bytes: Bytes in the table's files.
        join_us: Processor time of the join per decision with its outcome, µs.
        train_ns: Processor time of training per row and tree, ns.
        status_bytes: Length of a server's status, bytes.
        status_us: Processor time of the platform per status, µs.
        tick_seconds: Interval of the platform's rounds, seconds.
    """

    server_us: float
    nginx_us: float
    haproxy_us: float
    request_bytes: float
    reply_bytes: float
    log_bytes: float
    ship_us: float
    table_bytes: float
    join_us: float
    train_ns: float
    status_bytes: int
    status_us: float
    tick_seconds: float


@dataclass(frozen=True)
class Plan:
    """Choices of an operator; the tables state them.

    Attributes:
        utilisation: Largest share of a core that is used, so that a failed server's load fits and p99 holds.
        cores: Cores of a server process (`server.threads`).
        flush_seconds: Interval of the shipper's commits.
        partition_bytes: Bytes per second that one Kafka partition takes.
        file_bytes: Size of a file of the table after its maintenance.
        learned: Largest number of decisions per generation; more are sampled.
        trees: Trees of a generation, with all folds and candidates.
    """

    utilisation: float = 0.5
    cores: int = 8
    flush_seconds: float = 60.0
    partition_bytes: float = 5e6
    file_bytes: float = 256e6
    learned: float = 20e6
    trees: int = 2_500


Formula = Callable[[Costs, Plan, int], float]
DAY: Final = 86_400


def server_cores(costs: Costs, plan: Plan, rate: int) -> float:
    """Cores of the servers: rate × time per request / utilisation, at least two servers of one core."""
    return max(2, math.ceil(rate * costs.server_us / 1e6 / plan.utilisation))


def server_count(costs: Costs, plan: Plan, rate: int) -> float:
    """Server processes: at least 2."""
    return max(2, math.ceil(server_cores(costs, plan, rate) / plan.cores))


def kafka_partitions(costs: Costs, plan: Plan, rate: int) -> float:
    """Partitions: log bytes per second / bytes per second of a partition."""
    return max(1, math.ceil(rate * costs.log_bytes / plan.partition_bytes))


def learner_hours(costs: Costs, plan: Plan, rate: int) -> float:
    """Core hours of a daily generation: join of a day's sample and training on it."""
    rows = min(rate * DAY, plan.learned)
    return (rows * costs.join_us / 1e6 + rows * plan.trees * costs.train_ns / 1e9) / 3600


FORMULAS: Final[Mapping[str, tuple[str, Formula]]] = {
    "cores of the servers": (
        "rate × {server_us:.0f} µs / {utilisation:.0%}, at least 2",
        server_cores,
    ),
    "servers": ("cores / {cores}, at least 2", server_count),
    "cores of nginx": (
        "rate × {nginx_us:.0f} µs / {utilisation:.0%}",
        lambda costs, plan, rate: math.ceil(rate * costs.nginx_us / 1e6 / plan.utilisation),
    ),
    "or of HAProxy": (
        "rate × {haproxy_us:.0f} µs / {utilisation:.0%}",
        lambda costs, plan, rate: math.ceil(rate * costs.haproxy_us / 1e6 / plan.utilisation),
    ),
    "network to the servers, Mbit/s": (
        "rate × {request_bytes:.0f} bytes × 8",
        lambda costs, plan, rate: rate * costs.request_bytes * 8 / 1e6,
    ),
    "network from the servers, Mbit/s": (
        "rate × {reply_bytes:.0f} bytes × 8",
        lambda costs, plan, rate: rate * costs.reply_bytes * 8 / 1e6,
    ),
    "decision logs, GB a day": (
        "rate × {log_bytes:.0f} bytes × 86,400 s",
        lambda costs, plan, rate: rate * costs.log_bytes * DAY / 1e9,
    ),
    "cores of the shippers": (
        "rate × {ship_us:.0f} µs / {utilisation:.0%}",
        lambda costs, plan, rate: math.ceil(rate * costs.ship_us / 1e6 / plan.utilisation),
    ),
    "Kafka partitions": ("rate × {log_bytes:.0f} bytes / {partition_mb:g} MB/s", kafka_partitions),
    "table, GB a day": (
        "rate × {table_bytes:.0f} bytes × 86,400 s",
        lambda costs, plan, rate: rate * costs.table_bytes * DAY / 1e9,
    ),
    "table, commits a minute": (
        "servers × 60 s / {flush_seconds:g} s",
        lambda costs, plan, rate: server_count(costs, plan, rate) * 60 / plan.flush_seconds,
    ),
    "table, files a day after maintenance": (
        "table / {file_mb:g} MB, at least one an hour",
        lambda costs, plan, rate: max(24, math.ceil(rate * costs.table_bytes * DAY / plan.file_bytes)),
    ),
    "share of the decisions that a generation learns from": (
        "at most {learned_millions:g} million a day",
        lambda costs, plan, rate: min(1.0, plan.learned / (rate * DAY)),
    ),
    "core hours of a generation": (
        "decisions × ({join_us:.0f} µs + {trees:,} trees × {train_ns:.0f} ns)",
        learner_hours,
    ),
}
"""The rows of the table: the formula in words, and the function."""

NIGHT_SECONDS: Final = 8 * 3_600

LIMITS: Final[Sequence[tuple[str, str, Callable[[Costs, Plan], float], str, str]]] = (
    (
        "decisions per second of one nginx worker",
        "{utilisation:.0%} / {nginx_us:.0f} µs",
        lambda costs, plan: plan.utilisation * 1e6 / costs.nginx_us,
        "the worker uses its core; p99 of the clients rises, that of the servers does not",
        "more workers, several balancers, or lists in the clients",
    ),
    (
        "decisions per second of one core of HAProxy",
        "{utilisation:.0%} / {haproxy_us:.0f} µs",
        lambda costs, plan: plan.utilisation * 1e6 / costs.haproxy_us,
        "the same",
        "`nbthread`, several balancers, or lists in the clients",
    ),
    (
        "decisions per second of one shipper, and so of one server",
        "1 / {ship_us:.0f} µs",
        lambda costs, _: 1e6 / costs.ship_us,
        "`ScorerShipLags`",
        "more servers with fewer cores each",
    ),
    (
        "decisions per second whose join of a day ends within 8 hours on one core",
        "8 h / ({join_us:.0f} µs × 86,400 s)",
        lambda costs, _: NIGHT_SECONDS * 1e6 / costs.join_us / DAY,
        "duration of `scorer learn run`",
        "learn from the logs of some servers only",
    ),
    (
        "servers whose statuses use one core of the platform",
        "{tick_seconds:g} s / {status_us:.0f} µs",
        lambda costs, _: costs.tick_seconds * 1e6 / costs.status_us,
        "servers are shown as not responding in time",
        "a longer `platform.tick_ms`, or a platform for each region",
    ),
)
"""What a larger fleet reaches first: the limit, its formula, its sign, and what to change."""

CONTROL_SERVERS: Final = (3, 100, 1_000)
CONTROL: Final[Mapping[str, tuple[str, Callable[[Costs, int], float]]]] = {
    "status calls per second": (
        "servers / {tick_seconds:g} s",
        lambda costs, count: count / costs.tick_seconds,
    ),
    "statuses, MB/s": (
        "calls × {status_bytes} bytes",
        lambda costs, count: count / costs.tick_seconds * costs.status_bytes / 1e6,
    ),
    "processor time of the platform, cores": (
        "calls × {status_us:.0f} µs",
        lambda costs, count: count / costs.tick_seconds * costs.status_us / 1e6,
    ),
}


def read_costs(path: Path = COSTS) -> Costs:
    """Return the measured costs."""
    return Costs(**json.loads(path.read_text()))


def sizing_table(costs: Costs, plan: Plan | None = None) -> str:
    """Return the table of what each rate needs, Markdown."""
    chosen = plan or Plan()
    names = {
        **vars(costs),
        **vars(chosen),
        "partition_mb": chosen.partition_bytes / 1e6,
        "file_mb": chosen.file_bytes / 1e6,
        "learned_millions": chosen.learned / 1e6,
    }
    rows = [
        [name, *(_number(compute(costs, chosen, rate)) for rate in RATES), words.format(**names)]
        for name, (words, compute) in FORMULAS.items()
    ]
    return _table(["for decisions per second of", *(f"{rate:,}" for rate in RATES), "computed as"], rows)


def limits_table(costs: Costs, plan: Plan | None = None) -> str:
    """Return the table of the first limits, Markdown."""
    chosen = plan or Plan()
    names = {**vars(costs), **vars(chosen)}
    rows = [
        [what, _rounded(compute(costs, chosen)), words.format(**names), sign, remedy]
        for what, words, compute, sign, remedy in LIMITS
    ]
    return _table(["limit", "at", "computed as", "sign", "what to change"], rows)


def control_table(costs: Costs) -> str:
    """Return the table of the platform's control traffic, Markdown."""
    rows = [
        [name, *(_number(compute(costs, count)) for count in CONTROL_SERVERS), words.format(**vars(costs))]
        for name, (words, compute) in CONTROL.items()
    ]
    return _table(["servers", *(f"{count:,}" for count in CONTROL_SERVERS), "computed as"], rows)


def costs_table(costs: Costs) -> str:
    """Return the table of the measured costs, Markdown."""
    rows = [
        [
            "server: processor time per Score (500 trees × depth 6), with its decision log",
            f"{costs.server_us:.0f} µs",
        ],
        ["nginx: processor time per request", f"{costs.nginx_us:.0f} µs"],
        ["HAProxy: processor time per request", f"{costs.haproxy_us:.0f} µs"],
        ["request on the wire, 40 dense features", f"{costs.request_bytes:.0f} bytes"],
        ["reply on the wire", f"{costs.reply_bytes:.0f} bytes"],
        ["record in the decision log", f"{costs.log_bytes:.0f} bytes"],
        ["shipper: processor time per decision", f"{costs.ship_us:.0f} µs"],
        ["row in the Delta table", f"{costs.table_bytes:.0f} bytes"],
        ["join: processor time per decision with its outcome", f"{costs.join_us:.0f} µs"],
        ["training: processor time per row and tree", f"{costs.train_ns:.0f} ns"],
        ["platform: processor time per status of a server", f"{costs.status_us:.0f} µs"],
        ["platform: length of a status", f"{costs.status_bytes} bytes"],
    ]
    return _table(["cost", "measured"], rows)


def render(page: str, costs: Costs) -> str:
    """Return a page with its generated tables replaced.

    Raises:
        ValueError: The page lacks the place of a table.
    """
    for name, table in {
        "costs": costs_table(costs),
        "sizing": sizing_table(costs),
        "limits": limits_table(costs),
        "control": control_table(costs),
    }.items():
        page, count = re.subn(
            rf"(<!-- {name}: generated -->\n).*?(<!-- {name}: end -->)",
            lambda found, text=table: f"{found[1]}\n{text}\n\n{found[2]}",
            page,
            flags=re.DOTALL,
        )
        if count != 1:
            raise ValueError(f'the page has no place "{name}"')
    return page


def _rounded(value: float) -> str:
    """Two digits: a limit is not known more exactly."""
    digits = max(0, math.floor(math.log10(value)) - 1)
    return f"{round(value / 10**digits) * 10**digits:,}"


def _number(value: float) -> str:
    if value >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Print the tables, or replace them in docs/scaling.md."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.sizing", description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the tables in docs/scaling.md")
    parser.add_argument("--costs", type=Path, default=COSTS, help="measured costs, JSON")
    asked = parser.parse_args()
    costs = read_costs(asked.costs)
    if asked.write:
        PAGE.write_text(render(PAGE.read_text(), costs))
    else:
        tables = [costs_table(costs), sizing_table(costs), limits_table(costs), control_table(costs)]
        sys.stdout.write("\n\n".join(tables) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
