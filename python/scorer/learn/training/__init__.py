"""A generation of the action oracle and its policy, from experience.

`fit` is the whole step; importing the package loads neither numpy nor XGBoost.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scorer.learn.training.fitting import fit
    from scorer.learn.training.generation import Generation
    from scorer.learn.training.trained import Trained

_HOMES = {
    "Generation": "scorer.learn.training.generation",
    "Trained": "scorer.learn.training.trained",
    "fit": "scorer.learn.training.fitting",
}

__all__ = ["Generation", "Trained", "fit"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
