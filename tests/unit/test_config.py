"""Tests of settings: which values are valid, and the message, key and line of every error."""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scorer import config
from scorer.cli import app
from scorer.config.environment import variable_of
from scorer.config.example import server_example
from scorer.config.model import Settings
from scorer.control.dataplane import server_config
from scorer.errors import ConfigError

GOOD = """\
[server]
listen = "127.0.0.1:0"
[checkpoints."fraud.checkout"]
kind = "score"
alias = "fraud-checkout@live"
fallback = { decision = "review", score = 0.5 }
"""
MLFLOW = '[registry]\nurl = "mlflow:http://127.0.0.1:5000"\n'
CHECKPOINT = '[checkpoints."c"]\nkind = "score"\nalias = "a@b"\n'


def parse(text: str, **environment: str) -> Settings:
    return config.parse(text, base=Path("/srv/scorer"), environment=environment)


def problems(text: str, **environment: str) -> list[str]:
    with pytest.raises(config.InvalidSettingsError) as caught:
        parse(text, **environment)
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
    return str(caught.value).splitlines()


def test_settings_have_their_defaults() -> None:
    settings = parse(CHECKPOINT)
    assert settings.server.listen == "127.0.0.1:7700"
    assert settings.server.control_listen == "127.0.0.1:7701"
    assert settings.server.state_dir == Path("/srv/scorer/state")
    assert settings.registry.path == Path("/srv/scorer/registry")
    assert settings.log.dir == Path("/srv/scorer/decisions")
    assert settings.checkpoints["c"].effective_durability == "async"
    assert parse(CHECKPOINT.replace("score", "action")).checkpoints["c"].effective_durability == "written"


def test_a_server_is_polled_less_often_than_a_directory() -> None:
    assert parse(CHECKPOINT).registry.interval_ms == 100
    assert parse(MLFLOW + CHECKPOINT).registry.interval_ms == 5000
    assert parse(MLFLOW + "poll_ms = 250\n" + CHECKPOINT).registry.interval_ms == 250
    assert parse(MLFLOW + CHECKPOINT).registry.location == "mlflow:http://127.0.0.1:5000"
    by_variable = parse(CHECKPOINT, SCORER_REGISTRY__URL="mlflow:https://ml.example/x")
    assert by_variable.registry.location == "mlflow:https://ml.example/x"


def test_relative_paths_start_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc" / "scorer.toml"
    file.write_text('[registry]\npath = "../shared/registry"\n[log]\ndir = "/var/decisions"\n' + CHECKPOINT)
    monkeypatch.chdir(tmp_path)
    settings = config.load("etc/scorer.toml", environment={"SCORER_SERVER__UDS": "s.sock"})
    assert settings.registry.path == tmp_path / "etc" / "../shared/registry"
    assert settings.log.dir == Path("/var/decisions")
    assert settings.server.uds == tmp_path / "etc" / "s.sock"


def test_listeners_and_the_log_can_be_turned_off() -> None:
    settings = parse(
        '[server]\nlisten = "off"\nuds = "s.sock"\nmetrics_listen = "off"\n[log]\ndir = "off"\n' + CHECKPOINT
    )
    crossing = server_config(settings)
    assert (crossing["listen"], crossing["metrics_listen"], crossing["log"]) == (None, None, None)
    assert crossing["uds"] == "/srv/scorer/s.sock"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("localhost:1", "127.0.0.1:1"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("[::1]:65535", "[::1]:65535"),
        ("127.1.2.3:5", "127.1.2.3:5"),
    ],
)
def test_addresses_are_parsed(written: str, meant: str) -> None:
    assert parse(f'[server]\nlisten = "{written}"\n{CHECKPOINT}').server.listen == meant


def test_remote_addresses_must_be_allowed() -> None:
    assert (
        parse(f'[server]\nallow_remote = true\nlisten = "0.0.0.0:1"\n{CHECKPOINT}').server.listen
        == "0.0.0.0:1"
    )
    # The order of the keys in the file has no effect.
    assert parse(f'[server]\nlisten = "[::]:1"\nallow_remote = true\n{CHECKPOINT}').server.listen == "[::]:1"


def test_networks_of_load_balancers_are_passed_to_the_data_plane() -> None:
    networks = ["10.0.0.0/24", "2001:db8::/32", "10.1.1.1"]
    by_file = parse(f"[server]\ntrusted_networks = {networks}\n{CHECKPOINT}")
    assert server_config(by_file)["trusted_networks"] == networks
    by_variable = parse(CHECKPOINT, SCORER_SERVER__TRUSTED_NETWORKS='["10.0.0.0/24"]')
    assert server_config(by_variable)["trusted_networks"] == ["10.0.0.0/24"]
    with pytest.raises(config.InvalidSettingsError, match='"everywhere" is not a network'):
        parse(f'[server]\ntrusted_networks = ["everywhere"]\n{CHECKPOINT}')


def test_the_settings_are_passed_to_the_data_plane() -> None:
    assert server_config(parse(GOOD)) == {
        "role": "live",
        "listen": "127.0.0.1:0",
        "uds": None,
        "uds_mode": "0600",
        "metrics_listen": "127.0.0.1:7702",
        "threads": 1,
        "max_message_bytes": 262144,
        "max_batch_bytes": 1048576,
        "max_connections": 1024,
        "max_connections_per_peer": 256,
        "connections_per_second_per_peer": 32,
        "misuse_pause_seconds": 10,
        "trusted_networks": [],
        "max_inflight": 2048,
        "max_inflight_per_peer": None,
        "max_inflight_bytes": 134217728,
        "max_inflight_bytes_per_peer": None,
        "body_timeout_ms": None,
        "reply_timeout_ms": None,
        "write_timeout_ms": 5000,
        "idle_timeout_seconds": 300,
        "memory_budget_bytes": None,
        "bundles": {"trusted_keys": [], "unsigned": None},
        "observe_cpu": 0.25,
        "observe_queue": 1024,
        "explain_threads": 1,
        "explain_queue": 32,
        "shadow_pool": None,
        "tls": None,
        "identity": None,
        "tracing": None,
        "log": {
            "dir": "/srv/scorer/decisions",
            "segment_bytes": 67108864,
            "sync_ms": 50,
            "queue": 65536,
            "unsynced_bytes": 33554432,
            "retain_seconds": None,
            "retain_bytes": None,
            "prune_unshipped": False,
            "warn_full_seconds": 43200,
        },
        "privacy": {
            "card_numbers": "refuse",
            "entities": "clear",
            "key_file": None,
            "features": {},
            "public_key_file": None,
        },
        "features": None,
        "outcomes": {
            "token_keys": None,
            "proof": None,
            "unproven": "keep",
            "max_revision": 1000,
            "per_decision_minute": 60,
            "per_caller_second": 10_000,
        },
        "checkpoints": {
            "fraud.checkout": {
                "kind": "score",
                "p99_ms": 10.0,
                "warmup_max_ratio": 3.0,
                "tier": 0,
                "mode": "enforce",
                "durability": "async",
                "max_batch_rows": 1000,
                "reasons": 0,
                "outcomes": {},
                "fallback": {"decision": "review", "score": 0.5},
                "caps": None,
            }
        },
    }


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('entities = "hash"\n', 'entities = "hash" needs a key'),
        ('card_numbers = "mask"\n', 'card_numbers = "mask" needs a key'),
        ('entities = "hash"\nkey_file = "decisions/entity.key"\n', "the key lies in the log's directory"),
    ],
)
def test_a_key_file_is_configured_and_must_be_outside_of_the_log(section: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(f"{GOOD}[privacy]\n{section}")
    good = server_config(parse(f'{GOOD}[privacy]\nentities = "hash"\nkey_file = "keys/entity.key"\n'))
    assert good["privacy"] == {
        "card_numbers": "refuse",
        "entities": "hash",
        "key_file": "/srv/scorer/keys/entity.key",
        "features": {},
        "public_key_file": None,
    }


def test_rules_for_features_are_passed_and_encryption_requires_a_key() -> None:
    with pytest.raises(ConfigError, match="public_key_file"):
        parse(f'{GOOD}[privacy]\nfeatures = {{ income = "encrypt" }}\n')
    with pytest.raises(ConfigError, match="income"):
        parse(f'{GOOD}[privacy]\nfeatures = {{ income = "hide" }}\n')
    rules = (
        'features = { "*" = "mask", income = "encrypt", amount = "clear" }\npublic_key_file = "reader.pub"\n'
    )
    crossing = server_config(parse(f"{GOOD}[privacy]\n{rules}"))["privacy"]
    assert crossing["features"] == {"*": "mask", "income": "encrypt", "amount": "clear"}
    assert crossing["public_key_file"] == "/srv/scorer/reader.pub"


def test_the_proof_of_outcomes_is_passed_to_the_data_plane() -> None:
    settings = parse(
        '[outcomes]\ntoken_keys = "keys.json"\nunproven = "refuse"\n'
        f"{CHECKPOINT}outcomes = {{ fraud = {{ min = 0.0, max = 1.0 }} }}\n"
    )
    crossing = server_config(settings)
    assert crossing["outcomes"]["token_keys"].endswith("/keys.json")
    assert crossing["outcomes"]["unproven"] == "refuse"
    assert crossing["checkpoints"]["c"]["outcomes"] == {"fraud": {"min": 0.0, "max": 1.0}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'[outcomes]\nproof = "token"\n{CHECKPOINT}', "nothing could be proven"),
        (f"[outcomes]\nper_caller_second = 0\n{CHECKPOINT}", "at least 1"),
        (f"{CHECKPOINT}outcomes = {{ fraud = {{ min = 1.0, max = 0.0 }} }}\n", "the lower one comes first"),
    ],
)
def test_proof_settings_that_cannot_be_met_are_reported(text: str, message: str) -> None:
    with pytest.raises(config.InvalidSettingsError, match=message):
        parse(text)


FALLBACK = 'fallback = { decision = "review", score = 0.5 }\n'


def test_exposure_caps_are_passed_to_the_data_plane() -> None:
    settings = parse(
        f"{CHECKPOINT}{FALLBACK}tier = 2\nmode = 'observe'\n"
        "caps = { max_count = 7, max_single_amount = 9.5, "
        'amount_feature = "amount", on_cap = { decision = "decline", score = 1.0 } }\n'
    )
    crossing = server_config(settings)["checkpoints"]["c"]
    assert (crossing["tier"], crossing["mode"]) == (2, "observe")
    assert crossing["caps"] == {
        "window_seconds": 60.0,
        "max_count": 7,
        "max_single_amount": 9.5,
        "amount_feature": "amount",
        "on_cap": {"decision": "decline", "score": 1.0},
    }


# The text of a file, and for each expected problem its line, its key and a part of its message.
MISTAKES: dict[str, tuple[str, list[tuple[int, str, str]]]] = {
    "unknown key": (f"[server]\nlisen = 1\n{CHECKPOINT}", [(2, "server.lisen", 'did you mean "listen"?')]),
    "unknown section": (f"[servr]\n{CHECKPOINT}", [(1, "servr", 'did you mean "server"?')]),
    "unknown key, nothing near": (
        f"[log]\nzzz = 1\n{CHECKPOINT}",
        [(2, "log.zzz", "known are: dir, prune_unshipped, queue, retain_days, retain_mb")],
    ),
    "unknown dotted key": (
        f"server.lisen = 1\n{CHECKPOINT}",
        [(1, "server.lisen", 'did you mean "listen"?')],
    ),
    "unknown key in checkpoint": (
        f"{CHECKPOINT}p99 = 1\n",
        [(4, "checkpoints.c.p99", 'did you mean "p99_ms"?')],
    ),
    "unknown key in fallback": (
        f"{CHECKPOINT}fallback = {{ decison = 'x' }}\n",
        [(4, "checkpoints.c.fallback.decison", 'did you mean "decision"?')],
    ),
    "text for a number": (
        f'[server]\nthreads = "4"\n{CHECKPOINT}',
        [(2, "server.threads", '"4" is not a whole number')],
    ),
    "fraction": (
        f"[server]\nthreads = 1.5\n{CHECKPOINT}",
        [(2, "server.threads", "1.5 is not a whole number")],
    ),
    "boolean for a number": (
        f"[server]\nthreads = true\n{CHECKPOINT}",
        [(2, "server.threads", "not a whole number")],
    ),
    "number for text": (f"[server]\nlisten = 7700\n{CHECKPOINT}", [(2, "server.listen", "not a text")]),
    "number for a boolean": (
        f"[server]\nallow_remote = 1\n{CHECKPOINT}",
        [(2, "server.allow_remote", "1 is not true or false")],
    ),
    "number for a path": (f"[log]\ndir = 5\n{CHECKPOINT}", [(2, "log.dir", "not a path")]),
    "empty path": (f'[registry]\npath = ""\n{CHECKPOINT}', [(2, "registry.path", "the path is empty")]),
    "value for a section": (f"server = 5\n{CHECKPOINT}", [(1, "server", "5 is not a table")]),
    "list for a section": ("checkpoints = []\n", [(1, "checkpoints", "is not a table")]),
    "too small": (
        f"[server]\nthreads = 0\n{CHECKPOINT}",
        [(2, "server.threads", "0 is out of range; it must be at least 1")],
    ),
    "too large": (f"[log]\nsync_ms = 90000\n{CHECKPOINT}", [(2, "log.sync_ms", "it must be at most 60000")]),
    "infinite": (
        f"[server]\ndrain_seconds = inf\n{CHECKPOINT}",
        [(2, "server.drain_seconds", "not a finite number")],
    ),
    "nan": (f"{CHECKPOINT}p99_ms = nan\n", [(4, "checkpoints.c.p99_ms", "not a finite number")]),
    "tier": (f"{CHECKPOINT}tier = 4\n", [(4, "checkpoints.c.tier", "at most 3")]),
    "mode": (f'{CHECKPOINT}mode = "on"\n', [(4, "checkpoints.c.mode", '"on" is not one of')]),
    "caps without a fallback": (
        f"{CHECKPOINT}caps = {{ max_count = 1 }}\n",
        [(4, "checkpoints.c.caps", "there is none")],
    ),
    "caps that limit nothing": (
        f'{CHECKPOINT}{FALLBACK}caps = {{ amount_feature = "amount" }}\n',
        [(5, "checkpoints.c.caps", "no limit is set")],
    ),
    "caps on an unknown amount": (
        f"{CHECKPOINT}{FALLBACK}caps = {{ max_total_amount = 5.0 }}\n",
        [(5, "checkpoints.c.caps", "need amount_feature")],
    ),
    "caps of the other kind": (
        f'{CHECKPOINT}{FALLBACK}caps = {{ max_count = 1, on_cap = {{ action = "a" }} }}\n',
        [(5, "checkpoints.c.caps", "on_cap of a checkpoint of kind")],
    ),
    "no port": (f'[server]\nlisten = "127.0.0.1"\n{CHECKPOINT}', [(2, "server.listen", "is not an address")]),
    "port too high": (
        f'[server]\nlisten = "127.0.0.1:65536"\n{CHECKPOINT}',
        [(2, "server.listen", "is not an address")],
    ),
    "negative port": (
        f'[server]\nlisten = "127.0.0.1:-1"\n{CHECKPOINT}',
        [(2, "server.listen", "is not an address")],
    ),
    "host name": (
        f'[server]\nlisten = "db.local:1"\n{CHECKPOINT}',
        [(2, "server.listen", "is not an address")],
    ),
    "bare IPv6": (f'[server]\nlisten = "::1:80"\n{CHECKPOINT}', [(2, "server.listen", "is not an address")]),
    "remote": (
        f'[server]\nlisten = "0.0.0.0:1"\n{CHECKPOINT}',
        [(2, "server.listen", "set allow_remote = true")],
    ),
    "remote metrics": (
        f'[server]\nmetrics_listen = "10.0.0.1:1"\n{CHECKPOINT}',
        [(2, "server.metrics_listen", "allow_remote")],
    ),
    "remote control": (
        f'[server]\nallow_remote = true\ncontrol_listen = "0.0.0.0:1"\n{CHECKPOINT}',
        [(3, "server.control_listen", "loopback only")],
    ),
    "control off": (
        f'[server]\ncontrol_listen = "off"\n{CHECKPOINT}',
        [(2, "server.control_listen", "is not an address")],
    ),
    "one port twice": (
        f'[server]\nlisten = "127.0.0.1:5"\nmetrics_listen = "127.0.0.1:5"\n{CHECKPOINT}',
        [(3, "server.metrics_listen", "is taken by listen")],
    ),
    "two registries": (
        f'[registry]\npath = "r"\nurl = "mlflow:http://h:1"\n{CHECKPOINT}',
        [(1, "registry", "both path and url are set")],
    ),
    "a registry of another kind": (
        f'[registry]\nurl = "http://h:1"\n{CHECKPOINT}',
        [(2, "registry.url", "is not a registry's address")],
    ),
    "credentials in the address": (
        f'[registry]\nurl = "mlflow:http://ann:pw@h"\n{CHECKPOINT}',
        [(2, "registry.url", "is not a registry's address")],
    ),
    "remote webhooks": (
        f'[server]\nwebhook_listen = "0.0.0.0:1"\nwebhook_secret_file = "s"\n{MLFLOW}{CHECKPOINT}',
        [(2, "server.webhook_listen", "the webhook listener is loopback only")],
    ),
    "webhooks on a taken port": (
        f'[server]\nwebhook_listen = "127.0.0.1:7701"\nwebhook_secret_file = "s"\n{MLFLOW}{CHECKPOINT}',
        [(2, "server.webhook_listen", "is taken by control_listen")],
    ),
    "webhooks without a secret": (
        f'[server]\nwebhook_listen = "127.0.0.1:1"\n{MLFLOW}{CHECKPOINT}',
        [(1, "server.webhook_secret_file", "no secret is")],
    ),
    "a secret without webhooks": (
        f'[server]\nwebhook_secret_file = "s"\n{MLFLOW}{CHECKPOINT}',
        [(2, "server.webhook_secret_file", "webhook_listen is not set")],
    ),
    "webhooks of a directory": (
        f'[server]\nwebhook_listen = "127.0.0.1:1"\nwebhook_secret_file = "s"\n{CHECKPOINT}',
        [(0, "server.webhook_listen", "a directory sends no webhooks")],
    ),
    "no way in": (
        f'[server]\nlisten = "off"\n{CHECKPOINT}',
        [(1, "server.uds", 'neither "listen" nor "uds"')],
    ),
    "socket path too long": (
        f'[server]\nuds = "{"x" * 120}"\n{CHECKPOINT}',
        [(2, "server.uds", "longer than the 107 bytes")],
    ),
    "no checkpoint": ("[server]\n", [(0, "checkpoints", "no checkpoint is defined")]),
    "no roles": (
        f'{CHECKPOINT}[[identity.grants]]\nprincipal = "dns:a"\nroles = []\n',
        [(6, "identity.grants[0].roles", "the list is empty; add an entry")],
    ),
    "no kind, no alias": (
        "[checkpoints.c]\n",
        [(1, "checkpoints.c.alias", "required"), (1, "checkpoints.c.kind", "required")],
    ),
    "wrong kind": (
        '[checkpoints.c]\nkind = "rank"\nalias = "a@b"\n',
        [(2, "checkpoints.c.kind", "\"rank\" is not one of 'score' or 'action'")],
    ),
    "wrong durability": (
        f'{CHECKPOINT}durability = "fsync"\n',
        [(4, "checkpoints.c.durability", '"fsync" is not one of')],
    ),
    "alias without @": (
        '[checkpoints.c]\nkind = "score"\nalias = "live"\n',
        [(3, "checkpoints.c.alias", "write name@alias")],
    ),
    "alias in capitals": (
        '[checkpoints.c]\nkind = "score"\nalias = "A@b"\n',
        [(3, "checkpoints.c.alias", "write name@alias")],
    ),
    "checkpoint name": (
        CHECKPOINT.replace('"c"', '"Fraud Checkout"'),
        [(1, 'checkpoints."Fraud Checkout"', "is not a name")],
    ),
    "action fallback on a score": (
        f'{CHECKPOINT}fallback = {{ action = "x" }}\n',
        [(4, "checkpoints.c.fallback", "exactly: decision and score")],
    ),
    "half a fallback": (
        f"{CHECKPOINT}fallback = {{ score = 0.5 }}\n",
        [(4, "checkpoints.c.fallback", "exactly: decision and score")],
    ),
    "score fallback on an action": (
        CHECKPOINT.replace("score", "action") + 'fallback = { decision = "x", score = 0.1 }\n',
        [(4, "checkpoints.c.fallback", "exactly: action")],
    ),
    "fallback out of range": (
        f'{CHECKPOINT}[checkpoints.c.fallback]\ndecision = ""\nscore = 1.5\n',
        [(5, "checkpoints.c.fallback.decision", "empty"), (6, "checkpoints.c.fallback.score", "at most 1")],
    ),
    "several at once": (
        '[server]\nthreads = 0\nlisen = 1\n[checkpoints."c"]\nkind = "x"\nalias = "y"\n'
        'max_batch_rows = 0\n[registry]\npoll_ms = "1"\n',
        [
            (2, "server.threads", "at least 1"),
            (3, "server.lisen", "listen"),
            (5, "checkpoints.c.kind", "not one of"),
            (6, "checkpoints.c.alias", "name@alias"),
            (7, "checkpoints.c.max_batch_rows", "at least 1"),
            (9, "registry.poll_ms", "whole number"),
        ],
    ),
}


@pytest.mark.fault_case(91)
@pytest.mark.parametrize("name", MISTAKES)
def test_problems_are_reported_with_line_and_key(name: str) -> None:
    text, expected = MISTAKES[name]
    tomllib.loads(text)
    result = problems(text)
    assert len(result) == len(expected), result
    for line, (number, key, message) in zip(result, expected, strict=True):
        where = f"scorer.toml:{number}: " if number else "scorer.toml: "
        assert line.startswith(f"{where}{key}: "), line
        assert message in line


SYNTAX = [
    ("a = ", "scorer.toml:1:5: not valid TOML: "),
    ("[server]\nlisten", "scorer.toml:2:7: not valid TOML: "),
    ("[server]\nlisten = 'x'\nlisten = 'y'\n", "scorer.toml:3:"),
    ("[server\n", "scorer.toml:1:8: not valid TOML: "),
    ('x = "unterminated\n', "scorer.toml:1:18: "),
    ("[a]\n\n[a]\n", "scorer.toml:3:"),
]


@pytest.mark.parametrize(("text", "start"), SYNTAX)
def test_syntax_errors_have_line_and_column(text: str, start: str) -> None:
    (line,) = problems(text)
    assert line.startswith(start)


@pytest.mark.fault_case(91)
def test_files_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"a = '\xff'")
    for file, message in [
        (tmp_path / "none.toml", "no such file"),
        (tmp_path, "is a directory"),
        (binary, "byte 5 is not UTF-8"),
    ]:
        with pytest.raises(config.InvalidSettingsError, match=message) as caught:
            config.load(file)
        assert str(caught.value).startswith(str(file))
        assert caught.value.exit_code == 64


ENVIRONMENT: list[tuple[str, str, str, Any]] = [
    ("SCORER_SERVER__LISTEN", "127.0.0.1:9", "server.listen", "127.0.0.1:9"),
    ("SCORER_SERVER__LISTEN", "off", "server.listen", None),
    ("SCORER_SERVER__THREADS", " 3 ", "server.threads", 3),
    ("SCORER_SERVER__ALLOW_REMOTE", "true", "server.allow_remote", True),
    ("SCORER_SERVER__DRAIN_SECONDS", "2", "server.drain_seconds", 2.0),
    ("SCORER_SERVER__MAX_MESSAGE_BYTES", "2_000_000", "server.max_message_bytes", 2_000_000),
    ("SCORER_REGISTRY__PATH", "/data/42", "registry.path", Path("/data/42")),
    ("SCORER_LOG__DIR", "off", "log.dir", None),
    ("SCORER_CHECKPOINTS__FRAUD_CHECKOUT__P99_MS", "4.5", "p99_ms", 4.5),
    ("SCORER_CHECKPOINTS__FRAUD_CHECKOUT__ALIAS", "x@y", "alias", "x@y"),
    ("SCORER_CHECKPOINTS__FRAUD_CHECKOUT__DURABILITY", "sync", "durability", "sync"),
    (
        "SCORER_CHECKPOINTS__FRAUD_CHECKOUT__FALLBACK",
        '{ decision = "deny", score = 1.0 }',
        "fallback",
        config.Fallback(decision="deny", score=1.0),
    ),
]


@pytest.mark.parametrize(("variable", "text", "path", "value"), ENVIRONMENT)
def test_environment_variables_override_the_file(variable: str, text: str, path: str, value: Any) -> None:
    uds = '[server]\nlisten = "127.0.0.1:1"\nuds = "s"\n'
    settings = parse(uds + GOOD.partition('0"\n')[2], **{variable: text})
    at: Any = settings.checkpoints["fraud.checkout"] if "CHECKPOINTS" in variable else settings
    for name in path.split("."):
        at = getattr(at, name)
    assert at == value


BAD_ENVIRONMENT = [
    ("SCORER_SERVER__LISTN", "x", 'sets nothing; did you mean "SCORER_SERVER__LISTEN"?'),
    ("SCORER_CHECKPOINTS__OTHER_THING__NOT_A_KEY", "1", "only if the file defines it"),
    ("SCORER_ZZZ__QQQ", "1", "sets nothing; `scorer config example` lists the keys"),
    ("SCORER_SERVER__THREADS", "many", 'server.threads: "many" is not a whole number'),
    ("SCORER_SERVER__THREADS", "0", "server.threads: 0 is out of range"),
    ("SCORER_SERVER__LISTEN", "0.0.0.0:1", 'server.listen: "0.0.0.0:1" can be reached'),
    ("SCORER_CHECKPOINTS__FRAUD_CHECKOUT__KIND", "x", 'checkpoints."fraud.checkout".kind: "x" is not one of'),
    (
        "SCORER_CHECKPOINTS__FRAUD_CHECKOUT__FALLBACK",
        "{ score = 7.0 }",
        'checkpoints."fraud.checkout".fallback',
    ),
]


@pytest.mark.parametrize(("variable", "value", "message"), BAD_ENVIRONMENT)
def test_an_error_of_the_environment_names_the_variable(variable: str, value: str, message: str) -> None:
    result = problems(GOOD, **{variable: value})
    assert all(line.startswith(f"environment variable {variable}: ") for line in result)
    assert any(message in line for line in result), result


def test_other_variables_are_ignored() -> None:
    kubernetes = {
        "SCORER_PORT": "tcp://10.0.0.1:7700",
        "SCORER_SERVICE_HOST": "10.0.0.1",
        "SCORER_PORT_7700_TCP": "x",
    }
    assert parse(GOOD, **kubernetes) == parse(GOOD)


def test_a_variable_that_matches_two_checkpoints_is_refused() -> None:
    text = GOOD + GOOD.partition("\n")[2].partition("\n")[2].replace("fraud.checkout", "fraud_checkout")
    (line,) = problems(text, SCORER_CHECKPOINTS__FRAUD_CHECKOUT__P99_MS="1")
    assert 'both checkpoint "fraud.checkout" and "fraud_checkout"' in line


def test_the_example_file_is_complete_and_has_the_defaults() -> None:
    text = server_example()
    settings = parse(text)
    bare = parse(CHECKPOINT)
    assert (settings.server, settings.registry, settings.log) == (bare.server, bare.registry, bare.log)
    assert set(settings.checkpoints) == {"fraud.checkout", "action.authorise"}
    for name, field in Settings.model_fields.items():
        model = config.CheckpointSettings if name == "checkpoints" else field.annotation
        for key in model.model_fields:  # type: ignore[union-attr]
            is_shown = f"\n{key} = " in text or f"\n# {key} = " in text
            assert is_shown or f"\n[{name}.{key}]\n" in text
    # A setting in a comment must also be valid when it is uncommented.
    parse(text.replace("# uds = ", "uds = ").replace("# fallback = ", "fallback = "))


def test_every_setting_has_a_variable() -> None:
    assert (
        variable_of(("checkpoints", "fraud.checkout", "p99_ms"))
        == "SCORER_CHECKPOINTS__FRAUD_CHECKOUT__P99_MS"
    )


def test_the_config_commands_check_settings_and_print_the_example(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(GOOD)
    bad.write_text("[server]\nlisen = 1\nthreads = 0\n")
    runner = CliRunner()
    result = runner.invoke(app, ["config", "check", str(good)])
    assert result.exit_code == 0
    assert "fraud.checkout: score, follows fraud-checkout@live" in result.output
    result = runner.invoke(app, ["config", "check", str(bad)])
    assert isinstance(result.exception, config.InvalidSettingsError)
    assert len(result.exception.problems) == 3
    assert runner.invoke(app, ["config", "example"]).output == server_example()


# --- the shadow pool ---

NO_ALIAS = '[checkpoints."c"]\nkind = "score"\n'


def test_a_live_server_requires_an_alias_and_a_shadow_pool_does_not(tmp_path: Path) -> None:
    assert problems(NO_ALIAS) == ["scorer.toml:1: checkpoints.c.alias: required, but not set; add alias"]
    text = '[server]\nrole = "shadow"\n' + NO_ALIAS + '[checkpoints."d"]\nkind = "score"\nalias = "d@live"\n'
    settings = parse(text)
    assert (settings.server.role, settings.aliases) == ("shadow", [])
    assert parse(CHECKPOINT).aliases == ["a@b"]
    (tmp_path / "scorer.toml").write_text(NO_ALIAS)
    assert config.load(tmp_path / "scorer.toml", {}, role="shadow").server.role == "shadow"
    assert problems('[server]\nrole = "audit"\n' + CHECKPOINT)[0].startswith(
        "scorer.toml:2: server.role: \"audit\" is not one of 'live' or 'shadow'"
    )
    with pytest.raises(config.InvalidSettingsError, match=r'^--role: server.role: "audit" is not one of'):
        config.load(tmp_path / "scorer.toml", {}, role="audit")


def test_all_problems_are_reported_together_with_a_missing_alias() -> None:
    result = problems("[server]\nthreads = 0\n" + NO_ALIAS + "p99_ms = -1.0\n")
    assert [line.split(": ")[1] for line in result] == [
        "server.threads",
        "checkpoints.c.alias",
        "checkpoints.c.p99_ms",
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("localhost:7710", "127.0.0.1:7710"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("[::1]:65535", "[::1]:65535"),
    ],
)
def test_the_pool_may_be_on_the_same_machine(written: str, meant: str) -> None:
    assert parse(f'[server]\nshadow_pool = "{written}"\n{CHECKPOINT}').server.shadow_pool == meant


@pytest.mark.parametrize("target", ["10.1.2.3:7710", "scorer-shadow:7710", "pool.pay.svc.cluster.local:1"])
def test_a_pool_on_another_machine_must_be_allowed(target: str) -> None:
    text = f'[server]\nshadow_pool = "{target}"\n{CHECKPOINT}'
    assert "or allow_remote = true" in problems(text)[0]
    encrypted = f'{text}[server.shadow_pool_tls]\nca = "ca.pem"\n'
    assert parse(encrypted).server.shadow_pool == target
    assert parse(text.replace("[server]", "[server]\nallow_remote = true")).server.shadow_pool == target


@pytest.mark.parametrize(
    "target", ["", "pool", "pool:0", "pool:65536", "http://pool:1", "1.2.3:1", "-a:1", "a b:1"]
)
def test_invalid_addresses_of_the_pool_are_refused(target: str) -> None:
    text = f'[server]\nallow_remote = true\nshadow_pool = "{target}"\n{CHECKPOINT}'
    assert "is not the address of a server" in problems(text)[0]


def test_the_settings_of_the_pool_are_passed_to_the_data_plane() -> None:
    pool = '[server]\nlisten = "127.0.0.1:7700"\nshadow_pool = "localhost:7710"\nobserve_cpu = 0.5\n'
    text = pool + CHECKPOINT
    crossing = server_config(parse(text))
    assert crossing["shadow_pool"] == {
        "address": "127.0.0.1:7710",
        "server": f"{socket.gethostname()}:7700",
        "queue_bytes": 16 << 20,
        "tls": None,
    }
    assert (crossing["role"], crossing["observe_cpu"]) == ("live", 0.5)
    # Both roles may use one file: a server of the pool sends to no other pool.
    shadow = server_config(config.parse(text, environment={}, role="shadow"))
    assert (shadow["role"], shadow["shadow_pool"]) == ("shadow", None)


def test_a_collector_on_another_machine_needs_tls_or_a_permission() -> None:
    text = f'[tracing]\nendpoint = "collector.obs:4317"\n{CHECKPOINT}'
    assert "set tracing.tls.ca, or allow_remote = true" in problems(text)[0]
    assert parse(text.replace("[tracing]", "[tracing]\nallow_remote = true")).tracing.endpoint
    assert parse(f'{text}[tracing.tls]\nca = "ca.pem"\n').tracing.endpoint == "collector.obs:4317"
    assert parse(f'[tracing]\nendpoint = "off"\n{CHECKPOINT}').tracing.endpoint is None


def test_the_settings_of_traces_are_passed_to_the_data_plane() -> None:
    text = (
        f'[tracing]\nendpoint = "localhost:4317"\nratio = 0.5\nqueue = 16\n{CHECKPOINT}'
        '[tracing.tls]\nca = "/tls/ca.pem"\n'
    )
    assert server_config(parse(text))["tracing"] == {
        "endpoint": "127.0.0.1:4317",
        "ratio": 0.5,
        "follow_callers": True,
        "most_per_second": 1000,
        "queue": 16,
        "timeout_ms": 5000,
        "service": "scorer",
        "instance": f"{socket.gethostname()}:7700",
        "tls": {"ca": "/tls/ca.pem", "certificate": None, "key": None, "server_name": None},
    }


@pytest.mark.parametrize("line", ["ratio = 1.1", "ratio = -0.1", "queue = 0", 'service = ""'])
def test_settings_of_traces_have_limits(line: str) -> None:
    assert problems(f"[tracing]\n{line}\n{CHECKPOINT}")


TLS = '[server.tls]\ncertificate = "c.pem"\nkey = "c.key"\n'
CLIENTS = f'{TLS}client_ca = "ca.pem"\n'
GRANT = '[[identity.grants]]\nprincipal = "dns:a"\nroles = ["score"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[server.tls]\ncertificate = "c.pem"\n', "set both or neither"),
        ('[server.tls]\nclient_ca = "c.pem"\n', "certificate is not"),
        (f'{TLS}crl = ["a.pem"]\n', "client_ca is not"),
        (f'{TLS}min_version = "1.1"\n', "min_version"),
        (CLIENTS, "identity.grants is empty"),
        ('[server]\nuds_mode = "0666"\n', "lets other users connect"),
        ('[[identity.grants]]\nprincipal = "ann"\nroles = ["score"]\n', "is no principal"),
        ('[[identity.grants]]\nprincipal = "dns:*.a"\nroles = ["score"]\n', "is no principal"),
        ('[[identity.grants]]\nprincipal = "dns:a"\nroles = ["root"]\n', "roles"),
        ('[[identity.grants]]\nprincipal = "dns:a"\nroles = []\n', "roles"),
        (f'{GRANT}checkpoints = ["a*b"]\n', "is no checkpoint"),
        ('[identity.jwt]\nissuer = "a"\n', "tokens need issuer, audience and keys"),
        (
            '[identity.jwt]\nissuer = "a"\naudience = "b"\nkeys = "k"\nalgorithms = ["HS256"]\n',
            "algorithms",
        ),
        ('[identity.jwt]\nissuer = "a"\naudience = "b"\nkeys = "k"\nleeway_s = 31\n', "leeway_s"),
        (
            '[identity.jwt]\nissuer = "a"\naudience = "b"\nkeys = "k"\nkeys_url = "http://10.0.0.1/"\n',
            "no https URL",
        ),
        ('[server]\ncontrol_listen = "0.0.0.0:1"\n' + TLS, "require client certificates"),
    ],
)
def test_settings_of_identity_that_cannot_work_are_refused(text: str, message: str) -> None:
    with pytest.raises(config.InvalidSettingsError) as error:
        parse(text + CHECKPOINT)
    assert message in str(error.value)


def test_with_tls_the_listeners_may_use_remote_addresses() -> None:
    remote = '[server]\nlisten = "0.0.0.0:1"\ncontrol_listen = "0.0.0.0:2"\n'
    server = parse(remote + CLIENTS + GRANT + CHECKPOINT).server
    assert (server.listen, server.control_listen) == ("0.0.0.0:1", "0.0.0.0:2")
    with pytest.raises(config.InvalidSettingsError, match="loopback only"):
        parse(remote + CLIENTS + 'client_certificates = "optional"\n' + GRANT + CHECKPOINT)


def test_variables_set_the_keys_of_nested_sections() -> None:
    text = GRANT + CHECKPOINT
    environment = {
        "SCORER_SERVER__TLS__CERTIFICATE": "/a",
        "SCORER_SERVER__TLS__KEY": "/b",
        "SCORER_SERVER__TLS__RELOAD_MS": "50",
    }
    tls = config.parse(text, environment=environment).server.tls
    assert (tls.certificate, tls.key, tls.reload_ms) == (Path("/a"), Path("/b"), 50)
