"""The demo as a user runs it, small; and how it ends when something goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "examples.demo", "--quick", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT)]), "NO_COLOR": "1"}


def routing_file(path: Path) -> Path:
    """Attempts an hour apart over two providers; B succeeds more often."""
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
    # The last line may be half written.
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
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One whole run: its output folder, what it printed, its summary."""
    folder = tmp_path_factory.mktemp("demo")
    output = folder / "out"
    done = subprocess.run(
        command(
            "--simulated",
            "--routing",
            str(routing_file(folder / "routing.csv")),
            "--output",
            str(output),
            "--seed",
            "3",
        ),
        capture_output=True,
        check=False,
        text=True,
        env=environment(),
        timeout=110,
    )
    assert done.returncode == 0, done.stderr + done.stdout[-3000:]
    return output, done.stdout, json.loads((output / "summary.json").read_text())


def test_leaves_no_server_behind(finished):
    output, _, _ = finished
    pid = server_pid(output)
    assert pid is not None
    assert not is_alive(pid)
    assert "stopped" in {event["event"] for event in server_events(output)}


def test_swaps_both_bundles_without_an_error(finished):
    _, said, summary = finished
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
    assert "0 errors" in said


def test_judges_the_scores_that_were_served(finished):
    _, _, summary = finished
    assert summary["single_and_batch"]["different"] == 0
    assert summary["single_and_batch"]["compared"] == summary["traffic"]["payments"]
    # Served scores rank as the model did in training, on the part of the test days that was served.
    served, trained = summary["fraud_as_served"]["v2"], summary["training"]["fraud"][1]
    assert served["auc"] > 0.65
    assert served["average_precision"] > 10 * served["frauds"] / served["rows"]
    assert abs(served["auc"] - trained["auc"]) < 0.1
    assert sum(summary["decisions"].values()) == pytest.approx(1)


def test_actions_authorise_more_than_the_baseline(finished):
    _, _, summary = finished
    found = summary["authorisation"]
    assert found["served"]["rows"] == summary["traffic"]["payments"]
    assert found["uplift_paired"]["low"] > 0
    assert found["served"]["value"] < found["ceiling"]
    assert found["served"]["value"] - found["baseline_same_payments"]["value"] == pytest.approx(
        found["uplift_paired"]["value"]
    )
    assert len(summary["actions"]) == 10
    assert summary["distinct_actions"] > 20


def test_routing_log_gets_an_estimate_that_is_called_one(finished):
    _, said, summary = finished
    value = summary["routing"]
    assert "off-policy estimate" in value["label"]
    assert "not a measured rate" in said
    assert value["logged"]["value"] == pytest.approx(0.4, abs=0.08)
    assert value["snipw"]["low"] < 0.6 < value["snipw"]["high"] + 0.02
    assert value["snipw"]["low"] > value["logged"]["high"]
    assert value["chosen_shares"]["B"] > 0.9


def test_latency_and_server_figures_are_there(finished):
    _, said, summary = finished
    for method in ("Score", "SelectAction", "ReportOutcome"):
        client = summary["latency"][method]["client_ms"]
        assert 0 < client["p50"] <= client["p99"] <= client["p99.9"]
    assert summary["server"]["ready_after_ms"] > 0
    assert summary["server"]["resident_mb_at_start"] > 1
    assert re.search(r"ready after \d+ ms, \d+ MB resident", said)


def test_decision_log_holds_every_decision(finished):
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


def test_a_model_is_shipped_to_a_finished_readout(finished):
    output, said, summary = finished
    shipped = summary["shipping"]
    assert shipped["verdict"] in ("pass", "fail", "inconclusive")
    assert 0 < shipped["rows"] <= shipped["payments"]
    for step in ("package", "verify", "golden", "fit", "warm-up"):
        assert f"{step}:" in said
    page = (output / "readout.html").read_text()
    assert "Plotly" in page and "exec_p99_us" in page and shipped["change"] in page
    assert f"/changes/{shipped['change']}/readout" in said


def test_learns_two_generations_that_are_judged_on_what_taught_nobody(finished):
    output, said, summary = finished
    first, second = summary["learning"]
    assert second["settled"] > first["settled"]
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
        # What the verdict says is what is served next.
        published = verdict["bundle"] if one["decision"] == "promote" else live
        assert one["live"] == published
        live = published
        assert one["decision"] in said
    assert "Value per generation" in (output / "learning.html").read_text()


def test_report_needs_nothing_else(finished):
    output, _, _ = finished
    page = (output / "report.html").read_text()
    assert page.count("<svg") >= 5
    assert not re.search(r"""(src|href)=["']?(http|//)""", page.replace("xlink:href", ""))
    assert "<script" not in page
    assert "off-policy estimate" in page


def test_a_failed_step_is_one_line_and_exit_code_1(tmp_path):
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
def test_a_death_in_the_middle_ends_everything(tmp_path, who):
    """The server killed: the demo fails with a reason. The demo terminated: the server is stopped."""
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
