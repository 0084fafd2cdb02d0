"""Tests that what a release sends means the same in this version, so that versions can be mixed."""

from __future__ import annotations

from pathlib import Path

import pytest
from old_wire import RELEASES, meaning, read_release

from scorer import bridge

every_release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


def current() -> dict[str, tuple[object, ...]]:
    from google.protobuf import descriptor_pb2

    return dict(meaning(descriptor_pb2.FileDescriptorSet.FromString(bridge.FILE_DESCRIPTOR_SET)))


def test_each_release_with_files_has_its_descriptors() -> None:
    archives = {path.name.removesuffix(".tar.xz") for path in RELEASES[0].parent.glob("*.tar.xz")}
    assert {path.name.removesuffix(".protos") for path in RELEASES} == archives, "run gen_release_fixture.py"


@every_release
def test_every_field_value_and_method_of_a_release_is_unchanged(release: Path) -> None:
    now = current()
    before = meaning(read_release(release))
    assert len(before) > 300, "the comparison must compare something"
    changed = {name: (what, now.get(name)) for name, what in before.items() if now.get(name) != what}
    assert not changed


def test_the_comparison_detects_changes_of_the_wire() -> None:
    files = read_release(RELEASES[0])
    before = meaning(files)
    [file] = [file for file in files.file if file.name.endswith("scoring.proto")]
    [message] = [message for message in file.message_type if message.name == "ScoreRequest"]
    number = message.field[0].number

    message.field[0].number = 99
    assert f"scorer.v1.ScoreRequest field {number}" not in meaning(files)
    message.field[0].number = number
    message.field[0].type = message.field[0].TYPE_BYTES
    assert (
        meaning(files)[f"scorer.v1.ScoreRequest field {number}"]
        != before[f"scorer.v1.ScoreRequest field {number}"]
    )
    del file.service[0].method[0]
    assert set(before) - set(meaning(files)) == {"/scorer.v1.ScoringService/Score"}
