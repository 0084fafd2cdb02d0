"""Import of a rule set from a file of another decision engine."""

from __future__ import annotations

from pathlib import Path

from scorer.rule_exchange.dmn import import_dmn
from scorer.rule_exchange.draft import place
from scorer.rule_exchange.expressions import ExchangeError
from scorer.rule_exchange.jdm import import_jdm
from scorer.rule_exchange.mapping import ImportMapping, RuleTarget

MAX_BYTES = 16 << 20
"""Greatest size of a file in bytes."""


def import_rules(
    file: Path, target: RuleTarget, mapping: ImportMapping, *, name: str | None = None, doubles: bool = False
) -> str:
    """Return the rule set of a JDM graph (``.json``) or a DMN file (``.dmn`` or ``.xml``) as TOML.

    Args:
        file: The file.
        target: The bundle.
        mapping: What names mean.
        name: Name of the rule set; by default that of the file.
        doubles: Whether arithmetic may be computed with doubles instead of decimals.

    Raises:
        ExchangeError: The file cannot be read, or a part of it cannot be expressed.
    """
    with place(f'rules "{file}"'):
        readers = {".json": import_jdm, ".dmn": import_dmn, ".xml": import_dmn}
        reader = readers.get(file.suffix.lower())
        if reader is None:
            raise ExchangeError(
                f"the file's name ends with {file.suffix!r}; give a .json file of JDM or a .dmn file"
            )
        try:
            with file.open("rb") as source:
                content = source.read(MAX_BYTES + 1)
        except OSError as error:
            raise ExchangeError(f"it cannot be read: {error.strerror}; correct the path") from None
        if len(content) > MAX_BYTES:
            raise ExchangeError(f"it has more than {MAX_BYTES} bytes; split it")
        return reader(content, target, mapping, name=name or file.stem, doubles=doubles)
