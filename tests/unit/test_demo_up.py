"""Tests of what `make up` writes before it serves, and what it rejects."""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path

import pytest

from examples.demo.errors import DemoError
from examples.demo.plan import Paths
from examples.demo.up import Ports, write_settings

SERVER = """[server]
listen = "127.0.0.1:1"
control_listen = "127.0.0.1:2"
metrics_listen = "127.0.0.1:3"
"""
PLATFORM = """[platform]
listen = "127.0.0.1:4"

[[fleet]]
name = "checkout"
control = "127.0.0.1:2"
"""
ANY = Ports(0, 0, 0, 0)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(None, None, tmp_path)
    paths.settings.write_text(SERVER)
    paths.platform_settings.write_text(PLATFORM)
    return paths


def test_the_platform_finds_the_server_at_its_new_port(paths: Paths) -> None:
    server, platform = (tomllib.loads(file.read_text()) for file in write_settings(paths, ANY))
    addresses = {*server["server"].values(), platform["platform"]["listen"]}
    assert len(addresses) == 4, "two services have one port"
    assert platform["fleet"][0]["control"] == server["server"]["control_listen"]
    assert "learning" not in platform["platform"]
    assert paths.settings.read_text() == SERVER, "the settings of the demo were changed"


def test_generations_are_shown_under_distinct_times(paths: Paths) -> None:
    for name in ("generation-1", "generation-2"):
        (paths.learning / name / "verdict").mkdir(parents=True)
        (paths.learning / name / "verdict" / "verdict.json").write_text(name)
    for _ in range(2):  # also if links of an earlier run exist
        _, file = write_settings(paths, ANY)
        platform = tomllib.loads(file.read_text())
        shown = paths.output / platform["platform"]["learning"] / "generations"
        verdicts = [(one / "verdict" / "verdict.json").read_text() for one in sorted(shown.iterdir())]
        assert verdicts == ["generation-1", "generation-2"]


def test_a_port_in_use_is_named_with_its_option(paths: Paths) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(DemoError, match=f"port {port} cannot be used.*--pages-port 0"):
            write_settings(paths, Ports(0, 0, 0, port))


def test_without_a_demo_the_error_names_the_command_that_creates_one(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="run `make demo` first"):
        write_settings(Paths(None, None, tmp_path), ANY)
