"""``python -m examples.demo.up``: run the demo's server and pages with payments until Ctrl-C."""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from examples.command_line import run
from examples.demo.errors import DemoError
from scorer.cli import TYPER_OPTIONS

if TYPE_CHECKING:
    from examples.demo.plan import Paths
    from examples.demo.process import PlatformProcess, ServerProcess
    from examples.demo.traffic import Traffic
    from scorer.client import Client

app = typer.Typer(**TYPER_OPTIONS)

PAGES = "learning-pages"
"""Directory of the demo's generations for the page Learning."""
_SETTINGS = ("up-scorer.toml", "up-platform.toml")
_DAYS = "1"
"""Lifetime of the printed token in days."""


@dataclass(frozen=True)
class Ports:
    """Ports of the loopback interface; 0: any free one.

    Attributes:
        data: port of the scoring service.
        control: port of the control service.
        metrics: port of the metrics page.
        pages: port of the platform.
    """

    data: int
    control: int
    metrics: int
    pages: int

    def addresses(self) -> dict[str, str]:
        """Return host:port by the option's name.

        Raises:
            DemoError: a port is in use; the message names its option.
        """
        found = {}
        with ExitStack() as held:
            for name in ("data", "control", "metrics", "pages"):
                port = getattr(self, name)
                try:
                    listener = held.enter_context(socket.create_server(("127.0.0.1", port)))
                except OSError as error:
                    raise DemoError(
                        f"port {port} cannot be used: {error.strerror}; choose another one with "
                        f"--{name}-port, or any free one with --{name}-port 0"
                    ) from None
                found[name] = f"127.0.0.1:{listener.getsockname()[1]}"
        return found


@app.command()
def up(
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory that the demo wrote; default: demo-output.")
    ] = None,
    data_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the scoring service.")] = 7700,
    control_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the control service.")] = 7701,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the metrics page.")] = 7702,
    pages_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the pages.")] = 7710,
    rate: Annotated[int, typer.Option(min=0, max=500, help="Payments per second; 0: none.")] = 20,
) -> None:
    """Serve the demo's bundles and the platform's pages, and send payments, until Ctrl-C."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from examples.demo.plan import Paths, project_root
    from examples.demo.process import end_on_sigterm

    paths = Paths(None, None, (output or project_root() / "demo-output").resolve())
    end_on_sigterm()
    with suppress(KeyboardInterrupt):
        _serve(paths, Ports(data_port, control_port, metrics_port, pages_port), rate)
    typer.echo("Stopped: all processes have ended.")


def _serve(paths: Paths, ports: Ports, rate: int) -> None:
    from examples.demo.process import PlatformProcess, ServerProcess, run_command
    from examples.demo.shipping import USER
    from scorer.client import Client

    server_settings, platform_settings = write_settings(paths, ports)
    with ExitStack() as running:
        server = running.enter_context(ServerProcess(server_settings, paths.server_log))
        platform = running.enter_context(PlatformProcess(platform_settings, paths.output / "platform.log"))
        token = run_command(
            *("platform", "token", "create", "--user", USER, "--label", "make up", "--role", "admin"),
            *("--days", _DAYS, "--config", str(platform_settings)),
        )
        typer.echo(f"Pages    {platform.url}")
        typer.echo(f"Sign in  {token['secret']}")
        typer.echo(f"Scoring  {server.address} (gRPC)")
        typer.echo("Ctrl-C stops everything.")
        client = running.enter_context(Client(server.address))
        _keep_busy(server, platform, _traffic(client, rate) if rate else iter(()))


def _keep_busy(server: ServerProcess, platform: PlatformProcess, traffic: Iterator[Traffic]) -> None:
    """Send the payments of one second each second, until a process ends. Raises DemoError."""
    while True:
        begun = time.monotonic()
        if (batch := next(traffic, None)) is not None:
            batch.start()
            while not batch.finished:
                time.sleep(0.02)
        for what, process in (("the server", server), ("the platform", platform)):
            if not process.running:
                raise DemoError(f"{what} has ended: {process.last_problem or 'no reason given'}")
        if batch is not None:
            batch.check()
        time.sleep(max(0.0, 1.0 - (time.monotonic() - begun)))


def _traffic(client: Client, rate: int) -> Iterator[Traffic]:
    """Yield the payments of one second at a time, without end."""
    import numpy as np

    from examples.demo.plan import DemoPlan
    from examples.demo.traffic import Traffic
    from examples.fraud.features import features
    from examples.fraud.training import fraud_columns
    from examples.simulators.payments import Payments, contexts
    from examples.simulators.transactions import simulate_transactions

    seed = time.time_ns() % 1_000_000_007
    transactions = simulate_transactions(DemoPlan.quick().simulated, seed)
    rows = features(transactions)
    world = Payments()
    # Later transactions have a history, like those of a running system.
    order = np.arange(len(transactions) // 2, len(transactions))
    for number, start in enumerate(itertools.cycle(range(0, len(order) - rate, rate))):
        part = order[start : start + rate]
        payments = transactions.take(part)
        yield Traffic(
            client=client,
            columns=fraud_columns(),
            payments=payments,
            rows=rows[part],
            contexts=contexts(payments, np.zeros(len(part)), seed + number),
            world=world,
            run=f"up{seed}-{number}",
            threads=1,
            block=rate,
        )


def write_settings(paths: Paths, ports: Ports) -> tuple[Path, Path]:
    """Write the settings of the server and of the platform, as the demo wrote them, with other ports.

    Returns:
        The settings files of both.

    Raises:
        DemoError: there is no demo in the folder, or a port is in use.
    """
    for needed in (paths.settings, paths.platform_settings):
        if not needed.is_file():
            raise DemoError(
                f'"{needed}" is missing; run `make demo` first, or set its directory with --output'
            )
    found = ports.addresses()
    server = _replaced(
        paths.settings.read_text(),
        {"listen": found["data"], "control_listen": found["control"], "metrics_listen": found["metrics"]},
    )
    platform = _replaced(
        paths.platform_settings.read_text(), {"listen": found["pages"], "control": found["control"]}
    )
    if show_generations(paths):
        platform = platform.replace("[platform]\n", f'[platform]\nlearning = "{PAGES}"\n', 1)
    files = tuple(paths.output / name for name in _SETTINGS)
    for file, text in zip(files, (server, platform), strict=True):
        file.write_text(text, encoding="utf-8")
    return files[0], files[1]


def show_generations(paths: Paths) -> bool:
    """Link the generations that the full demo learned, under the names that the page Learning expects.

    Returns:
        Whether there are generations.
    """
    folder = paths.output / PAGES / "generations"
    learned = [one for one in sorted(paths.learning.glob("generation-*")) if (one / "verdict").is_dir()]
    if not learned:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.is_symlink():
            old.unlink()
    last = datetime.min.replace(tzinfo=UTC)
    for one in learned:
        # Two verdicts may be written within a second, but the names must differ.
        judged = datetime.fromtimestamp((one / "verdict").stat().st_mtime, UTC).replace(microsecond=0)
        last = max(judged, last + timedelta(seconds=1))
        (folder / f"{last:%Y%m%dT%H%M%SZ}").symlink_to(one, target_is_directory=True)
    return True


def _replaced(text: str, values: dict[str, str]) -> str:
    for key, value in values.items():
        text, count = re.subn(rf'(?m)^{key} = "[^"]*"$', f'{key} = "{value}"', text)
        if count != 1:
            raise DemoError(f'the settings have {count} lines "{key} = ..."; run `make demo` again')
    return text


if __name__ == "__main__":
    run(app, "python -m examples.demo.up")
