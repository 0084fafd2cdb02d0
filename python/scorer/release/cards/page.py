"""A global explanation as one self-contained page."""

from __future__ import annotations

from scorer.explain.document import GlobalExplanation, SurrogateNode, SurrogateTree
from scorer.release.cards.figures import explanation_figures, quantity_words
from scorer.report import ReportPage


def explanation_page(explanation: GlobalExplanation) -> str:
    """Return the page with the figures, their numbers, the surrogate tree and the notes."""
    data = explanation.data
    of = f", action {explanation.action}" if explanation.action else ""
    page = ReportPage(
        f"{explanation.name}: global explanation",
        f"{data.used:,} of {data.seen:,} rows of {data.source}{of}; {explanation.created_at}",
    )
    tree = explanation.surrogate
    page.tiles(
        [
            (str(sum(1 for one in explanation.importance if one.splits)), "features that the forest uses"),
            (f"{explanation.explained:,}", "rows with exact contributions"),
            (
                "unknown" if explanation.expectation is None else f"{explanation.expectation:.4g}",
                "expected margin over the training rows",
            ),
            (
                "unknown" if tree.r_squared is None else f"{tree.r_squared:.1%}",
                f"of the variance explained by a tree of depth {tree.depth}",
            ),
        ]
    )
    for note in explanation.notes:
        page.note(note)
    for figure in explanation_figures(explanation):
        page.plotly(figure.name, figure.title, figure.words, figure.plotly, figure.columns, figure.rows)
    page.section("Surrogate tree", surrogate_words(tree))
    page.table(
        ("rule", "rows", quantity_words(explanation), "decision"),
        surrogate_rows(tree),
        texts=(0, 3),
    )
    page.section("Provenance")
    page.table(
        ("", ""),
        [
            ("bundle", explanation.bundle),
            ("rows", f"{data.seen:,} read, {data.refused:,} rejected by the schema, {data.used:,} used"),
            ("digest of the sample", data.digest),
            *((f"setting {name}", str(value)) for name, value in explanation.settings.model_dump().items()),
        ],
        texts=(0, 1),
    )
    return page.text()


def surrogate_words(tree: SurrogateTree) -> str:
    """Return the fidelity of a surrogate tree in one or two sentences."""
    words = f"A tree of depth {tree.depth} that imitates the bundle, fitted on {tree.fitted:,} rows."
    if not tree.tested:
        return f"{words} There are too few rows to measure how well it does."
    words += f" On {tree.tested:,} other rows it"
    words += (
        " cannot be measured, because their values are all equal"
        if tree.r_squared is None
        else f" explains {tree.r_squared:.1%} of the variance, with a mean error of {tree.error:.3g}"
    )
    return words + (
        f", and {tree.agreement:.1%} of its decisions agree." if tree.agreement is not None else "."
    )


def surrogate_rows(tree: SurrogateTree) -> list[tuple[str, str, str, str]]:
    """Return the leaves of a surrogate tree as rules, with their rows, value and decision."""
    rows: list[tuple[str, str, str, str]] = []

    def visit(at: int, conditions: tuple[str, ...]) -> None:
        node = tree.nodes[at]
        if node.left is None or node.right is None:
            rule = " and ".join(conditions) or "every row"
            rows.append((rule, f"{node.rows:,}", f"{node.value:.4g}", node.label or ""))
            return
        visit(node.left, (*conditions, _condition(node, is_left=True)))
        visit(node.right, (*conditions, _condition(node, is_left=False)))

    visit(0, ())
    return rows


def _condition(node: SurrogateNode, *, is_left: bool) -> str:
    if node.level is not None:
        return f"{node.feature} {'is' if is_left else 'is not'} {node.level}"
    missing = " (or missing)" if node.missing_left is is_left else ""
    sign = "<" if is_left else "≥"
    return f"{node.feature} {sign} {node.threshold:.6g}{missing}"
