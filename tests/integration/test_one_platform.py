"""Test that the platform shows the traffic of three servers as it shows that of one server.

The same requests and outcomes go to one real server and to three, in the same seconds of a clock that the
test sets. Requests and outcomes reach random servers, and some requests are sent to two of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from observing import World
from platform_shop import COUNT, DELAY, REPEATED, Shown, figures, servers, shown

from scorer.registry import Registry
from scorer.token_keys import add_key

OF_A_SERVER = ("server", "lane_table", "exec_us", "data_load_us")
"""Fields of a decision that differ between two servers that decide the same request."""
TIMED = {"execution", "data-load", "latency", "coverage", "drops"}
"""Figures of a report that show times of a run, or that count a repeated request at both servers."""


def untimed(summary: Any) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if key not in ("execution", "data_load", "lag")}


@pytest.mark.timeout(300)
def test_three_servers_are_shown_as_one(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    registry = Registry(tmp_path / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    registry.push(built_bundles["score-2"])
    add_key(tmp_path / "keys.json")
    found: dict[int, Shown] = {}
    repeated = -(-COUNT // REPEATED)
    for count in (1, 3):
        names = [f"live-{number}" for number in range(1, count + 1)]
        (tmp_path / f"of-{count}").mkdir()
        world = World(
            tmp_path / f"of-{count}", built_bundles["score-1"], built_bundles["score-2"], servers=names
        )
        (world.root / "logs").mkdir()
        with servers([world], tmp_path / f"servers-{count}", tmp_path / "registry") as shop:
            shop.buy_all()
        found[count] = shown(world)
    alone, together = found[1], found[3]
    assert together.servers == {"live-1", "live-2", "live-3"}

    def plain(rows_: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: one[key] for key in one if key not in OF_A_SERVER} for one in rows_]

    # The list has each payment once, with the outcome that any server received.
    assert plain(together.listed) == plain(alone.listed)
    assert [one["decision_id"] for one in alone.listed] == [f"payment-{n:03}" for n in reversed(range(COUNT))]
    assert sum(bool(one["outcomes"]) for one in alone.listed) == sum(
        1 for n in range(COUNT) if (n + DELAY) % 5
    )
    reports = [[(one["value"], one["revision"], one["counts"]) for one in of.single["outcomes"]] for of in
               (alone, together)]  # fmt: skip
    assert reports[0] == reports[1] and len(reports[0]) == 2

    # The report is of the same decisions. A repeated request was taken by the lanes of both servers.
    assert figures(together.report, without=TIMED) == figures(alone.report, without=TIMED)
    assert together.report.rows == alone.report.rows == COUNT
    assert together.report.examples == alone.report.examples
    counts = [of.report.summary.pop("counts") for of in (alone, together)]
    sources = [of.report.summary.pop("sources") for of in (alone, together)]
    counters = [of.report.summary.pop("counters") for of in (alone, together)]
    by_server = [of.report.summary.pop("servers") for of in (alone, together)]
    assert untimed(together.report.summary) == untimed(alone.report.summary)
    assert counts[0]["taken"] == counters[0]["taken"] == COUNT
    assert counters[1]["taken"] == COUNT + repeated
    assert counts[1]["taken"] == counts[1]["observed"] == COUNT + repeated
    assert (set(sources[0]), set(sources[1])) == ({"live-1"}, together.servers)
    assert (set(by_server[1]), sum(by_server[1].values())) == (together.servers, COUNT)
    assert [(one.metric, one.outcome) for one in together.report.gates] == [
        (one.metric, one.outcome) for one in alone.report.gates
    ]

    # So are the figures over time.
    timed = {"execution", "data-load"}
    assert figures(together.metrics, without=timed) == figures(alone.metrics, without=timed)
    assert together.metrics.rows == alone.metrics.rows == COUNT
    assert any(row for row in figures(alone.metrics, without=timed)["outcomes"][1])
