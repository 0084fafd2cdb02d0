"""``scorer operator``: run servers in Kubernetes that custom resources describe."""

from __future__ import annotations

from typing import Annotated

import typer


def operator(
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace", "-n", metavar="NAME", help="Namespace to watch; repeatable. Default: all."
        ),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="File with address and credentials of the cluster; default: of the pod, or ~/.kube/config.",
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            min=0.2,
            max=3600,
            metavar="SECONDS",
            help="Time between two passes over each server.",
        ),
    ] = 10.0,
    health: Annotated[
        str | None,
        typer.Option("--health", metavar="HOST:PORT", help="Address of /healthz for probes; default: none."),
    ] = None,
) -> None:
    """Run the servers that ScorerServer and ScorerCheckpoint objects describe, until SIGTERM.

    It needs scorer[operator] and the resources of deploy/kubernetes/operator.
    """
    from scorer.operator.handlers import run

    run(
        namespaces=namespaces or [],
        kubeconfig=kubeconfig,
        interval=interval,
        health=None if health is None else f"http://{health}/healthz",
    )
