"""Seconds from an alert of drift to a submitted TEST: `python -m loadtests.drift_response`.

The demo trains and serves its models (`examples.demo`). Six weeks of its payments, decided by the live action
model, are then written as a decision log whose last 12 hours have amounts that are three times as large. A
platform monitors the log, and `scorer learn schedule` runs the job `drift` each minute; both are processes of
their own. The time ends when the change request is submitted with the alert as its evidence.

Exit code 1: there was no submitted TEST within the target.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from examples.datasets import HANDBOOK, present
from examples.demo.data import obtain
from examples.demo.output import Output
from examples.demo.plan import DemoPlan, Paths
from examples.demo.process import PlatformProcess, ServerProcess, command_line, environment, run_command
from examples.demo.run import run_demo
from examples.demo.shipping import USER
from examples.demo.traffic import AUTHORISE
from examples.simulators.payments import Payments, contexts
from examples.simulators.task import authorise_task, context_rows, mask_bytes
from loadtests.ship import LogWriter
from scorer.bundle import Bundle
from scorer.registry import Registry
from scorer.sdk import PlatformClient
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord

TARGET_SECONDS: Final = 600.0
PROJECT: Final = "authorise"
LOOP: Final = "loop"
ALIAS: Final = f"{authorise_task().name}@live"
WEEKS: Final = 6
CHANGED_HOURS: Final = 12
CHANGE: Final = 3.0
_BLOCK: Final = 8_192
_PATIENCE: Final = 3_600.0
_POLL: Final = 0.2


def main() -> int:
    """Prepare the demo and the log, run platform and schedule, and print the seconds of each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=int, default=100, help="decisions per hour of the log")
    parser.add_argument("--quick", action="store_true", help="small models of the demo")
    parser.add_argument("--simulated", action="store_true", help="simulate the transactions")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="drift-response-") as folder:
        plan = DemoPlan.quick() if options.quick else DemoPlan.normal()
        given = None if options.simulated else present(HANDBOOK)
        paths = Paths(given, None, Path(folder).resolve() / "demo")
        run_demo(paths, plan, options.seed)
        rows = write_log(paths, plan, options.rate, options.seed)
        seconds, change = respond(paths, plan)
        print(
            f"\n{rows:,} decisions of {WEEKS} weeks, amounts times {CHANGE:g} in the last {CHANGED_HOURS} h"
        )
        print("| from the alert to | s |\n|---|--:|")
        for name, value in seconds.items():
            print(f"| {name} | {value:.0f} |")
        causes = change["evidence"].get("drift", {}).get("causes", [])
        print(f"\n{change['id']} is {change['state']}; evidence: {'; '.join(causes[:3]) or 'none'}")
        met = bool(causes) and seconds["TEST submitted"] <= TARGET_SECONDS
    return 0 if met else 1


def write_log(paths: Paths, plan: DemoPlan, rate: int, seed: int) -> int:
    """Write decisions of the live action model until now, with their outcomes. Return their number."""
    data = obtain(paths, plan, seed, Output())
    hours = WEEKS * 7 * 24
    count = rate * hours
    order = np.resize(np.arange(len(data.transactions)), count)
    payments = contexts(data.transactions.take(order), np.full(count, 0.01), seed)
    found = Registry(paths.registry).show(ALIAS)
    bundle = Bundle.load(found.path)
    now = time.time_ns() // 1000
    at_us = now - np.arange(count, 0, -1) * (3_600_000_000 // rate)
    features = context_rows(payments)
    features[at_us >= now - CHANGED_HOURS * 3_600_000_000, 0] *= CHANGE
    truth, random = Payments().probability(payments), np.random.default_rng(seed)
    folder = paths.output / "traffic"
    folder.mkdir()
    writer = LogWriter(folder)
    for begin in range(0, count, _BLOCK):
        part = slice(begin, min(begin + _BLOCK, count))
        eligible = payments.take(part).eligible()
        pmf, _ = bundle.evaluate(features[part], eligible=eligible)
        drawn = (random.random(len(pmf))[:, None] > pmf.cumsum(axis=1)).sum(axis=1)
        drawn = np.minimum(drawn, pmf.shape[1] - 1)
        payloads = []
        for row, action in enumerate(drawn.tolist()):
            place = begin + row
            decision = DecisionRecord(
                decision_id=f"payment-{place}",
                checkpoint=AUTHORISE,
                lane="live",
                bundle=bytes.fromhex(bundle.digest.removeprefix("sha256:")),
                decided_at_us=int(at_us[place]),
                entity=f"card-{place}",
                features=features[place].tolist(),
                schema_fingerprint=bundle.schema_fingerprint,
                pmf=pmf[row].tolist(),
                action_index=action,
                action=bundle.actions[action],
                propensity=float(pmf[row, action]),
                eligible_mask=mask_bytes(eligible[row]),
            )
            outcome = OutcomeRecord(
                checkpoint=AUTHORISE,
                decision_id=f"payment-{place}",
                kind="authorised",
                value=float(payments.chance[place] < truth[place, action]),
                received_at_us=min(int(at_us[place]) + 1_000_000, now),
            )
            payloads += [
                LogRecord(decision=decision).SerializeToString(),
                LogRecord(outcome=outcome).SerializeToString(),
            ]
        writer.append(payloads)
    writer.close()
    return count


def respond(paths: Paths, plan: DemoPlan) -> tuple[dict[str, float], dict[str, Any]]:
    """Run the platform and the schedule until a TEST is submitted.

    Returns:
        Seconds from the alert by event, and the change request.
    """
    text = paths.platform_settings.read_text()
    text = text.replace('log = "decisions"', 'log = "traffic"')
    text += f'\n[checkpoints."{AUTHORISE}"]\nalias = "{ALIAS}"\n'
    paths.platform_settings.write_text(text)
    config = ("--config", str(paths.platform_settings))
    token = run_command(
        *("platform", "token", "create", "--user", USER, "--label", "loadtest", "--role", "admin"),
        *("--days", "1", *config),
    )["secret"]
    # The platform also monitors while it starts, so nothing else may have to be set up after an alert.
    with contextlib.ExitStack() as running:
        running.enter_context(ServerProcess(paths.settings, paths.server_log))
        log = paths.output / "platform.log"
        platform = running.enter_context(PlatformProcess(paths.platform_settings, log))
        client = running.enter_context(PlatformClient(platform.url, token=str(token)))
        secret = _loop_user(client)
        settings = _learn_settings(paths, plan, platform.url)
        workspace = paths.output / "loop"
        schedule = subprocess.Popen(
            command_line("learn", "schedule", str(workspace), "--config", str(settings)),
            env={**environment(), "SCORER_PLATFORM_TOKEN": secret},
            stdout=(paths.output / "schedule.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        running.callback(_end, schedule)
        alert = _until(lambda: _alert(log), "an alert of drift", schedule)
        begun = _until(lambda: _generation(workspace), "a generation", schedule)
        change = _until(lambda: _submitted(client), "a submitted TEST", schedule)
        seconds = {"generation begun": begun - alert, "TEST submitted": time.time() - alert}
        detail = client.change(change.id)
        evidence = dict(detail.change.evidence) if detail.change.evidence else {}
        return seconds, {"id": change.id, "state": str(change.state), "evidence": evidence}


def _loop_user(client: PlatformClient) -> str:
    """Create the project and the user of the loop, who may submit TESTs. Return the user's token."""
    client.create_project(PROJECT, "Authorisation", checkpoints=[AUTHORISE])
    client.add_user(LOOP)
    client.set_member(PROJECT, LOOP, "modeler")
    client.grant_permission(
        PROJECT, kind="test", checkpoint=AUTHORISE, user=LOOP, days=1, reason="drift leads to a TEST"
    )
    return str(client.create_token("loop", "modeler", user=LOOP).secret)


def _learn_settings(paths: Paths, plan: DemoPlan, url: str) -> Path:
    """Write the settings of the loop: the demo's training, and the job `drift` each minute."""
    file = paths.output / "loop.toml"
    file.write_text(
        f"""
[train]
trees = {plan.candidate_trees}
depth = {plan.depth}
threads = 2
compare = false
[gate]
window_days = 7.0
[schedule]
logs = ["traffic"]
registry = "registry"
checkpoint = "{AUTHORISE}"
alias = "{ALIAS}"
platform = "{url}"
project = "{PROJECT}"
drift_state = "platform/drift.sqlite"
[schedule.jobs]
drift = "* * * * *"
"""
    )
    return file


def _alert(log: Path) -> float | None:
    """Return when the platform reported an alert, Unix time; None if it has not."""
    for line in log.read_text(errors="replace").splitlines():
        if '"drift_alert"' in line and AUTHORISE in line:
            at = re.sub(r"Z$", "+00:00", json.loads(line)["ts"])
            return datetime.fromisoformat(at).astimezone(UTC).timestamp()
    return None


def _generation(workspace: Path) -> float | None:
    file = workspace / "drift.json"
    return json.loads(file.read_bytes())["begun_ms"] / 1000 if file.is_file() else None


def _submitted(client: PlatformClient) -> Any:
    found = list(client.changes(project=PROJECT, checkpoint=AUTHORISE))
    return next((one for one in found if str(one.state) != "draft"), None)


def _until(look: Any, what: str, schedule: subprocess.Popen[bytes]) -> Any:
    deadline = time.monotonic() + _PATIENCE
    while (found := look()) is None:
        if schedule.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"there is no {what}; the schedule ended with {schedule.returncode}")
        time.sleep(_POLL)
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait()


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())
