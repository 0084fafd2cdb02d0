"""Tests of the systemd unit of `scorer ship`."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import components
import typer
from servers import scorer_in_process

from scorer.commands.ship import app

UNIT = Path(__file__).resolve().parents[2] / "deploy/ship/scorer-ship.service"


def values(key: str) -> list[str]:
    lines = UNIT.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def test_the_unit_runs_the_command() -> None:
    (line,) = values("ExecStart")
    words = shlex.split(line)
    assert words[:3] == ["/usr/bin/env", "scorer", "ship"]
    command = typer.main.get_command(app)
    context = command.make_context("ship", words[3:])
    assert context.params["config"] == Path("/etc/scorer/ship.toml")
    assert not context.params["once"] and not context.params["accept_new_log"]


def test_the_unit_starts_again_after_a_failure() -> None:
    """The process ends where it cannot get on; a restart continues."""
    assert values("Restart") == ["always"]


def test_the_unit_can_write_the_shipped_mark() -> None:
    (place,) = values("ReadWritePaths")
    settings = (UNIT.parents[1] / "scorer.toml").read_text()
    assert f'dir = "{place}/decisions"' in settings


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    components.require("systemd-analyze")
    # The user of the example is not one of this machine.
    (tmp_path / UNIT.name).write_text(UNIT.read_text().replace("User=scorer\n", ""))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0 and "scorer-ship" not in checked.stderr, checked.stderr


def test_the_help_names_the_options() -> None:
    shown = scorer_in_process("ship", "--help")
    assert shown.returncode == 0
    for option in ("--config", "--log", "--server", "--delta", "--kafka", "--topic", "--once"):
        assert option in shown.stdout
