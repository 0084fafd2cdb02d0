"""Tests that the Rust extension and the committed Python code are generated from the same .proto files."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

from scorer import bridge
from scorer.v1 import control_pb2, log_pb2, scoring_pb2, shadow_pb2

FILES: dict[str, FileDescriptor] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR for module in (scoring_pb2, control_pb2, log_pb2, shadow_pb2)
}


def rust_files() -> dict[str, descriptor_pb2.FileDescriptorProto]:
    result = descriptor_pb2.FileDescriptorSet.FromString(bridge.FILE_DESCRIPTOR_SET)
    return {file.name: file for file in result.file}


def plain(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """Return a descriptor without comments and derived JSON names, which only one generator writes."""
    copy = descriptor_pb2.FileDescriptorProto()
    copy.CopyFrom(file)
    copy.ClearField("source_code_info")

    def strip(message: descriptor_pb2.DescriptorProto) -> None:
        for field in message.field:
            field.ClearField("json_name")
        for inner in message.nested_type:
            strip(inner)

    for message in copy.message_type:
        strip(message)
    return copy


def test_python_and_rust_have_the_same_files() -> None:
    assert {name for name in rust_files() if name.startswith("scorer/")} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_equal_in_python_and_rust(name: str) -> None:
    python = descriptor_pb2.FileDescriptorProto()
    FILES[name].CopyToProto(python)
    assert python.message_type, "the comparison must compare something"
    assert plain(rust_files()[name]) == plain(python), (
        "regenerate with `make proto` and rebuild the extension"
    )


def test_the_comparison_detects_a_renumbered_field() -> None:
    changed = plain(rust_files()["scorer/v1/scoring.proto"])
    changed.message_type[0].field[0].number += 100
    python = descriptor_pb2.FileDescriptorProto()
    FILES["scorer/v1/scoring.proto"].CopyToProto(python)
    assert changed != plain(python)
