"""Tests of the package's public interface: names, fast imports, one tree of errors."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

import scorer
from scorer import errors
from scorer.cli import COMMANDS

HEAVY = {
    "numpy",
    "xgboost",
    "pyarrow",
    "sklearn",
    "treelite",
    "lightgbm",
    "duckdb",
    "matplotlib",
    "sqlalchemy",
    "rich",
    "pandas",
    "deltalake",
    "confluent_kafka",
}


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after a statement."""
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()} | set(done.stdout.split())


@pytest.mark.parametrize("name", scorer.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(scorer, name) is not None
    assert name in dir(scorer)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        scorer.nonsense  # noqa: B018


def test_importing_the_package_loads_nothing() -> None:
    found = loaded_by("import scorer")
    assert not found & (HEAVY | {"grpc", "pydantic", "google", "typer", "asyncio", "scorer._scorer"})


def test_the_command_line_starts_light() -> None:
    found = loaded_by("import scorer.cli")
    assert not found & (HEAVY | {"grpc", "pydantic", "uvloop", "scorer._scorer"})


def test_serving_never_loads_a_training_library() -> None:
    found = loaded_by(
        "import scorer.serve, scorer.config, scorer.bridge, scorer.registry\n"
        "import scorer.control.controller, scorer.control.service, scorer.control.watcher, uvloop, grpc.aio\n"
        "import scorer.commands.serve"
    )
    assert not found & HEAVY


def test_the_error_tree_in_the_docstring_is_the_tree() -> None:
    """The documented parent of each class is its base class."""
    documented: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ((?:[│ ]   )*)(?:[├└]── )?(\w+Error)\b", line)
        if found:
            depth = len(found.group(1)) // 4 + ("──" in line)
            path[depth:] = [found.group(2)]
            documented[found.group(2)] = path[depth - 1] if depth else "Exception"
    actual = {name: getattr(errors, name).__bases__[0].__name__ for name in errors.__all__}
    assert documented == actual


def test_exit_codes() -> None:
    assert {getattr(errors, name).exit_code for name in errors.__all__ if name != "ConfigError"} == {1}
    assert errors.ConfigError.exit_code == 64


@pytest.mark.parametrize("command", COMMANDS)
def test_every_listed_command_exists(command: str) -> None:
    module, _, attribute = COMMANDS[command][0].partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))
