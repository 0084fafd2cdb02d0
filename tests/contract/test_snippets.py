"""The programs that the page *Try it* offers, run or compiled as a user copies them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import components
import pytest
from bundles import ACTIONS, FEATURES
from servers import RunningServer, start_server
from waiting import PATIENCE

from scorer.registry import Registry
from scorer.release.snippets import SERVER, Snippet, Value, snippets

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"score": "fraud.checkout", "action": "action.authorise"}
VALUES: dict[str, Value] = dict.fromkeys(FEATURES, 1.5)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]
) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("snippets")
    registry = Registry(directory / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    registry.alias("action-authorise", "live", registry.push(built_bundles["action-1"]))
    with start_server(directory) as running:
        yield running


def snippet(name: str, kind: str, values: dict[str, Value] | None = None) -> Snippet:
    return next(one for one in snippets(KINDS[kind], kind, values or VALUES) if one.name == name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_grpcurl_program_calls_a_real_server(server: RunningServer, kind: str) -> None:
    grpcurl = components.require_program("grpcurl")
    path = os.pathsep.join([str(Path(grpcurl).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-c", snippet("grpcurl", kind).text.replace(SERVER, server.address)],
        env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    if kind == "score":
        assert reply["decision"] in ("approve", "review", "decline")
        assert 0 < reply["score"] < 1
    else:
        assert reply["action"] in ACTIONS


@pytest.mark.parametrize("kind", KINDS)
def test_the_python_program_calls_a_real_server(server: RunningServer, kind: str) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(snippet("python", kind).text.replace(SERVER, server.address), {})
    first, second = out.getvalue().split()
    if kind == "score":
        assert 0 < float(first) < 1
        assert second in ("approve", "review", "decline")
    else:
        assert first in ACTIONS
        assert 0 < float(second) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_java_program_compiles(tmp_path: Path, kind: str) -> None:
    components.require("grpc-java")
    values: dict[str, Value] = {'it\'s "odd"': 1.5, "land": 'N"L', "new": True}
    (tmp_path / "Ask.java").write_text(snippet("java", kind, values).text)
    plugin = components.program_path("grpc_java_plugin")
    for command in (
        [
            "protoc", f"-I{ROOT / 'protos'}", f"--java_out={tmp_path}", f"--grpc-java_out={tmp_path}",
            f"--plugin=protoc-gen-grpc-java={plugin}", "scorer/v1/scoring.proto",
        ],
        [
            "javac", "-proc:none", "-nowarn", "-d", str(tmp_path / "classes"), "-cp",
            f"{components.JARS}/*", "-sourcepath", str(tmp_path), str(tmp_path / "Ask.java"),
        ],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "classes" / "Ask.class").exists()


def test_the_java_program_compiles_with_the_libraries_of_the_client(tmp_path: Path) -> None:
    components.require("client for Java")
    built = components.BUILD / "clients-java" / "target"
    path = f"{built / 'classes'}:{built / 'lib'}/*"
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "Ask.java").write_text(snippet("java", kind).text)
        source = str(tmp_path / kind / "Ask.java")
        command = ["javac", "-proc:none", "-d", str(tmp_path / kind), "-cp", path, source]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
