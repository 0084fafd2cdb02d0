"""Generate deploy/grafana from the panels below. With `--check`, fail if the committed files differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
TARGET: Final = ROOT / "deploy/grafana"
COLUMNS: Final = 3
WIDTH, HEIGHT = 24 // COLUMNS, 8
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
AT: Final = 'checkpoint=~"$checkpoint"'
"""Selects the checkpoints that the page shows."""


@dataclass(frozen=True)
class Query:
    """One query of a panel, and the legend of its series in Grafana's notation."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A chart over time.

    Attributes:
        title: Its title.
        about: What it shows, and what to do if it looks wrong.
        unit: Unit of the values, by Grafana's name.
        queries: Its queries.
        exemplars: Whether traced requests are shown in it.
    """

    title: str
    about: str
    unit: str
    queries: Sequence[Query]
    exemplars: bool = False


@dataclass(frozen=True)
class Dashboard:
    """A page of panels in rows."""

    uid: str
    title: str
    by_checkpoint: bool
    rows: Sequence[tuple[str, Sequence[Panel]]]


def rate(metric: str, by: str = "checkpoint", where: str = AT) -> str:
    """Return the rate per second of a counter, summed over all series with the same labels."""
    inside = f"{{{where}}}" if where else ""
    return f"sum by ({by}) (rate({metric}{inside}[$__rate_interval]))"


def quantile(share: float, metric: str, by: str = "checkpoint", where: str = AT) -> str:
    """Return a quantile of a histogram, in its unit."""
    return f"histogram_quantile({share:g}, {rate(f'{metric}_bucket', f'{by}, le', where)})"


def panel(title: str, about: str, unit: str, *queries: tuple[str, str], exemplars: bool = False) -> Panel:
    """Return a panel with these pairs of a query and a legend."""
    return Panel(title, about, unit, [Query(*one) for one in queries], exemplars)


ANSWERED: Final = f'{AT}, by!="refused"'

SERVING: Final = Dashboard(
    "scorer-serving",
    "scorer: answers",
    True,
    [
        (
            "SLA",
            [
                panel(
                    "Share of requests within the SLA",
                    "The SLA promises 99 %. Misses are late, shed or failed requests.",
                    "percentunit",
                    (
                        f"1 - {rate('scorer_sla_misses_total')} / {rate('scorer_sla_requests_total')}",
                        "{{checkpoint}}",
                    ),
                ),
                panel(
                    "Latency of answers",
                    "Answers by model and fallback, as their callers received them, and the SLA. "
                    "A point is a traced request.",
                    "s",
                    (quantile(0.5, "scorer_answer_seconds", where=ANSWERED), "{{checkpoint}} p50"),
                    (quantile(0.99, "scorer_answer_seconds", where=ANSWERED), "{{checkpoint}} p99"),
                    (
                        f"max by (checkpoint) (scorer_sla_promise_seconds{{{AT}}})",
                        "{{checkpoint}} SLA",
                    ),
                    exemplars=True,
                ),
                panel(
                    "Where the time goes",
                    "p99 of the wait for a thread and of the evaluation. A long wait is overload; a long "
                    "evaluation is the bundle.",
                    "s",
                    (quantile(0.99, "scorer_queue_delay_seconds"), "{{checkpoint}} wait"),
                    (quantile(0.99, "scorer_exec_seconds"), "{{checkpoint}} evaluation"),
                ),
                panel(
                    "Misses of the SLA by reason",
                    "late: answered after the SLA. shed: refused because of load. failed: an error of the "
                    "server.",
                    "reqps",
                    (rate("scorer_sla_misses_total", "checkpoint, reason"), "{{checkpoint}} {{reason}}"),
                ),
                panel(
                    "Error budget left",
                    "Part of the last 30 days' budget, of the server that has the least. Below 0 it is "
                    "overdrawn.",
                    "percentunit",
                    (f"min by (checkpoint) (scorer_error_budget_remaining{{{AT}}})", "{{checkpoint}}"),
                ),
                panel(
                    "Burn rate of the error budget",
                    "1 uses the budget up in 30 days; 14.4 over an hour uses 2 % of it.",
                    "none",
                    (
                        "max by (checkpoint, window) (scorer_error_budget_burn_rate"
                        f'{{{AT}, window=~"5m|1h|6h"}})',
                        "{{checkpoint}} {{window}}",
                    ),
                ),
            ],
        ),
        (
            "Traffic",
            [
                panel(
                    "Requests by method and code",
                    "Requests that ended, of the selected checkpoints.",
                    "reqps",
                    (rate("scorer_requests_total", "method, code"), "{{method}} {{code}}"),
                ),
                panel(
                    "Latency by method",
                    "p99 from the HEADERS to the reply, errors included.",
                    "s",
                    (quantile(0.99, "scorer_request_seconds", "method"), "{{method}}"),
                    exemplars=True,
                ),
                panel(
                    "Decisions",
                    "Rows decided. A batch has many.",
                    "ops",
                    (rate("scorer_decisions_total"), "{{checkpoint}}"),
                ),
                panel(
                    "Requests in flight",
                    "Arrived and not answered, of all checkpoints, by server.",
                    "none",
                    ("sum by (instance) (scorer_inflight)", "{{instance}}"),
                ),
                panel(
                    "Replies that went wrong",
                    "Cancelled by the caller, given to nobody, not recorded, or a panic.",
                    "ops",
                    (rate("scorer_requests_cancelled_total", "job", ""), "cancelled"),
                    (rate("scorer_undelivered_decisions_total", "job", ""), "undelivered"),
                    (rate("scorer_unlogged_decisions_total", "job", ""), "not recorded"),
                    (rate("scorer_panics_total", "job", ""), "panics"),
                ),
                panel(
                    "Retries answered from the cache",
                    "Retries with a known request id get the same answer.",
                    "ops",
                    (rate("scorer_replays_total", "job", ""), "replays"),
                ),
            ],
        ),
        (
            "Fallbacks and admission",
            [
                panel(
                    "Share of answers by fallback",
                    "A fallback within the SLA meets it, and decides without the model.",
                    "percentunit",
                    (
                        rate("scorer_answer_seconds_count", where=f'{AT}, by="fallback"')
                        + " / "
                        + rate("scorer_answer_seconds_count", where=ANSWERED),
                        "{{checkpoint}}",
                    ),
                ),
                panel(
                    "Fallbacks by reason",
                    "Decisions that the drawn lane's model did not make.",
                    "ops",
                    (rate("scorer_fallbacks_total", "checkpoint, reason"), "{{checkpoint}} {{reason}}"),
                ),
                panel(
                    "Shed requests by reason",
                    "Requests that were not evaluated, and those that mode enforce would have shed.",
                    "reqps",
                    (rate("scorer_shed_total", "checkpoint, reason"), "{{checkpoint}} {{reason}}"),
                    (
                        rate("scorer_would_shed_total", "checkpoint, reason"),
                        "{{checkpoint}} {{reason}} (observed)",
                    ),
                ),
                panel(
                    "Pressure",
                    "0 normal, 1 no observe lanes, 2 no bulk, 3 no explanations, 4 fallbacks, 5 refusals.",
                    "none",
                    ("max by (instance) (scorer_pressure)", "{{instance}}"),
                ),
                panel(
                    "Work that waits",
                    "Requests that were not read, that wait for a thread, and that are evaluated.",
                    "none",
                    ("sum by (instance) (scorer_unread_waiting)", "{{instance}} unread"),
                    ("sum by (instance) (scorer_admitted_waiting)", "{{instance}} waiting"),
                    ("sum by (instance) (scorer_admitted_running)", "{{instance}} running"),
                ),
                panel(
                    "Late results and exposure caps",
                    "Results after another reply was sent, and fallbacks that a cap withheld.",
                    "ops",
                    (rate("scorer_late_results_total"), "{{checkpoint}} late"),
                    (
                        rate("scorer_exposure_cap_hits_total", "checkpoint, cap"),
                        "{{checkpoint}} cap {{cap}}",
                    ),
                ),
            ],
        ),
    ],
)

SERVERS: Final = Dashboard(
    "scorer-servers",
    "scorer: servers",
    False,
    [
        (
            "Bundles and lanes",
            [
                panel(
                    "Servers that are ready",
                    "1 while every checkpoint of a server has a lane.",
                    "none",
                    ("min by (instance) (scorer_ready)", "{{instance}}"),
                ),
                panel(
                    "Share of traffic by lane",
                    "The lanes of each checkpoint, with the name of their bundle.",
                    "percentunit",
                    (
                        "avg by (checkpoint, lane, name) (scorer_lane_share)",
                        "{{checkpoint}} {{lane}}: {{name}}",
                    ),
                ),
                panel(
                    "Lane tables and bundles",
                    "Changes of lanes and loads of bundles, and those that were refused.",
                    "ops",
                    (rate("scorer_swaps_total", "instance", ""), "{{instance}} swaps"),
                    (rate("scorer_swaps_refused_total", "instance", ""), "{{instance}} swaps refused"),
                    (rate("scorer_loads_total", "instance", ""), "{{instance}} loads"),
                    (
                        rate("scorer_loads_refused_total", "instance, reason", ""),
                        "{{instance}} refused: {{reason}}",
                    ),
                ),
                panel(
                    "From the alias to the first answer",
                    "Time of each stage of the newest bundle.",
                    "s",
                    (
                        "max by (checkpoint, stage) (scorer_data_load_stage_seconds)",
                        "{{checkpoint}} {{stage}}",
                    ),
                ),
                panel(
                    "Memory",
                    "Resident memory, and the limit that loading a bundle must not exceed.",
                    "bytes",
                    ("max by (instance) (scorer_memory_resident_bytes)", "{{instance}}"),
                    ("max by (instance) (scorer_memory_budget_bytes)", "{{instance}} limit"),
                ),
                panel(
                    "Registry",
                    "1 if the last read succeeded, and the bundles in quarantine.",
                    "none",
                    ("min by (instance) (scorer_registry_reachable)", "{{instance}} reachable"),
                    ("max by (instance) (scorer_bundles_quarantined)", "{{instance}} in quarantine"),
                ),
            ],
        ),
        (
            "Decision log",
            [
                panel(
                    "Records",
                    "Records written, and those that were dropped or refused.",
                    "ops",
                    (
                        "sum by (instance) (deriv(scorer_log_next_sequence[$__rate_interval]))",
                        "{{instance}} written",
                    ),
                    (rate("scorer_log_dropped_records_total", "instance", ""), "{{instance}} dropped"),
                    (rate("scorer_log_refused_records_total", "instance", ""), "{{instance}} refused"),
                ),
                panel(
                    "Disk",
                    "Size of the log, bytes that can still be written, and bytes kept beyond a limit.",
                    "bytes",
                    ("max by (instance) (scorer_log_bytes)", "{{instance}} log"),
                    ("min by (instance) (scorer_log_free_bytes)", "{{instance}} free"),
                    ("max by (instance) (scorer_log_retention_blocked_bytes)", "{{instance}} kept"),
                ),
                panel(
                    "Waiting for the disk",
                    "Records to write, and bytes that are not on stable storage.",
                    "short",
                    ("max by (instance) (scorer_log_queued_records)", "{{instance}} records"),
                    ("max by (instance) (scorer_log_unsynced_bytes)", "{{instance}} bytes"),
                ),
                panel(
                    "Lag of shipping",
                    "Age of the oldest record that a sink lacks. It must stay far below the time until the "
                    "disk is full.",
                    "s",
                    ("max by (instance, sink) (scorer_ship_lag_seconds)", "{{instance}} {{sink}}"),
                ),
                panel(
                    "Records shipped",
                    "Records delivered to each sink, and deliveries that were tried again.",
                    "ops",
                    (rate("scorer_ship_records_total", "instance, sink", ""), "{{instance}} {{sink}}"),
                    (
                        rate("scorer_ship_retries_total", "instance, sink", ""),
                        "{{instance}} {{sink}} retries",
                    ),
                ),
                panel(
                    "Outcomes",
                    "Outcomes recorded by what proves them, and those refused.",
                    "ops",
                    (rate("scorer_outcomes_recorded_total", "proof", ""), "{{proof}}"),
                    (rate("scorer_outcomes_refused_total", "reason", ""), "refused: {{reason}}"),
                ),
            ],
        ),
        (
            "Observe lanes and traces",
            [
                panel(
                    "Requests of observe lanes",
                    "By what became of them; dropped and shed ones do not affect answers.",
                    "reqps",
                    (
                        rate("scorer_observe_requests_total", "checkpoint, lane, outcome", ""),
                        "{{checkpoint}} {{lane}} {{outcome}}",
                    ),
                ),
                panel(
                    "Processor time of observe lanes",
                    "Cores that the threads of lanes use, and 1 while a lane is stuck.",
                    "none",
                    (
                        rate("scorer_observe_cpu_seconds_total", "instance, lane", ""),
                        "{{instance}} {{lane}}",
                    ),
                    (
                        "max by (instance, lane) (scorer_observe_stuck)",
                        "{{instance}} {{lane}} stuck",
                    ),
                ),
                panel(
                    "Shadow pool",
                    "Requests sent to the pool by what became of them, and 1 while it answers.",
                    "none",
                    (
                        rate("scorer_shadow_pool_requests_total", "instance, outcome", ""),
                        "{{instance}} {{outcome}}",
                    ),
                    ("min by (instance) (scorer_shadow_pool_connected)", "{{instance}} connected"),
                ),
                panel(
                    "Traced requests",
                    "By what decided it. Limited ones were answered and not traced.",
                    "reqps",
                    (rate("scorer_traced_requests_total", "decision", ""), "{{decision}}"),
                ),
                panel(
                    "Spans",
                    "Spans by what became of them, and those that wait for the collector.",
                    "short",
                    (rate("scorer_trace_spans_total", "outcome", ""), "{{outcome}} per second"),
                    ("sum by (instance) (scorer_trace_spans_waiting)", "{{instance}} waiting"),
                ),
                panel(
                    "Collector of traces",
                    "1 while it answers.",
                    "none",
                    ("min by (instance) (scorer_trace_collector_connected)", "{{instance}}"),
                ),
            ],
        ),
        (
            "Connections and identity",
            [
                panel(
                    "Connections",
                    "Open connections by server.",
                    "none",
                    ("sum by (instance) (scorer_connections)", "{{instance}}"),
                ),
                panel(
                    "Connections that were refused or failed",
                    "Closed by a limit at accept, without HTTP/2, or ended by an error.",
                    "cps",
                    (rate("scorer_connections_refused_total", "instance", ""), "{{instance}} refused"),
                    (
                        rate("scorer_connections_no_preface_total", "instance", ""),
                        "{{instance}} not HTTP/2",
                    ),
                    (rate("scorer_connections_failed_total", "instance", ""), "{{instance}} failed"),
                ),
                panel(
                    "Limits that acted on clients",
                    "By limit. Look for the client in the events.",
                    "ops",
                    (rate("scorer_limit_hits_total", "limit", ""), "{{limit}}"),
                ),
                panel(
                    "Calls and handshakes refused",
                    "Unknown callers, callers without the role, and TLS handshakes that failed.",
                    "ops",
                    (rate("scorer_calls_refused_total", "code", ""), "{{code}}"),
                    (rate("scorer_handshakes_failed_total", "reason", ""), "handshake: {{reason}}"),
                ),
                panel(
                    "Time until certificates expire",
                    "Of the listener of each server.",
                    "s",
                    (
                        "min by (instance) (scorer_tls_certificate_expires_timestamp_seconds) - time()",
                        "{{instance}}",
                    ),
                ),
                panel(
                    "Card numbers in requests",
                    "Requests refused because a field held a card number, and fields that were masked.",
                    "ops",
                    (rate("scorer_card_numbers_refused_total", "instance", ""), "{{instance}} refused"),
                    (rate("scorer_card_numbers_masked_total", "instance", ""), "{{instance}} masked"),
                ),
            ],
        ),
    ],
)

DASHBOARDS: Final = (SERVING, SERVERS)


def rendered(dashboard: Dashboard) -> str:
    """Return the JSON of a dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for heading, row in dashboard.rows:
        panels.append(
            _placed({"type": "row", "title": heading, "collapsed": False, "panels": []}, 0, y, 24, 1)
        )
        y += 1
        for place, one in enumerate(row):
            x, down = place % COLUMNS * WIDTH, place // COLUMNS * HEIGHT
            panels.append(_placed(_chart(one), x, y + down, WIDTH, HEIGHT))
        y += -(-len(row) // COLUMNS) * HEIGHT
    for number, each in enumerate(panels, start=1):
        each["id"] = number
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["scorer"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(dashboard)},
        "panels": panels,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _placed(element: dict[str, Any], x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {**element, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _chart(one: Panel) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": SOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "exemplar": one.exemplars,
        }
        for place, query in enumerate(one.queries)
    ]
    return {
        "type": "timeseries",
        "title": one.title,
        "description": one.about,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": one.unit}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi"},
        },
        "targets": targets,
    }


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    if dashboard.by_checkpoint:
        variables.append(
            {
                "name": "checkpoint",
                "label": "Checkpoint",
                "type": "query",
                "datasource": SOURCE,
                "query": "label_values(scorer_sla_promise_seconds, checkpoint)",
                "refresh": 2,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
        )
    return variables


def main(arguments: Sequence[str]) -> int:
    """Write the files, or with `--check` compare them; return the exit code."""
    files = {TARGET / f"{one.uid}.json": rendered(one) for one in DASHBOARDS}
    if "--check" not in arguments:
        TARGET.mkdir(exist_ok=True)
        for path, text in files.items():
            path.write_text(text)
        return 0
    stale = [path.name for path, text in files.items() if not path.exists() or path.read_text() != text]
    stale += sorted(path.name for path in TARGET.glob("*.json") if path not in files)
    if stale:
        sys.stderr.write(f"dashboards are stale: {', '.join(stale)}; run scripts/gen_dashboards.py\n")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
