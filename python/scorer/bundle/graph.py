"""The program of a bundle as a graph: its nodes, the slots between them and their types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from scorer.bundle.columns import added_columns
from scorer.bundle.loaded import NetFacts
from scorer.bundle.models import (
    CalibrateNode,
    FunctionCall,
    LinkNode,
    MeanNode,
    Node,
    OnnxNode,
    PolicyNode,
    RulesNode,
    StackNode,
    SwitchCase,
    SwitchNode,
    ThresholdNode,
    TransformNode,
)
from scorer.bundle.times import NodeTime

INPUT: Final = "row"
"""The slot of the request's row."""
_SHOWN: Final = 4
"""Categories and columns that a description names."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node of a program, with the slots that it connects."""

    number: int
    """Position in the program, from 0; -1 for the request's row."""
    kind: str
    reads: tuple[str, ...]
    """Slots that the node reads, each once, in its own order."""
    writes: str
    """The slot that the node writes."""
    type: str
    """Type of that slot: row, margins, score, eligible, decision or action."""
    settings: str
    """What the node computes, in a few words."""
    columns: tuple[str, ...] = ()
    """Columns that the node adds to a row."""


def program_graph(
    program: Sequence[Node], features: int, nets: Sequence[NetFacts] = ()
) -> tuple[GraphNode, ...]:
    """Return the nodes of a program in the order in which they run, after one for the request's row.

    Args:
        program: The nodes of a verified bundle.
        features: Number of features of a row; in an action bundle with those of the action.
        nets: The ONNX models of the bundle, to describe their nodes.
    """
    described = {net.file: net.summary for net in nets}
    return (
        GraphNode(-1, "request", (), INPUT, "row", f"{features} features"),
        *(
            GraphNode(
                number,
                node.kind,
                tuple(dict.fromkeys(_reads(node))),
                node.output,
                _TYPES.get(node.kind, "score")
                if not (isinstance(node, RulesNode) and node.input == INPUT)
                else "eligible",
                described.get(node.file, node.file) if isinstance(node, OnnxNode) else _settings(node),
                tuple(added_columns(node.steps)) if isinstance(node, TransformNode) else (),
            )
            for number, node in enumerate(program)
        ),
    )


_TYPES: Final = {
    "transform": "row",
    "forest": "margins",
    "threshold": "decision",
    "policy": "action",
}


def edges(nodes: Sequence[GraphNode]) -> Iterator[tuple[GraphNode, GraphNode]]:
    """Yield each pair of a node and one that reads its slot.

    Args:
        nodes: The result of `program_graph`.
    """
    writer = {node.writes: node for node in nodes}
    for node in nodes:
        yield from ((writer[slot], node) for slot in node.reads if slot in writer)


def to_dot(nodes: Sequence[GraphNode], times: Mapping[str, NodeTime] | None = None) -> str:
    """Return a graph in the language of Graphviz.

    Args:
        nodes: The result of `program_graph`.
        times: The times of nodes, by the slot that a node writes.
    """
    lines = ["digraph program {", "  rankdir=LR;", "  node [shape=box];"]
    for node in nodes:
        label = f"{node.kind}\n{node.settings}" if node.settings else node.kind
        time = (times or {}).get(node.writes)
        if time is not None and time.timed:
            label += f"\n{time_text(time.mean_us)}"
        lines.append(f"  n{node.number + 1} [label={json.dumps(label)}];")
    for first, second in edges(nodes):
        label = json.dumps(f"{first.writes} ({first.type})")
        lines.append(f"  n{first.number + 1} -> n{second.number + 1} [label={label}];")
    return "\n".join([*lines, "}"])


def to_dicts(
    nodes: Sequence[GraphNode], times: Mapping[str, NodeTime] | None = None
) -> list[dict[str, object]]:
    """Return the nodes as JSON values.

    Args:
        nodes: The result of `program_graph`.
        times: The times of nodes, by the slot that a node writes; None: they are left out.
    """
    if times is None:
        return [asdict(node) for node in nodes]
    return [
        asdict(node) | {"time": None if node.writes not in times else asdict(times[node.writes])}
        for node in nodes
    ]


def time_text(microseconds: float) -> str:
    """Return a time with three digits and its unit."""
    if microseconds >= 999.5:
        return f"{microseconds / 1e3:.3g} ms"
    if microseconds >= 0.9995:
        return f"{microseconds:.3g} µs"
    return f"{microseconds * 1e3:.3g} ns"


def _reads(node: Node) -> Iterator[str]:
    match node:
        case MeanNode(inputs=inputs) | StackNode(inputs=inputs):
            yield from inputs
        case SwitchNode(row=row, cases=cases, default=default):
            yield row
            yield from (case.input for case in cases)
            yield default
        case PolicyNode(input=score, voters=voters, eligible=eligible):
            yield score
            yield from voters
            if eligible is not None:
                yield eligible
        case _:
            yield node.input


def _settings(node: Node) -> str:
    text = ""
    match node:
        case TransformNode(steps=steps):
            text = _list([f"{s.name}()" if isinstance(s, FunctionCall) else s.function for s in steps])
        case LinkNode(index=index):
            text = f"output {index}" if index else ""
        case CalibrateNode(map=name):
            text = f"map {name}"
        case MeanNode(of=of, weights=weights):
            text = f"of {of}" + (
                f", weights {_list([f'{weight:g}' for weight in weights])}" if weights else ""
            )
        case StackNode(of=of, coefficients=coefficients, intercept=intercept):
            text = f"{intercept:g} + {_list([f'{factor:g}' for factor in coefficients])} of {of}"
        case SwitchNode(feature=feature, cases=cases, default=default):
            text = f"by {feature}: " + "; ".join([*map(_case, cases[:_SHOWN]), f"else {default}"])
        case ThresholdNode(bands=bands):
            text = _list([band.label for band in bands])
        case PolicyNode(policy=policy):
            text = policy.rule
        case _:
            text = node.file
    return text


def _case(case: SwitchCase) -> str:
    if case.categories:
        return f"{_list(case.categories)} {case.input}"
    ends = ("" if end is None else f"{end:g}" for end in (case.start, case.end))
    return f"{'..'.join(ends)} {case.input}"


def _list(words: Sequence[str]) -> str:
    more = "" if len(words) <= _SHOWN else f" and {len(words) - _SHOWN} more"
    return ", ".join(words[:_SHOWN]) + more
