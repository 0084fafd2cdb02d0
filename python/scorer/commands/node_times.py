"""The times of a bundle's nodes for `scorer bundle graph`: measured here, or from a running server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.bundle.times import NodeTime

_TIMEOUT = 5.0
"""Seconds to wait for a server."""


def node_times(directory: Path, digest: str, server: str | None, seconds: float) -> Mapping[str, NodeTime]:
    """Return the times of a bundle's nodes, by the slot that a node writes.

    Args:
        directory: Directory of the bundle.
        digest: Its digest.
        server: The server whose times are shown; None: the bundle is measured on its golden cases.
        seconds: Length of the measurement.

    Raises:
        BundleError: The server does not have the bundle at a checkpoint, or cannot be asked.
    """
    from scorer.bundle.times import measure

    if server is None:
        return measure([directory], seconds).nodes[0]
    return _of_server(server, digest)


def _of_server(server: str, digest: str) -> dict[str, NodeTime]:
    from scorer.bundle.times import NodeTime
    from scorer.client import Client, ClientError
    from scorer.credentials import ClientTls

    tls = None if server.startswith("unix:") else ClientTls.from_environment()
    credentials = None if tls is None else tls.channel_credentials()
    try:
        with Client(server, timeout=_TIMEOUT, credentials=credentials) as client:
            described = client.checkpoints()
    except ClientError as error:
        raise BundleError(f"{server}: {error}") from None
    for one in described:
        if one.bundle == digest:
            return {node.name: NodeTime(node.mean_us, node.timed) for node in one.nodes}
    others = ", ".join(f"{one.checkpoint} {one.bundle[:19]}" for one in described) or "no checkpoint"
    raise BundleError(
        f"{server}: bundle {digest[:19]} is not the first lane of a checkpoint (there is {others}); name a "
        "server that has it, or leave out --server to measure here"
    )
