"""Context managers of all measured servers. Each starts a server on the server's core and always ends it.

A server counts as started after it has answered the first rows with XGBoost's own scores.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtests.figures import ROOT
from loadtests.openloop import Load, Method, cores
from loadtests.peers.environments import python_of
from loadtests.peers.messages import INFER, infer_request, infer_score
from loadtests.peers.subject import CHECKPOINT, NAME, Subject, bits
from loadtests.processor import memory_mb

PROGRAMS: Final = Path(__file__).parent / "programs"
PYTHON: Final = ROOT / "python"
START_SECONDS: Final = 240.0
SCORE: Final = "/scorer.v1.ScoringService/Score"
NOOP: Final = "/scorer.v1.ScoringService/Noop"
# Ray selects the application by this header.
RAY_APPLICATION: Final = {"application": "scoring"}


class ServerError(Exception):
    """A server did not start, or answers wrongly. The message contains the end of its log."""


@dataclass(frozen=True)
class Serving:
    """A running server.

    Attributes:
        load: How to send requests to it.
        process: Its process.
        metrics: Address of its Prometheus metrics, if it has any.
    """

    load: Load
    process: Process
    metrics: str | None = None


@dataclass
class Process:
    """A child process on the server's core, with its own process group."""

    child: subprocess.Popen[str]
    log: Path
    command: str

    @property
    def pid(self) -> int:
        """Id of the child process."""
        return self.child.pid

    def line(self) -> str:
        """Read the next line of its standard output.

        Raises:
            ServerError: The process has ended.
        """
        assert self.child.stdout is not None
        line = self.child.stdout.readline().strip()
        if not line:
            raise ServerError(self.story())
        return line

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.child.stdin is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def story(self) -> str:
        """Return its command, its exit code and the last 20 lines of its log."""
        words = self.log.read_text(errors="replace").splitlines()[-20:]
        return "\n".join([f"{self.command}: exit code {self.child.poll()}", *words])

    def memory_mb(self) -> float:
        """Return its resident memory in MB."""
        return memory_mb(self.pid)


@contextmanager
def process(
    command: Sequence[str | Path],
    *,
    directory: Path,
    more: Mapping[str, str] | None = None,
    end: signal.Signals = signal.SIGTERM,
    prints: bool = False,
) -> Iterator[Process]:
    """Run a command on the server's core. Its whole process group is ended with the context.

    Args:
        command: The program and its arguments.
        directory: Working directory, to which the log is written as well.
        more: Environment variables besides the inherited ones.
        end: The signal that ends the process.
        prints: Whether `Process.line` reads standard output. Otherwise standard output goes to the log as
            well, because a server whose output is not read stops when the pipe is full.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SCORER_", "RAY_"))
    }
    # With one core, a library's threads would only preempt each other.
    environment = inherited | {"PYTHONPATH": str(PYTHON), "OMP_NUM_THREADS": "1"} | dict(more or {})
    log = directory / "server.log"
    with log.open("w") as sink:
        child = subprocess.Popen(
            # The kernel kills it with this process.
            ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", str(cores()[0]), *map(str, command)],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if prints else sink,
            stderr=sink,
            text=True,
            start_new_session=True,
        )
    try:
        yield Process(child, log, " ".join(map(str, command)))
    finally:
        _end(child, end)


def _end(child: subprocess.Popen[str], by: signal.Signals) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGCONT)
        child.send_signal(by)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    with suppress(ProcessLookupError):
        # Kills processes that it has left behind in its process group.
        os.killpg(child.pid, signal.SIGKILL)
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


# --- our server ---


def settings(*, metrics: bool = False, log: Path | None = None, **checkpoint: Any) -> dict[str, Any]:
    """Return the settings of our data plane, in the format of its configuration.

    Args:
        metrics: Whether it serves Prometheus metrics.
        log: Directory of the decision log; None: there is none.
        **checkpoint: Settings of the checkpoint.
    """
    return {
        "listen": "127.0.0.1:0",
        **({"metrics_listen": "127.0.0.1:0"} if metrics else {}),
        **({"log": {"dir": str(log)}} if log else {}),
        "checkpoints": {CHECKPOINT: {"kind": "score", **checkpoint}},
    }


def lanes(digest: str) -> dict[str, Any]:
    """Return a lane table in which one lane receives all requests."""
    return {"version": 1, "checkpoints": {CHECKPOINT: [{"name": "live", "bundle": digest, "share": 1.0}]}}


def standalone(*features: str) -> Path:
    """Build the binary without Python from this tree and return its path.

    Args:
        *features: Cargo features to enable.
    """
    command = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "scorer-server"]
    binary = ROOT / "target/release/scorer-server"
    if not features:
        subprocess.run(command, cwd=ROOT, check=True)
        return binary
    subprocess.run([*command, "--features", ",".join(features)], cwd=ROOT, check=True)
    # A later build without these features would replace the binary.
    kept = ROOT / ".build" / "-".join(["scorer-server", *features])
    shutil.copy(binary, kept)
    return kept


@contextmanager
def rust(
    subject: Subject, *, config: Mapping[str, Any] | None = None, features: Sequence[str] = (), **more: str
) -> Iterator[Serving]:
    """Run our standalone binary.

    Args:
        subject: The model.
        config: Its configuration; None: one with a decision log and an SLA of 1 s.
        features: Cargo features to enable.
        **more: Environment variables besides the inherited ones.
    """
    binary = standalone(*features)
    with scratch() as directory:
        (directory / "lanes.json").write_text(json.dumps(lanes(subject.digest)))
        chosen = config or settings(log=directory / "decisions", p99_ms=1000.0)
        (directory / "config.json").write_text(json.dumps(chosen))
        command: list[str | Path] = [binary, "config.json", "lanes.json", subject.bundle]
        with process(command, directory=directory, more=more) as running:
            addresses = event(running, "started")["addresses"]
            target = addresses["grpc"][0]
            event(running, "lanes_swapped")
            load = Load(target=target, methods=[_score(subject)])
            verify(load, subject)
            yield Serving(load, running, addresses.get("metrics"))


@contextmanager
def hosted(
    subject: Subject,
    *,
    checkpoint: str = "p99_ms = 1000.0",
    server: str = "",
    tls: Mapping[str, str] | None = None,
) -> Iterator[Serving]:
    """Run `scorer serve`: our server in a Python process, with registry, control plane and decision log.

    Args:
        subject: The model.
        checkpoint: Settings of the checkpoint, TOML.
        server: Settings of the server, and further sections, TOML.
        tls: The TLS files of the load generator, by the names of its configuration.
    """
    from scorer.registry import Registry

    with scratch() as directory:
        with ExitStack() as opened:
            registry = Registry(directory / "registry")
            opened.callback(registry.close)
            registry.push(subject.bundle)
            registry.alias(NAME, "live", subject.digest, reason="measured")
        (directory / "scorer.toml").write_text(
            '[server]\nlisten = "127.0.0.1:0"\ncontrol_listen = "127.0.0.1:0"\n'
            f'metrics_listen = "127.0.0.1:0"\nuds = "s.sock"\n{server}\n'
            f'[checkpoints."{CHECKPOINT}"]\nkind = "score"\nalias = "{NAME}@live"\n{checkpoint}\n'
        )
        command: list[str | Path] = [sys.executable, "-m", "scorer.cli", "serve", "--config", "scorer.toml"]
        with process(command, directory=directory) as running:
            said = event(running, "serving")
            addresses = said["grpc"]
            target = next(address for address in addresses if not address.startswith("unix:"))
            more = {} if tls is None else {"tls": dict(tls)}
            load = Load(target=target, methods=[_score(subject)], more=more)
            verify(load, subject)
            yield Serving(load, running, said.get("metrics"))


@contextmanager
def embedded(subject: Subject) -> Iterator[Serving]:
    """Run our server in a Python process that holds the interpreter lock on command (`programs/held.py`)."""
    with scratch() as directory:
        arguments = [json.dumps(settings(p99_ms=1000.0)), json.dumps(lanes(subject.digest))]
        command: list[str | Path] = [
            sys.executable,
            PROGRAMS / "held.py",
            *arguments,
            subject.bundle,
            subject.digest,
        ]
        with process(command, directory=directory, prints=True) as running:
            load = Load(target=running.line(), methods=[_score(subject)])
            verify(load, subject)
            yield Serving(load, running)


def over_unix_socket(serving: Serving) -> Load:
    """Return the load for the Unix socket of the same server."""
    # The settings name the socket relative to this directory, whose path is short enough for a socket's
    # address.
    path = serving.process.log.parent / "s.sock"
    return _at(serving.load, f"unix:{path}")


def noop(load: Load) -> Load:
    """Return the load for the method Noop of the same server."""
    return Load(target=load.target, methods=[Method(name="noop", path=NOOP, requests=[b""])])


def inference(load: Load, subject: Subject) -> Load:
    """Return the load for our server with the bytes that MLServer receives."""
    return Load(target=load.target, methods=[_infer(subject)])


def _at(load: Load, target: str) -> Load:
    return Load(target=target, methods=load.methods, protocol=load.protocol, metadata=load.metadata)


# --- peers ---


@contextmanager
def grpc_aio(subject: Subject, engine: str) -> Iterator[Serving]:
    """Run a typical grpc.aio server in front of XGBoost or of our engine."""
    python = python_of("grpcaio") if engine == "xgboost" else Path(sys.executable)
    with scratch() as directory:
        command: list[str | Path] = [python, PROGRAMS / "grpc_aio.py", engine, subject.model]
        with process(command, directory=directory, prints=True) as running:
            load = Load(target=running.line(), methods=[_score(subject)])
            verify(load, subject)
            yield Serving(load, running)


@contextmanager
def mlserver(subject: Subject, *, workers: int = 0) -> Iterator[Serving]:
    """Run MLServer with its XGBoost runtime over gRPC. With 0 workers it infers in its own process."""
    python = python_of("mlserver")
    with scratch() as directory:
        http, grpc, metrics = _free_ports(3)
        server = {
            "host": "127.0.0.1",
            "http_port": http,
            "grpc_port": grpc,
            "metrics_port": metrics,
            "debug": False,
            "parallel_workers": workers,
        }
        model = {
            "name": CHECKPOINT,
            "implementation": "mlserver_xgboost.XGBoostModel",
            "parameters": {"uri": str(subject.model)},
        }
        (directory / "settings.json").write_text(json.dumps(server))
        (directory / "model-settings.json").write_text(json.dumps(model))
        with process([python.with_name("mlserver"), "start", directory], directory=directory) as running:
            load = Load(target=f"127.0.0.1:{grpc}", methods=[_infer(subject)])
            wait(running, load, subject)
            yield Serving(load, running)


@contextmanager
def bentoml(subject: Subject) -> Iterator[Serving]:
    """Run BentoML over HTTP, because its services have no gRPC server since version 1.4."""
    python = python_of("bentoml")
    with scratch() as directory:
        (port,) = _free_ports(1)
        shutil.copy(PROGRAMS / "bento_app.py", directory)
        variables = {
            "MODEL": str(subject.model),
            "BENTOML_HOME": str(directory / "home"),
            "BENTOML_DO_NOT_TRACK": "True",
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        }
        command: list[str | Path] = [python.with_name("bentoml"), "serve", "bento_app:Scoring"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        with process(command, directory=directory, more=variables, end=signal.SIGINT) as running:
            method = Method(name="predict", path="/predict", requests=subject.json_requests())
            load = Load(target=f"127.0.0.1:{port}", methods=[method], protocol="http", connections=64)
            wait(running, load, subject)
            yield Serving(load, running)


@contextmanager
def ray_serve(subject: Subject) -> Iterator[Serving]:
    """Run Ray Serve with a gRPC ingress and one replica."""
    python = python_of("ray")
    with scratch() as directory:
        grpc, http = _free_ports(2)
        command: list[str | Path] = [python, PROGRAMS / "ray_app.py", subject.model, str(grpc), str(http)]
        variables = {
            "RAY_TMPDIR": str(directory),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            # Its many processes start slowly on one core. The value must be a whole number, because Ray
            # crashes on any other.
            "RAY_raylet_start_wait_time_s": str(int(START_SECONDS)),
        }
        with process(command, directory=directory, more=variables) as running:
            target = f"127.0.0.1:{grpc}"
            load = Load(target=target, methods=[_score(subject)], metadata=RAY_APPLICATION)
            wait(running, load, subject)
            yield Serving(load, running)


# --- requests, and the expected scores ---


def _score(subject: Subject) -> Method:
    return Method(name="score", path=SCORE, requests=subject.score_requests())


def _infer(subject: Subject) -> Method:
    requests = [infer_request(CHECKPOINT, row.tolist()) for row in subject.rows]
    return Method(name="infer", path=INFER, requests=requests)


def wait(running: Process, load: Load, subject: Subject) -> None:
    """Wait until a server that does not report that it is ready has answered correctly.

    Raises:
        ServerError: The process ended, or did not answer correctly within 240 s.
    """
    import grpc

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return verify(load, subject)
        except (OSError, grpc.RpcError) as error:
            if running.child.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"{error}\n{running.story()}") from error
            time.sleep(0.2)


def verify(load: Load, subject: Subject) -> None:
    """Check that the scores of the first three rows equal XGBoost's own, bit for bit as float32.

    Raises:
        ServerError: A score differs.
    """
    (method,) = load.methods
    for request, expected in list(zip(method.requests, subject.scores, strict=True))[:3]:
        score = _ask(load, method, request)
        if bits(score) != bits(float(expected)):
            raise ServerError(f"{load.target}{method.path} answers {score}, XGBoost {expected}")


def _ask(load: Load, method: Method, request: bytes) -> float:
    from scorer.credentials import ClientTls
    from scorer.credentials import channel as channel_of
    from scorer.v1 import scoring_pb2 as pb

    if load.protocol == "http":
        url = f"http://{load.target}{method.path}"
        asked = urllib.request.Request(url, request, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=5) as reply:  # noqa: S310 - our own server
            return float(json.load(reply)[0])
    tls = load.more.get("tls")
    with channel_of(
        load.target, None if tls is None else ClientTls(**{name: Path(path) for name, path in tls.items()})
    ) as channel:
        reply = channel.unary_unary(method.path, None, None)(
            request, timeout=5, metadata=tuple(load.metadata.items())
        )
    return infer_score(reply) if method.path == INFER else pb.ScoreResponse.FromString(reply).score


# --- helpers ---


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary directory. Its path is short enough for the address of a socket in it."""
    with tempfile.TemporaryDirectory(prefix="b-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def event(running: Process, name: str) -> dict[str, Any]:
    """Wait until our server has logged the event, and return it."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for line in running.log.read_text().splitlines():
            try:
                event: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == name:
                return event
        if running.child.poll() is not None:
            break
        time.sleep(0.02)
    raise ServerError(running.story())


def _free_ports(count: int) -> list[int]:
    """Return free ports, for servers that cannot choose one themselves."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
