"""Decoding many records for columns: packed floats stay bytes, which numpy reads without objects."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

_PACKED: Final = {"DecisionRecord": ("features", "pmf")}
"""Repeated fields that are decoded as bytes. On the wire, a packed repeated field and a field of bytes are
the same.
"""

_KINDS: Final = {
    1: "decision",
    2: "outcome",
    3: "lane_table",
    4: "recovery",
    5: "observation",
    6: "withdrawn",
    7: "delivery",
}
"""Kind of a record by the number of its field in `LogRecord`, which the first byte of the record holds."""

UNKNOWN: Final = "unknown"
"""Kind of a record of a newer version."""


def kind_of(payload: bytes) -> str:
    """Return the kind of an encoded record without decoding it."""
    return _KINDS.get(payload[0] >> 3, UNKNOWN) if payload else UNKNOWN


@lru_cache(1)
def record_class() -> Any:
    """Return the class of `scorer.v1.LogRecord` in which the packed fields of decisions are bytes.

    The bytes are little-endian numbers. The writer of the log always packs these fields. The class is built
    from the descriptor of `log.proto`, so it has every other field as it is there.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    from scorer.v1 import log_pb2

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto()
    log_pb2.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        for field in message.field:
            if field.name in _PACKED.get(message.name, ()):
                field.type, field.label = field_type.TYPE_BYTES, field_type.LABEL_OPTIONAL
    # A pool of its own: the name of the message is that of the generated class.
    pool = descriptor_pool.DescriptorPool()
    for imported in log_pb2.DESCRIPTOR.dependencies:
        pool.AddSerializedFile(imported.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("scorer.v1.LogRecord"))
