"""The overlay between two generations: logit offsets per segment and factor level, learned every few minutes.

docs/overlay.md has the model, its formulas and its guard. Importing the
package loads no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scorer.learn.overlay.delays import Admitted, Delays
    from scorer.learn.overlay.design import Design, adjusted, logit, offsets
    from scorer.learn.overlay.guard import Guard
    from scorer.learn.overlay.learner import OverlayLearner
    from scorer.learn.overlay.posterior import Outcomes, Posterior
    from scorer.learn.overlay.settings import OverlaySettings
    from scorer.learn.overlay.stream import Fitted, OutcomeStream, catch_up, fit

_HOMES = {
    "delays": ("Admitted", "Delays"),
    "design": ("Design", "adjusted", "logit", "offsets"),
    "guard": ("Guard",),
    "learner": ("OverlayLearner",),
    "posterior": ("Outcomes", "Posterior"),
    "settings": ("OverlaySettings",),
    "stream": ("Fitted", "OutcomeStream", "catch_up", "fit"),
}

__all__ = [
    "Admitted",
    "Delays",
    "Design",
    "Fitted",
    "Guard",
    "OutcomeStream",
    "Outcomes",
    "OverlayLearner",
    "OverlaySettings",
    "Posterior",
    "adjusted",
    "catch_up",
    "fit",
    "logit",
    "offsets",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
