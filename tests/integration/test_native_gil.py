"""Tests that the data plane answers while Python holds the interpreter lock."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import grpc
import pytest

from scorer.v1 import scoring_pb2, scoring_pb2_grpc

SERVER = """
import json, os, re, sys, threading, time
from scorer import bridge

def say(line):
    # One system call a line: two threads that print() can join their lines.
    os.write(1, line.encode() + b"\\n")

server = bridge.Server(sys.argv[1])
server.load(sys.argv[2], sys.argv[3])
server.swap(sys.argv[4])
say(json.loads(server.addresses())["grpc"][0])

def tick():
    while True:
        say("tick")
        time.sleep(0.001)

threading.Thread(target=tick, daemon=True).start()
sys.stdin.readline()
say("holding")
# Exponential, and in C without ever letting go: no other Python thread runs from here on.
re.match("(a+)+$", "a" * 64 + "b")
"""


@pytest.mark.fault_case(83)
def test_requests_are_answered_while_a_python_thread_holds_the_gil(
    tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    bundle = built_bundles["score-1"]
    digest = json.loads((bundle / "manifest.json").read_text())["digest"]
    config = {
        "listen": "127.0.0.1:0",
        "log": {"dir": str(tmp_path / "log")},
        "checkpoints": {"fraud": {"kind": "score", "durability": "written"}},
    }
    lanes = {"version": 1, "checkpoints": {"fraud": [{"name": "live", "bundle": digest, "share": 1.0}]}}
    command = [sys.executable, "-c", textwrap.dedent(SERVER)]
    arguments = [json.dumps(config), str(bundle), digest, json.dumps(lanes)]
    process = subprocess.Popen(
        command + arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    lines: list[str] = []
    holding = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == "holding":
                holding.set()

    try:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        reader = threading.Thread(target=read)
        reader.start()
        with grpc.insecure_channel(address) as channel:
            stub = scoring_pb2_grpc.ScoringServiceStub(channel)

            def score(count: int) -> None:
                for _ in range(count):
                    named = scoring_pb2.NamedFeatures()
                    request = scoring_pb2.ScoreRequest(checkpoint="fraud", named=named)
                    assert stub.Score(request, timeout=10, wait_for_ready=True).served.bundle == digest

            score(1)
            process.stdin.write("\n")
            process.stdin.flush()
            assert holding.wait(30)
            score(100)
            ticks = lines.count("tick")
            score(200)
            assert lines.count("tick") == ticks, "the GIL was not held"
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        reader.join()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
