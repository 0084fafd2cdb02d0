"""scorer: decisions on payments while the shopper waits.

Importing this package loads nothing else; each name below loads what it needs when it
is first used, so that a server never pays for a data scientist's libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scorer import aio
    from scorer.bridge import __version__
    from scorer.bundle import Bundle
    from scorer.client import Client
    from scorer.config import Settings
    from scorer.errors import ScorerError
    from scorer.forest import Forest
    from scorer.registry import Registry

_HOMES = {
    "Bundle": "scorer.bundle",
    "Client": "scorer.client",
    "Forest": "scorer.forest",
    "Registry": "scorer.registry",
    "ScorerError": "scorer.errors",
    "Settings": "scorer.config",
    "__version__": "scorer.bridge",
}

__all__ = ["Bundle", "Client", "Forest", "Registry", "ScorerError", "Settings", "__version__", "aio"]


def __getattr__(name: str) -> Any:
    if name == "aio":
        # A module rather than a name in one; importing it binds it here.
        return importlib.import_module("scorer.aio")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
