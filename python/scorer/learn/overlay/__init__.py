"""The overlay between two generations: logit offsets per segment and factor level, learned every few minutes.

docs/overlay.md has the model, its formulas and its guard.
"""

from scorer.learn.overlay.delays import Admitted, Delays
from scorer.learn.overlay.design import Design, adjusted, logit, offsets, sigmoid
from scorer.learn.overlay.guard import Guard
from scorer.learn.overlay.learner import OverlayLearner, OverlayPlan
from scorer.learn.overlay.posterior import Outcomes, Posterior
from scorer.learn.overlay.stream import Fitted, Stream, fit

__all__ = [
    "Admitted",
    "Delays",
    "Design",
    "Fitted",
    "Guard",
    "Outcomes",
    "OverlayLearner",
    "OverlayPlan",
    "Posterior",
    "Stream",
    "adjusted",
    "fit",
    "logit",
    "offsets",
    "sigmoid",
]
