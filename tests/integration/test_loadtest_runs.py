"""`scorer loadtest` from the command line against a fake server.

What the machine is capable of decides no test: the generator's own lag is allowed to be large.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading

import pytest

from scorer import cli
from scorer.client.testing import FakeServer, Fault
from scorer.loadtest import LoadTestError, make_settings, run_load_test
from scorer.v1 import scoring_pb2 as pb

PATIENT = ["--max-lag-ms", "60000", "--timeout-ms", "60000"]


@pytest.fixture
def server():
    with FakeServer() as server:
        yield server


@pytest.fixture
def loadtest(monkeypatch, capsys):
    """Run the command; return its exit code, output and errors."""

    def loadtest(*arguments):
        monkeypatch.setattr(sys, "argv", ["scorer", "loadtest", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return loadtest


def test_a_met_sla_exits_with_0(loadtest, server, tmp_path):
    report_file, picture = tmp_path / "run.json", tmp_path / "run.png"
    code, out, err = loadtest(
        "--target", server.target, "--rate", 100, "--seconds", 1, "--warmup", 0.5, "--sla-ms", 50_000,
        "--json", report_file, "--plot", picture, *PATIENT,
    )  # fmt: skip
    assert code == 0
    assert re.search(r"^PASS: fraud\.checkout: p99 [0-9.]+ ms \(SLA 50000 ms\) at 100/s", out, re.MULTILINE)
    assert re.search(r"^answered +100( +[0-9.]+){5}$", out, re.MULTILINE)
    assert "fraud.checkout: fraud-checkout sha256:" in err
    content = json.loads(report_file.read_text())
    assert content["verdict"]["outcome"] == "pass"
    assert content["report"]["requests"] == content["report"]["answered"] == 100
    assert picture.read_bytes().startswith(b"\x89PNG")
    # Every scheduled request, including the warm-up, has a unique id and features by name.
    requests = server.requests("Score")
    assert len({request.request_id for request in requests}) == len(requests) == 150
    assert {feature.name for feature in requests[0].named.features} == {"amount", "country", "returning"}


def test_a_violated_sla_exits_with_1(loadtest, server):
    code, out, _ = loadtest(
        "--target", server.target, "--rate", 50, "--seconds", 1, "--warmup", 0, "--sla-ms", 0.001, *PATIENT
    )
    assert code == 1
    assert re.search(r"^FAIL: fraud\.checkout: p99 [0-9.]+ ms \(SLA 0\.001 ms\): ", out, re.MULTILINE)
    assert "100.00% of the requests missed, more than 1 % (50 later than 0.001 ms)" in out


def test_the_default_sla_is_that_of_the_checkpoint(loadtest, server):
    server.checkpoints["fraud.checkout"].sla_p99_ms = 12_345.0
    code, out, _ = loadtest("--target", server.target, "--rate", 50, "--seconds", 1, "--warmup", 0, *PATIENT)
    assert code == 0
    assert "(SLA 12345 ms)" in out


def test_a_generator_that_cannot_keep_up_exits_with_2(loadtest, server):
    code, out, _ = loadtest(
        "--target", server.target, "--rate", 50, "--seconds", 1, "--warmup", 0, "--max-lag-ms", 0.0001
    )
    assert code == 2
    assert "no verdict: the generator sent its p99 request" in out


def test_errors_are_reported_by_name(loadtest, server):
    server.script("Score", *[Fault("RESOURCE_EXHAUSTED")] * 10)
    code, out, _ = loadtest("--target", server.target, "--rate", 50, "--seconds", 1, "--warmup", 0, *PATIENT)
    assert code == 1
    assert "not answered: RESOURCE_EXHAUSTED 10" in out
    assert "10 not answered: RESOURCE_EXHAUSTED 10)" in out


def test_a_noop_load_needs_no_checkpoint_and_has_no_verdict(loadtest, server):
    server.checkpoints.clear()
    code, out, _ = loadtest(
        "--target", server.target, "--method", "noop", "--rate", 50, "--seconds", 1, "--warmup", 0, *PATIENT
    )
    assert code == 0
    assert "no verdict: noop has no SLA" in out
    assert len(server.requests("Noop")) == 50


def test_a_mixed_load_with_dense_features_over_a_unix_socket(loadtest, tmp_path):
    with FakeServer(tmp_path / "s.sock") as server:
        code, out, _ = loadtest(
            "--target", server.target, "--method", "score=1,select_action=1,batch=1",
            "--features", "dense", "--batch-rows", 7, "--arrivals", "poisson",
            "--rate", 300, "--seconds", 1, "--warmup", 0, "--sla-ms", 50_000, *PATIENT,
        )  # fmt: skip
        assert code == 0
        assert "PASS: fraud.checkout, action.authorise" in out
        (score, action, batch) = (
            server.requests(name)[0] for name in ("Score", "SelectAction", "ScoreBatch")
        )
    assert score.dense.schema_fingerprint == batch.schema_fingerprint == 0xFEDCBA9876543210
    assert len(score.dense.values) == 3
    assert (len(action.dense.values), batch.rows, len(batch.values)) == (1, 7, 21)


def test_rows_of_a_file_are_sent_equally_often(loadtest, server, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"amount": amount, "country": None}) for amount in (1, 2, 3)))
    loadtest(
        "--target", server.target, "--rows", rows, "--rate", 30, "--seconds", 1, "--warmup", 0,
        "--connections", 1, *PATIENT,
    )  # fmt: skip
    amounts = [request.named.features[0].number for request in server.requests("Score")]
    assert sorted(amounts) == [1.0] * 10 + [2.0] * 10 + [3.0] * 10


def test_options_override_a_load_case(loadtest, server, tmp_path):
    (tmp_path / "case.toml").write_text(
        'description = "A short one."\ngoal = "p99"\n[load]\nmethods = "noop"\nrate = 7\nseconds = 600\n'
    )
    code, out, _ = loadtest(
        "--case", tmp_path, "--target", server.target, "--seconds", 1, "--warmup", 0, *PATIENT
    )
    assert code == 0
    assert out.startswith("A short one.\ngoal: p99\n")
    assert len(server.requests("Noop")) == 7


def test_a_load_case_sets_steps_and_callers(loadtest, server, tmp_path):
    report_file = tmp_path / "run.json"
    (tmp_path / "case.toml").write_text(
        'description = "Two callers."\ngoal = "none"\n[load]\nmethods = "noop=1,score=1"\nrate = 50\n'
        'steps = "1x1,2x0.5"\nwarmup_seconds = 0\nsla_ms = 50000\n'
        '[[load.callers]]\nname = "shop"\nmethods = ["score"]\n'
        '[[load.callers]]\nname = "flood"\nload = [0, 4]\nmethods = ["noop"]\n'
    )
    code, out, _ = loadtest("--case", tmp_path, "--target", server.target, "--json", report_file, *PATIENT)
    assert code == 0
    report = json.loads(report_file.read_text())["report"]
    steps = {
        caller["name"]: [(step["rate"], step["requests"]) for step in caller["steps"]]
        for caller in report["callers"]
    }
    assert steps == {"shop": [(50.0, 50), (100.0, 50)], "flood": [(0.0, 0), (400.0, 200)]}
    assert (len(server.requests("Score")), len(server.requests("Noop"))) == (100, 200)
    assert re.search(r"^  flood 400/s +200( +[0-9.]+){5}$", out, re.MULTILINE)


def test_cancelled_requests_do_not_violate_the_sla(loadtest, server):
    server.script("Noop", *[Fault(until=threading.Event()) for _ in range(50)])
    code, out, _ = loadtest(
        "--target", server.target, "--method", "noop", "--rate", 50, "--seconds", 1, "--warmup", 0,
        "--cancel", 1, "--sla-ms", 50_000, *PATIENT,
    )  # fmt: skip
    assert code == 0
    assert "cancelled on purpose: 50" in out


def test_steps_are_scaled_to_the_given_seconds():
    values = {"target": "h:1", "rate": 1, "steps": "1x10, 5x5,0.5x5"}
    assert make_settings(values).seconds == 20
    steps = make_settings(values | {"seconds": 4}).steps
    assert [(step.load, step.seconds) for step in steps] == [(1, 2), (5, 1), (0.5, 1)]


def test_the_search_finds_the_highest_rate_within_the_sla(loadtest, server):
    code, out, err = loadtest(
        "--target", server.target, "--method", "noop", "--rate", 40, "--seconds", 0.1, "--warmup", 0,
        "--sla-ms", 0.001, "--find-rate", *PATIENT,
    )  # fmt: skip
    assert code == 1
    assert "FAIL: no rate down to 0.6/s meets the SLA of 0.001 ms" in out
    assert "40/s  p99" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "0"], "rate: 0.0: input should be greater than 0"),
        (["--rate", "10", "--steps", "2"], "steps.0.seconds: ''"),
        (["--rate", "10", "--cancel", "2"], "cancel: 2.0: input should be less than or equal to 1"),
        (["--rate", "10", "--deadline-ms", "2000"], "deadline_ms must be above 0 and at most timeout_ms"),
        (["--rate", "nan"], "rate: nan: input should be"),
        (["--rate", "10", "--method", "train"], 'method: "train" is unknown'),
        (
            ["--rate", "10", "--checkpoint", "fraud.chekout"],
            'checkpoint "fraud.chekout" is not served (NOT_FOUND)',
        ),
        (["--rate", "10", "--checkpoint", "action.authorise"], 'needs a checkpoint of kind "score"'),
        (["--rate", "10", "--rows", "absent.jsonl"], "absent.jsonl: no such file"),
        (["--rate", "10", "--case", "absent"], "absent: no such case"),
        (["--rate", "10", "--method", "batch", "--batch-rows", "1001"], "batch_rows 1001 is above the 1000"),
        (["--rate", "10", "--find-rate", "--method", "noop"], "--find-rate requires an SLA"),
        (
            ["--rate", "10", "--find-rate", "--method", "noop", "--sla-ms", "5", "--steps", "1x1"],
            "remove the steps",
        ),
        (["--rate", "10", "--sla-ms", "70000"], "timeout_ms must be 1 to 60000, not 70000"),
        (["--rate", "10", "--target", "127.0.0.1:1", "--method", "noop"], "cannot connect to 127.0.0.1:1: "),
        (["--rate", "10", "--target", "127.0.0.1:1"], "127.0.0.1:1: "),
        (["--rate", "10", "--target", "http://x:1"], "target 'http://x:1' is a URL"),
        (
            ["--rate", "10", "--target", "unix:///nonexistent/s.sock", "--method", "noop"],
            "cannot connect to unix:/non",
        ),
    ],
)
def test_bad_input_prints_one_line_and_exits_with_2(loadtest, server, arguments, words):
    code, _, err = loadtest("--target", server.target, *arguments)
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert words in line
    assert "Traceback" not in err


def test_a_target_that_is_not_a_scorer_is_an_error(loadtest, monkeypatch):
    monkeypatch.setattr(FakeServer, "_scoring", lambda self: self._health())
    with FakeServer() as server:
        code, _, err = loadtest("--target", server.target, "--rate", 10)
    assert code == 2
    assert "check that the target is the scoring port of a scorer server" in err


def test_a_stall_counts_for_the_requests_that_were_due_during_it():
    """Block the only thread once for half a second, in which a fifth of the requests were due."""
    resumed = threading.Event()
    alarm = threading.Timer(0.5, resumed.set)

    class Stall(threading.Event):
        def wait(self, timeout=None):
            alarm.start()
            return resumed.wait()

    settings = {"methods": "noop", "rate": 100, "seconds": 2.5, "warmup_seconds": 0, "sla_ms": 100}
    with FakeServer(threads=1) as server:
        server.script("Noop", *[Fault()] * 50, Fault(until=Stall()))
        _, report = run_load_test(make_settings(settings | {"target": server.target, "timeout_ms": 60_000}))
    assert (report.requests, report.answered) == (250, 250)
    # A request is due every 10 ms. The k-th of 50 waited for 500 - 10 k ms, so 40 of them for more than
    # 100 ms.
    assert report.misses >= 38
    assert report.latency_us.max >= 480_000
    assert report.latency_us.p99 >= 450_000
    assert report.latency_us.p90 >= 200_000


# Programs that a shell runs in the background ignore SIGINT, and so do their children. The child restores the
# default itself, because a `preexec_fn` would fork this process while threads are in gRPC, which logs errors.
RESTORE_SIGINT = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    " os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_with_its_summary(server, number, code):
    server.script("Noop", *[Fault("RESOURCE_EXHAUSTED")] * 10)
    command = [sys.executable, "-c", RESTORE_SIGINT, "-m", "scorer.cli", "loadtest"]
    options = ["--target", server.target, "--method", "noop", "--rate", "50", "--seconds", "600"]
    options += ["--warmup", "0"]
    with subprocess.Popen(
        command + options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        started = [process.stderr.readline(), process.stderr.readline()]
        process.send_signal(number)
        out, rest = process.communicate(timeout=60)
    assert "50/s" in started[0]
    assert "errors" in started[1]
    assert process.returncode == code
    assert "Traceback" not in rest
    assert re.search(r"^answered +[1-9]", out, re.MULTILINE)
    assert "not answered: RESOURCE_EXHAUSTED 10" in out
    assert "no verdict: the run was interrupted" in out


def test_progress_that_raises_ends_the_run(server):
    settings = make_settings({"target": server.target, "methods": "noop", "rate": 50, "seconds": 600})

    def stop(progress):
        raise LookupError(progress.elapsed)

    with pytest.raises(LookupError):
        run_load_test(settings, stop)


def test_a_noop_has_the_given_payload(server):
    settings = {"methods": "noop", "rate": 20, "seconds": 0.5, "payload_bytes": 300}
    run_load_test(make_settings(settings | {"target": server.target}))
    assert {len(request.payload) for request in server.requests("Noop")} == {300}


def test_two_matching_checkpoints_are_an_error(server):
    other = pb.CheckpointDescription()
    other.CopyFrom(server.checkpoints["fraud.checkout"])
    other.checkpoint = "fraud.other"
    server.checkpoints["fraud.other"] = other
    with pytest.raises(LoadTestError, match=r"several checkpoints fit \(fraud\.checkout, fraud\.other\)"):
        run_load_test(make_settings({"target": server.target, "rate": 1}))
