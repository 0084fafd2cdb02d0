"""The wire of released versions, from the descriptors in tests/fixtures/releases.

::

    wire = OldWire(RELEASES[0])
    request = wire.message("scorer.v1.ScoreRequest")(checkpoint="fraud.checkout")
    reply = wire.call(channel, "scorer.v1.ScoringService", "Score", request)    # as the release decodes it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from waiting import PATIENCE

RELEASES: Final = sorted((Path(__file__).parents[1] / "fixtures" / "releases").glob("*.protos"))

Meaning = Mapping[str, tuple[object, ...]]
"""What each element of the wire means, by its identity on the wire."""


def read_release(path: Path) -> descriptor_pb2.FileDescriptorSet:
    return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())


def meaning(files: descriptor_pb2.FileDescriptorSet) -> Meaning:
    """Return what encoded messages mean: every field by its number, every enum value and every method."""
    found: dict[str, tuple[object, ...]] = {}
    for file in files.file:
        for enum in file.enum_type:
            found.update(_values(f"{file.package}.", enum))
        for message in file.message_type:
            found.update(_fields(f"{file.package}.", message))
        for service in file.service:
            for method in service.method:
                found[f"/{file.package}.{service.name}/{method.name}"] = (
                    method.input_type,
                    method.output_type,
                    method.client_streaming,
                    method.server_streaming,
                )
    return found


def _values(
    prefix: str, enum: descriptor_pb2.EnumDescriptorProto
) -> Iterator[tuple[str, tuple[object, ...]]]:
    for value in enum.value:
        yield f"{prefix}{enum.name} value {value.number}", (value.name,)


def _fields(prefix: str, message: descriptor_pb2.DescriptorProto) -> Iterator[tuple[str, tuple[object, ...]]]:
    for field in message.field:
        oneof = (
            message.oneof_decl[field.oneof_index].name
            if field.HasField("oneof_index") and not field.proto3_optional
            else ""
        )
        yield (
            f"{prefix}{message.name} field {field.number}",
            (field.name, field.type, field.label, field.type_name, oneof, field.proto3_optional),
        )
    for nested in message.nested_type:
        yield from _fields(f"{prefix}{message.name}.", nested)
    for enum in message.enum_type:
        yield from _values(f"{prefix}{message.name}.", enum)


class OldWire:
    """Messages and calls of one release.

    Args:
        path: One of `RELEASES`.
    """

    def __init__(self, path: Path) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        for file in read_release(path).file:
            self._pool.Add(file)

    def message(self, name: str) -> Any:
        """Return the class of a message by its full name."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))

    def call(self, channel: grpc.Channel, service: str, method: str, request: Any) -> Any:
        """Send a request of the release; return the reply as the release decodes it."""
        described = self._pool.FindServiceByName(service).FindMethodByName(method)
        reply = self.message(described.output_type.full_name)
        stub = channel.unary_unary(f"/{service}/{method}", type(request).SerializeToString, reply.FromString)
        return stub(request, timeout=PATIENCE)
