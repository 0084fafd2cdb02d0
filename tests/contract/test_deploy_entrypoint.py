"""Tests of the image's build steps and entry point in a folder, without a container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import components
import psutil
import pytest
from bundles import ACTIONS, FEATURES, tiny_action_bundle, tiny_score_bundle
from dockerfile import stages
from waiting import PATIENCE, wait_until

from scorer.client import Client
from scorer.registry import Registry

ROOT = Path(__file__).resolve().parents[2]
TRAINING = [
    "xgboost",
    "lightgbm",
    "treelite",
    "sklearn",
    "numpy",
    "pandas",
    "pyarrow",
    "duckdb",
    "matplotlib",
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Image:
    """The contents of the image by the Dockerfile, with every absolute path moved below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheel, self.packages, self.serve = stages()
        tools = Path(sys.executable).parent
        # Without the environment of the test: neither PYTHONPATH nor the packages of its interpreter.
        self.environment = {
            "HOME": os.environ.get("HOME", str(root)),
            "LANG": "C.UTF-8",
            "PATH": f"{tools}:{os.environ['PATH']}",
            "UV_SYSTEM_CERTS": "1",
        } | {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "CARGO_"))}

    def path(self, absolute: str) -> Path:
        return self.root / absolute.removeprefix("/")

    def moved(self, command: str) -> str:
        """Return a command of the Dockerfile with its paths moved below the folder."""
        return re.sub(r"(?<![\w./-])/(?=(?:opt|wheels|run|var|etc)\b)", f"{self.root}/", command)

    def build(self) -> None:
        """Run the steps that build and install, without those that prepare Debian."""
        [compile_] = [run for run in self.wheel.all("RUN") if "maturin build" in run]
        compile_ = re.sub(r"--mount=\S+", "", compile_).replace(
            "/tools/bin/", f"{Path(sys.executable).parent}/"
        )
        self._run(self.moved(compile_), cwd=ROOT)
        sources = self.path("/src")
        sources.mkdir(parents=True)
        for copy in self.packages.all("COPY"):
            if not copy.startswith("--from"):
                source, target = copy.split()
                shutil.copy(ROOT / source, sources / target)
        for run in self.packages.all("RUN"):
            self._run(self.moved(run), cwd=sources)

    def _run(self, command: str, cwd: Path) -> None:
        done = subprocess.run(
            ["sh", "-c", command], cwd=cwd, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

    @property
    def inside(self) -> dict[str, str]:
        """Return the environment of a process of the image."""
        [(path, *others)] = [env.split() for env in self.serve.all("ENV")]
        assert path == "PATH=/opt/scorer/bin:$PATH"
        fixed = dict(pair.split("=", 1) for pair in others)
        return {"PATH": f"{self.path('/opt/scorer/bin')}:/usr/bin:/bin", "LANG": "C.UTF-8"} | fixed

    def python(self, code: str) -> str:
        done = subprocess.run(
            ["python", "-c", code],
            env=self.inside,
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    # A short path, because the path of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="image-") as root:
        built = Image(Path(root))
        built.build()
        yield built


def test_no_training_library_is_installed(image: Image) -> None:
    result = image.python(
        f"import importlib.util; print([name for name in {TRAINING!r} if importlib.util.find_spec(name)])"
    )
    assert result == "[]\n"


def test_the_installed_packages_equal_the_pinned_ones(image: Image) -> None:
    installed = json.loads(
        image.python(
            "import json; from importlib.metadata import distributions;"
            "print(json.dumps({d.name.lower().replace('_', '-'): d.version for d in distributions()}))"
        )
    )
    pinned = dict(
        re.findall(
            r"^([a-z0-9-]+)==([^ ;\\]+) \\", (ROOT / "requirements/serve.txt").read_text(), flags=re.MULTILINE
        )
    )
    # A virtual environment of Python 3.11 contains setuptools, and one of the image's 3.13 does not.
    assert installed.keys() - {"setuptools"} == pinned.keys() | {"scorer"}
    assert pinned.items() <= installed.items()


def test_the_wheel_is_a_release_build_with_type_information(image: Image) -> None:
    assert image.python("from scorer import bridge; print(bridge.build_profile)") == "release\n"
    home = "import scorer, pathlib; print(pathlib.Path(scorer.__file__).parent)"
    package = Path(image.python(home).strip())
    assert package.is_relative_to(image.path("/opt/scorer"))
    assert (package / "py.typed").exists()
    [wheel] = image.path("/wheels").iterdir()
    # One wheel for every Python version from 3.11 on.
    assert "-cp311-abi3-" in wheel.name


class Container:
    """The entry point as a process, with the settings of the image and free ports."""

    def __init__(self, image: Image) -> None:
        self.image = image
        text = image.moved((ROOT / "deploy/scorer.toml").read_text())
        text = re.sub(r'"(?:0\.0\.0\.0|127\.0\.0\.1):\d+"', '"127.0.0.1:0"', text)
        for folder in ("/run/scorer", "/var/lib/scorer", "/etc/scorer"):
            image.path(folder).mkdir(parents=True, exist_ok=True)
        image.path("/etc/scorer/scorer.toml").write_text(text)
        self.output = image.root / "stderr.jsonl"
        with self.output.open("wb") as sink:
            self.process = subprocess.Popen(
                json.loads(image.moved(image.serve.one("ENTRYPOINT"))),
                cwd=image.path(image.serve.one("WORKDIR")),
                env=image.inside,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )

    def event(self, name: str) -> dict[str, Any]:
        """Wait for the event of this name and return it. Every line must be an event."""

        def find() -> dict[str, Any] | None:
            lines = self.output.read_text().splitlines()
            matching = [event for event in map(json.loads, lines) if event["event"] == name]
            return matching[0] if matching else None

        try:
            return wait_until(find, f"event {name}") or {}
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output.read_text()}") from error

    @property
    def socket(self) -> str:
        return f"unix://{self.image.path('/run/scorer/scorer.sock')}"

    def health(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Run the health check of the image."""
        [check] = self.image.serve.all("HEALTHCHECK")
        command = json.loads(self.image.moved(check.partition("CMD ")[2]))
        return subprocess.run(
            [*command, *more], env=self.image.inside, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def registry(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    built = tmp_path_factory.mktemp("bundles")
    tiny_score_bundle(built / "score")
    tiny_action_bundle(built / "action")
    registry = Registry(image.path("/var/lib/scorer/registry"))
    registry.alias("fraud-checkout", "live", registry.push(built / "score"))
    registry.alias("action-authorise", "live", registry.push(built / "action"))
    return registry


@pytest.fixture(scope="module")
def container(image: Image, registry: Registry) -> Iterator[Container]:
    running = Container(image)
    try:
        running.event("serving")
        yield running
    finally:
        running.process.kill()
        running.process.wait(PATIENCE)


def test_the_entry_point_serves(container: Container) -> None:
    features = dict.fromkeys(FEATURES, 1.0)
    with Client(container.socket, timeout=PATIENCE) as client:
        scored = client.score("fraud.checkout", features)
        chosen = client.select_action("action.authorise", features)
    assert scored.decision in {"approve", "review", "decline"}
    assert scored.served.by_model
    assert chosen.action in ACTIONS
    assert chosen.served.by_model
    assert chosen.logged


def test_the_health_check_reports_readiness_and_liveness(container: Container) -> None:
    ready = container.health()
    assert (ready.returncode, ready.stdout) == (0, f"{container.socket}: SERVING\n")
    assert container.health("--service", "liveness").returncode == 0
    unknown = container.health("--service", "no.such")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("error: ")


def test_the_server_uses_little_memory(container: Container) -> None:
    assert psutil.Process(container.process.pid).memory_info().rss < 150 * 2**20


def test_the_metrics_can_be_read_by_prometheus(container: Container) -> None:
    promtool = components.require_program("promtool")
    with urllib.request.urlopen(
        f"http://{container.event('serving')['metrics']}/metrics", timeout=PATIENCE
    ) as page:
        text = page.read()
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    # Exit code 3 means that the metrics are readable, with remarks about style.
    assert checked.returncode in {0, 3}, checked.stderr.decode()


def test_a_client_without_the_protos_calls_by_reflection(container: Container) -> None:
    grpcurl = components.require_program("grpcurl")
    address = next(at for at in container.event("serving")["grpc"] if not at.startswith("unix:"))

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [grpcurl, "-plaintext", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert {"grpc.health.v1.Health", "scorer.v1.ScoringService"} <= set(call(address, "list").split())
    assert json.loads(call(address, "grpc.health.v1.Health/Check")) == {"status": "SERVING"}
    request = json.dumps({"checkpoint": "fraud.checkout"})
    described = json.loads(call("-d", request, address, "scorer.v1.ScoringService/Describe"))
    assert [feature["name"] for feature in described["checkpoints"][0]["features"]] == list(FEATURES)


def test_the_container_writes_only_to_its_volumes_and_stops_on_sigterm(
    image: Image, container: Container
) -> None:
    """This test is the last one of the file because it stops the container."""
    container.process.send_signal(signal.SIGTERM)
    assert container.process.wait(PATIENCE) == 0, container.output.read_text()
    container.event("stopped")
    before = image.path("/etc/scorer/scorer.toml").stat().st_mtime_ns
    written = {path for path in image.root.rglob("*") if path.is_file() and path.stat().st_mtime_ns > before}
    volumes = [image.path("/run/scorer"), image.path("/var/lib/scorer")]
    elsewhere = [path for path in written if not any(path.is_relative_to(volume) for volume in volumes)]
    assert elsewhere == [container.output]
