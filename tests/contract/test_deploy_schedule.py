"""Tests of the examples that call `scorer learn run`: cron, systemd timers, Kubernetes CronJobs."""

from __future__ import annotations

import shlex
import subprocess
from configparser import ConfigParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import components
import pytest
import typer
import yaml

from scorer.commands.learn.run import run
from scorer.cron import occurrences
from scorer.learn import settings

ROOT = Path(__file__).resolve().parents[2]
SCHEDULE = ROOT / "deploy/schedule"
JOBS = ("generation", "overlay")
WORKSPACE, CONFIG = Path("/var/lib/scorer/learning"), Path("/etc/scorer/learn.toml")


def parsed(words: list[str]) -> dict[str, Any]:
    """The parameters of a command line, as the command itself reads them."""
    assert words[:3] == ["scorer", "learn", "run"]
    app = typer.Typer()
    app.command()(run)
    command = typer.main.get_command(app)
    context: click.Context = command.make_context("run", words[3:])
    return context.params


def check_job(job: str, words: list[str]) -> None:
    given = parsed(words)
    assert (given["workspace"], given["config"]) == (WORKSPACE, CONFIG)
    assert given["step"] == (None if job == "generation" else "overlay")
    # A generation that begins while the overlay works must not be missed for a week.
    assert (given["wait"] >= 600) == (job == "generation")


def cron_jobs() -> list[dict[str, Any]]:
    text = (ROOT / "deploy/kubernetes/learning.yaml").read_text()
    return [one for one in yaml.safe_load_all(text) if one["kind"] == "CronJob"]


def test_the_crontab() -> None:
    text = (SCHEDULE / "crontab").read_text().splitlines()
    lines = [line.split() for line in text if line and not line.startswith(("#", "SHELL"))]
    assert len(lines) == len(JOBS)
    begin = datetime(2026, 10, 23, 12, 1, tzinfo=UTC)
    times = (datetime(2026, 10, 26, 3, tzinfo=UTC), datetime(2026, 10, 23, 12, 5, tzinfo=UTC))
    for job, line, at in zip(JOBS, lines, times, strict=True):
        assert next(occurrences(" ".join(line[:5]), "UTC", begin)) == at
        assert line[5] == "scorer", "the user that runs it"
        check_job(job, line[6:])


@pytest.mark.parametrize("job", JOBS)
def test_the_systemd_units(job: str) -> None:
    service = ConfigParser(interpolation=None)
    service.read(SCHEDULE / f"scorer-{job}.service")
    words = shlex.split(service["Service"]["ExecStart"])
    assert words[0] == "/usr/bin/env"
    check_job(job, words[1:])
    assert service["Service"]["Type"] == "oneshot"


@pytest.mark.parametrize("job", JOBS)
def test_systemd_reads_its_units(job: str, tmp_path: Path) -> None:
    components.require("systemd-analyze")
    for kind in ("service", "timer"):
        text = (SCHEDULE / f"scorer-{job}.{kind}").read_text()
        # The user of the example is not one of this machine.
        (tmp_path / f"scorer-{job}.{kind}").write_text(text.replace("User=scorer\n", ""))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in checked.stderr.splitlines() if f"scorer-{job}" in line]
    assert not ours


@pytest.mark.parametrize("job", JOBS)
def test_the_cron_jobs(job: str) -> None:
    [manifest] = [one for one in cron_jobs() if one["metadata"]["name"] == f"scorer-{job}"]
    spec = manifest["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    begin = datetime(2026, 10, 23, 12, 1, tzinfo=UTC)
    first = next(occurrences(spec["schedule"], spec["timeZone"], begin))
    assert first == datetime(2026, 10, *((26, 3) if job == "generation" else (23, 12, 5)), tzinfo=UTC)
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    check_job(job, container["command"])
    assert container["resources"]["limits"].keys() == {"memory"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    [text] = [
        one["data"]["learn.toml"]
        for one in yaml.safe_load_all((ROOT / "deploy/kubernetes/learning.yaml").read_text())
        if one["kind"] == "ConfigMap"
    ]
    paths = settings.parse(text).schedule
    assert all(mounts[log] is True for log in paths.logs)
    assert mounts[paths.registry] is False
    assert mounts[str(WORKSPACE)] is False
