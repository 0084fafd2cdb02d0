"""Forests and actions beside their peers: same model, same rows, one thread, in turns, answers checked."""

from __future__ import annotations

from loadtests.engine import actions, forests, loading
from loadtests.figures import Figures
from loadtests.options import Options


def run(figures: Figures, options: Options) -> None:
    """Measure everything; the quick run leaves out what takes long or guards nothing."""
    if options.wants_any(forests.MAIN.words):
        forests.run(figures, options)
    if options.wants_any(actions.SPEC.words):
        actions.run(figures, options)
    if not options.quick:
        loading.run(figures, options)
        forests.curves(figures, options)
