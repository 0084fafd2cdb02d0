"""Tests that a server protects its files from other users and its memory from core dumps."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from servers import ACTION, SCORE, settings, start_server

from scorer.client import Client
from scorer.registry import Registry

CONTEXT = {"amount": 25.0, "hour": 13.0, "count_24h": 1.0, "distance": 2.0}


def _limit(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("Max core file size")]
    return line.split()[4:6]


@pytest.mark.usefixtures("registry")
def test_files_of_a_server_are_private_and_core_dumps_are_disabled(tmp_path: Path) -> None:
    with (
        start_server(tmp_path, settings(SCORE + ACTION)) as server,
        Client(server.address, timeout=30) as client,
    ):
        assert client.score("fraud.checkout", CONTEXT).logged
        assert _limit(server.process.pid) == ["0", "0"]
        assert server.stop() == 0, server.transcript()
    for path in [tmp_path / "decisions", *(tmp_path / "decisions").rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode & 0o027 == 0, f"{path}: {mode:o}"


@pytest.mark.fault_case(35)
def test_a_card_number_is_refused_by_default(tmp_path: Path, registry: Registry) -> None:
    with (
        start_server(tmp_path, settings(SCORE)) as server,
        Client(server.address, timeout=30) as client,
    ):
        with pytest.raises(Exception, match="entity: holds a card number") as refused:
            client.score("fraud.checkout", CONTEXT, entity="4111 1111 1111 1111")
        assert "4111" not in str(refused.value)
        assert server.stop() == 0, server.transcript()


def test_core_dumps_are_refused_by_kernel_and_debuggers() -> None:
    program = (
        "import ctypes, resource; from scorer import bridge; bridge.forbid_core_dumps();"
        "print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(0, 0) 0"
