"""Tests of the demo at a small size, and of its end after failures."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest

from scorer.sdk import PlatformClient

ROOT = Path(__file__).parents[2]
# A full run starts about twenty commands, and each of them imports the numeric libraries.
LIMIT_S = 280
pytestmark = [pytest.mark.alone, pytest.mark.timeout(LIMIT_S + 20)]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "examples.demo", "--quick", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT)]), "NO_COLOR": "1"}


def routing_file(path: Path) -> Path:
    """Write attempts, one per hour, over two providers of which B succeeds more often."""
    rng = np.random.default_rng(0)
    lines = ["tmsp,country,amount,success,PSP,3D_secured,card"]
    for moment in np.arange("2021-01-01", "2021-04-01", dtype="datetime64[h]"):
        provider = "AB"[rng.integers(2)]
        works = int(rng.random() < (0.6 if provider == "B" else 0.2))
        lines.append(
            f"{str(moment).replace('T', ' ')}:00:00,Austria,{rng.integers(9, 99)},{works},{provider},0,Visa"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def server_events(output: Path) -> list[dict[str, object]]:
    log = output / "server.log"
    lines = log.read_text().splitlines() if log.exists() else []
    # The last line may be incomplete.
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def server_pid(output: Path) -> int | None:
    return next((int(str(e["pid"])) for e in server_events(output) if e.get("event") == "serving"), None)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the time limit of the wait has passed"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def routing(tmp_path_factory):
    return routing_file(tmp_path_factory.mktemp("routing") / "routing.csv")


def run_whole(output: Path, routing: Path, *more: str) -> tuple[str, dict[str, Any]]:
    """Run the demo; return its output and its summary."""
    done = subprocess.run(
        command("--simulated", "--routing", str(routing), "--output", str(output), "--seed", "3", *more),
        capture_output=True,
        check=False,
        text=True,
        env=environment(),
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr + done.stdout[-3000:]
    return done.stdout, json.loads((output / "summary.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory, routing):
    """A full run: its output folder, its output and its summary."""
    output = tmp_path_factory.mktemp("full") / "out"
    return output, *run_whole(output, routing, "--full")


@pytest.fixture(scope="module")
def short(tmp_path_factory, routing):
    """A run without the steps for learning and for the release of a model."""
    output = tmp_path_factory.mktemp("short") / "out"
    return output, *run_whole(output, routing)


def test_the_demo_prints_its_main_result_in_at_most_eighty_lines(short):
    _, output, summary = short
    steps = re.findall(r"^ *\d+ s  (\d+\. .*)$", output, re.MULTILINE)
    assert steps == [
        "1. Data and features",
        "2. Train two versions of a fraud model and of an action model",
        "3. Build bundles, push them to a registry, point its aliases to version 1",
        "4. Serve them",
        "5. Score payments and choose actions; swap both bundles under the traffic",
        "6. Results",
        "7. Stop the server, verify and export the decision log",
    ]
    assert len(output.splitlines()) <= 80
    assert "make demo ARGS=--full" in output
    assert "learning" not in summary


def test_the_full_demo_also_trains_and_releases_a_model(finished):
    _, output, summary = finished
    assert re.search(r"\d\. Learn two generations", output)
    assert re.search(r"\d\. Ship a model through the platform", output)
    assert len(summary["learning"]) == 2
    assert "make demo ARGS=--full" not in output


def test_the_printed_commands_serve_again_and_open_pages_that_reach_the_server(short):
    """Run both commands as they are printed. The platform reaches every server of the checkpoint."""
    _, output, _ = short
    typed = dict(re.findall(r"^ +(serve again|open the pages) +(\S.*)$", output, re.MULTILINE))
    url, token = re.search(r"then (http://\S+), and sign in with (\S+)$", output, re.MULTILINE).groups()
    with ExitStack() as running:
        for what in ("serve again", "open the pages"):
            process = running.enter_context(
                subprocess.Popen(
                    shlex.split(typed[what]), env=environment(), stderr=subprocess.PIPE, text=True
                )
            )
            running.callback(process.terminate)
            # The pipe closes when the process ends, so the limit on the process also bounds this wait.
            events = (json.loads(line)["event"] for line in process.stderr if line.startswith("{"))
            assert "serving" in events
            threading.Thread(target=process.stderr.read, daemon=True).start()
        with PlatformClient(url, token) as client:
            view = client.checkpoint("fraud.checkout")
    assert [(member.reachable, member.error) for member in view.members] == [(True, "")]


def test_no_server_runs_after_the_demo(finished):
    output, _, _ = finished
    pid = server_pid(output)
    assert pid is not None
    assert not is_alive(pid)
    assert "stopped" in {event["event"] for event in server_events(output)}


def test_both_bundles_are_swapped_without_an_error(finished):
    _, output, summary = finished
    traffic, swap = summary["traffic"], summary["swap"]
    assert traffic["errors"] == traffic["fallbacks"] == traffic["unlogged"] == 0
    assert traffic["payments"] >= 1_200
    assert traffic["calls"] == 4 * traffic["payments"]
    answered = {(entry["checkpoint"], entry["bundle"]): entry["answers"] for entry in swap["answers"]}
    assert set(answered) == {
        ("fraud.checkout", "fraud v1"),
        ("fraud.checkout", "fraud v2"),
        ("action.authorise", "action v1"),
        ("action.authorise", "action v2"),
    }
    for checkpoint in ("fraud.checkout", "action.authorise"):
        both = [count for (where, _), count in answered.items() if where == checkpoint]
        assert sum(both) == traffic["payments"]
        assert min(both) > 50
    assert {entry["digest"] for entry in swap["answers"]} <= set(summary["bundles"].values())
    assert "0 errors" in output


def test_the_served_scores_are_evaluated(finished):
    _, _, summary = finished
    assert summary["single_scores_equal_to_the_batch"] == summary["traffic"]["payments"]
    # On the served part of the test days, the served scores have the same ranking quality as in training.
    served, trained = summary["fraud_as_served"]["v2"], summary["training"]["fraud"][1]
    assert served["auc"] > 0.65
    assert served["average_precision"] > 10 * served["frauds"] / served["rows"]
    assert abs(served["auc"] - trained["auc"]) < 0.1
    assert sum(summary["decisions"].values()) == pytest.approx(1)


def test_the_bandit_is_compared_with_simpler_policies_on_the_same_log(finished):
    _, output, summary = finished
    result = summary["authorisation"]
    decided = {entry["bundle"]: entry["answers"] for entry in summary["swap"]["answers"]}
    assert result["served"]["rows"] == result["outcomes"]["rows"] == decided["action v2"]
    assert result["first"]["rows"] == decided["action v1"]
    assert result["logged"] == 8_000
    assert result["served"]["value"] < result["best"]
    references = result["references"]
    uniform = references["uniform choice"]
    # The payments of version 2 are those after the swap, so their number depends on the machine. The width of
    # the interval is about four standard errors.
    width = uniform["rate"]["high"] - uniform["rate"]["low"]
    assert 0 < width < 0.05
    assert uniform["rate"]["value"] == pytest.approx(0.739, abs=width)
    assert uniform["difference"]["low"] > 0
    for name, one in references.items():
        assert one["difference"]["value"] == pytest.approx(result["served"]["value"] - one["rate"]["value"])
        assert re.search(rf"^ +{re.escape(name)} .*\[.*\].*\[.*\]", output, re.MULTILINE), name
    own = references["linear model per issuer"]["difference"]["value"]
    assert f"the bandit's own part: {100 * own:+.1f} [" in output
    assert summary["distinct_actions"] > 20


def test_the_figure_of_the_routing_log_is_labelled_as_an_estimate(finished):
    _, output, summary = finished
    value = summary["routing"]
    assert "off-policy estimate" in value["label"]
    assert "not a measured rate" in output
    assert value["logged"]["value"] == pytest.approx(0.4, abs=0.08)
    assert value["snipw"]["low"] < 0.6 < value["snipw"]["high"] + 0.02
    assert value["snipw"]["low"] > value["logged"]["high"]
    assert value["chosen_shares"]["B"] > 0.9


def test_the_summary_has_the_latency_and_the_figures_of_the_server(finished):
    _, output, summary = finished
    for method in ("Score", "SelectAction", "ReportOutcome"):
        client = summary["latency"][method]["client_ms"]
        assert 0 < client["p50"] <= client["p99"] <= client["p99.9"]
    assert summary["server"]["ready_after_ms"] > 0
    assert summary["server"]["resident_mb_at_start"] > 1
    assert re.search(r"ready after \d+ ms, \d+ MB resident", output)


def test_the_decision_log_contains_every_decision(finished):
    output, _, summary = finished
    log, traffic = summary["log"], summary["traffic"]
    table = pq.read_table(output / "decisions.parquet")
    ids = table.column("decision_id").to_pylist()
    single = [one for one in ids if one.startswith(("demo3-f-", "demo3-a-"))]
    assert len(set(single)) == len(single) == 2 * traffic["payments"]
    batches = 2 * summary["fraud_as_served"]["v2"]["rows"]
    learned = sum(one.startswith("demo3-l") and "-a-" in one for one in ids)
    assert learned == 2 * (600 + 1_000)
    shipping = summary["shipping"]["payments"]
    assert len(ids) == len(single) + 2 * learned + batches + summary["routing"]["logged"]["rows"] + shipping
    assert log["verified"] == log["exported"] == len(ids)
    assert log["mismatched"] == 0
    assert log["with_outcome"] == 2 * traffic["payments"] + learned * 2


def test_a_model_is_tested_until_its_final_report(finished):
    output, said, summary = finished
    shipped = summary["shipping"]
    assert shipped["verdict"] in ("pass", "fail", "inconclusive")
    assert 0 < shipped["rows"] <= shipped["payments"]
    for step in ("package", "verify", "golden", "fit", "warm-up"):
        assert f"{step}:" in said
    page = (output / "readout.html").read_text()
    assert "Plotly" in page and "exec_p99_us" in page and shipped["change"] in page
    assert f"/changes/{shipped['change']}/readout" in said


def test_generations_are_evaluated_on_payments_that_were_not_used_for_training(finished):
    output, said, summary = finished
    first, second = summary["learning"]
    assert second["trained_on"] > first["trained_on"]
    live = summary["bundles"]["action v2"]
    for one in (first, second):
        run = output / "learning" / f"generation-{one['number']}"
        verdict = json.loads((run / "verdict" / "verdict.json").read_text())
        evidence = verdict["evidence"]
        assert evidence["live"]["digest"] == live
        taught = pq.read_table(run / "training.parquet").column("decision_id").to_pylist()
        joined = pq.read_table(run / "experience.parquet")
        judged = [
            name
            for name, at in zip(
                joined.column("decision_id").to_pylist(), joined.column("time_ms").to_pylist(), strict=True
            )
            if evidence["window"]["start_ms"] <= at <= evidence["window"]["end_ms"]
        ]
        assert len(judged) == evidence["window"]["decisions"] > 900
        assert not set(judged) & set(taught)
        # The verdict determines the bundle that is served next.
        published = verdict["bundle"] if one["decision"] == "promote" else live
        assert one["live"] == published
        live = published
        assert one["decision"] in said
    assert "Value per generation" in (output / "learning.html").read_text()


def test_a_failed_step_prints_one_line_and_exits_with_1(tmp_path):
    done = subprocess.run(
        command("--transactions", str(tmp_path / "none.parquet"), "--output", str(tmp_path / "out")),
        capture_output=True,
        check=False,
        text=True,
        env=environment(),
        timeout=100,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: Data and features: ")
    assert "no such file" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("who", ["server", "demo"])
def test_a_killed_process_ends_the_server_and_the_demo(tmp_path, who):
    """If the server is killed, the demo fails with a reason.

    If the demo is terminated, it stops the server.
    """
    output = tmp_path / "out"
    demo = subprocess.Popen(
        command("--simulated", "--output", str(output)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        until(lambda: server_pid(output) is not None or demo.poll() is not None)
        pid = server_pid(output)
        assert pid is not None, demo.communicate()
        if who == "server":
            os.kill(pid, signal.SIGKILL)
        else:
            demo.terminate()
        _, errors = demo.communicate(timeout=60)
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.wait()
    assert demo.returncode == (1 if who == "server" else 143)
    if who == "server":
        assert errors.startswith("error: ")
        assert errors.count("\n") == 1, errors
    assert not is_alive(pid)


def test_up_serves_pages_with_payments_and_generations_until_ctrl_c(finished):
    output, _, _ = finished
    ports = [word for name in ("data", "control", "metrics", "pages") for word in (f"--{name}-port", "0")]
    up = subprocess.Popen(
        [sys.executable, "-m", "examples.demo.up", "--output", str(output), "--rate", "5", *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert up.stdout is not None
        printed = {}
        for line in up.stdout:
            what, _, rest = line.strip().partition("  ")
            printed[what] = rest.strip()
            if line.startswith("Ctrl-C"):
                break
        url, token = printed["Pages"], printed["Sign in"]
        with PlatformClient(url, token) as platform:
            before = {one["decision_id"] for one in platform.decisions("fraud.checkout")}
            until(lambda: {one["decision_id"] for one in platform.decisions("fraud.checkout")} - before)
        with httpx.Client(base_url=url, follow_redirects=True) as browser:
            csrf = re.search(r'name="csrf" value="([^"]*)"', browser.get("/login").text)[1]
            browser.post("/login", data={"csrf": csrf, "token": token})
            assert (
                len(set(re.findall(r'href="/learning/(\d{8}T\d{6}Z)"', browser.get("/learning").text))) == 2
            )
            assert "fraud.checkout" in browser.get("/").text
        pid = server_pid(output)
        assert pid is not None and is_alive(pid)
        up.send_signal(signal.SIGINT)
        rest, errors = up.communicate(timeout=60)
    finally:
        if up.poll() is None:
            up.kill()
            up.wait()
    assert (up.returncode, errors) == (0, "")
    assert "all processes have ended" in rest
    assert not is_alive(pid)
    with pytest.raises(httpx.TransportError):
        httpx.get(url, timeout=5)
