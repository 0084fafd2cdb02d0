"""Import of GoRules JDM: graphs of decision tables, expressions and switches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scorer.rule_exchange.draft import DraftRow, DraftTable, Hit, RuleDraft, Value, place
from scorer.rule_exchange.expressions import Constant, ExchangeError, Expression
from scorer.rule_exchange.formulas import Compare, Fixed, Formula, Read, Symbol, joined, negated
from scorer.rule_exchange.graph import Branches, Output, Scope, merged_scope
from scorer.rule_exchange.languages import ZEN
from scorer.rule_exchange.mapping import WRITTEN, ImportMapping, RuleTarget
from scorer.rule_exchange.parser import parse_cell, parse_expression
from scorer.rule_exchange.translate import Case, Translator

MAX_NODES = 500
"""Greatest number of nodes of a graph."""
_TRANSFORM = {"passThrough", "passThorough", "inputField", "outputPath", "executionMode"}
_CONTENT = {
    "inputNode": {"schema"},
    "outputNode": {"schema"},
    "decisionTableNode": {"hitPolicy", "inputs", "outputs", "rules", *_TRANSFORM},
    "expressionNode": {"expressions", *_TRANSFORM},
    "switchNode": {"hitPolicy", "statements"},
}
_REMEDIES = {
    "functionNode": "it runs JavaScript; compute its results as features of the bundle",
    "customNode": "it runs code of its own; compute its results as features of the bundle",
    "decisionNode": "it evaluates another file; copy the nodes of that file into this one",
}


def import_jdm(
    content: bytes, target: RuleTarget, mapping: ImportMapping, *, name: str, doubles: bool
) -> str:
    """Return the rule set of a JDM graph as TOML.

    Args:
        content: The JSON file.
        target: The bundle.
        mapping: What names mean.
        name: Name of the rule set.
        doubles: Whether arithmetic may be computed with doubles.

    Raises:
        ExchangeError: The file is not valid, or a part of it cannot be expressed.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ExchangeError(f"the file is not JSON: {error}; export the graph again") from None
    if not isinstance(document, dict) or "nodes" not in document or "edges" not in document:
        raise ExchangeError('the file is not a JDM graph: "nodes" or "edges" is missing; export it again')
    reader = _Reader(document, target, mapping, RuleDraft(name, target, mapping), doubles=doubles)
    reader.read()
    return reader.draft.text("Imported from a JDM graph.")


class _Node:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self.id, self.type = _string(document, "id"), _string(document, "type")
        self.name = str(document.get("name") or self.id)
        content = document.get("content")
        self.content: Mapping[str, Any] = content if isinstance(content, dict) else {}
        self.before: list[tuple[_Node, str | None]] = []
        self.after: list[_Node] = []
        self.scope = Scope(is_open=False)
        self.guard: Formula = Fixed(True)
        self.branches: Branches = frozenset()
        self.statements: dict[str, tuple[Formula, int]] = {}

    @property
    def title(self) -> str:
        """Return the node as messages name it."""
        return f'node "{self.name}"'


class _Reader:
    def __init__(
        self,
        document: Mapping[str, Any],
        target: RuleTarget,
        mapping: ImportMapping,
        draft: RuleDraft,
        *,
        doubles: bool,
    ) -> None:
        self.draft = draft
        self._mapping, self._symbols, self._doubles = mapping, target.symbols(), doubles
        self._nodes = self._connected(document)

    def read(self) -> None:
        """Translate every node, in the order of the graph."""
        for node in _ordered(self._nodes):
            with place(node.title):
                self._enter(node)
                match node.type:
                    case "inputNode":
                        node.scope = Scope(is_open=True)
                    case "decisionTableNode":
                        self._table(node)
                    case "expressionNode":
                        self._expressions(node)
                    case "switchNode":
                        self._switch(node)
                    case "outputNode":
                        self._result(node)

    # The graph

    def _connected(self, document: Mapping[str, Any]) -> list[_Node]:
        nodes: dict[str, _Node] = {}
        for one in _dicts(document, "nodes"):
            node = _Node(one)
            if node.id in nodes:
                raise ExchangeError(f'two nodes have the id "{node.id}"; rename one of them')
            nodes[node.id] = node
        if len(nodes) > MAX_NODES:
            raise ExchangeError(f"the graph has {len(nodes)} nodes, more than {MAX_NODES}; split it")
        for node in nodes.values():
            self._check_node(node)
        for edge in _dicts(document, "edges"):
            source, end = _string(edge, "sourceId"), _string(edge, "targetId")
            if source not in nodes or end not in nodes:
                raise ExchangeError(
                    f'an edge joins "{source}" and "{end}", one of which is missing; remove it'
                )
            nodes[end].before.append((nodes[source], edge.get("sourceHandle") or None))
            nodes[source].after.append(nodes[end])
        kinds = [node.type for node in nodes.values()]
        if kinds.count("inputNode") != 1 or kinds.count("outputNode") != 1:
            raise ExchangeError("the graph needs one input node and one output node; add or remove one")
        used = self._reaching(nodes)
        for node in nodes.values():
            if node not in used:
                raise ExchangeError(
                    f"{node.title} is not on a path from the input to the output; connect or remove it"
                )
        return list(nodes.values())

    def _check_node(self, node: _Node) -> None:
        if node.type not in _CONTENT:
            why = _REMEDIES.get(node.type, "rules have no such node; replace it by tables and expressions")
            raise ExchangeError(f"{node.title} is a {node.type}: {why}")
        if unknown := sorted(set(node.content) - _CONTENT[node.type]):
            raise ExchangeError(f"{node.title} has {unknown[0]!r}, which is not known; remove it")
        if node.content.get("executionMode", "single") not in ("single", None):
            raise ExchangeError(
                f"{node.title} runs once for each element of a list, and features are single values; "
                "set its execution mode to single"
            )
        if node.content.get("inputField"):
            raise ExchangeError(
                f"{node.title} has an input field; write the whole names in its cells instead"
            )

    def _reaching(self, nodes: Mapping[str, _Node]) -> set[_Node]:
        def reached(start: _Node, *, forward: bool) -> set[_Node]:
            found, waiting = {start}, [start]
            while waiting:
                node = waiting.pop()
                following = node.after if forward else [one for one, _ in node.before]
                for one in following:
                    if one not in found:
                        found.add(one)
                        waiting.append(one)
            return found

        start = next(node for node in nodes.values() if node.type == "inputNode")
        end = next(node for node in nodes.values() if node.type == "outputNode")
        return reached(start, forward=True) & reached(end, forward=False)

    def _enter(self, node: _Node) -> None:
        """Set what a node reads, and when it is evaluated."""
        if node.type == "inputNode":
            if node.before:
                raise ExchangeError("the input node has a node before it; remove the edge")
            return
        if len({before for before, _ in node.before}) < len(node.before):
            raise ExchangeError("two edges come from one node; remove one of them")
        node.scope = merged_scope(before.scope for before, _ in node.before)
        guards = [self._guard(before, handle) for before, handle in node.before]
        if node.type == "outputNode":
            return
        node.guard, node.branches = guards[0]
        if any(guard != guards[0] for guard in guards):
            raise ExchangeError(
                "it comes after several branches of a switch; let each branch have nodes of its own up to "
                "the output"
            )

    def _guard(self, before: _Node, handle: str | None) -> tuple[Formula, Branches]:
        if before.type != "switchNode":
            return before.guard, before.branches
        if handle not in before.statements:
            raise ExchangeError(f"its edge from {before.title} has no statement of the switch; remove it")
        condition, number = before.statements[handle]
        return joined(True, before.guard, condition), before.branches | {(before.id, number)}

    # Nodes

    def _translator(self, scope: Scope, keys: Mapping[str, Expression | Symbol] | None = None) -> Translator:
        def resolve(path: str) -> Symbol | Expression:
            if path.startswith("$."):
                key = path[2:]
                if keys is None or key not in keys:
                    raise ExchangeError(f'"{path}" is not a key above this one; write the name of a value')
                return keys[key]
            if path.startswith("$"):
                raise ExchangeError(f'"{path}" is not supported; write the name of a value')
            return scope.resolve(path, self.draft, self._mapping, self._symbols)

        return Translator(ZEN, resolve, doubles=self._doubles)

    def _parsed(self, text: str) -> Expression:
        return parse_expression(text, ZEN)

    def _table(self, node: _Node) -> None:
        hit: Hit = _choice(node.content, "hitPolicy", {"first": "first", "collect": "collect"})  # type: ignore[assignment]
        inputs = _dicts(node.content, "inputs")
        columns = []
        for number, column in enumerate(inputs, 1):
            title = str(column.get("name") or column.get("field") or number)
            with place(f'input "{title}"'):
                if column.get("defaultValue") not in (None, ""):
                    raise ExchangeError("a default value is not supported; add a row for null")
                text = column.get("field") or ""
                columns.append((_string(column, "id"), title, self._parsed(text) if text else None))
        outputs = self._outputs(node)
        translator = self._translator(node.scope)
        guard = self._guarded(node)
        rows = []
        for number, rule in enumerate(_dicts(node.content, "rules"), 1):
            tests = [guard]
            for key, title, subject in columns:
                with place(f'row {number}, input "{title}"'):
                    tests.append(self._cell(rule.get(key), subject, translator))
            values = tuple(
                self._constant(rule.get(key), f'row {number}, output "{path}"') for key, path in outputs
            )
            rows.append(DraftRow(tuple(tests), values, f"row {number}"))
        if not rows:
            raise ExchangeError("the table has no rows; add one or remove the node")
        table = self.draft.add(
            DraftTable(
                self.draft.unique(node.name),
                node.name,
                hit,
                tuple(path for _, path in outputs),
                rows,
                node.branches,
            )
        )
        self._leave(node, {path: Output(table, path, None, node.title) for _, path in outputs}, hit)

    def _outputs(self, node: _Node) -> list[tuple[str, str]]:
        outputs: list[tuple[str, str]] = []
        for column in _dicts(node.content, "outputs"):
            path = column.get("field")
            if not isinstance(path, str) or not path or "[" in path:
                raise ExchangeError(
                    f"the output {path!r} is not a name; rules write single values, so name one without []"
                )
            if any(path == other for _, other in outputs):
                raise ExchangeError(f'two outputs have the field "{path}"; remove one of them')
            outputs.append((_string(column, "id"), path))
        return outputs

    def _cell(self, cell: Any, subject: Expression | None, translator: Translator) -> Formula:
        text = _text(cell)
        if not text.strip():
            return Fixed(True)
        if subject is None:
            return translator.outcomes(self._parsed(text)).true
        test = parse_cell(text, ZEN, subject)
        return Fixed(True) if test is None else translator.outcomes(test).true

    def _constant(self, cell: Any, where: str) -> Value:
        text = _text(cell)
        if not text.strip():
            return None
        with place(where):
            found = self._parsed(text)
            if not isinstance(found, Constant):
                raise ExchangeError(
                    "the cell is not a string, a number, true, false or null; rules write constants only, so "
                    "add a row for each value"
                )
            return found.value

    def _guarded(self, node: _Node) -> Formula:
        """Return when a node is evaluated, as a value if it is not a simple test."""
        if isinstance(node.guard, Fixed):
            return node.guard
        return self.draft.condition(
            f"{node.name}_is_reached", node.guard, f'Whether "{node.name}" is evaluated.'
        )

    def _leave(self, node: _Node, outputs: Mapping[str, Output], hit: Hit = "first") -> None:
        """Set what the nodes after this one can read."""
        prefix = node.content.get("outputPath") or ""
        passes = bool(node.content.get("passThrough"))
        if hit == "collect" and not prefix:
            # The result is a list, which replaces everything else.
            if any(len(after.before) > 1 for after in node.after):
                raise ExchangeError(
                    "the rows of a table that collects are merged with another node; "
                    "give the table an output path"
                )
            passes = False
        named = {f"{prefix}.{path}" if prefix else path: output for path, output in outputs.items()}
        if passes and node.scope.is_open:
            for path in named:
                if self._mapping.names.get(path, path) in self._symbols:
                    raise ExchangeError(
                        f'the output "{path}" replaces a value of the request; give it another name'
                    )
        node.scope = (node.scope if passes else Scope(is_open=False)).with_outputs(named)

    def _expressions(self, node: _Node) -> None:
        keys: dict[str, Expression | Symbol] = {}
        outputs: dict[str, Output] = {}
        guard = self._guarded(node)
        for entry in _dicts(node.content, "expressions"):
            key, text = entry.get("key") or "", _text(entry.get("value"))
            if not key or not text.strip():
                continue
            with place(f'expression "{key}"'):
                if key in outputs:
                    raise ExchangeError("the key occurs twice; rename one of the two")
                translator = self._translator(node.scope, keys)
                cases = translator.cases(self._parsed(text))
                outputs[key] = self._expression(node, key, cases, guard)
                keys[key] = outputs[key].read(self.draft)
        self._leave(node, outputs)

    def _expression(self, node: _Node, key: str, cases: Sequence[Case], guard: Formula) -> Output:
        path = f"{node.content['outputPath']}.{key}" if node.content.get("outputPath") else key
        rows = rows_of(cases, guard) if self._writes(path) else None
        if rows is None:
            about = f'Expression "{key}" of "{node.name}".'
            return Output(None, key, self.draft.cases(key, cases, about), node.title)
        table = DraftTable(
            self.draft.unique(f"{node.name}_{key}"),
            f"{node.name}, {key}",
            "first",
            (key,),
            rows,
            node.branches,
        )
        return Output(self.draft.add(table), key, None, node.title)

    def _writes(self, path: str) -> bool:
        return path in self._mapping.outputs or path in self._mapping.eligibility or path in WRITTEN

    def _switch(self, node: _Node) -> None:
        hit = _choice(node.content, "hitPolicy", {"first": "first", "collect": "collect"})
        if hit == "collect":
            raise ExchangeError("a switch that follows several branches is not supported; use the first one")
        translator = self._translator(node.scope)
        earlier: Formula = Fixed(True)
        for number, statement in enumerate(_dicts(node.content, "statements")):
            with place(f"statement {number + 1}"):
                text = _text(statement.get("condition"))
                true = translator.outcomes(self._parsed(text)).true if text.strip() else Fixed(True)
                condition = joined(True, earlier, true)
                if condition == Fixed(False):
                    raise ExchangeError("the statement is never reached; correct or remove it")
                named = self.draft.condition(
                    f"{node.name}_branch_{number + 1}", condition, f'Branch {number + 1} of "{node.name}".'
                )
                node.statements[_string(statement, "id")] = (named, number)
                earlier = joined(True, earlier, negated(true))

    def _result(self, node: _Node) -> None:
        """Map the outputs that reach the output node."""
        for path, outputs in node.scope.outputs.items():
            if path in self._mapping.ignore:
                continue
            written = self._written(path, outputs)
            for output in outputs:
                if output.table is None:
                    raise ExchangeError(
                        f'the output "{path}" of {output.writer} is computed, and rules write constants; '
                        "write it with a decision table, or list it in ignore of the file of --map"
                    )
                with place(output.writer):
                    self.draft.write(output.table, output.name, written)

    def _written(self, path: str, outputs: Sequence[Output]) -> str:
        if path in self._mapping.eligibility:
            return path
        if path in self._mapping.outputs:
            return self._mapping.outputs[path]
        tables = [output.table for output in outputs]
        last = path.rpartition(".")[2]
        if path in WRITTEN or (
            last in WRITTEN and all(one is not None and one.hit == "collect" for one in tables)
        ):
            return last
        raise ExchangeError(
            f'the output "{path}" is not mapped to what rules write ({", ".join(WRITTEN)} or eligibility); '
            "map it in the table [outputs] of the file of --map, or list it in ignore"
        )


def rows_of(cases: Sequence[Case], guard: Formula) -> list[DraftRow] | None:
    """Return the rows of an expression whose values are constants; None if they are not."""
    rows = []
    for number, case in enumerate(cases, 1):
        if isinstance(case.value, Constant):
            values: list[tuple[Formula, Value]] = [(Fixed(True), case.value.value)]
        elif (
            isinstance(case.value, Read) and case.value.symbol.values and case.value.symbol.absent is not None
        ):
            symbol = case.value.symbol
            values = [(Compare("==", case.value, Constant(one)), one) for one in symbol.values or ()]
        else:
            return None
        rows += [
            DraftRow((guard, case.when, test), (value,), f"case {number}")
            for test, value in values
            if value is not None
        ]
    return rows


def _ordered(nodes: Sequence[_Node]) -> list[_Node]:
    """Return the nodes so that each follows those before it."""
    left = {node: len(node.before) for node in nodes}
    ready = [node for node, count in left.items() if count == 0]
    found = []
    while ready:
        node = ready.pop(0)
        found.append(node)
        for after in node.after:
            left[after] -= 1
            if left[after] == 0:
                ready.append(after)
    if len(found) < len(nodes):
        rest = next(node for node in nodes if node not in found)
        raise ExchangeError(f"{rest.title} is in a cycle; remove one of its edges")
    return found


def _dicts(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = document.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ExchangeError(f'"{key}" is not a list of objects; export the graph again')
    return value


def _string(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise ExchangeError(f'"{key}" is missing or not a string; export the graph again')
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ExchangeError(f"the cell has {type(value).__name__}, not text; export the graph again")
    return value


def _choice(document: Mapping[str, Any], key: str, choices: Mapping[str, str]) -> str:
    value = document.get(key) or "first"
    if value not in choices:
        raise ExchangeError(f"the {key} {value!r} is not supported; use {' or '.join(choices)}")
    return choices[value]
