"""Reading of XML without entities, within bounds of size and depth."""

from __future__ import annotations

from xml.etree.ElementTree import Element, ParseError, TreeBuilder
from xml.parsers.expat import ExpatError, ParserCreate, errors

from scorer.rule_exchange.expressions import ExchangeError

MAX_DEPTH = 64
"""Greatest depth of elements."""
MAX_ELEMENTS = 200_000
"""Greatest number of elements."""


def read_xml(content: bytes) -> Element:
    """Parse XML. Document types are refused, so that no entity is expanded and nothing else is read.

    Args:
        content: The file.

    Raises:
        ExchangeError: It is not valid, has a document type, or is too deep or too large.
    """
    builder = TreeBuilder()
    parser = ParserCreate(namespace_separator="}")
    depth = elements = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth, elements
        depth, elements = depth + 1, elements + 1
        if depth > MAX_DEPTH or elements > MAX_ELEMENTS:
            raise ExchangeError(
                f"the file has more than {MAX_ELEMENTS} elements or is nested more than {MAX_DEPTH} deep; "
                "split it"
            )
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name)

    def refuse(*_: object) -> None:
        raise ExchangeError("the file has a document type (<!DOCTYPE>), which is not read; remove it")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(content, True)
        return builder.close()
    except (ExpatError, ParseError, AssertionError) as error:
        reason = errors.messages.get(getattr(error, "code", 0), str(error))
        raise ExchangeError(f"the file is not valid XML: {reason}; export it again") from None


def local(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def namespace(element: Element) -> str:
    """Return the namespace of an element; empty if it has none."""
    return element.tag.rpartition("}")[0]


def children(element: Element, name: str) -> list[Element]:
    """Return the children of an element with a name, in the namespace of the element."""
    return [one for one in element if local(one) == name and namespace(one) == namespace(element)]


def child(element: Element, name: str) -> Element | None:
    """Return the only child of an element with a name; None if there is none."""
    found = children(element, name)
    return found[0] if found else None


def text_of(element: Element, name: str = "text") -> str:
    """Return the text of a child; empty if there is none."""
    found = child(element, name)
    return "" if found is None else (found.text or "").strip()
