"""Drawing of a bundle's program: nodes in columns from the request to the decision, with lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scorer.bundle.graph import GraphNode, edges, time_text
from scorer.bundle.times import NodeTime

BOX_WIDTH: Final = 168
BOX_HEIGHT: Final = 44
_GAP: Final = 52
_SPACE: Final = 14
_MARGIN: Final = 8
_LETTERS: Final = 26
"""Letters of a line that fit into a box."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node's box, whose upper left corner is at `x` and `y`."""

    node: GraphNode
    x: int
    y: int
    text: str
    """The settings, cut to the width of the box."""
    time: str = ""
    """Mean time of the node; empty if it was not measured."""
    timed: int = 0
    """Number of measured evaluations in which the node ran."""
    bar: int = 0
    """Width of the bar that shows its part of the time of all nodes, in units of the box."""


@dataclass(frozen=True, slots=True)
class DrawnProgram:
    """Boxes, and the paths of the lines between them in the form of an SVG path."""

    width: int
    height: int
    nodes: tuple[DrawnNode, ...]
    paths: tuple[str, ...]

    @property
    def is_timed(self) -> bool:
        """Whether a node has a time."""
        return any(one.time for one in self.nodes)


def draw_program(nodes: Sequence[GraphNode], times: Mapping[str, NodeTime] | None = None) -> DrawnProgram:
    """Place each node in the column after the last of the nodes that it reads.

    Args:
        nodes: The result of `scorer.bundle.graph.program_graph`, in the order in which the nodes run.
        times: The times of nodes, by the slot that a node writes.
    """
    measured = {slot: time for slot, time in (times or {}).items() if time.timed}
    total = sum(time.mean_us for time in measured.values())
    column: dict[int, int] = {}
    readers = list(edges(nodes))
    for node in nodes:
        before = [column[first.number] for first, second in readers if second is node]
        column[node.number] = 1 + max(before, default=-1)
    rows: dict[int, int] = {}
    for at in column.values():
        rows[at] = rows.get(at, 0) + 1
    most = max(rows.values())
    placed: dict[int, DrawnNode] = {}
    used: dict[int, int] = {}
    for node in nodes:
        at = column[node.number]
        row = used.get(at, 0)
        used[at] = row + 1
        # The boxes of a column are centred.
        top = (most - rows[at]) * (BOX_HEIGHT + _SPACE) // 2
        time = measured.get(node.writes)
        placed[node.number] = DrawnNode(
            node,
            _MARGIN + at * (BOX_WIDTH + _GAP),
            _MARGIN + top + row * (BOX_HEIGHT + _SPACE),
            node.settings if len(node.settings) <= _LETTERS else f"{node.settings[: _LETTERS - 1]}…",
            "" if time is None else time_text(time.mean_us),
            0 if time is None else time.timed,
            0 if time is None else round(BOX_WIDTH * time.mean_us / total),
        )
    return DrawnProgram(
        2 * _MARGIN + len(rows) * (BOX_WIDTH + _GAP) - _GAP,
        2 * _MARGIN + most * (BOX_HEIGHT + _SPACE) - _SPACE,
        tuple(placed.values()),
        tuple(_path(placed[first.number], placed[second.number]) for first, second in readers),
    )


def _path(first: DrawnNode, second: DrawnNode) -> str:
    start, end = first.x + BOX_WIDTH, second.x
    from_y, to_y = first.y + BOX_HEIGHT // 2, second.y + BOX_HEIGHT // 2
    half = _GAP // 2
    return f"M{start} {from_y}C{start + half} {from_y} {end - half} {to_y} {end} {to_y}"
