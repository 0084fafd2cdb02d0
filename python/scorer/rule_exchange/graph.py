"""Scopes of the names that the parts of an imported file can read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from scorer.rule_exchange.draft import DraftTable, RuleDraft
from scorer.rule_exchange.expressions import ExchangeError
from scorer.rule_exchange.formulas import Symbol
from scorer.rule_exchange.mapping import ImportMapping, mapped_symbol


@dataclass(frozen=True)
class Output:
    """An output of a table, or the value of an expression.

    Attributes:
        table: The table; for an expression, the table of its values if it has constant values only.
        name: Name of the output in the table.
        symbol: The symbol of an expression's value; None for an output of a table.
        writer: What made it, for messages.
    """

    table: DraftTable | None
    name: str
    symbol: Symbol | None
    writer: str

    def read(self, draft: RuleDraft) -> Symbol:
        """Return the symbol that stands for the value in conditions.

        Args:
            draft: The rule set.

        Raises:
            ExchangeError: The output has no single value.
        """
        if self.symbol is not None:
            return self.symbol
        if self.table is None:
            raise ExchangeError(f'the output "{self.name}" has no value; correct the file')
        return draft.column(self.table, self.name)


Branches: TypeAlias = frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Scope:
    """The names that a part of a file can read.

    Attributes:
        is_open: Whether the names of the request are visible.
        outputs: The outputs by path. Several may have one path if at most one of them is computed.
    """

    is_open: bool
    outputs: Mapping[str, tuple[Output, ...]] = field(default_factory=dict)

    def resolve(
        self, path: str, draft: RuleDraft, mapping: ImportMapping, symbols: dict[str, Symbol]
    ) -> Symbol:
        """Return what a name stands for.

        Raises:
            ExchangeError: The name is not visible.
        """
        found = self.outputs.get(path)
        if found is not None:
            if len(found) > 1:
                raise ExchangeError(
                    f'"{path}" is written by {" and by ".join(one.writer for one in found)}; '
                    "give the outputs different names"
                )
            return found[0].read(draft)
        near = [one for one in self.outputs if one.startswith(f"{path}.") or path.startswith(f"{one}.")]
        if near:
            raise ExchangeError(f'"{path}" is not a single value; read one of {", ".join(sorted(near))}')
        if not self.is_open:
            visible = ", ".join(sorted(self.outputs)) or "none"
            raise ExchangeError(
                f'"{path}" is not visible here, because a node before this one does not pass its input '
                f"through (visible: {visible}); let it pass its input through"
            )
        return mapped_symbol(path, mapping, symbols)

    def with_outputs(self, outputs: Mapping[str, Output]) -> Scope:
        """Return the scope with further outputs.

        Raises:
            ExchangeError: An output has the name of another one.
        """
        merged = dict(self.outputs)
        for path, output in outputs.items():
            if any(_overlap(path, other) for other in merged):
                raise ExchangeError(f'the output "{path}" replaces another one; give it another name')
            merged[path] = (output,)
        return Scope(self.is_open, merged)


def merged_scope(scopes: Iterable[Scope]) -> Scope:
    """Return the scope of a part that reads from several others.

    Raises:
        ExchangeError: Two of them have the same output, and both can be computed for one request.
    """
    is_open = False
    merged: dict[str, tuple[Output, ...]] = {}
    for scope in scopes:
        is_open = is_open or scope.is_open
        for path, outputs in scope.outputs.items():
            for output in outputs:
                known = merged.get(path, ())
                if output in known:
                    continue
                for other in known:
                    if not _are_exclusive(other, output):
                        raise ExchangeError(
                            f'"{path}" is written by {other.writer} and by {output.writer}, and the order in '
                            "which they are merged decides; give the outputs different names"
                        )
                merged[path] = (*known, output)
    for path in merged:
        if any(other != path and _overlap(path, other) for other in merged):
            raise ExchangeError(f'"{path}" is a value and has parts; give the outputs different names')
    return Scope(is_open, merged)


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _are_exclusive(one: Output, other: Output) -> bool:
    first = frozenset() if one.table is None else one.table.branches
    second = frozenset() if other.table is None else other.table.branches
    return any(a == b and m != n for a, m in first for b, n in second)
