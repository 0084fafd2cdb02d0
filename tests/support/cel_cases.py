"""The conformance cases of cel-spec, as `make cel-spec` installs them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from cel_textproto import TextMessage, message_of, messages_of, read_textproto, text_of
from components import BUILD

SPEC: Final = BUILD / "cel-spec"
_SCALARS: Final = {
    "BOOL": "bool",
    "INT64": "int",
    "UINT64": "uint",
    "DOUBLE": "double",
    "STRING": "string",
    "BYTES": "bytes",
}
_VALUES: Final = {
    "null_value": "null",
    "bool_value": "bool",
    "int64_value": "int",
    "uint64_value": "uint",
    "double_value": "double",
    "string_value": "string",
    "bytes_value": "bytes",
    "map_value": "map",
    "list_value": "list",
    "type_value": "type",
    "object_value": "message",
    "enum_value": "enum",
}


@dataclass(frozen=True)
class CelValue:
    """A value of CEL.

    Attributes:
        kind: Its type: bool, int, double, string, null, or one that the language of rules does not have.
        value: The value of the four scalar types that the language of rules has; None of all others.
    """

    kind: str
    value: bool | int | float | str | None = None


@dataclass(frozen=True)
class CelCase:
    """A case: an expression, its names and its result.

    Attributes:
        name: File, section and name.
        text: The expression.
        declared: The types of the names. A name that has a value and no declared type has that of the value.
        bound: The values of names.
        container: The container in which names are looked up.
        result: The expected value; None if an error is expected, or only the type.
        result_kind: The type that the checker deduces; empty if the case does not state it.
        errors: The messages of the expected error.
        has_macros: Whether macros are expanded.
    """

    name: str
    text: str
    declared: dict[str, str]
    bound: dict[str, CelValue]
    container: str
    result: CelValue | None
    result_kind: str
    errors: tuple[str, ...]
    has_macros: bool


@cache
def conformance_cases() -> tuple[CelCase, ...]:
    """Return all cases of all files, in the order of the files' names."""
    found: list[CelCase] = []
    for path in sorted((SPEC / "testdata").glob("*.textproto")):
        found += _cases(path)
    return tuple(found)


def _cases(path: Path) -> list[CelCase]:
    return [
        _case(f"{path.stem}/{text_of(section, 'name')}/{text_of(test, 'name')}", test)
        for section in messages_of(read_textproto(path.read_text(encoding="utf-8")), "section")
        for test in messages_of(section, "test")
    ]


def _case(name: str, test: TextMessage) -> CelCase:
    declarations = messages_of(test, "type_env")
    declared = {
        text_of(one, "name"): _type(message_of(ident, "type") or {})
        for one in declarations
        if (ident := message_of(one, "ident")) is not None
    }
    bound = {
        text_of(one, "key"): _value(message_of(one, "value") or {}) for one in messages_of(test, "bindings")
    }
    for key, value in bound.items():
        declared.setdefault(key, value.kind)
    typed = message_of(test, "typed_result")
    result: CelValue | None = None
    errors: tuple[str, ...] = ()
    if typed is not None:
        stated = message_of(typed, "result")
        result = None if stated is None or text_of(test, "check_only") == "true" else _only(stated)
    elif (stated := message_of(test, "value")) is not None:
        result = _only(stated)
    elif sets := [*messages_of(test, "eval_error"), *_alternatives(test)]:
        errors = tuple(text_of(error, "message") for one in sets for error in messages_of(one, "errors"))
    else:
        result = CelValue("bool", value=True)
    return CelCase(
        name=name,
        text=text_of(test, "expr"),
        declared=declared,
        bound=bound,
        container=text_of(test, "container"),
        result=result,
        result_kind=_type(message_of(typed, "deduced_type") or {}) if typed is not None else "",
        errors=errors,
        has_macros=text_of(test, "disable_macros") != "true",
    )


def _alternatives(test: TextMessage) -> list[TextMessage]:
    found = message_of(test, "any_eval_errors")
    return [] if found is None else messages_of(found, "errors")


def _type(message: TextMessage) -> str:
    if "primitive" in message:
        return _SCALARS[text_of(message, "primitive")]
    return next((field.removesuffix("_type") for field in message), "")


def _value(binding: TextMessage) -> CelValue:
    stated = message_of(binding, "value")
    return CelValue("unknown") if stated is None else _only(stated)


def _only(message: TextMessage) -> CelValue:
    field = next(iter(message), "null_value")
    kind = _VALUES[field]
    return CelValue(kind, _scalar(kind, message.get(field, [""])[0]))


def _scalar(kind: str, written: Any) -> bool | int | float | str | None:
    if kind == "bool":
        return bool(written == "true")
    if kind == "int":
        return int(written, 0)
    if kind == "double":
        return float(written)
    if kind == "string":
        return str(written.decode())
    return None
