"""Code that callers of a checkpoint start from: Python, grpcurl and Java."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Value = float | str | bool
SERVER = "127.0.0.1:7700"
"""Default of `server.listen`; callers write the address of their server."""
_FIELDS: Mapping[type, str] = {bool: "flag", str: "category", float: "number"}


@dataclass(frozen=True)
class Snippet:
    """A program in one language that scores a payment at a checkpoint."""

    name: str
    language: str
    before: str
    """What has to be there, in one sentence."""
    text: str


def snippets(checkpoint: str, kind: str, values: Mapping[str, Value]) -> Sequence[Snippet]:
    """Return programs that ask a checkpoint once.

    Args:
        checkpoint: Name of the checkpoint.
        kind: `score` or `action`.
        values: A value of each feature.
    """
    return (
        Snippet(
            "python",
            "Python",
            "The package scorer is installed. A server with TLS or tokens takes further arguments of Client.",
            _python(checkpoint, kind, values),
        ),
        Snippet(
            "grpcurl",
            "grpcurl",
            "The server offers reflection. With TLS, use -cacert, -cert and -key in place of -plaintext.",
            _grpcurl(checkpoint, kind, values),
        ),
        Snippet(
            "java",
            "Java (grpc-java)",
            "The classes are generated from protos/scorer/v1/scoring.proto by protoc with grpc-java. "
            "examples/clients/java is a client with retries, hedging and decision tokens.",
            _java(checkpoint, kind, values),
        ),
    )


def _python(checkpoint: str, kind: str, values: Mapping[str, Value]) -> str:
    rows = "".join(f"        {name!r}: {value!r},\n" for name, value in values.items())
    call = "score" if kind == "score" else "select_action"
    result = "answer.score, answer.decision" if kind == "score" else "answer.action, answer.propensity"
    return (
        "from scorer.client import Client\n\n"
        f'with Client("{SERVER}") as client:\n'
        f"    features = {{\n{rows}    }}\n"
        f"    answer = client.{call}({checkpoint!r}, features)\n"
        f"    print({result})\n"
    )


def _grpcurl(checkpoint: str, kind: str, values: Mapping[str, Value]) -> str:
    features = [{"name": name, _field(value): value} for name, value in values.items()]
    body = json.dumps({"checkpoint": checkpoint, "named": {"features": features}}, indent=2)
    # A single quote ends a shell's string; this is the usual way to write one inside.
    quoted = body.replace("'", "'\\''")
    method = "Score" if kind == "score" else "SelectAction"
    return f"grpcurl -plaintext -d '{quoted}' {SERVER} scorer.v1.ScoringService/{method}\n"


def _java(checkpoint: str, kind: str, values: Mapping[str, Value]) -> str:
    rows = "".join(
        f"        .addFeatures(Scoring.Feature.newBuilder().setName({_text(name)})"
        f".set{_field(value).title()}({_literal(value)}))\n"
        for name, value in values.items()
    )
    message, call, result = (
        ("ScoreRequest", "score", 'answer.getScore() + " " + answer.getDecision()')
        if kind == "score"
        else ("SelectActionRequest", "selectAction", "answer")
    )
    response = message.replace("Request", "Response")
    return (
        "import io.grpc.ManagedChannel;\n"
        "import io.grpc.ManagedChannelBuilder;\n"
        "import java.util.concurrent.TimeUnit;\n"
        "import scorer.v1.Scoring;\n"
        "import scorer.v1.ScoringServiceGrpc;\n\n"
        "public class Ask {\n"
        "  public static void main(String[] arguments) {\n"
        "    ManagedChannel channel =\n"
        f"        ManagedChannelBuilder.forTarget({_text(SERVER)}).usePlaintext().build();\n"
        "    Scoring.NamedFeatures named = Scoring.NamedFeatures.newBuilder()\n"
        f"{rows}"
        "        .build();\n"
        f"    Scoring.{message} request = Scoring.{message}.newBuilder()\n"
        f"        .setCheckpoint({_text(checkpoint)}).setNamed(named).build();\n"
        f"    Scoring.{response} answer = ScoringServiceGrpc.newBlockingStub(channel)\n"
        f"        .withDeadlineAfter(100, TimeUnit.MILLISECONDS).{call}(request);\n"
        f"    System.out.println({result});\n"
        "    channel.shutdown();\n"
        "  }\n"
        "}\n"
    )


def _field(value: Value) -> str:
    return _FIELDS[type(value)]


def _text(value: str) -> str:
    """Return a string literal of Java: JSON's escapes are Java's."""
    return json.dumps(value)


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return _text(value) if isinstance(value, str) else repr(float(value))
