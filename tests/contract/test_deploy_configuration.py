"""A server runs with the settings of each manifest, and the certificates of deploy/README.md for a trial.

Only what a test cannot have is replaced: the paths of the pod's volumes, its ports and its user.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from bundles import rows
from manifests import ROOT, read
from servers import RunningServer, scorer_in_process, start_server
from waiting import wait_until

from scorer import credentials
from scorer.client import Client
from scorer.credentials import ClientTls
from scorer.errors import ScorerError
from scorer.registry import Registry
from scorer.v1 import control_pb2, control_pb2_grpc

FRAUD = "fraud.checkout"
README = (ROOT / "deploy/README.md").read_text()


def trial(tmp_path: Path, name: str) -> Path:
    """Create certificates by the documented commands."""
    [command] = re.findall(r"^scorer identity init tls (.*)$", README, flags=re.MULTILINE)
    created = scorer_in_process("identity", "init", str(tmp_path / name), *command.split())
    assert created.returncode == 0, created.stderr
    return tmp_path / name


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    return trial(tmp_path, "tls")


def write_secret(name: str, tls: Path, volume: Path) -> None:
    """Write the files of a Secret to its volume as a kubelet does.

    They are read from the command that creates it.
    """
    [command] = re.findall(
        rf"^kubectl create secret generic {name} (.*)$", README.replace("\\\n", " "), flags=re.MULTILINE
    )
    files = dict(re.findall(r"--from-file=([^=\s]+)=tls/(\S+)", command))
    assert files.keys() == {"tls.crt", "tls.key", "ca.crt"}
    content = volume / f"..{tls.name}"
    content.mkdir(parents=True)
    for key, file in files.items():
        shutil.copy(tls / file, content / key)
        if not (volume / key).is_symlink():
            (volume / key).symlink_to(f"..data/{key}")
    # One rename replaces all files.
    (volume / "..data_tmp").symlink_to(content.name)
    (volume / "..data_tmp").replace(volume / "..data")


@contextmanager
def serving(manifest: str, tls: Path, tmp_path: Path, registry: Registry) -> Iterator[RunningServer]:
    workload = read(manifest)
    [volume] = [v for v in workload.pod["volumes"] if "secret" in v]
    write_secret(volume["secret"]["secretName"], tls, tmp_path / "etc")
    (tmp_path / "run").mkdir()
    moved = {
        "/etc/scorer-tls": tmp_path / "etc",
        "/var/lib/scorer": tmp_path / "var",
        "/srv/registry": registry.path,
        "/run/scorer": tmp_path / "run",
    }
    text = workload.text
    for path, place in moved.items():
        text = text.replace(f'"{path}', f'"{place}')
    text = re.sub(
        r'_?listen = "[0-9.]+:\d+"', lambda match: match[0].partition('"')[0] + '"127.0.0.1:0"', text
    )
    text = text.replace(f"uid:{workload.pod['securityContext']['runAsUser']}", f"uid:{os.getuid()}")
    with start_server(tmp_path, text) as server:
        yield server


def client(tls: Path, name: str) -> ClientTls:
    return ClientTls(tls / "ca.pem", tls / f"{name}.pem", tls / f"{name}.key")


def state(server: RunningServer, shown: ClientTls | None) -> str:
    with credentials.channel(server.control, shown) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        return stub.GetStatus(control_pb2.GetStatusRequest(), timeout=20).state


def only_operators_operate(server: RunningServer, tls: Path) -> None:
    assert state(server, client(tls, "operator")) == state(server, client(tls, "platform")) == "SERVING"
    for other in (None, ClientTls(tls / "ca.pem"), client(tls, "checkout"), client(tls, "live")):
        with pytest.raises(grpc.RpcError):
            state(server, other)
    assert not server.named("plaintext_listener")


def test_the_standalone_configuration_serves(tls: Path, tmp_path: Path, registry: Registry) -> None:
    with serving("standalone.yaml", tls, tmp_path, registry) as server:
        with Client(server.address, credentials=client(tls, "checkout").channel_credentials()) as checkout:
            assert checkout.score(FRAUD, rows(1)[0]).decision
            assert checkout.select_action("action.authorise", rows(1)[0]).action
        for refused in (client(tls, "live"), client(tls, "operator"), ClientTls(tls / "ca.pem")):
            with (
                Client(server.address, credentials=refused.channel_credentials()) as other,
                pytest.raises(ScorerError),
            ):
                other.score(FRAUD, rows(1)[0])
        with Client(server.address) as plaintext, pytest.raises(ScorerError):
            plaintext.score(FRAUD, rows(1)[0])
        only_operators_operate(server, tls)
        # The Secret is renewed, here even by another authority.
        renewed = trial(tmp_path, "renewed")
        write_secret("scorer-tls", renewed, tmp_path / "etc")

        def answered() -> bool:
            with Client(server.address, credentials=client(renewed, "checkout").channel_credentials()) as new:
                return bool(new.score(FRAUD, rows(1)[0]).decision)

        wait_until(answered, "the renewed certificates to be used")
        assert not server.named("tls_rejected")


def test_the_sidecar_configuration_serves(tls: Path, tmp_path: Path, registry: Registry) -> None:
    with serving("sidecar.yaml", tls, tmp_path, registry) as server:
        [address] = server.serving["grpc"]
        assert address.startswith("unix:")
        with Client(address) as checkout:
            assert checkout.score(FRAUD, rows(1)[0]).decision
            assert checkout.select_action("action.authorise", rows(1)[0]).action
        only_operators_operate(server, tls)


def test_the_shadow_pool_configuration_serves(tls: Path, tmp_path: Path, registry: Registry) -> None:
    with serving("shadow.yaml", tls, tmp_path, registry) as server:
        only_operators_operate(server, tls)
