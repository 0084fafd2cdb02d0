"""Compare forests and actions with peers: same model, same rows, one thread, in turns, answers checked."""

from __future__ import annotations

from loadtests.engine import actions, forests, loading, shapes
from loadtests.figures import Figures
from loadtests.options import Options


def run(figures: Figures, options: Options) -> None:
    """Measure everything. The quick run omits parts that take long or have no baseline."""
    if options.wants_any(forests.MAIN.words):
        forests.run(figures, options)
    if options.wants_any(actions.SPEC.words):
        actions.run(figures, options)
    if not options.quick:
        loading.run(figures, options)
        shapes.run(figures, options)
        forests.curves(figures, options)
