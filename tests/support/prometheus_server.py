"""A real Prometheus that scrapes servers of a test and evaluates the shipped rules."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import components
from real_server import free_port
from waiting import PATIENCE, wait_until

WINDOW = "10s"
"""Window of rates: ten scrapes."""


class PrometheusServer:
    """The HTTP API of a running Prometheus."""

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the series of an instant query.

        Raises:
            AssertionError: Prometheus cannot evaluate the query.
        """
        found = self.get("query", query=expr)["result"]
        assert isinstance(found, list), expr
        return found

    def exemplars(self, expr: str) -> list[dict[str, Any]]:
        """Return the exemplars of the series of a query, of all times."""
        found = self.get("query_exemplars", query=expr, start="0", end="4000000000")
        return [one for series in found for one in series["exemplars"]]

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules, with the state of their latest evaluation."""
        groups = self.get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def get(self, what: str, **arguments: str) -> Any:
        """Call the API; return the data of the reply."""
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{arguments}: {error.read().decode()}") from error
        assert answer["status"] == "success", answer
        return answer["data"]


@contextmanager
def prometheus(
    directory: Path, targets: Mapping[str, str], rules: Sequence[Path]
) -> Iterator[PrometheusServer]:
    """Run Prometheus, which scrapes each target (`host:port` by job) every second.

    Args:
        directory: A directory of its own.
        targets: Address of `/metrics` by the name of its job.
        rules: Files of rules to evaluate.
    """
    components.require("Prometheus")
    program = components.program_path("prometheus")
    assert program is not None
    directory.mkdir()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()
        ],
    }
    # JSON is YAML.
    (directory / "prometheus.yml").write_text(json.dumps(config))
    for _ in range(5):
        address = f"127.0.0.1:{free_port()}"
        with (directory / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    program,
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={address}",
                    "--enable-feature=exemplar-storage",
                ],
                cwd=directory,
                stdout=log,
                stderr=log,
            )
        server = PrometheusServer(address)
        try:
            wait_until(lambda server=server, one=process: _answers(server) or one.poll() is not None)
            if process.poll() is None:
                yield server
                return
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(PATIENCE)
    raise AssertionError(f"Prometheus does not start:\n{(directory / 'prometheus.log').read_text()[-2000:]}")


def _answers(server: PrometheusServer) -> bool:
    try:
        return bool(server.get("status/buildinfo"))
    except OSError:
        return False
