"""Import of DMN 1.3 to 1.5: decision tables and expressions that require one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from scorer.rule_exchange.draft import DraftRow, DraftTable, Hit, RuleDraft, Value, place
from scorer.rule_exchange.expressions import (
    Constant,
    Elements,
    ExchangeError,
    Expression,
    RuleComparison,
    RuleMember,
)
from scorer.rule_exchange.formulas import Fixed, Symbol
from scorer.rule_exchange.graph import Output
from scorer.rule_exchange.jdm import rows_of
from scorer.rule_exchange.languages import FEEL
from scorer.rule_exchange.mapping import WRITTEN, ImportMapping, RuleTarget, mapped_symbol
from scorer.rule_exchange.parser import parse_cell, parse_expression
from scorer.rule_exchange.translate import Translator
from scorer.rule_exchange.xml import child, children, local, namespace, read_xml, text_of

_VERSIONS = {
    "https://www.omg.org/spec/DMN/20191111/MODEL/": "1.3",
    "https://www.omg.org/spec/DMN/20211108/MODEL/": "1.4",
    "https://www.omg.org/spec/DMN/20230324/MODEL/": "1.5",
}
_HITS: dict[str, Hit] = {
    "UNIQUE": "unique",
    "FIRST": "first",
    "PRIORITY": "priority",
    "ANY": "any",
    "COLLECT": "collect",
}
_AGGREGATES = {"MIN": "cap", "MAX": "floor"}
_MAX_DECISIONS = 500


def import_dmn(
    content: bytes, target: RuleTarget, mapping: ImportMapping, *, name: str, doubles: bool
) -> str:
    """Return the rule set of a DMN file as TOML.

    Args:
        content: The XML file.
        target: The bundle.
        mapping: What names mean.
        name: Name of the rule set.
        doubles: Whether arithmetic may be computed with doubles.

    Raises:
        ExchangeError: The file is not valid, or a part of it cannot be expressed.
    """
    root = read_xml(content)
    version = _VERSIONS.get(namespace(root))
    if local(root) != "definitions" or version is None:
        raise ExchangeError(
            "the file is not DMN 1.3, 1.4 or 1.5; export it in one of these versions "
            f"(its element is {local(root)!r} of {namespace(root)!r})"
        )
    draft = RuleDraft(name, target, mapping)
    _Reader(root, target, mapping, draft, doubles=doubles).read()
    return draft.text(f"Imported from DMN {version}.")


@dataclass
class _Decision:
    element: Element
    name: str
    required: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: dict[str, Output] = field(default_factory=dict)
    aggregate: str = ""

    @property
    def title(self) -> str:
        return f'decision "{self.name}"'


class _Reader:
    def __init__(
        self, root: Element, target: RuleTarget, mapping: ImportMapping, draft: RuleDraft, *, doubles: bool
    ) -> None:
        self._draft, self._mapping, self._symbols = draft, mapping, target.symbols()
        self._doubles = doubles
        for element in root:
            if local(element) in ("businessKnowledgeModel", "decisionService", "import"):
                raise ExchangeError(
                    f'{local(element)} "{element.get("name", "")}" is not supported; '
                    "write its logic as a decision table"
                )
        self._inputs = {_id(one): _name(one) for one in children(root, "inputData")}
        self._decisions = {_id(one): _Decision(one, _name(one)) for one in children(root, "decision")}
        if not self._decisions or len(self._decisions) > _MAX_DECISIONS:
            raise ExchangeError(
                f"the file has {len(self._decisions)} decisions and needs 1 to {_MAX_DECISIONS}; correct it"
            )
        for decision in self._decisions.values():
            with place(decision.title):
                self._require(decision)

    def _require(self, decision: _Decision) -> None:
        for requirement in decision.element:
            match local(requirement):
                case "informationRequirement":
                    for one in requirement:
                        reference = one.get("href", "")
                        known = self._inputs if local(one) == "requiredInput" else self._decisions
                        if not reference.startswith("#") or reference[1:] not in known:
                            raise ExchangeError(
                                f'it requires "{reference}", which is not in the file; correct it'
                            )
                        if local(one) == "requiredInput":
                            decision.inputs.append(self._inputs[reference[1:]])
                        else:
                            decision.required.append(reference[1:])
                case "knowledgeRequirement":
                    raise ExchangeError(
                        "it requires a business knowledge model, which is not supported; write its logic as "
                        "a decision table"
                    )

    def read(self) -> None:
        """Translate every decision, after those that it requires."""
        waiting = dict(self._decisions)
        required = {one for decision in self._decisions.values() for one in decision.required}
        while waiting:
            ready = [key for key, one in waiting.items() if not set(one.required) & set(waiting)]
            if not ready:
                raise ExchangeError(
                    f"{next(iter(waiting.values())).title} is in a cycle; remove a requirement"
                )
            for key in ready:
                decision = waiting.pop(key)
                with place(decision.title):
                    self._decision(decision)
                    self._write(decision, is_required=key in required)

    def _decision(self, decision: _Decision) -> None:
        table = child(decision.element, "decisionTable")
        literal = child(decision.element, "literalExpression")
        if table is not None:
            self._table(decision, table)
        elif literal is not None:
            self._literal(decision, literal)
        else:
            kinds = [
                local(one)
                for one in decision.element
                if local(one)
                in (
                    "context",
                    "invocation",
                    "relation",
                    "list",
                    "functionDefinition",
                    "conditional",
                    "for",
                    "every",
                    "some",
                    "filter",
                )
            ]
            raise ExchangeError(
                f"its logic is {kinds[0] if kinds else 'missing'}; write a decision table or an expression"
            )

    # Names

    def _names(self, decision: _Decision) -> list[str]:
        outputs = [name for key in decision.required for name in self._decisions[key].outputs]
        return [*decision.inputs, *outputs, *(self._decisions[key].name for key in decision.required)]

    def _translator(self, decision: _Decision) -> Translator:
        def resolve(path: str) -> Symbol | Expression:
            for key in decision.required:
                required = self._decisions[key]
                if path in required.outputs:
                    return required.outputs[path].read(self._draft)
                if path == required.name:
                    raise ExchangeError(
                        f'"{path}" has the parts {", ".join(required.outputs)}; name one of them'
                    )
            if path not in decision.inputs:
                visible = ", ".join(self._names(decision)) or "none"
                raise ExchangeError(
                    f'"{path}" is not required by the decision ({visible}); correct it or add the requirement'
                )
            return mapped_symbol(path, self._mapping, self._symbols)

        return Translator(FEEL, resolve, doubles=self._doubles)

    # Logic

    def _table(self, decision: _Decision, element: Element) -> None:
        policy = element.get("hitPolicy", "UNIQUE")
        if policy not in _HITS:
            raise ExchangeError(f"the hit policy {policy} is not supported; use {', '.join(_HITS)}")
        decision.aggregate = element.get("aggregation", "")
        if decision.aggregate not in ("", *_AGGREGATES):
            raise ExchangeError(
                f"the aggregation {decision.aggregate} is not supported; collect without it, with MIN for a "
                "cap or with MAX for a floor"
            )
        names, translator = self._names(decision), self._translator(decision)
        subjects = []
        for number, one in enumerate(children(element, "input"), 1):
            expression = child(one, "inputExpression")
            text = "" if expression is None else text_of(expression)
            with place(f"input {number}"):
                subjects.append((one.get("label") or text, parse_expression(text, FEEL, names)))
        columns = self._columns(decision, element)
        rows = []
        for number, rule in enumerate(children(element, "rule"), 1):
            cells, entries = children(rule, "inputEntry"), children(rule, "outputEntry")
            if len(cells) != len(subjects) or len(entries) != len(columns):
                raise ExchangeError(
                    f"row {number} has {len(cells)} inputs and {len(entries)} outputs and the table "
                    f"{len(subjects)} and {len(columns)}; correct the row"
                )
            tests = []
            for (title, subject), cell in zip(subjects, cells, strict=True):
                with place(f'row {number}, input "{title}"'):
                    test = parse_cell(text_of(cell), FEEL, subject, names)
                    tests.append(Fixed(True) if test is None else translator.outcomes(test).true)
            values = []
            for column, entry in zip(columns, entries, strict=True):
                with place(f'row {number}, output "{column.name}"'):
                    values.append(_constant(text_of(entry)))
            priority = 0
            if policy == "PRIORITY":
                with place(f"row {number}"):
                    priority = _priority(columns, values)
            rows.append(DraftRow(tuple(tests), tuple(values), f"row {number}", priority))
        if not rows:
            raise ExchangeError("the table has no rows; add one")
        defaults = tuple(column.default for column in columns)
        table = DraftTable(
            self._draft.unique(decision.name),
            decision.name,
            _HITS[policy],
            tuple(column.name for column in columns),
            rows,
            default=defaults if any(one is not None for one in defaults) else None,
        )
        self._draft.add(table)
        for column in columns:
            path = decision.name if len(columns) == 1 else f"{decision.name}.{column.name}"
            decision.outputs[path] = Output(table, column.name, None, decision.title)

    def _columns(self, decision: _Decision, element: Element) -> list[_Column]:
        outputs = children(element, "output")
        columns = []
        for number, one in enumerate(outputs, 1):
            name = one.get("name") or (decision.name if len(outputs) == 1 else "")
            if not name:
                raise ExchangeError(f"output {number} has no name; add one")
            values = child(one, "outputValues")
            default = child(one, "defaultOutputEntry")
            with place(f'output "{name}"'):
                columns.append(
                    _Column(
                        name,
                        [] if values is None else _listed(text_of(values)),
                        None if default is None else _constant(text_of(default)),
                    )
                )
        return columns

    def _literal(self, decision: _Decision, element: Element) -> None:
        if element.get("expressionLanguage"):
            raise ExchangeError("its expression is not FEEL; write it in FEEL")
        cases = self._translator(decision).cases(
            parse_expression(text_of(element), FEEL, self._names(decision))
        )
        name = decision.name
        rows = rows_of(cases, Fixed(True)) if self._written(name, name) is not None else None
        if rows is None:
            symbol = self._draft.cases(name, cases, f'Decision "{name}".')
            decision.outputs[name] = Output(None, name, symbol, decision.title)
            return
        table = DraftTable(self._draft.unique(name), name, "first", (name,), rows)
        decision.outputs[name] = Output(self._draft.add(table), name, None, decision.title)

    # Results

    def _written(self, path: str, name: str) -> str | None:
        for one in (path, name):
            if one in self._mapping.eligibility:
                return one
            if one in self._mapping.outputs:
                return self._mapping.outputs[one]
        return next((one for one in (path, name) if one in WRITTEN), None)

    def _write(self, decision: _Decision, *, is_required: bool) -> None:
        for path, output in decision.outputs.items():
            if path in self._mapping.ignore:
                continue
            written = self._written(path, output.name)
            if written is None and is_required:
                continue
            if written is None:
                raise ExchangeError(
                    f'the output "{path}" is not mapped to what rules write ({", ".join(WRITTEN)} or '
                    "eligibility); map it in the table [outputs] of the file of --map, or list it in ignore"
                )
            if output.table is None:
                raise ExchangeError(
                    f'the output "{path}" is computed, and rules write constants; write a decision table'
                )
            if _AGGREGATES.get(decision.aggregate, written) != written:
                raise ExchangeError(
                    f"the aggregation {decision.aggregate} is for a {_AGGREGATES[decision.aggregate]} and "
                    f"not for {written}; collect without it"
                )
            if output.table.hit == "collect" and not decision.aggregate and written in ("cap", "floor"):
                raise ExchangeError(
                    f"the table collects all values of {written}, and rules use one of them; "
                    "use the aggregation MIN for a cap or MAX for a floor"
                )
            self._draft.write(output.table, output.name, written)


@dataclass(frozen=True)
class _Column:
    name: str
    values: list[Value]
    default: Value


def _constant(text: str) -> Value:
    if text in ("", "-"):
        return None
    found = parse_expression(text, FEEL)
    if not isinstance(found, Constant):
        raise ExchangeError(
            "the cell is not a string, a number, true, false or null; rules write constants only, so add a "
            "row for each value"
        )
    return found.value


def _listed(text: str) -> list[Value]:
    """Return the constants of a list of values; empty if it is not a list of constants."""
    test = parse_cell(text, FEEL, Constant(None))
    found: list[Value] = []
    for item in _items(test):
        if not isinstance(item, Constant):
            return []
        found.append(item.value)
    return found


def _items(test: Expression | None) -> Sequence[object]:
    match test:
        case RuleMember(within=Elements(items=items)):
            return items
        case RuleComparison(operator="==", right=right):
            return [right]
    return [None]


def _priority(columns: Sequence[_Column], values: Sequence[Value]) -> int:
    """Return the priority of a row: the order of its values in the lists of the outputs, the first first."""
    priority = 0
    for column, value in zip(columns, values, strict=True):
        if not column.values:
            continue
        if value not in column.values:
            raise ExchangeError(
                f'the value of the output "{column.name}" is not in its list of values, which has the '
                "priorities; add it"
            )
        priority = priority * (len(column.values) + 1) + len(column.values) - column.values.index(value)
    if not any(column.values for column in columns):
        raise ExchangeError("no output has a list of values, which has the priorities; add outputValues")
    return priority


def _id(element: Element) -> str:
    found = element.get("id")
    if not found:
        raise ExchangeError(f'{local(element)} "{element.get("name", "")}" has no id; add one')
    return found


def _name(element: Element) -> str:
    found = element.get("name")
    if not found:
        raise ExchangeError(f"{local(element)} {element.get('id', '')} has no name; add one")
    return found
