"""`python -m loadtests.mcp`: latency of agents' tools on the demo's payments, and the drills' counts.

The official client of the Model Context Protocol calls each tool over streamable HTTP and over standard input
and output, one call after the other. The p99 of each tool that reads must be at most 200 ms. A tool that
starts a job is measured for its answers: to the call that starts the job, to calls while the job runs, and to
calls after it; the duration of the job is shown apart. Tools that draft are measured and have no target.

Then, over both transports, an agent that obeys every text calls what it is told to, and an agent of another
project asks for each object of the first one. Both drills count what must be 0.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from sqlalchemy import select

from loadtests.figures import Figures
from loadtests.mcp_platform import ADOPTION, AUTHORISE, FALLEN, DemoPayments, demo_payments
from loadtests.runs import add_run_options, open_run
from scorer.release.agents.catalogue import TOOLS
from scorer.release.store import tables

COMMAND: Final = "python -m loadtests.mcp"
TRANSPORTS: Final = ("http", "stdio")
MOST_MS: Final = 200.0
WARM_UP: Final = 3
"""Calls that are not measured: the first ones load the bundle."""
PAUSES: Final = {"backtest_rules": 1.2}
"""Seconds after a call. A call checks rules twice, and checks have a rate of their own, two a second."""
MOST_PACED: Final = 100
"""Calls of a tool with a pause, so that the run ends in minutes."""
POLL_SECONDS: Final = 0.05
STARTS: Final = 5
"""Jobs that each tool with jobs starts over each transport."""
JOB_SECONDS: Final = 120.0
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

Following = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Makes the arguments of a call from the data of the result of the call before; at first that is empty."""


class ToolFailedError(Exception):
    """A tool has rejected a call that is measured, or its job has failed."""


@dataclass(frozen=True)
class Timed:
    """Times of calls.

    Attributes:
        name: The tool, and which of its answers.
        taken: Milliseconds of each call.
        target: The most that the p99 may be; None: there is no target.
    """

    name: str
    taken: Sequence[float]
    target: float | None = MOST_MS

    @property
    def p99(self) -> float:
        """The time that 99 % of the calls do not exceed."""
        return percentile(self.taken, 0.99)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table. The exit code is 1 if a figure misses its target."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--payments", type=int, default=4_000, help="recorded payments")
    parser.add_argument("--calls", type=int, default=200, help="calls of each tool over each transport")
    parser.add_argument("--minutes", type=float, default=20.0, help="time after which the run is given up")
    add_run_options(parser)
    asked = parser.parse_args(arguments)
    figures = open_run(asked, group="mcp")
    if asked.smoke:
        asked.payments, asked.calls = 400, 5
    with (
        tempfile.TemporaryDirectory() as name,
        demo_payments(Path(name), payments=asked.payments, trees=10 if asked.smoke else 60) as demo,
    ):
        try:
            missed = asyncio.run(_bounded(demo, figures, asked))
        except TimeoutError:
            sys.exit(f"error: the run has not ended after {asked.minutes:g} minutes; give fewer --calls")
        except BaseExceptionGroup as errors:
            # The client's groups of tasks wrap what is raised while it is connected.
            if (failed := errors.subgroup(ToolFailedError)) is None:
                raise
            while isinstance(failed, BaseExceptionGroup):
                failed = failed.exceptions[0]
            sys.exit(f"error: {failed}")
    _say(f"\n{figures.path}")
    if missed and not asked.smoke:
        _say(f"MISSED: {', '.join(missed)}")
        return 1
    return 0


async def _bounded(demo: DemoPayments, figures: Figures, asked: argparse.Namespace) -> list[str]:
    async with asyncio.timeout(60 * asked.minutes):
        return await _all(demo, figures, asked.calls, 1 if asked.smoke else STARTS)


async def _all(demo: DemoPayments, figures: Figures, calls: int, starts: int) -> list[str]:
    missed, worst = [], Timed("nothing", [0.0])
    _say(f"{'tool':36} {'over':6} {'calls':>6} {'p50':>9} {'p99':>9} {'most':>9}  ms")
    for transport in TRANSPORTS:
        async with connected(transport, demo.url, demo.tokens["agent"]) as client:
            for tool in TOOLS:
                for one in await measured(demo, client, tool, calls, starts):
                    _say(
                        f"{one.name:36} {transport:6} {len(one.taken):6,d} {median(one.taken):9,.1f} "
                        f"{one.p99:9,.1f} {max(one.taken):9,.1f}{'' if one.target else '  no target'}"
                    )
                    name = f"{one.name} over {transport}"
                    figures.add(
                        name=f"{name}, p99", ours=one.p99, unit="ms", target=one.target, command=COMMAND
                    )
                    if one.target is not None:
                        missed += [name] * (one.p99 > one.target)
                        worst = max(worst, Timed(name, one.taken), key=lambda timed: timed.p99)
    _say(
        f"p99 of each tool that reads, at most {MOST_MS:g} ms: {'missed' if missed else 'met'}; "
        f"the largest is {worst.p99:,.1f} ms, of {worst.name}"
    )
    changes = leaks = compared = 0
    for transport in TRANSPORTS:
        async with connected(transport, demo.url, demo.tokens["agent"]) as client:
            changes += await injection(demo, client)
        async with connected(transport, demo.url, demo.tokens["stranger"]) as client:
            found = await permission(demo, client)
            leaks, compared = leaks + found[0], compared + found[1]
    for name, number in (
        ("state changes of the injection drill", changes),
        ("leaks of the permission drill", leaks),
    ):
        _say(f"{name}: {number}")
        figures.add(name=name, ours=number, unit="count", target=0, command=COMMAND)
        missed += [name] * bool(number)
    _say(f"answers compared for leaks: {compared}")
    return missed


@asynccontextmanager
async def connected(transport: str, url: str, token: str, *, mode: str = "auto") -> AsyncIterator[Client]:
    """Connect the official client over a transport, with a token.

    Args:
        transport: One of `TRANSPORTS`. Over `stdio`, the client starts `scorer mcp`.
        url: Address of the platform.
        token: Of the user.
        mode: How the client chooses the version of the protocol.
    """
    if transport == "stdio":
        environment = {**os.environ, "SCORER_PLATFORM_URL": url, "SCORER_PLATFORM_TOKEN": token}
        process = StdioServerParameters(
            command=sys.executable, args=["-m", "scorer.cli", "mcp"], env=environment
        )
        async with Client(process, mode=mode) as client:
            yield client
        return
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{url}/api/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


async def measured(demo: DemoPayments, client: Client, tool: str, calls: int, starts: int) -> Sequence[Timed]:
    """Return the times of a tool.

    Raises:
        ToolFailedError: The tool has rejected a call, or its job has failed.
    """
    if (following := jobs(demo).get(tool)) is not None:
        return await _timed_jobs(client, tool, following, calls, starts)
    following = arguments(demo)[tool]
    target = None if TOOLS[tool].drafts else MOST_MS
    if tool in PAUSES:
        calls = min(calls, MOST_PACED)
    return [Timed(tool, await _timed(client, tool, following, calls), target)]


def arguments(demo: DemoPayments) -> dict[str, Following]:
    """Return what makes the arguments of each tool that starts no job."""
    point = {"checkpoint": AUTHORISE}
    service = demo.platform.service
    known = service.decisions.find(service.access.authenticate(demo.tokens["admin"]), "payment-7")
    values = {one["name"]: one["value"] for one in known["features"]}
    fixed: dict[str, dict[str, Any]] = {
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
    own, person = (service.access.authenticate(demo.tokens[user]) for user in ("agent", "mo"))

    def create(last: Mapping[str, Any]) -> dict[str, Any]:
        # The number of open change requests of a project is limited.
        if last:
            service.changes.delete(person, last["draft"])
        return {"project": "payments", **point, "bundle": demo.bundle, "title": "Measured"}

    def edit(last: Mapping[str, Any]) -> dict[str, Any]:
        draft = last or {"draft": demo.drafted(own).id, "version": 1}
        edited = {**point, "bundle": demo.bundle, "title": f"Version {draft['version'] + 1}"}
        return {"change": draft["draft"], "version": draft["version"], **edited}

    reading: dict[str, Following] = {name: lambda _, given=given: given for name, given in fixed.items()}
    return reading | {"draft_change": create, "edit_draft": edit}


_weeks = count(1)


def jobs(demo: DemoPayments) -> dict[str, Following]:
    """Return what makes the arguments of each tool that starts a job: each time for a job of its own."""

    def comparison(_last: Mapping[str, Any]) -> dict[str, Any]:
        return {"checkpoint": AUTHORISE, "versions": [demo.bundle], "weeks": next(_weeks)}

    def adoption(_last: Mapping[str, Any]) -> dict[str, Any]:
        # An analysis is stored until the time of its tables changes.
        demo.adoptions.touch()
        return {"checkpoint": AUTHORISE, "task": ADOPTION}

    return {"compare_over_time": comparison, "value_of_adoption": adoption}


async def _timed(
    client: Client, tool: str, following: Following, calls: int, warm_up: int = WARM_UP
) -> list[float]:
    taken = []
    last: Mapping[str, Any] = {}
    for number in range(calls + warm_up):
        milliseconds, last = await _called(client, tool, following(last))
        if number >= warm_up:
            taken.append(milliseconds)
        if tool in PAUSES:
            await asyncio.sleep(PAUSES[tool])
    return taken


async def _called(client: Client, tool: str, given: dict[str, Any]) -> tuple[float, Mapping[str, Any]]:
    """Call a tool, and return the milliseconds and the data of the result."""
    began = time.perf_counter()
    result = await client.call_tool(tool, given)
    taken = 1_000 * (time.perf_counter() - began)
    if result.is_error:
        raise ToolFailedError(f"{tool}: {result.content[0].text}")
    return taken, result.structured_content["data"]


async def _timed_jobs(
    client: Client, tool: str, following: Following, calls: int, starts: int
) -> Sequence[Timed]:
    """Start jobs one after the other, and call while each of them runs and after the last one."""
    started, running, took = [], [], []
    for _ in range(starts):
        given, began = following({}), time.perf_counter()
        milliseconds, found = await _called(client, tool, given)
        if found["state"] not in ("waiting", "running"):
            raise ToolFailedError(f"{tool}: a new job is {found['state']} at once")
        started.append(milliseconds)
        while found["state"] in ("waiting", "running"):
            if time.perf_counter() - began > JOB_SECONDS:
                raise ToolFailedError(f"{tool}: the job has not ended after {JOB_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)
            milliseconds, found = await _called(client, tool, given)
            if found["state"] != "done":
                running.append(milliseconds)
        if found["state"] != "done":
            raise ToolFailedError(f"{tool}: the job is {found['state']}: {found['error']}")
        took.append(time.perf_counter() - began)
    _say(f"{tool}: the job itself took {min(took):.1f} to {max(took):.1f} s")
    ended = await _timed(client, tool, lambda _last: given, calls)
    parts = [(f"{tool}, start", started), (f"{tool}, running", running), (f"{tool}, done", ended)]
    return [Timed(name, times) for name, times in parts if times]


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
