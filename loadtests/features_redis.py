"""Reads of computed features from Redis, beside Feast: `python -m loadtests.features_redis`.

A Redis on loopback holds the states of three entities with ten features each, and Feast's values of the same
features of the same entities. The run measures

1. a server that reads 30 features for each Score at a high rate (target: 99 % of the reads within 1 ms);
2. the server beside Feast's feature server at the same rate, by the same load generator. The server also
   evaluates a model, and computes the features from windows, while Feast returns stored numbers;
3. reads by a Python call: our extension beside Feast's SDK at the same rate.

`make feast` installs Feast. Without it, only the first part runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtests.figures import ROOT
from loadtests.openloop import Load, Method
from loadtests.processor import processor_seconds
from scorer.features import canonical_json, parse_set
from scorer.features.declaration import FeatureSet

ENTITIES: Final = ("card", "customer", "terminal")
TOPIC: Final = "bench"
FEAST: Final = ROOT / ".build/feast/bin"
HOUR_US: Final = 3_600_000_000
EVENTS: Final = 12
"""Events of each entity, over a week."""
TARGET_MS: Final = 1.0
TARGET_RATIO: Final = 20.0


def feature_set() -> FeatureSet:
    """Return a set of ten features for each of three entities."""
    features: list[dict[str, Any]] = []
    for entity in ENTITIES:
        for window in ("1d", "7d"):
            for aggregate in ("count", "sum", "mean", "max"):
                of = {} if aggregate == "count" else {"of": "amount"}
                features.append(
                    {"name": f"{entity}_{aggregate}_{window}", "aggregate": aggregate, "window": window} | of
                )
        features.append({"name": f"{entity}_last", "aggregate": "seconds_since_last", "window": "7d"})
        features.append({"name": f"{entity}_decayed", "aggregate": "decayed_count", "half_life": "1d"})
        for feature in features[-10:]:
            feature |= {"entity": entity, "event": "payment"}
    event = {"entities": list(ENTITIES), "numbers": ["amount"], "accept_late": "14d"}
    return parse_set({"name": "bench", "version": 1, "events": {"payment": event}, "features": features})


@contextmanager
def redis() -> Iterator[tuple[int, int]]:
    """Run a Redis on loopback; yield its port and the id of its process."""
    import socket

    with tempfile.TemporaryDirectory(prefix="bench-redis-") as directory:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        process = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory],
            stdout=subprocess.DEVNULL,
        )
        try:
            _until(lambda: _can_connect(port), "redis-server")
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(30)


def _can_connect(port: int) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _until(condition: Any, what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not start within {seconds:.0f} s")
        time.sleep(0.05)


def fill(port: int, definition: bytes, keys: int) -> Any:
    """Write events of all entities; return the feed."""
    from scorer.bridge import FeatureFeed
    from scorer.v1.scoring_pb2 import Event

    feed = FeatureFeed(json.dumps({"redis": {"address": f"127.0.0.1:{port}"}}), definition)
    random = np.random.default_rng(1)
    now, position, began = time.time_ns() // 1000, 0, time.monotonic()
    place: tuple[int, bool] | None = None
    for start in range(0, keys * EVENTS, 200):
        events = [
            Event(
                kind="payment",
                id=f"p{number}",
                occurred_at_us=now - int(random.integers(0, 167)) * HOUR_US,
                keys={entity: f"{entity}-{number % keys}" for entity in ENTITIES},
                numbers={"amount": float(random.gamma(2, 40))},
            ).SerializeToString()
            for number in range(start, min(start + 200, keys * EVENTS))
        ]
        position += len(events)
        after = (position, position == keys * EVENTS)
        feed.write(TOPIC, 0, place, after, events, [now] * len(events))
        place = after
    feed.complete(TOPIC, 1)
    seconds = time.monotonic() - began
    rate = position / seconds
    print(f"feed to Redis: {position:,} events of three entities in {seconds:.1f} s, {rate:,.0f}/s")
    return feed


def build(directory: Path, declared: FeatureSet) -> None:
    """Publish a bundle whose 30 columns are computed, and write the settings of its server."""
    import xgboost

    from scorer.bundle import (
        Band,
        ComputedFeatures,
        Feature,
        Lineage,
        SchemaFile,
        build_score_bundle,
    )
    from scorer.registry import Registry

    names = ["amount", *(feature.name for feature in declared.features)]
    random = np.random.default_rng(2)
    data = random.gamma(2.0, 40.0, (2000, len(names))).astype(np.float32)
    labels = data[:, 0] + data[:, 1] > np.median(data[:, 0] + data[:, 1])
    model = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 3, "base_score": 0.5},
        xgboost.DMatrix(data, labels, feature_names=names),
        20,
    )
    definition = canonical_json(declared)
    build_score_bundle(
        directory / "bundle",
        name="bench",
        model=model,
        schema=SchemaFile(features=[Feature(name=name) for name in names]),
        bands=[Band(start=0.0, label="approve"), Band(start=0.9, label="decline")],
        training=data[:1500],
        validation=data[1500:],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="bench", run_id="bench"),
        golden_cases=256,
        computed=ComputedFeatures(definition, {name: name for name in names[1:]}),
    )
    registry = Registry(directory / "registry")
    registry.alias("bench", "live", registry.push(directory / "bundle"))
    (directory / "bench.json").write_bytes(definition)


@contextmanager
def our_server(directory: Path, redis_port: int, seconds: float) -> Iterator[tuple[dict[str, Any], int]]:
    """Run `scorer serve` with the bundle; yield its addresses and the id of its process."""
    (directory / "scorer.toml").write_text(
        '[server]\nlisten = "127.0.0.1:0"\nmetrics_listen = "127.0.0.1:0"\ncontrol_listen = "127.0.0.1:0"\n'
        '[log]\ndir = "off"\n'
        '[features]\nsource = "redis"\nsets = ["bench.json"]\nsla_share = 0.5\n'
        f'[features.redis]\naddress = "127.0.0.1:{redis_port}"\n'
        '[checkpoints."bench"]\nkind = "score"\nalias = "bench@live"\np99_ms = 50\n'
        'fallback = { decision = "approve", score = 0.5 }\n'
    )
    events = directory / "events.jsonl"
    with events.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "scorer.cli", "serve", "--config", "scorer.toml"],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
            stderr=sink,
        )
    try:
        found: dict[str, Any] = {}

        def is_serving() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"the server did not start:\n{events.read_text()}")
            for line in events.read_text().splitlines():
                event = json.loads(line) if line.startswith("{") else {}
                if event.get("event") == "serving":
                    found.update(event)
            return bool(found)

        _until(is_serving, "scorer serve", seconds)
        yield found, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def metrics(address: str) -> dict[str, float]:
    """Return the metrics of reads of Redis by name and labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("scorer_feature"))
    return {name: float(value) for name, _, value in pairs}


def our_requests(rows: Sequence[dict[str, str]]) -> list[bytes]:
    """Encode one Score per row of keys."""
    from scorer.v1 import scoring_pb2 as pb

    requests = []
    for number, keys in enumerate(rows):
        request = pb.ScoreRequest(checkpoint="bench", request_id=f"r{number}", keys=keys)
        request.named.features.add(name="amount", number=50.0)
        requests.append(request.SerializeToString())
    return requests


def measure(load: Load, rate: float, seconds: float, pid: int, redis_pid: int) -> dict[str, float]:
    """Offer a rate; return latencies in milliseconds, and processor time per read in microseconds."""
    load.run(rate, 1.0)
    before, redis_before = processor_seconds(pid), processor_seconds(redis_pid)
    report = load.run(rate, seconds, warmup_seconds=0.0)
    count = max(report.requests, 1)
    return {
        "p50": report.latency_us.p50 / 1000,
        "p99": report.latency_us.p99 / 1000,
        "answered": report.answered / count,
        "cpu": (processor_seconds(pid) - before) / count * 1e6,
        "redis_cpu": (processor_seconds(redis_pid) - redis_before) / count * 1e6,
    }


def our_sdk(
    feed: Any, names: Sequence[str], rows: Sequence[dict[str, str]], rate: float, seconds: float
) -> Any:
    """Read one row after another by the extension, as `feast_features.py sdk` does by the SDK."""

    def read(number: int) -> Any:
        keys = rows[number % len(rows)]
        columns = {entity: [key] for entity, key in keys.items()}
        found = feed.read_batch(list(names), columns, [time.time_ns() // 1000])
        return dict(zip(names, np.frombuffer(found, np.float32).tolist(), strict=True))

    for number in range(50):
        read(number)
    interval, count = 1 / rate, int(rate * seconds)
    latencies, began, cpu = [], time.perf_counter(), time.process_time()
    for number in range(count):
        if (wait := began + number * interval - time.perf_counter()) > 0:
            time.sleep(wait)
        start = time.perf_counter()
        read(number)
        latencies.append(time.perf_counter() - start)
    return {
        "latencies": latencies,
        "cpu": (time.process_time() - cpu) / count,
        "rate": count / (time.perf_counter() - began),
    }


@contextmanager
def feast_server(directory: Path) -> Iterator[tuple[str, int]]:
    """Run Feast's feature server; yield its address and the id of the process that answers."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = (directory / "server.log").open("wb")
    process = subprocess.Popen(
        [
            str(FEAST / "feast"),
            "-c",
            str(directory),
            "serve",
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "--no-access-log",
        ],
        cwd=directory,
        stdout=log,
        stderr=log,
        env=os.environ | {"FEAST_USAGE": "False", "PATH": f"{FEAST}:{os.environ['PATH']}"},
        start_new_session=True,
    )
    try:
        _until(lambda: _can_connect(port), "feast serve")
        time.sleep(2)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield f"127.0.0.1:{port}", int(children[0]) if children else process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def summary(name: str, found: Any) -> dict[str, float]:
    """Return percentiles of the latencies of calls in milliseconds."""
    latencies = np.array(found["latencies"]) * 1000
    p50, p99 = np.percentile(latencies, [50, 99])
    return {"p50": float(p50), "p99": float(p99), "cpu": found["cpu"] * 1e6, "rate": found["rate"]}


def show(name: str, of: dict[str, float]) -> None:
    """Print one line of figures."""
    text = f"{name:44} p50 {of['p50']:8.3f} ms  p99 {of['p99']:8.3f} ms"
    text += f"  {of['cpu']:8.0f} µs of processor per read"
    if "redis_cpu" in of:
        text += f" (Redis {of['redis_cpu']:.0f} µs), {of['answered']:.2%} answered"
    print(text)


def ratios(name: str, theirs: dict[str, float], ours: dict[str, float]) -> None:
    """Print how many times more Feast needs, and whether the target holds."""
    found = {key: theirs[key] / max(ours[key], 1e-9) for key in ("p50", "p99", "cpu")}
    passed = all(value >= TARGET_RATIO for value in found.values())
    shown = ", ".join(f"{key} {value:.1f}×" for key, value in found.items())
    print(f"{'PASS' if passed else 'MISS'}: {name}: {shown} (target {TARGET_RATIO:.0f}×)")


def main() -> None:
    """Measure, and print the figures with their targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=2000, help="number of keys of each entity")
    parser.add_argument("--rate", type=float, default=5000.0, help="reads per second of the first part")
    parser.add_argument("--peer-rate", type=float, default=50.0, help="reads per second beside Feast")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement")
    options = parser.parse_args()
    declared = feature_set()
    names = [feature.name for feature in declared.features]
    rows = [
        {entity: f"{entity}-{number * 7919 % options.keys}" for entity in ENTITIES}
        for number in range(options.keys)
    ]
    with tempfile.TemporaryDirectory(prefix="bench-features-") as scratch, redis() as (port, redis_pid):
        directory = Path(scratch)
        feed = fill(port, canonical_json(declared), options.keys)
        build(directory, declared)
        with our_server(directory, port, 120) as (serving, pid):
            address = next(one for one in serving["grpc"] if not one.startswith("unix:"))
            requests = our_requests(rows)
            method = Method(
                name="score", path="/scorer.v1.ScoringService/Score", requests=requests, fresh_id=True
            )
            load = Load(target=address, methods=[method])
            before = metrics(serving["metrics"])
            high = measure(load, options.rate, options.seconds, pid, redis_pid)
            after = metrics(serving["metrics"])
            show(f"server, Score with 30 features, {options.rate:,.0f}/s", high)
            print_reads(before, after)
            ours = measure(load, options.peer_rate, options.seconds, pid, redis_pid)
        if not (FEAST / "feast").exists():
            print("Feast is not installed: run `make feast`, and the comparison runs as well")
            return
        calls = summary("ours", our_sdk(feed, names, rows, options.peer_rate, options.seconds))
        compare(directory, options, port, redis_pid, feed, rows, names, ours, calls)


def print_reads(before: dict[str, float], after: dict[str, float]) -> None:
    """Print the share of the reads within the target, from the server's own histogram."""

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    count = max(grown('scorer_feature_redis_seconds_bucket{le="+Inf"}'), 1.0)
    within = {
        edge: grown(f'scorer_feature_redis_seconds_bucket{{le="{edge}"}}') / count
        for edge in ("0.0002", "0.0005", "0.001", "0.002")
    }
    late = sum(
        value - before.get(name, 0.0)
        for name, value in after.items()
        if name.startswith("scorer_features_defaulted_total")
    )
    shown = ", ".join(f"{share:.3%} ≤ {float(edge) * 1000:g} ms" for edge, share in within.items())
    passed = within["0.001"] >= 0.99
    verdict = "PASS" if passed else "MISS"
    print(f"{verdict}: {count:,.0f} reads of Redis: {shown} (target 99 % ≤ {TARGET_MS:g} ms)")
    print(f"rows with defaults: {late:,.0f}; hedges: {grown(_HEDGES):,.0f}")


_HEDGES: Final = 'scorer_feature_redis_hedges_total{result="sent"}'


def compare(
    directory: Path,
    options: argparse.Namespace,
    port: int,
    redis_pid: int,
    feed: Any,
    rows: Sequence[dict[str, str]],
    names: Sequence[str],
    ours: dict[str, float],
    calls: dict[str, float],
) -> None:
    """Measure Feast with the same values of the same entities, and print both."""
    home = directory / "feast"
    home.mkdir()
    now = time.time_ns() // 1000
    values: dict[str, dict[str, list[Any]]] = {}
    for entity in ENTITIES:
        own = [name for name in names if name.startswith(f"{entity}_")]
        keys: list[str | None] = [f"{entity}-{number}" for number in range(options.keys)]
        found = np.frombuffer(feed.read_batch(own, {entity: keys}, [now] * len(keys)), np.float32)
        columns = np.nan_to_num(found.reshape(len(keys), len(own))).T.tolist()
        values[entity] = {entity: list(keys), **dict(zip(own, columns, strict=True))}
    (directory / "values.json").write_text(json.dumps(values))
    (directory / "keys.json").write_text(json.dumps(rows))
    program = [str(FEAST / "python"), str(ROOT / "loadtests/peers/programs/feast_features.py")]
    environment = os.environ | {"FEAST_USAGE": "False"}
    subprocess.run(
        [*program, "prepare", str(home), str(port), str(directory / "values.json")],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    rate, seconds = str(options.peer_rate), str(options.seconds)
    done = subprocess.run(
        [*program, "sdk", str(home), str(directory / "keys.json"), rate, seconds],
        check=True,
        env=environment,
        capture_output=True,
        text=True,
    )
    sdk = json.loads(done.stdout.splitlines()[-1])
    check_values(sdk["first"], values, rows[0])
    theirs = summary("Feast", sdk)
    show(f"our extension, a call from Python, {calls['rate']:,.0f}/s", calls)
    show(f"Feast's SDK, {theirs['rate']:,.0f}/s", theirs)
    ratios("calls from Python", theirs, calls)
    bodies = [
        json.dumps(
            {"feature_service": "all", "entities": {name: [key] for name, key in row.items()}}
        ).encode()
        for row in rows
    ]
    with feast_server(home) as (address, pid):
        method = Method(name="read", path="/get-online-features", requests=bodies)
        load = Load(target=address, methods=[method], protocol="http")
        served = measure(load, options.peer_rate, options.seconds, pid, redis_pid)
    show(f"our server, Score with 30 features, {options.peer_rate:,.0f}/s", ours)
    show(f"Feast's feature server, {options.peer_rate:,.0f}/s", served)
    ratios("servers", served, ours)


def check_values(
    first: dict[str, Any], values: dict[str, dict[str, list[Any]]], keys: dict[str, str]
) -> None:
    """Check that Feast returned the values that were written for the first row."""
    for entity, of in values.items():
        at = of[entity].index(keys[entity])
        for name, column in of.items():
            if name != entity and abs(first[name] - column[at]) > 1e-4 * max(abs(column[at]), 1.0):
                raise RuntimeError(f"Feast returned {first[name]} for {name}, and {column[at]} was written")


if __name__ == "__main__":
    main()
