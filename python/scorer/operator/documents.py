"""The settings files of a server, `scorer.toml` and `ship.toml`, made of its resources and validated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scorer import config
from scorer.config.example import toml
from scorer.config.problems import dotted
from scorer.errors import OperatorError
from scorer.operator import names
from scorer.operator.spec import CheckpointSpec, ServerSpec, amount, one_line

_SECRET = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")
_TABLE_DEPTH = 3


@dataclass(frozen=True)
class Checkpoint:
    """A valid `ScorerCheckpoint`: the name of the object and its spec."""

    name: str
    spec: CheckpointSpec


def server_document(spec: ServerSpec, checkpoints: Sequence[Checkpoint]) -> str:
    """Return the `scorer.toml` of a server.

    Args:
        spec: The server.
        checkpoints: Its checkpoints.

    Raises:
        OperatorError: The settings are refused. The message has one line and names the object.
    """
    if not checkpoints:
        raise OperatorError("no ScorerCheckpoint names this server; create one whose spec.server is its name")
    tables = _merged(spec.settings, _server_tables(spec), "spec.settings")
    threads = tables["server"].setdefault("threads", max(1, int(amount(spec.resources.requests.cpu))))
    if isinstance(threads, int) and threads > amount(spec.resources.requests.cpu):
        raise OperatorError(
            f"spec.settings.server.threads: {threads} threads exceed resources.requests.cpu = "
            f"{spec.resources.requests.cpu}; raise the request"
        )
    if "checkpoints" in tables:
        raise OperatorError(
            "spec.settings.checkpoints: a server has no checkpoints here; create a ScorerCheckpoint"
        )
    owners: dict[str, str] = {}
    tables["checkpoints"] = {}
    for one in sorted(checkpoints, key=lambda each: each.name):
        if other := owners.get(one.spec.checkpoint):
            raise OperatorError(
                f"ScorerCheckpoint {one.name}: checkpoint {one.spec.checkpoint} is also defined by "
                f"ScorerCheckpoint {other}; delete one of them"
            )
        owners[one.spec.checkpoint] = one.name
        tables["checkpoints"][one.spec.checkpoint] = _checkpoint_table(one)
    text = dump(tables)
    try:
        config.parse(text, base=Path(names.CONFIG_DIR), environment={})
    except config.InvalidSettingsError as error:
        raise OperatorError(one_line(_located(error.problems, owners))) from None
    return text


def ship_document(spec: ServerSpec) -> str | None:
    """Return the `ship.toml` of a server; None if its records are not shipped.

    Raises:
        OperatorError: The settings are refused. The message has one line.
    """
    if spec.ship is None:
        return None
    from scorer.config.source import SettingsSource
    from scorer.ship.settings import ShipSettings

    where = "spec.ship.settings"
    ours = {
        "ship": {
            "log": names.LOG_DIR,
            "metrics_listen": f"0.0.0.0:{names.SHIP_PORT}",
            "metrics_allow_remote": True,
        }
    }
    tables = _merged(spec.ship.settings, ours, where)
    if "server" in tables["ship"]:
        raise OperatorError(f"{where}.ship.server: the operator sets it to the name of the pod; remove it")
    try:
        # Values such as $AWS_SECRET_ACCESS_KEY are variables of the shipper's container, not of this process.
        source = SettingsSource(dump(_without_variables(tables)), where=where, base=Path(names.CONFIG_DIR))
        settings = source.validate(ShipSettings)
    except config.InvalidSettingsError as error:
        raise OperatorError(one_line(f"{where}.{one.key}: {one.message}" for one in error.problems)) from None
    if not (settings.delta.is_on or settings.kafka.is_on):
        raise OperatorError(f"{where}: neither delta.url nor kafka.servers is set; set one of them")
    return dump(tables)


def dump(tables: Mapping[str, Any]) -> str:
    """Return tables as TOML: scalars and lists before subtables, in the given order."""
    return "\n".join(_lines(tables, ())).lstrip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[str]:
    inner = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and len(path) < _TABLE_DEPTH:
            inner[key] = value
        else:
            yield f"{dotted((key,))} = {toml(value)}"
    for key, value in inner.items():
        yield f"\n[{dotted((*path, key))}]"
        yield from _lines(value, (*path, key))


def _server_tables(spec: ServerSpec) -> dict[str, dict[str, Any]]:
    """Return the settings that follow from the pod that the operator builds."""
    certificate = {"certificate": f"{names.TLS_DIR}/tls.crt", "key": f"{names.TLS_DIR}/tls.key"}
    server: dict[str, Any] = {
        "role": spec.role,
        "listen": f"0.0.0.0:{names.GRPC_PORT}",
        "metrics_allow_remote": True,
        "metrics_listen": f"0.0.0.0:{names.METRICS_PORT}",
        "state_dir": names.STATE_DIR,
        "tls": {**certificate, "client_ca": f"{names.TLS_DIR}/ca.crt"},
    }
    if spec.role == "live":
        server["shadow_pool_tls"] = {"ca": f"{names.TLS_DIR}/ca.crt", **certificate}
    registry = {"path": names.REGISTRY_DIR}
    if (
        isinstance(spec.settings.get("registry"), Mapping)
        and spec.settings["registry"].get("url") is not None
    ):
        registry = {}
    return {
        "server": server,
        "identity": {"trust_domain": spec.trust_domain},
        "registry": registry,
        "log": {"dir": names.LOG_DIR},
    }


def _merged(theirs: Mapping[str, Any], ours: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the tables of the user with those of the operator, which no key of the user may replace."""
    _refuse_null(theirs, where)
    result: dict[str, Any] = {key: _copy(value) for key, value in theirs.items()}
    for key, value in ours.items():
        at = f"{where}.{key}"
        if isinstance(value, Mapping):
            given = result.get(key, {})
            if not isinstance(given, Mapping):
                raise OperatorError(f"{at}: it is not a table; write key: value pairs below it")
            result[key] = _merged(given, value, at)
        elif key in result:
            raise OperatorError(f"{at}: the operator sets it to {toml(value)}; remove it")
        else:
            result[key] = value
    return result


def _copy(value: Any) -> Any:
    return {key: _copy(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def _refuse_null(value: Any, where: str) -> None:
    if value is None:
        raise OperatorError(f"{where}: the value is null; write a value, or remove the key")
    if isinstance(value, Mapping):
        for key, one in value.items():
            _refuse_null(one, f"{where}.{key}")
    elif isinstance(value, list):
        for at, one in enumerate(value):
            _refuse_null(one, f"{where}[{at}]")


def _without_variables(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_variables(one) for key, one in value.items()}
    return "value" if isinstance(value, str) and _SECRET.fullmatch(value) else value


def _checkpoint_table(checkpoint: Checkpoint) -> dict[str, Any]:
    spec = checkpoint.spec
    table: dict[str, Any] = {"kind": spec.kind}
    if spec.alias is not None:
        table["alias"] = spec.alias
    if spec.p99_ms is not None:
        table["p99_ms"] = spec.p99_ms
    if spec.fallback is not None:
        table["fallback"] = spec.fallback.model_dump(exclude_none=True)
    where = f"ScorerCheckpoint {checkpoint.name}: spec.settings"
    _refuse_null(spec.settings, where)
    for key in spec.settings:
        if key in {"kind", "alias", "p99_ms", "fallback"}:
            raise OperatorError(f"{where}.{key}: it is a key of spec; move it there")
    return table | spec.settings


def _located(problems: Iterable[config.Problem], owners: Mapping[str, str]) -> Iterable[str]:
    """Yield problems of `scorer.toml` as problems of the objects that the keys come from."""
    prefixes = {dotted(("checkpoints", checkpoint)): owner for checkpoint, owner in owners.items()}
    for problem in problems:
        for prefix, owner in prefixes.items():
            if problem.key.startswith(f"{prefix}.") or problem.key == prefix:
                key = problem.key.removeprefix(prefix).lstrip(".")
                yield f"ScorerCheckpoint {owner}: {key}: {problem.message}"
                break
        else:
            key = f"spec.settings.{problem.key}" if problem.key else "spec.settings"
            yield f"{key}: {problem.message}"
