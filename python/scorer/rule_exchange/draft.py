"""A rule set that is put together from the tables and values of an imported file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from scorer.bundle.rule_text import comment, table_text, toml_text
from scorer.rule_exchange.expressions import Constant, ExchangeError
from scorer.rule_exchange.formulas import (
    Compare,
    Fixed,
    Formula,
    IsTrue,
    JoinedFormula,
    Kind,
    OneOf,
    Read,
    Symbol,
    cel,
    joined,
    value_text,
    without_guards,
)
from scorer.rule_exchange.languages import CEL, cel_text, value_words
from scorer.rule_exchange.mapping import WRITTEN, ImportMapping, RuleTarget
from scorer.rule_exchange.translate import Case, guards

Hit: TypeAlias = Literal["first", "priority", "collect", "any", "unique"]
Value: TypeAlias = str | float | bool | None
_CHUNK = 60
# No feature and no constant of a file has this value.
_MISSING_NUMBER = "-1e+300"


@contextmanager
def place(where: str) -> Iterator[None]:
    """Add the place to the message of an error."""
    try:
        yield
    except ExchangeError as error:
        raise ExchangeError(f"{where}: {error}") from None


@dataclass(frozen=True)
class DraftRow:
    """One row of a table.

    Attributes:
        tests: When the row's condition is true; all of them must be.
        values: The value of each output.
        place: Where the row is in the file.
        priority: For the hit policy "priority".
    """

    tests: tuple[Formula, ...]
    values: tuple[Value, ...]
    place: str
    priority: int = 0


@dataclass
class DraftTable:
    """A table of the file, or an expression with a few values.

    Attributes:
        id: Its id in the rule set.
        title: Its name in the file.
        hit: The hit policy.
        outputs: The names of the outputs.
        rows: The rows.
        branches: The switches and the statements on which it depends.
        default: Values if no row fires.
        written: What each output writes, by name.
        is_read: Whether a condition reads an output.
    """

    id: str
    title: str
    hit: Hit
    outputs: tuple[str, ...]
    rows: list[DraftRow]
    branches: frozenset[tuple[str, int]] = frozenset()
    default: tuple[Value, ...] | None = None
    written: dict[str, str] = field(default_factory=dict)
    is_read: bool = False


class RuleDraft:
    """The values and tables of a rule set.

    Args:
        name: Name of the rule set.
        target: The bundle.
        mapping: What names mean.
    """

    def __init__(self, name: str, target: RuleTarget, mapping: ImportMapping) -> None:
        self.name = identifier(name)
        self._target, self._mapping = target, mapping
        self._values: list[tuple[str, str, str]] = []
        self._tables: list[DraftTable] = []
        self._names = {feature.name for feature in target.features} | {"score", "action", "rules"}
        self._columns: dict[tuple[str, str], Symbol] = {}

    # Names

    def unique(self, name: str) -> str:
        """Return an identifier for a name, which no other part of the rule set has."""
        base = identifier(name)
        found, number = base, 2
        while found in self._names:
            found, number = f"{base}_{number}", number + 1
        self._names.add(found)
        return found

    # Values

    def value(self, name: str, text: str, about: str) -> str:
        """Add a value and return its name."""
        unique = self.unique(name)
        self._values.append((unique, text, about))
        return unique

    def condition(self, name: str, formula: Formula, about: str) -> Formula:
        """Return a formula that reads a value with the result of another formula."""
        if isinstance(formula, Fixed | IsTrue):
            return formula
        return IsTrue(Symbol(self.value(name, cel(formula), about), "bool", nullable=False))

    def cases(self, name: str, cases: Sequence[Case], about: str) -> Symbol:
        """Return a symbol for a value that is computed from the request.

        Args:
            name: Name of the value.
            cases: The values that it can have.
            about: Text of the comment.

        Raises:
            ExchangeError: The cases have different types.
        """
        if len(cases) == 1 and cases[0].when == Fixed(True) and isinstance(cases[0].value, Read):
            return cases[0].value.symbol
        kinds: set[Kind] = set()
        constants: list[Value] = []
        for case in cases:
            if isinstance(case.value, Constant):
                constants.append(case.value.value)
                if case.value.value is not None:
                    kinds.add(_kind(case.value.value))
            elif isinstance(case.value, Read) and case.value.symbol.kind != "number":
                raise ExchangeError(
                    f'"{case.value.symbol.name}" is a value of a condition; write the condition there'
                )
            else:
                kinds.add("number")
        return self._chain(
            name,
            [
                (cel(joined(True, case.when, guards(case.value))), _chain_value(case.value, kinds))
                for case in cases
            ],
            self._one_kind(kinds),
            constants,
            about,
        )

    def _one_kind(self, kinds: set[Kind]) -> Kind:
        if len(kinds) != 1:
            raise ExchangeError(
                f"the values have the types {', '.join(sorted(kinds)) or 'null'}; give them one type"
            )
        return next(iter(kinds))

    def _chain(
        self,
        name: str,
        cases: Sequence[tuple[str, str | None]],
        kind: Kind,
        constants: Sequence[Value],
        about: str,
    ) -> Symbol:
        """Add the value of the first case whose condition is true."""
        if "" in constants:
            raise ExchangeError(
                "an empty string is a value, which stands for none in the rule set; write another string"
            )
        absent = {"string": '""', "bool": "-1", "number": _MISSING_NUMBER}[kind]
        texts = tuple(dict.fromkeys(one for one in constants if isinstance(one, str)))
        rest = absent
        chunks = [cases[at : at + _CHUNK] for at in range(0, len(cases), _CHUNK)]
        for number in range(len(chunks) - 1, -1, -1):
            text = rest
            for when, value in reversed(chunks[number]):
                text = (value or absent) if when == "true" else f"{when} ? {value or absent} : {text}"
            rest = self.value(name if number == 0 else f"{name}_from_{number * _CHUNK + 1}", text, about)
        return Symbol(rest, kind, values=texts if kind == "string" else None, absent=absent)

    # Tables

    def add(self, table: DraftTable) -> DraftTable:
        """Add a table.

        Raises:
            ExchangeError: A row can never fire.
        """
        for row in table.rows:
            if joined(True, *row.tests) == Fixed(False):
                raise ExchangeError(f"{row.place}: no request has these values; correct or remove the row")
        self._tables.append(table)
        return table

    def column(self, table: DraftTable, output: str) -> Symbol:
        """Return the symbol of an output of a table.

        Raises:
            ExchangeError: The output has no single value, or values of several types.
        """
        key = (table.id, output)
        if key in self._columns:
            return self._columns[key]
        if table.hit in ("collect", "any"):
            raise ExchangeError(
                f'"{table.title}" is read by another part of the file, and with the hit policy {table.hit} '
                'it has no single value; use the hit policy "first"'
            )
        at = table.outputs.index(output)
        values = [row.values[at] for row in table.rows]
        if table.default is not None:
            values.append(table.default[at])
        kind = self._one_kind({_kind(value) for value in values if value is not None})
        numbers = range(len(table.rows))
        if table.hit == "priority":
            numbers = sorted(numbers, key=lambda number: -table.rows[number].priority)  # type: ignore[assignment]
        cases: list[tuple[str, str | None]] = []
        if table.hit == "unique":
            cases.append((f"{self._fired(table)} > 1", None))
        cases += [(_rule(table, number), _literal(values[number], kind)) for number in numbers]
        if table.default is not None:
            cases.append(("true", _literal(table.default[at], kind)))
        about = f'Output "{output}" of "{table.title}".'
        table.is_read = True
        self._columns[key] = self._chain(f"{table.id}_{output}", cases, kind, values, about)
        return self._columns[key]

    def _fired(self, table: DraftTable) -> str:
        """Return the name of a value with the number of rows that fire."""
        key = (table.id, "")
        if key not in self._columns:
            about = f'Number of rows of "{table.title}" that fire; of several, none has an effect.'
            rest = ""
            for start in range(0, len(table.rows), _CHUNK):
                numbers = range(start, min(start + _CHUNK, len(table.rows)))
                terms = [f"({_rule(table, number)} ? 1 : 0)" for number in numbers]
                text = " + ".join([rest, *terms] if rest else terms)
                rest = self.value(f"{table.id}_fired", text, about)
            self._columns[key] = Symbol(rest, "number")
        return self._columns[key].name

    def write(self, table: DraftTable, output: str, written: str) -> None:
        """Let an output of a table be what rules write.

        Args:
            table: The table.
            output: The output.
            written: One of `WRITTEN`, or the name of an output about actions in the mapping.

        Raises:
            ExchangeError: The output has a value that rules cannot write.
        """
        if written in table.written.values():
            raise ExchangeError(f'"{table.title}" has two outputs that write {written}; map one of them')
        at = table.outputs.index(output)
        for row in table.rows:
            with place(row.place):
                self._check(row.values[at], written)
        if table.default is not None:
            self._check(table.default[at], written)
        table.written[output] = written

    def _check(self, value: Value, written: str) -> None:
        if value is None:
            return
        if written in self._mapping.eligibility:
            if value not in self._mapping.eligibility[written].remove:
                raise ExchangeError(
                    f"the output has the value {value_words(value)}; add it to "
                    f'[eligibility."{written}".remove] of the file of --map'
                )
            return
        wanted = "a number" if written in ("cap", "floor") else "a string"
        if _kind(value) != ("number" if written in ("cap", "floor") else "string"):
            raise ExchangeError(f"{written} needs {wanted} and not {value_words(value)}; correct the cell")
        if written == "decision" and self._decision(value) not in self._target.decisions:
            raise ExchangeError(
                f"the bundle has no decision {value_words(value)} ({', '.join(self._target.decisions)}); map "
                "it in the table [decisions] of the file of --map"
            )

    def _decision(self, value: Value) -> str:
        return self._mapping.decisions.get(str(value), str(value))

    # Text

    def text(self, about: str) -> str:
        """Return the rule set as TOML.

        Args:
            about: Text of the comment at the start.

        Raises:
            ExchangeError: Nothing is written by any table.
        """
        if not any(table.written for table in self._tables):
            raise ExchangeError(
                f"no output is mapped to what rules write ({', '.join(WRITTEN)} or eligibility); add the "
                "table [outputs] to the file of --map"
            )
        parts = ["\n".join([*comment(about), f"name = {toml_text(self.name)}"])]
        if self._target.decisions:
            parts[0] += f"\ndecisions = {toml_text(list(self._target.decisions))}"
        parts[0] += "\n"
        rules = [text for table in self._tables for text in self._eligibility(table)]
        tables = [self._table(table) for table in self._tables if table.written or table.is_read]
        parts += [table_text("values", {"name": name, "is": text}, why) for name, text, why in self._values]
        return "\n".join([*parts, *rules, *tables])

    def _table(self, table: DraftTable) -> str:
        # A condition that another one reads must be true or false, also where a value is missing.
        is_total = table.is_read or table.default is not None
        rows = [tuple(_cells(row.tests, is_total=is_total)) for row in table.rows]
        inputs = list(dict.fromkeys(name for row in rows for name, _ in row if name != "true"))
        if any(name == "true" for row in rows for name, _ in row):
            inputs.append("true")
        outputs = [name for name in table.outputs if table.written.get(name) in WRITTEN]
        lines = []
        for row, cells in zip(table.rows, rows, strict=True):
            tests = [dict(cells).get(name, "-") for name in inputs]
            lines.append(self._row(table, tests, row.values, outputs, row.priority))
        if table.default is not None and outputs:
            none = " && ".join(f"!{_rule(table, number)}" for number in range(len(table.rows)))
            if "true" not in inputs:
                inputs.append("true")
                lines = [self._with_cell(line, len(inputs) - 1) for line in lines]
            tests = [f"== ({none})" if name == "true" else "-" for name in inputs]
            priority = min((row.priority for row in table.rows), default=0) - 1
            lines.append(self._row(table, tests, table.default, outputs, priority))
        writes = [table.written[name] for name in outputs]
        if table.hit == "priority":
            writes.append("priority")
        body = "\n".join(f"  {toml_text(line)}," for line in lines)
        head = {"id": table.id, "hit": table.hit, "inputs": inputs, "outputs": writes}
        return table_text("tables", head, f'"{table.title}".') + f"rows = [\n{body}\n]\n"

    def _with_cell(self, line: list[Any], at: int) -> list[Any]:
        return [*line[:at], "-", *line[at:]]

    def _row(
        self,
        table: DraftTable,
        tests: Sequence[str],
        values: Sequence[Value],
        outputs: Sequence[str],
        priority: int,
    ) -> list[Any]:
        by_name = dict(zip(table.outputs, values, strict=True))
        writes: list[Any] = []
        for name in outputs:
            value = by_name[name]
            if value is not None and table.written[name] == "decision":
                value = self._decision(value)
            writes.append("-" if value is None else value)
        return [*tests, *writes, *([priority] if table.hit == "priority" else [])]

    def _eligibility(self, table: DraftTable) -> list[str]:
        texts = []
        for output, written in table.written.items():
            if written not in self._mapping.eligibility:
                continue
            if table.hit not in ("first", "collect"):
                raise ExchangeError(
                    f'"{table.title}" is about actions and has the hit policy {table.hit}; '
                    "use first or collect"
                )
            table.is_read = True
            one, at = self._mapping.eligibility[written], table.outputs.index(output)
            rows = [(number, row.values[at]) for number, row in enumerate(table.rows)]
            if table.default is not None:
                raise ExchangeError(
                    f'"{table.title}" is about actions and has a default output; write a last row instead'
                )
            for number, value in rows:
                remove = None if value is None else one.remove[str(value)]
                if not remove:
                    continue
                earlier = [f"!{_rule(table, before)}" for before in range(number)]
                when = [_rule(table, number), *(earlier if table.hit == "first" else [])]
                fields: Mapping[str, Any] = {
                    "id": self.unique(f"{table.id}_{output}_{number + 1}"),
                    "when": " && ".join(when),
                    "remove": remove,
                    "source": one.source,
                }
                texts.append(table_text("rules", fields, table.rows[number].place))
        return texts


def identifier(name: str) -> str:
    """Return a name with letters, digits and "_" only, which does not start with a digit."""
    text = re.sub(r"[^0-9A-Za-z_]+", "_", name).strip("_")
    return f"t_{text}" if not text or text[0].isdigit() else text


def _rule(table: DraftTable, number: int) -> str:
    return f"rules.{table.id}.row{number + 1}"


def _kind(value: str | float | bool) -> Kind:
    if isinstance(value, bool):
        return "bool"
    return "string" if isinstance(value, str) else "number"


def _literal(value: Value, kind: Kind) -> str | None:
    if value is None:
        return None
    if kind == "bool":
        return "1" if value else "0"
    return cel_text(value) if isinstance(value, str) else value_text(Constant(value), CEL)


def _chain_value(value: Any, kinds: set[Kind]) -> str | None:
    if isinstance(value, Constant):
        return _literal(value.value, "bool" if kinds == {"bool"} else "number")
    return value_text(value, CEL)


def _cells(tests: Sequence[Formula], *, is_total: bool) -> Iterator[tuple[str, str]]:
    """Return the cells of a row by the input that they test; what has no form as a cell tests ``true``."""
    terms: list[Formula] = []
    for test in tests:
        simple = test if is_total else without_guards(test)
        terms += simple.terms if isinstance(simple, JoinedFormula) and simple.every else [simple]
    by_input: dict[str, list[Formula]] = {}
    rest: list[Formula] = []
    for term in dict.fromkeys(terms):
        name = _input(term)
        if name is None:
            rest.append(term)
        else:
            by_input.setdefault(name, []).append(term)
    for name, found in by_input.items():
        cell = _cell(found)
        if cell is None:
            rest += found
        else:
            yield name, cell
    condition = joined(True, *rest)
    if condition != Fixed(True):
        yield "true", f"== ({cel(condition)})"


def _input(formula: Formula) -> str | None:
    match formula:
        case Compare(left=Read(symbol=symbol), right=Constant()):
            return symbol.name
        case OneOf(value=Read(symbol=symbol), negated=False):
            return symbol.name
        case IsTrue(symbol=symbol) if symbol.absent is None:
            return symbol.name
    return None


def _cell(found: Sequence[Formula]) -> str | None:
    """Return the cell of the conditions on one input; None if there is no such cell."""
    match found:
        case [IsTrue(negated=negated)]:
            return "false" if negated else "true"
        case [OneOf(constants=constants)]:
            return f"in [{', '.join(value_text(Constant(one), CEL) for one in constants)}]"
        case [Compare(operator=operator, right=right)]:
            text = value_text(right, CEL)
            return text if operator == "==" else f"{operator} {text}"
        case [
            Compare(operator=">" | ">=" as low, right=Constant(value=float()) as start),
            Compare(operator="<" | "<=" as high, right=Constant(value=float()) as end),
        ]:
            opening, closing = "[" if low == ">=" else "(", "]" if high == "<=" else ")"
            return f"{opening}{value_text(start, CEL)}..{value_text(end, CEL)}{closing}"
    return None
