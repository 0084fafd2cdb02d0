"""The rules by which the simulated payments may use the payment actions, evaluated as a server does.

`rules.toml` has the rules; docs/simulators.md lists them with their sources.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from examples.simulators.payments import Bools, Contexts
from examples.simulators.task import authorise_task, context_rows
from scorer.bundle.rules import BundleRules, CompiledRules, compile_action_rules, read_rules
from scorer.errors import BundleError

RULES = Path(__file__).with_name("rules.toml")


def rules() -> BundleRules:
    """Return the rules as a bundle of the simulated payments takes them.

    Raises:
        BundleError: The file cannot be read.
    """
    return read_rules(RULES)


@cache
def compiled() -> CompiledRules:
    """Return the rules, compiled for the simulated payments and actions.

    Raises:
        BundleError: The rules have faults.
    """
    task = authorise_task()
    found = compile_action_rules(rules(), task.context, task.actions)
    if isinstance(found, tuple):
        raise BundleError("\n".join(f"{RULES.name}: {fault}" for fault in found))
    return found


def eligible(given: Contexts) -> Bools:
    """Return `[n, actions]` whether each payment may use each action."""
    return compiled().eligibility(context_rows(given)).mask
