"""HTTP/2 as RFC 9113 and RFC 7541 require it, by h2spec in its strict mode."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import components
import pytest
from servers import RunningServer
from waiting import PATIENCE

# One case of h2spec depends on the response of the server to its first request.
CASES = (145, 146)
MAX_SKIPPED = 2


def run_h2spec(address: str, report: Path, *, tls: bool = False) -> dict[str, list[str]]:
    """Run every case of h2spec; return the names of the cases by "passed", "failed" and "skipped"."""
    program = components.require_program("h2spec")
    host, port = address.rsplit(":", 1)
    options = ["--tls", "--insecure"] if tls else []
    done = subprocess.run(
        [program, "--strict", "--host", host, "--port", port, "--junit-report", str(report), *options],
        capture_output=True, text=True, timeout=2 * PATIENCE, check=False,
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    cases: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('package')}: {case.get('classname')}"
        ends = {"error": "failed", "failure": "failed", "skipped": "skipped"}
        verdict = next((end for tag, end in ends.items() if case.find(tag) is not None), "passed")
        cases[verdict].append(name)
    # The report is counted as h2spec counts it.
    counted = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
    assert counted is not None, done.stdout
    assert [int(count) for count in counted.groups()[1:]] == [
        len(cases[verdict]) for verdict in ("passed", "skipped", "failed")
    ]
    return cases


@pytest.mark.fault_case(41)
@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
def test_h2spec_passes_in_strict_mode(request: pytest.FixtureRequest, tmp_path: Path, tls: bool) -> None:
    server: RunningServer = request.getfixturevalue("tls_server" if tls else "server")
    cases = run_h2spec(server.address, tmp_path / "h2spec.xml", tls=tls)
    assert cases["failed"] == []
    assert len(cases["skipped"]) <= MAX_SKIPPED, cases["skipped"]
    assert sum(map(len, cases.values())) in CASES
