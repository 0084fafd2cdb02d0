"""Bundles with functions in WebAssembly that have no result for some rows.

The function ``step`` computes a column of the forest, and ``condition`` is called by a rule. Each returns
its argument, loops for one hour of the day and traps for another one. `faulted` says which have no result.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
from bundles import ACTIONS, FEATURES, action_features, rows, tiny_action_bundle, tiny_score_bundle, train

from scorer.bundle import CustomFunction, Feature, FunctionCall, transform
from scorer.bundle.models import TransformStep
from scorer.bundle.rules import BundleRules

IN_STEP: Final = (3.0, 4.0)
"""Hours for which `step` loops and traps."""
IN_RULE: Final = (5.0, 4.0)
"""Hours for which `condition` loops and traps."""
CHECKOUT: Final = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "late"
when = "condition(hour) >= 20.0"
decision = "decline"
"""
EXEMPTIONS: Final = """
name = "exemptions"

[[rules]]
id = "late"
when = "condition(hour) >= 20.0"
remove = { exemption = ["tra"] }
source = "agreement"
"""
STEPS: Final[list[TransformStep]] = [FunctionCall(name="step", inputs=["hour"], output="of_hour")]


def faulting_module(loops: float, traps: float) -> bytes:
    """Return a module whose function ``f`` returns its argument.

    Args:
        loops: The argument for which it loops without end.
        traps: The argument for which it traps.
    """

    def when(argument: float, body: bytes) -> bytes:
        # local.get 0, f64.const, f64.eq, if, body, end
        return b"\x20\x00\x44" + struct.pack("<d", argument) + b"\x61\x04\x40" + body + b"\x0b"

    endless, unreachable = b"\x03\x40\x0c\x00\x0b", b"\x00"
    code = b"\x00" + when(loops, endless) + when(traps, unreachable) + b"\x20\x00\x0b"
    return b"\0asm\x01\0\0\0" + b"".join(
        bytes([number, len(content)]) + content
        for number, content in (
            (1, b"\x01\x60\x01\x7c\x01\x7c"),  # the type: a double in, a double out
            (3, b"\x01\x00"),
            (7, b"\x01\x01f\x00\x00"),
            (10, b"\x01" + bytes([len(code)]) + code),
        )
    )


FUNCTIONS: Final = [
    CustomFunction("step", faulting_module(*IN_STEP), ["hour"], export="f"),
    CustomFunction("condition", faulting_module(*IN_RULE), ["hour"], export="f"),
]


def faulted(hour: float) -> list[str]:
    """Return the functions without a result in a decision, in the order of the bundle."""
    return [name for name, hours in (("step", IN_STEP), ("condition", IN_RULE)) if hour in hours]


def faulting_score_bundle(directory: Path, rules: str = CHECKOUT) -> str:
    """Build a bundle of kind "score" with both functions and return its digest."""
    data = _transformed(rows(2000, seed=1), list(FEATURES))
    hours = np.nan_to_num(data[:, -1], nan=30.0)
    model = train(data, hours / 6 + data[:, 0] / 100 - 3, [*FEATURES, "of_hour"], 1)
    return tiny_score_bundle(
        directory, model=model, steps=STEPS, functions=FUNCTIONS, rules=BundleRules(rules)
    )


def faulting_action_bundle(directory: Path, rules: str = EXEMPTIONS) -> str:
    """Build a bundle of kind "action" with both functions and return its digest."""
    context = rows(3000, seed=1)
    own = np.array([action_features(at % len(ACTIONS)) for at in range(len(context))], np.float32)
    names = [*FEATURES, "three_ds", "exemption"]
    data = _transformed(np.concatenate([context, own], axis=1), names)
    hours = np.nan_to_num(data[:, -1], nan=30.0)
    model = train(data, 0.5 + data[:, 4] - hours / 20, [*names, "of_hour"], 1)
    return tiny_action_bundle(
        directory, model=model, steps=STEPS, functions=FUNCTIONS, rules=BundleRules(rules)
    )


def _transformed(data: Any, names: list[str]) -> Any:
    return transform([Feature(name=name) for name in names], STEPS, data, functions=FUNCTIONS)
