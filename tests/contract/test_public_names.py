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
    "kopf",
    "kubernetes",
}


def loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that a new interpreter has loaded after a statement."""
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
    modules = loaded_by("import scorer")
    assert not modules & (HEAVY | {"grpc", "pydantic", "google", "typer", "asyncio", "scorer._scorer"})


def test_the_command_line_imports_no_heavy_libraries() -> None:
    modules = loaded_by("import scorer.cli")
    assert not modules & (HEAVY | {"grpc", "pydantic", "uvloop", "scorer._scorer"})


def test_serving_never_loads_a_training_library() -> None:
    modules = loaded_by(
        "import scorer.serve, scorer.config, scorer.bridge, scorer.registry\n"
        "import scorer.control.controller, scorer.control.service, scorer.control.watcher, uvloop, grpc.aio\n"
        "import scorer.commands.serve"
    )
    assert not modules & HEAVY


def test_the_error_tree_in_the_docstring_is_correct() -> None:
    """The docstring names the base class of each class."""
    documented: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ((?:[│ ]   )*)(?:[├└]── )?(\w+Error)\b", line)
        if match:
            depth = len(match.group(1)) // 4 + ("──" in line)
            path[depth:] = [match.group(2)]
            documented[match.group(2)] = path[depth - 1] if depth else "Exception"
    actual = {name: getattr(errors, name).__bases__[0].__name__ for name in errors.__all__}
    assert documented == actual


def test_errors_have_their_exit_codes() -> None:
    assert {getattr(errors, name).exit_code for name in errors.__all__ if name != "ConfigError"} == {1}
    assert errors.ConfigError.exit_code == 64


@pytest.mark.parametrize("command", COMMANDS)
def test_every_listed_command_exists(command: str) -> None:
    module, _, attribute = COMMANDS[command][0].partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))
