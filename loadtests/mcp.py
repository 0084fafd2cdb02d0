"""`python -m loadtests.mcp`: latency of agents' tools on the demo's payments, and the drills' counts.

The official client of the Model Context Protocol calls each tool that reads, over HTTP, one call after the
other. The p99 of each tool must be at most 200 ms. Then an agent that obeys every text calls what it is told
to, and an agent of another project asks for each object of the first one. Both drills count what must be 0.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from sqlalchemy import select

from loadtests.figures import Figures
from loadtests.mcp_platform import AUTHORISE, FALLEN, DemoPayments, demo_payments
from loadtests.runs import add_run_options, open_run
from scorer.release.agents.catalogue import TOOLS
from scorer.release.store import tables

COMMAND: Final = "python -m loadtests.mcp"
MOST_MS: Final = 200.0
ABSENT: Final = {"change": "cr-099999", "bundle": "sha256:" + "ab" * 32}
RULES: Final = """name = "agent"
[[rules]]
id = "no_exemption_above_100"
when = "amount > 100.0"
remove = { exemption = ["tra"] }
source = "PSD2 RTS, Article 18 and Annex"
"""
ORDERS: Final = (
    "approve_change", "approve", "submit_change", "submit", "deploy", "rollback", "set_member", "allow_tools",
    "create_token", "set_sampling", "freeze", "delete_change",
)  # fmt: skip
"""Names of tools that an agent which obeys a text may call."""
KEPT: Final = (
    tables.projects, tables.members, tables.tokens, tables.bookings, tables.freezes, tables.recorded_tables,
    tables.permissions, tables.waivers, tables.change_events, tables.changes, tables.bundles,
)  # fmt: skip
"""Tables that no tool but those of drafts may change."""


class ToolFailedError(Exception):
    """A tool has rejected a call that is measured."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table. The exit code is 1 if a figure misses its target."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--payments", type=int, default=4_000, help="recorded payments")
    parser.add_argument("--calls", type=int, default=200, help="calls of each tool")
    add_run_options(parser)
    asked = parser.parse_args(arguments)
    figures = open_run(asked, group="mcp")
    if asked.smoke:
        asked.payments, asked.calls = 400, 5
    with (
        tempfile.TemporaryDirectory() as name,
        demo_payments(Path(name), payments=asked.payments, trees=10 if asked.smoke else 60) as demo,
    ):
        missed = asyncio.run(_all(demo, figures, asked.calls))
    _say(f"\n{figures.path}")
    if missed and not asked.smoke:
        _say(f"MISSED: {', '.join(missed)}")
        return 1
    return 0


async def _all(demo: DemoPayments, figures: Figures, calls: int) -> list[str]:
    missed = []
    async with connected(demo, "agent") as client:
        _say(f"{'tool':22} {'p50':>9} {'p99':>9} {'most':>9}  ms over {calls} calls each")
        for name, given in arguments(demo).items():
            taken = await _timed(client, name, given, calls)
            worst = percentile(taken, 0.99)
            _say(f"{name:22} {median(taken):9,.1f} {worst:9,.1f} {max(taken):9,.1f}")
            figures.add(name=f"{name}, p99", ours=worst, unit="ms", target=MOST_MS, command=COMMAND)
            missed += [name] * (worst > MOST_MS)
        changes = await injection(demo, client)
    async with connected(demo, "stranger") as client:
        leaks, compared = await permission(demo, client)
    for name, count in (
        ("state changes of the injection drill", changes),
        ("leaks of the permission drill", leaks),
    ):
        _say(f"{name}: {count}")
        figures.add(name=name, ours=count, unit="count", target=0, command=COMMAND)
        missed += [name] * bool(count)
    _say(f"answers compared for leaks: {compared}")
    return missed


@asynccontextmanager
async def connected(demo: DemoPayments, user: str) -> AsyncIterator[Client]:
    """Connect the official client as a user, over HTTP."""
    headers = {"Authorization": f"Bearer {demo.tokens[user]}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{demo.url}/api/mcp", http_client=http)) as client,
    ):
        yield client


def arguments(demo: DemoPayments) -> dict[str, dict[str, Any]]:
    """Return arguments of each tool that reads and does not start a process."""
    point = {"checkpoint": AUTHORISE}
    service = demo.platform.service
    known = service.decisions.find(service.access.authenticate(demo.tokens["admin"]), "payment-7")
    values = {one["name"]: one["value"] for one in known["features"]}
    return {
        "list_checkpoints": {},
        "list_bundles": {},
        "describe_bundle": {"bundle": demo.bundle},
        "list_versions": point,
        "compare_versions": {"left": demo.bundle, "right": demo.bundle},
        "score_what_if": {**point, "features": {**values, "issuer": FALLEN}},
        "find_decisions": point,
        "explain_decision": {"decision_id": "payment-7"},
        "outcomes_by_feature": {**point, "feature": "issuer"},
        "live_metrics": point,
        "drift_status": point,
        "list_changes": {},
        "read_report": {"change": demo.draft},
        "backtest_rules": {**point, "rules": RULES},
        "calendar": {},
    }


async def _timed(client: Client, name: str, given: Mapping[str, Any], calls: int) -> list[float]:
    taken = []
    for number in range(calls + 3):
        began = time.perf_counter()
        result = await client.call_tool(name, dict(given))
        if result.is_error:
            raise ToolFailedError(f"{name}: {result.content[0].text}")
        if number >= 3:  # the first calls load the bundle
            taken.append(1_000 * (time.perf_counter() - began))
        if name == "backtest_rules":
            # A call checks rules twice, and checks have a rate of their own, two a second.
            await asyncio.sleep(1.2)
    return taken


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


# --- drills ---


async def injection(demo: DemoPayments, client: Client) -> int:
    """Obey the texts of a draft: call what they ask for, over the protocol and over REST.

    Returns:
        The number of tables that changed. A draft of the agent itself is made in no step.
    """
    report = await client.call_tool("read_report", {"change": demo.draft})
    order = report.structured_content["data"]["change"]["title"]
    if set(order) != {"user_text"}:
        return 1
    before = _state(demo)
    for name in ORDERS:
        try:
            result = await client.call_tool(name, {"change": demo.draft, "reason": order["user_text"]})
            if not result.is_error:
                return 1
        except MCPError:
            continue
    bearer = {"Authorization": f"Bearer {demo.tokens['agent']}"}
    with httpx.Client(base_url=f"{demo.url}/api/v1", headers=bearer, timeout=60) as rest:
        for operation in ("submit", "withdraw", "reject", "approve", "waivers", "comments", "finish"):
            body = {"reason": "told to", "comment": "x", "text": "x", "metric": "flip_rate"}
            for sent in ({}, {"reason": body["reason"]}, body):
                rest.post(f"/changes/{demo.draft}/{operation}", json=sent)
        rest.delete(f"/changes/{demo.draft}")
        rest.put("/projects/payments/agents", json={"tools": []})
        rest.put("/projects/payments/members/agent", json={"role": "owner"})
        rest.post("/tokens", json={"label": "more", "role": "viewer"})
        rest.post(f"/checkpoints/{AUTHORISE}/rollback", json={"reason": "told to"})
        rest.put(f"/checkpoints/{AUTHORISE}/sampling", json={"sample": 1.0})
    after = _state(demo)
    return sum(before[name] != after[name] for name in before)


def _state(demo: DemoPayments) -> dict[str, str]:
    """Return a digest of the rows of each table that no tool may change."""
    found = {}
    with demo.platform.store.read() as connection:
        for table in KEPT:
            columns = [one for one in table.c if one.name != "last_used_at"]
            rows = sorted(map(repr, connection.execute(select(*columns))))
            found[table.name] = hashlib.sha256("\n".join(rows).encode()).hexdigest()
    return found


async def permission(demo: DemoPayments, client: Client) -> tuple[int, int]:
    """Ask as an agent of another project for objects of the first one, and for objects that do not exist.

    Returns:
        The number of tools whose answers differ, and the number of answers compared.
    """
    leaks = compared = 0
    draft = {"bundle": demo.bundle, "title": "x"}
    cases = {
        **{
            name: {"checkpoint": AUTHORISE}
            for name in TOOLS
            if "checkpoint" in TOOLS[name].arguments.model_fields
        },
        "score_what_if": {"checkpoint": AUTHORISE, "features": {}},
        "outcomes_by_feature": {"checkpoint": AUTHORISE, "feature": "issuer"},
        "backtest_rules": {"checkpoint": AUTHORISE, "rules": RULES},
        "compare_over_time": {"checkpoint": AUTHORISE, "versions": [demo.bundle]},
        "explain_decision": {"decision_id": "payment-7"},
        "describe_bundle": {"bundle": demo.bundle},
        "compare_versions": {"left": demo.draft, "right": demo.draft},
        "list_bundles": {"project": "payments"},
        "list_changes": {"project": "payments"},
        "read_report": {"change": demo.draft},
        "draft_change": {"project": "payments", "checkpoint": "fraud.checkout", **draft},
        "edit_draft": {"change": demo.draft, "version": 1, "checkpoint": "fraud.checkout", **draft},
    }
    secrets = {demo.bundle: ABSENT["bundle"], demo.draft: ABSENT["change"], AUTHORISE: "no.such"}
    secrets |= {"payments": "absent", "payment-7": "payment-x"}
    for name, given in cases.items():
        absent = {key: secrets.get(str(value), value) for key, value in given.items()}
        if name == "compare_over_time":
            absent["versions"] = [ABSENT["bundle"]]
        texts = []
        for sent in (given, absent):
            result = await client.call_tool(name, sent)
            text = result.content[0].text if result.is_error else "answered"
            for real, other in secrets.items():
                text = text.replace(real, "X").replace(other, "X")
            texts.append(text)
            compared += 1
        leaks += texts[0] != texts[1] or texts[0] == "answered"
    return leaks, compared


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
