"""``scorer identity``: create the certificates of a trial fleet, and check those of a server."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS

if TYPE_CHECKING:
    from scorer.config import Settings

app = typer.Typer(
    help="Certificates and grants: create those of a trial, check those of a server.",
    no_args_is_help=True,
    **TYPER_OPTIONS,
)

_ROLES = {
    "checkout": '["score", "select", "describe"]',
    "settlement": '["report_outcomes"]',
    "live": '["observe"]',
    "platform": '["operate", "report_reviews"]',
    "operator": '["operate"]',
}


@app.command()
def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory to write to. Existing files are kept.")
    ],
    trust_domain: Annotated[
        str, typer.Option("--trust-domain", metavar="NAME", help="Trust domain of the SPIFFE ids.")
    ] = "scorer.internal",
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Host name or IP address of the servers; repeatable. Default: localhost, 127.0.0.1, ::1.",
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="Further client that needs a certificate; repeatable."),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=825, metavar="N", help="Validity of the certificates in days.")
    ] = 90,
) -> None:
    """Create an authority and certificates for a trial: a server, clients, the platform and an operator.

    The authority's key is stored beside the certificates, so this is for trials. A production fleet needs a
    separate authority, such as SPIRE or cert-manager.
    """
    from scorer import bridge

    hosts = host or ["localhost", "127.0.0.1", "::1"]
    clients = [*_ROLES, *(name for name in client or () if name not in _ROLES)]
    # A live server calls the shadow pool, so `live` is a server and a client.
    members = [("server", hosts), *((name, hosts if name == "live" else []) for name in clients)]
    bridge.write_fleet(str(directory), trust_domain, members, days)
    typer.echo(f"{directory}: authority ca.pem, revocation list revoked.pem, and certificate and key of")
    typer.echo(f"  {', '.join(name for name, _ in members)}")
    typer.echo(f"Valid for {days} days. Add this to scorer.toml and start the server:\n")
    typer.echo(_settings(directory.resolve(), trust_domain))
    typer.echo("Then, as the operator:\n")
    typer.echo(f"export SCORER_TLS_CA={directory.resolve() / 'ca.pem'}")
    typer.echo(f"export SCORER_TLS_CERTIFICATE={directory.resolve() / 'operator.pem'}")
    typer.echo(f"export SCORER_TLS_KEY={directory.resolve() / 'operator.key'}")
    typer.echo("scorer status")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Settings of the server: scorer.toml.")],
) -> None:
    """Check the files that the settings name, as the server does, and print the grants.

    Exit codes: 0 usable, 64 not usable, with the file and the reason.
    """
    import json

    from scorer import bridge, config
    from scorer.config.identity import client_tls_config, tls_config

    settings = config.load(file)
    server = settings.server
    listener = tls_config(server.tls)
    if listener is None:
        typer.echo(f"{server.listen}: plaintext; set server.tls.certificate to encrypt")
    else:
        expires = datetime.fromtimestamp(bridge.check_server_tls(json.dumps(listener)), UTC)
        days = (expires - datetime.now(UTC)).days
        clients = server.tls.client_certificates if server.tls.client_ca is not None else "off"
        typer.echo(
            f"{server.listen}: TLS {server.tls.min_version} or newer, client certificates {clients}; the "
            f"certificate expires in {days} days ({expires:%Y-%m-%d})"
        )
    pool = client_tls_config(server.shadow_pool_tls)
    if pool is not None and server.shadow_pool is not None:
        bridge.check_client_tls(json.dumps(pool), server.shadow_pool)
        typer.echo(f"shadow pool {server.shadow_pool}: TLS")
    _print_grants(settings)


def _print_grants(settings: Settings) -> None:
    from scorer.commands.output import print_table

    identity = settings.identity
    if not identity.enabled:
        typer.echo("No grants: every client that can connect may call every method.")
        return
    if identity.jwt.issuer is not None:
        typer.echo(
            f"tokens of {identity.jwt.issuer} for {identity.jwt.audience}, keys in {identity.jwt.keys}"
        )
    rows = [
        (grant.principal, " ".join(grant.roles), " ".join(grant.checkpoints)) for grant in identity.grants
    ]
    print_table(("principal", "roles", "checkpoints"), rows, empty="no grants")


def _settings(directory: Path, trust_domain: str) -> str:
    grants = "\n".join(
        f'[[identity.grants]]\nprincipal = "spiffe://{trust_domain}/{name}"\nroles = {roles}\n'
        for name, roles in _ROLES.items()
    )
    return (
        f'[server.tls]\ncertificate = "{directory / "server.pem"}"\nkey = "{directory / "server.key"}"\n'
        f'client_ca = "{directory / "ca.pem"}"\ncrl = ["{directory / "revoked.pem"}"]\n\n'
        f'[identity]\ntrust_domain = "{trust_domain}"\n\n{grants}'
    )
