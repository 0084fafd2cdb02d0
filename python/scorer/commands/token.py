"""``scorer token``: create keys of decision tokens, and inspect tokens."""

from __future__ import annotations

import base64
import binascii
import json as jsonlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json
from scorer.errors import ScorerError

app = typer.Typer(
    help="Create the keys of decision tokens, and inspect a token.",
    no_args_is_help=True,
    **TYPER_OPTIONS,
)

KeyFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Key file: [outcomes] token_keys of the servers.")
]


@app.command()
def key(
    file: KeyFile,
    sign: Annotated[
        str | None, typer.Option("--sign", metavar="ID", help="Id of the key that signs from now on.")
    ] = None,
    remove: Annotated[
        str | None,
        typer.Option("--remove", metavar="ID", help="Id of the key to remove. Its tokens are then rejected."),
    ] = None,
) -> None:
    """Add a key to a key file. A new file is created readable only by you.

    The first key signs; all keys verify. To replace a key, add one and copy the file to every replica, then
    use --sign with it and copy again. Use --remove for the old key when no outcome of its decisions is
    expected.
    """
    from scorer import token_keys

    if sign is not None and remove is not None:
        raise typer.BadParameter("--sign and --remove are separate steps; use one at a time")
    if sign is not None:
        token_keys.sign_with(file, sign)
        typer.echo(f"{sign} signs; copy {file} to every replica")
    elif remove is not None:
        token_keys.remove_key(file, remove)
        typer.echo(f"{remove} is removed; copy {file} to every replica")
    else:
        name = token_keys.add_key(file)
        first = len(token_keys.read_keys(file)) == 1
        typer.echo(f"{name} {'signs and verifies' if first else 'verifies'}; copy {file} to every replica")


@app.command()
def keys(file: KeyFile, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the ids of a file's keys, the one that signs first. Secrets are not shown."""
    from scorer import token_keys

    names = [one["id"] for one in token_keys.read_keys(file)]
    if json:
        print_json({"keys": names})
        return
    for at, name in enumerate(names):
        typer.echo(f"{name}  {'signs and verifies' if at == 0 else 'verifies'}")


@app.command()
def show(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token in hexadecimal digits or base64.")],
    file: Annotated[
        Path | None, typer.Option("--keys", metavar="FILE", help="Verify the token with these keys.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint to verify the token for.")] = None,
    tenant: Annotated[str, typer.Option(help="Tenant to verify the token for.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the contents of a decision token and, with --keys and --checkpoint, whether it is valid."""
    from scorer import bridge

    raw = _bytes_of(token)
    try:
        said = jsonlib.loads(bridge.read_token(raw))
    except ValueError as error:
        raise ScorerError(f"the token: {error}") from None
    # The token of a batch is valid for its rows.
    decision = said["decision_id"] + ("/0" if said["kind"] == "batch" else "")
    verdict = _verdict(raw, file, checkpoint, decision, tenant)
    if json:
        print_json({**said, "verdict": verdict})
    else:
        decided = datetime.fromtimestamp(said.pop("decided_at_ms") / 1000, UTC)
        for name, value in {**said, "decided at": decided.isoformat(timespec="milliseconds")}.items():
            typer.echo(f"{name.replace('_', ' '):<12} {value}")
        typer.echo(f"{'verdict':<12} {verdict}")
    if verdict not in {"valid", "not verified"}:
        raise typer.Exit(1)


def _verdict(raw: bytes, file: Path | None, checkpoint: str | None, decision_id: str, tenant: str) -> str:
    from scorer import bridge

    if file is None and checkpoint is None:
        return "not verified"
    if file is None or checkpoint is None:
        raise typer.BadParameter("--keys and --checkpoint go together: a token is signed for one checkpoint")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ScorerError(f"token keys {file}: cannot be read ({error.strerror or error})") from error
    try:
        bridge.verify_token(raw, content, checkpoint, decision_id, tenant)
    except ValueError as error:
        return str(error)
    return "valid"


def _bytes_of(text: str) -> bytes:
    text = text.strip()
    try:
        return bytes.fromhex(text)
    except ValueError:
        pass
    try:
        return base64.b64decode(
            text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True
        )
    except binascii.Error:
        raise ScorerError("the token is neither hexadecimal digits nor base64; copy it whole") from None
