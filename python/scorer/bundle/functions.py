"""A team's own functions in WebAssembly modules, which steps of transforms and rules of a bundle call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scorer.bundle.models import FunctionEntry, FunctionsFile, to_json
from scorer.errors import BundleError

FUNCTIONS = "functions.json"
"""File of a bundle that lists its functions."""
MAX_MODULES = 16
"""Greatest number of modules of a bundle."""


@dataclass(frozen=True)
class CustomFunction:
    """A function in a WebAssembly module; see docs/functions.md."""

    name: str
    """The name by which steps and rules call it."""
    module: bytes | Path
    """The content of the module, or the path of its file. Several functions may have the same module."""
    parameters: Sequence[str]
    """The names of its 1 to 16 parameters, which are doubles; NaN is a missing value."""
    export: str | None = None
    """The name by which the module exports it; default: `name`."""
    fuel: int = 10_000
    """The number of instructions that a call may execute, at most 100,000."""


def function_files(functions: Sequence[CustomFunction]) -> dict[str, bytes]:
    """Return the files of a bundle with functions: the list of functions and their modules, by name.

    Args:
        functions: The functions. Those with equal modules share a file.

    Raises:
        BundleError: A module cannot be read, or there are too many.
    """
    if not functions:
        return {}
    modules: dict[bytes, str] = {}
    entries = []
    for function in functions:
        content = function.module if isinstance(function.module, bytes) else _read(function.module)
        file = modules.setdefault(content, f"function-{len(modules) + 1:02d}.wasm")
        entries.append(
            FunctionEntry(
                name=function.name,
                file=file,
                export=function.export,
                parameters=list(function.parameters),
                fuel=function.fuel,
            )
        )
    if len(modules) > MAX_MODULES:
        raise BundleError(
            f"functions: {len(modules)} modules, at most {MAX_MODULES}; put several functions into a module"
        )
    files = {file: content for content, file in modules.items()}
    return {FUNCTIONS: to_json(FunctionsFile(functions=entries)), **files}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f'module "{path}" cannot be read: {error.strerror}; give a .wasm file') from None
