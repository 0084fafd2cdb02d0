"""Generate python/scorer/sdk/operations.py from the routes of REST. With `--check`, fail if it differs.

An operation is declared once, as a route of `scorer.web.api` with a request of `scorer.release.requests`:
path, fields, limits, defaults, descriptions and errors. The method of the SDK is generated from it.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from scorer.release import model
from scorer.release.problems import KINDS
from scorer.release.requests import QuotaChange
from scorer.sdk import results
from scorer.web.api.application import ROUTERS
from scorer.web.api.values import PageOut

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "python/scorer/sdk/operations.py"
WIDTH = 108


@dataclass(frozen=True)
class Method:
    """The SDK method of a route.

    Attributes:
        name: Name of the method.
        positional: Fields that may be given by position, in this order, after those of the path.
        names: Names of parameters that differ from REST, by the name in REST.
        seconds: Timeout of the response; empty: the client's.
        repeatable: Whether a POST may be sent twice, because the second one changes nothing.
    """

    name: str
    positional: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    seconds: str = ""
    repeatable: bool = False


METHODS = {
    "whoami": Method("me"),
    "list_projects": Method("projects"),
    "get_project": Method("project", names={"project": "name"}),
    "create_project": Method("create_project", ("name", "title")),
    "update_project": Method("update_project", names={"project": "name"}),
    "list_members": Method("members"),
    "set_member": Method("set_member", ("role",)),
    "remove_member": Method("remove_member"),
    "list_users": Method("users"),
    "add_user": Method("add_user", ("name",)),
    "set_admin": Method("set_admin", names={"user": "name"}),
    "remove_user": Method("remove_user", names={"user": "name"}),
    "list_tokens": Method("tokens"),
    "create_token": Method("create_token", ("label", "role")),
    "revoke_token": Method("revoke_token"),
    "list_servers": Method("servers"),
    "add_server": Method("add_server", ("name", "control")),
    "remove_server": Method("remove_server", names={"server": "name"}),
    "add_checkpoint": Method("add_checkpoint", ("name", "alias")),
    "serve_checkpoint": Method("serve_checkpoint", ("kind",)),
    "list_builds": Method("builds", ("project",)),
    "get_build": Method("get_build"),
    "cancel_build": Method("cancel_build"),
    "adopt_bundle": Method("adopt", ("bundle",), repeatable=True),
    "list_bundles": Method("bundles", ("project",)),
    "get_bundle": Method("bundle", names={"bundle": "reference"}),
    "explain_bundle": Method("explain_bundle", ("document",)),
    "get_explanation": Method("explanation"),
    "describe_bundle": Method("describe_bundle"),
    "get_card": Method("card"),
    "delete_change": Method("delete"),
    "submit_change": Method("submit"),
    "rebook_change": Method("rebook"),
    "finish_change": Method("finish"),
    "approve_change": Method("approve"),
    "reject_change": Method("reject"),
    "waive_gate": Method("waive"),
    "withdraw_change": Method("withdraw"),
    "rollback_change": Method("rollback"),
    "pause_release": Method("pause"),
    "resume_release": Method("resume"),
    "promote_release": Method("promote"),
    "skip_stage": Method("skip", ("stage",)),
    "comment_change": Method("comment", ("text",)),
    "request_review": Method("request_review", ("reviewers",)),
    "archive_change": Method("archive"),
    "unarchive_change": Method("unarchive"),
    "get_change": Method("change"),
    "list_changes": Method("changes"),
    "list_events": Method("events", seconds="wait + 30.0"),
    "get_readout": Method("readout", seconds="120.0"),
    "get_figure": Method("figure", names={"figure": "name"}),
    "get_metrics": Method("metrics", seconds="120.0"),
    "get_metrics_figure": Method("metrics_figure", names={"figure": "name"}, seconds="120.0"),
    "list_agent_tools": Method("agent_tools"),
    "call_agent_tool": Method("call_tool", ("arguments",), seconds="120.0"),
    "list_agent_calls": Method("agent_calls"),
    "get_agent_access": Method("agent_access"),
    "set_agent_access": Method("allow_tools", ("tools",)),
    "get_drift": Method("drift"),
    "start_weekly_comparison": Method("start_comparison", ("versions",), repeatable=True),
    "get_weekly_comparison": Method("comparison", seconds="120.0"),
    "list_adoption_tasks": Method("adoption_tasks"),
    "start_adoption_analysis": Method("analyse_adoption", ("task",), repeatable=True),
    "get_adoption_analysis": Method("adoption", seconds="120.0"),
    "get_drift_history": Method("drift_history", seconds="120.0"),
    "list_permissions": Method("permissions"),
    "grant_permission": Method("grant_permission"),
    "revoke_permission": Method("revoke_permission"),
    "list_checkpoints": Method("checkpoints"),
    "get_checkpoint": Method("checkpoint", names={"checkpoint": "name"}),
    "try_checkpoint": Method("try_payment", ("features",), repeatable=True),
    "list_tables": Method("tables"),
    "list_versions": Method("versions"),
    "get_timeline": Method("timeline"),
    "compare": Method("compare", ("left", "right"), seconds="120.0"),
    "set_sampling": Method("set_sampling"),
    "rollback_checkpoint": Method("rollback_checkpoint"),
    "next_free": Method("next_free"),
    "frozen": Method("frozen", ("at",)),
    "get_calendar": Method("calendar", ("start", "end")),
    "list_freezes": Method("freezes"),
    "add_freeze": Method("add_freeze", ("name",)),
    "remove_freeze": Method("remove_freeze", names={"id": "freeze"}),
    "recent_decisions": Method("decisions"),
    "search_decisions": Method("search_decisions", repeatable=True),
    "get_decision": Method("decision", names={"decision": "decision_id"}),
    "list_reviews": Method("reviews"),
    "get_review": Method("review", names={"id": "case"}),
    "claim_review": Method("claim_review", names={"id": "case"}, repeatable=True),
    "release_review": Method("release_review", names={"id": "case"}, repeatable=True),
    "assign_review": Method("assign_review", ("user",), names={"id": "case"}, repeatable=True),
    "decide_review": Method("decide_review", ("decision",), names={"id": "case"}, repeatable=True),
    "list_review_reasons": Method("review_reasons"),
    "set_review_reasons": Method("set_review_reasons", ("reasons",)),
    "get_rules": Method("rules"),
    "check_rules": Method("check_rules", ("text",), repeatable=True),
    "test_rules": Method("test_rules", ("text", "cases"), repeatable=True),
    "bench_rules": Method("bench_rules", ("text",), repeatable=True),
    "cost_rules": Method("cost_rules", repeatable=True),
    "rules_over_time": Method("rules_over_time"),
    "save_rules": Method("save_rules", ("text",), seconds="120.0"),
    "switch_rule": Method("switch_rule", ("to",), seconds="120.0"),
    "list_channels": Method("channels"),
    "add_channel": Method("add_channel", ("url",)),
    "remove_channel": Method("remove_channel", names={"id": "channel"}),
    "test_channel": Method("test_channel", names={"id": "channel"}, seconds="90.0"),
    "list_deliveries": Method("deliveries"),
    "list_audit": Method("audit"),
    "health": Method("health"),
}
"""Routes without an entry have a handwritten method in client.py, or none."""

RESULTS = {"MadeToken": "IssuedToken", "EventsOut": "Events", "HealthOut": "PlatformHealth", "Person": "User"}
"""Names in the SDK of models that only REST has."""

HEADER = '''"""Operations of the REST API as methods. Generated by scripts/gen_sdk.py; do not edit."""

# ruff: noqa: A002 - parameters have the names that REST gives them

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from scorer.release.model import {model}
from scorer.sdk.results import {results}

T = TypeVar("T")


class Operations:
    """Operations that the REST API declares."""

    def _call(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        raise NotImplementedError

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        raise NotImplementedError

    def _pages(self, kind: type[T], path: str, query: Mapping[str, Any]) -> Iterator[T]:
        raise NotImplementedError


def _segment(value: str | int) -> str:
    """Encode a value as one segment of a path."""
    return quote(str(value), safe="@:")
'''


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method."""

    name: str
    wire: str
    type: str
    words: str
    default: str = ""
    is_path: bool = False
    is_query: bool = False
    is_positional: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" + (f" = {self.default}" if self.default else "")


def text_of(kind: Any) -> str:  # noqa: PLR0911 - one return for each kind of type
    """Return the text of a type in a signature of the SDK."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return text_of(arguments[0])
    if origin in (typing.Union, types.UnionType):
        parts = [text_of(argument) for argument in arguments]
        return " | ".join([part for part in parts if part != "None"] + ["None"] * ("None" in parts))
    if origin is typing.Literal:
        return "str"
    if origin is list:
        return f"Sequence[{text_of(arguments[0])}]"
    if origin is Mapping:
        return f"Mapping[{text_of(arguments[0])}, {text_of(arguments[1])}]"
    if kind is QuotaChange:
        return "Mapping[str, int]"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"{kind.__name__} | str"
    return {type(None): "None", datetime: "datetime"}.get(kind) or getattr(kind, "__name__", str(kind))


def result_of(kind: Any) -> str:
    """Return the text of a response's type in the SDK."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return f"list[{result_of(arguments[0])}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(result_of, arguments))
    if origin is not None:
        return "Mapping[str, Any]"
    if kind is type(None):
        return "None"
    return RESULTS.get(kind.__name__, kind.__name__)


def info_of(kind: Any) -> tuple[str, str]:
    """Return the description and the alias that an annotation carries."""
    found = [one for one in getattr(kind, "__metadata__", ()) if isinstance(one, FieldInfo)]
    words = next((one.description for one in reversed(found) if one.description), "")
    return words, next((one.alias for one in found if one.alias), "")


def parameters(route: APIRoute, method: Method) -> Iterator[Parameter]:
    """Yield the parameters of an operation: those of the path, of the query and of the body."""
    hints = typing.get_type_hints(route.endpoint, include_extras=True)
    for name, declared in inspect.signature(route.endpoint).parameters.items():
        kind = hints[name]
        if name in ("by", "request", "response", "if_match", "cursor") or (
            name == "limit" and "PageOut" in str(hints["return"])
        ):
            continue
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            for field, info in kind.model_fields.items():
                default = "" if info.is_required() else value_of(info.default, info.annotation)
                words = info.description or info_of(info.annotation)[0]
                yield named(method, field, info.annotation, words, default)
            continue
        words, alias = info_of(kind)
        default = "" if declared.default is inspect.Parameter.empty else value_of(declared.default, kind)
        is_path = f"{{{alias or name}}}" in route.path
        yield named(method, alias or name, kind, words, default, is_path=is_path, is_query=not is_path)


def named(method: Method, wire: str, kind: Any, words: str, default: str, **flags: bool) -> Parameter:
    """Return a parameter, with the name and the positional flag of the method.

    Args:
        method: The method.
        wire: Name of the field in REST.
        kind: Type of the field.
        words: Description of the field.
        default: Default as Python source; empty: the parameter is required.
        **flags: Whether it belongs to the path or to the query.

    Raises:
        SystemExit: The field has no description.
    """
    name = method.names.get(wire, wire)
    positional = flags.get("is_path", False) or wire in method.positional
    if not words:
        raise SystemExit(f"{method.name}: {wire} has no description; document the field")
    for null, none in (("; null", "; None"), ("Null:", "None:")):
        words = words.replace(null, none)
    return Parameter(name, wire, text_of(kind), words, default, is_positional=positional, **flags)


def value_of(value: Any, kind: Any) -> str:
    """Return a default as Python source."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, list):
        return repr(tuple(value))
    return "" if value is PydanticUndefined else repr(value).replace("'", '"')


def raises(route: APIRoute, given: list[Parameter]) -> dict[str, str]:
    """Return the errors of an operation, each with its cause."""
    by_status = {kind.status: kind.error.__name__ for kind in reversed(KINDS)}
    found = {}
    if any(one.is_path for one in given):
        found["NotFoundError"] = "The object does not exist, or the user may not see it."
    if any(not one.is_path for one in given) and "GET" not in route.methods:
        found["InvalidError"] = "A field is out of range."
    if "GET" not in route.methods or "For admins" in (route.endpoint.__doc__ or ""):
        found["NotAllowedError"] = "The role of the user or of the token does not allow this."
    for status, response in route.responses.items():
        if int(status) >= 400:
            found[by_status[int(status)]] = response["description"]
    return dict(sorted(found.items()))


def paragraph(text: str, indent: str, then: str = "") -> str:
    """Return a text that is wrapped to the width of the module, with indentation."""
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=then or indent)


def docstring(route: APIRoute, given: list[Parameter]) -> str:
    """Return the docstring of a method."""
    first = (route.endpoint.__doc__ or "").strip().replace("; null:", "; None:")
    lines = [f'        """{first}']
    rejected = raises(route, given)
    for title, rows in (
        ("Args", {one.name: one.words for one in given}),
        ("Raises", rejected),
    ):
        if rows:
            lines += ["", f"        {title}:"]
            lines += [paragraph(f"{name}: {words}", " " * 12, " " * 16) for name, words in rows.items()]
    return "\n".join(lines) + ('"""' if len(lines) == 1 else '\n        """')


def method_text(route: APIRoute, method: Method) -> str:
    """Return the source of a method."""
    given = list(parameters(route, method))
    first = [one for one in given if one.is_path]
    first += [next(one for one in given if one.wire == name) for name in method.positional]
    rest = [one for one in given if one not in first]
    given = first + rest
    signature = ["self", *map(str, first), *(["*", *map(str, rest)] if rest else [])]
    hints = typing.get_type_hints(route.endpoint)
    path = route.path
    for one in first:
        path = path.replace(f"{{{one.wire}}}", f"{{_segment({one.name})}}")
    place = f'f"{path}"' if "{" in path else f'"{path}"'
    verb = next(iter(route.methods))
    query = ", ".join(f'"{one.wire}": {one.name}' for one in given if one.is_query)
    body = ", ".join(f'"{one.wire}": {one.name}' for one in given if not one.is_path and not one.is_query)
    options = [f'"{verb}"', place]
    options += [f"query={{{query}}}"] if query else []
    options += [f"json={{{body}}}"] if body else []
    options += [f"timeout={method.seconds}"] if method.seconds else []
    options += ["repeatable=True"] if method.repeatable else []
    returned = hints["return"]
    if isinstance(returned, type) and issubclass(returned, PageOut):
        (item,) = returned.__pydantic_generic_metadata__["args"]
        result = f"Iterator[{result_of(item)}]"
        call = f"return self._pages({result_of(item)}, {place}, {{{query}}})"
    elif returned is Response:
        result, call = "None", f"self._send({', '.join(options)})"
    else:
        result = result_of(returned)
        call = f"return self._call({result}, {', '.join(options)})"
        if "|" in result or result.startswith("Mapping"):  # `type[T]` takes neither
            call = (
                f"kind: Any = {result}\n        found: {result} = self._call(kind, {', '.join(options)})\n"
                "        return found"
            )
    head = f"    def {method.name}({', '.join(signature)}) -> {result}:"
    head += (
        "  # noqa: A002 - as REST has it" if any(one.name in ("filter", "object") for one in given) else ""
    )
    return f"{head}\n{docstring(route, given)}\n        {call}\n"


def generate() -> str:
    """Return the module's text, formatted."""
    routes = {
        route.name: route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)
    }
    unknown = sorted(set(METHODS) - set(routes))
    if unknown:
        raise SystemExit(f"REST has no route {unknown[0]}; correct METHODS")
    methods = "\n".join(method_text(routes[name], method) for name, method in METHODS.items())
    words = set(re.findall(r"\b[A-Z]\w+", methods))
    of_model = {
        name for name in words if getattr(getattr(model, name, None), "__module__", "") == model.__name__
    }
    head, segment = HEADER.format(
        model=f"({', '.join(sorted(of_model))})",
        results=f"({', '.join(sorted(words & set(results.__all__)))})",
    ).split("\n\ndef _segment")
    text = f"{head}\n{methods}\n\ndef _segment{segment}"
    for command in (["check", "--fix-only", "--quiet"], ["format"]):
        text = subprocess.run(
            [str(Path(sys.executable).parent / "ruff"), *command, "--stdin-filename", str(TARGET), "-"],
            input=text, capture_output=True, text=True, check=True, cwd=ROOT,
        ).stdout  # fmt: skip
    return text


def main() -> int:
    """Generate or compare the file, and return the exit code."""
    text = generate()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
        return 0
    if TARGET.read_text() == text:
        return 0
    print(f"{TARGET.relative_to(ROOT)} differs from the routes of REST; run `make proto`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
