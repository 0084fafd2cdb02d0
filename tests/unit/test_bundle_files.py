"""Tests that every damage to a bundle's directory is detected before the bundle answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained import Trained

from scorer import bridge
from scorer.bundle import Bundle, verify
from scorer.errors import BundleError


@pytest.fixture(params=["score", "action"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a bundle, which the test may damage."""
    trained: Trained = request.getfixturevalue(f"{request.param}_bundle")
    copy = tmp_path / "bundle"
    shutil.copytree(trained.path, copy)
    return copy


def refusal(directory: Path, digest: str | None = None) -> str:
    with pytest.raises(BundleError) as error:
        verify(directory, digest)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.fault_case(54)
def test_a_flipped_bit_in_any_file_is_detected(directory: Path) -> None:
    random = np.random.default_rng(0)
    verify(directory)
    for file in sorted(directory.iterdir()):
        good = file.read_bytes()
        places = {0, len(good) - 1, *random.integers(0, len(good), 25).tolist()}
        for place in places:
            altered = bytearray(good)
            altered[place] ^= 1 << int(random.integers(8))
            file.write_bytes(altered)
            message = refusal(directory)
            assert file.name in message or file.name == "manifest.json", message
        file.write_bytes(good)
    verify(directory)


def test_a_truncated_file_is_detected(directory: Path) -> None:
    for file in sorted(directory.iterdir()):
        good = file.read_bytes()
        for length in (0, len(good) // 2, len(good) - 1):
            file.write_bytes(good[:length])
            assert file.name in refusal(directory)
        file.write_bytes(good)


@pytest.mark.fault_case(56)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: (d / "forest.bin").unlink(), "forest.bin: the file is missing; restore or rebuild"),
        (lambda d: (d / "manifest.json").unlink(), "manifest.json: the file is missing"),
        (
            lambda d: (d / "notes.txt").write_text("hi"),
            'file "notes.txt": not listed in manifest.json; remove it',
        ),
        (lambda d: (d / ".hidden").mkdir(), 'file ".hidden": not listed in manifest.json; remove it'),
        (lambda d: (d / "member-01.bin").write_text("x"), 'file "member-01.bin": not listed'),
        (lambda d: replace(d, lambda f: f.symlink_to("/etc/hostname")), "schema.json: it is a symbolic link"),
        (lambda d: replace(d, lambda f: f.mkdir()), "schema.json: it is a directory, not a regular file"),
        (lambda d: replace(d, os.mkfifo), "schema.json: it is a device or pipe, not a regular file"),
    ],
)
def test_missing_unlisted_and_irregular_files_are_refused(
    directory: Path, change: Callable[[Path], object], message: str
) -> None:
    change(directory)
    assert message in refusal(directory)


def replace(directory: Path, make: Callable[[Path], object]) -> None:
    (directory / "schema.json").unlink()
    make(directory / "schema.json")


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    assert "is not a directory; give the one that `scorer bundle build` wrote" in refusal(
        tmp_path / "nothing"
    )
    (tmp_path / "file").write_text("x")
    assert "is not a directory" in refusal(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert "manifest.json: the file is missing" in refusal(tmp_path / "empty")


def test_another_bundle_than_the_expected_one_is_refused(directory: Path) -> None:
    digest = verify(directory).digest
    assert verify(directory, digest).digest == digest
    other = "sha256:" + "0" * 64
    assert (
        refusal(directory, other)
        == f"bundle is {digest}, {other} was expected; check the alias or the directory"
    )
    assert "is not a digest; write sha256: and 64" in refusal(directory, "latest")


def reseal(directory: Path) -> None:
    """Replace all hashes of the manifest, as an attacker would."""
    seal(directory, json.loads((directory / "manifest.json").read_text()))


@pytest.mark.fault_case(60)
def test_a_golden_margin_that_differs_by_one_ulp_is_refused(score_bundle: Trained, tmp_path: Path) -> None:
    directory = tmp_path / "bundle"
    shutil.copytree(score_bundle.path, directory)
    golden = bytearray((directory / "golden.bin").read_bytes())
    case = 4 * score_bundle.bundle.num_features + 8 + 8 + 4
    at = 28 + 3 * case + 4 * score_bundle.bundle.num_features
    margin = np.frombuffer(golden, np.float64, 1, at)[0]
    golden[at : at + 8] = np.nextafter(margin, np.inf).tobytes()
    (directory / "golden.bin").write_bytes(golden)
    assert "golden.bin: content is sha256:" in refusal(directory)
    reseal(directory)
    bits = f"0x{np.float64(margin).view(np.uint64):016x}"
    expected = f"0x{np.nextafter(margin, np.inf).view(np.uint64):016x}"
    assert refusal(directory).startswith(f"golden case 3: margin {bits} expected {expected}")


def test_a_forest_of_another_model_is_refused(score_bundle: Trained, tmp_path: Path) -> None:
    from trained import labels_of, train

    from scorer.forest import Forest

    directory = tmp_path / "bundle"
    shutil.copytree(score_bundle.path, directory)
    names = [feature.name for feature in score_bundle.schema.features]
    other = train(score_bundle.rows, labels_of(score_bundle.rows, 9), names)
    (directory / "forest.bin").write_bytes(Forest.from_xgboost(other).to_bytes())
    reseal(directory)
    assert re.match(r"covers\.bin: it has \d+ covers, the forest has \d+ nodes", refusal(directory))
    (directory / "covers.bin").unlink()
    reseal(directory)
    assert re.match(r"golden case \d+: margin 0x", refusal(directory))


def seal(directory: Path, manifest: dict[str, Any]) -> None:
    head = {key: value for key, value in manifest.items() if key not in ("files", "digest")}
    files = {file.name: file.read_bytes() for file in directory.iterdir() if file.name != "manifest.json"}
    (directory / "manifest.json").write_bytes(bridge.seal_manifest(json.dumps(head), files))


@pytest.mark.parametrize(
    ("file", "path", "value", "message"),
    [
        (
            "manifest.json",
            "program.1.kind",
            "neural",
            'unknown kind "neural"; this build knows transform, forest, onnx',
        ),
        ("manifest.json", "program.3.bands.1.from", 0.95, "put the bands in ascending order"),
        ("manifest.json", "program.3.bands.1.label", "approve", 'label "approve" occurs twice'),
        (
            "manifest.json",
            "program.0.file",
            "../forest.bin",
            '"../forest.bin" is not a forest of this bundle',
        ),
        ("schema.json", "features.2.categories", ["NL", "DE", "DE"], 'category "DE" occurs twice'),
        (
            "schema.json",
            "features.2.categories",
            ["NL", "DE"],
            'feature "country": the value is not a category code',
        ),
        ("schema.json", "features.1.maximum", 1.0, "is above the allowed maximum 1; clip it"),
        ("schema.json", "features.1.name", "amount", 'feature "amount": the name occurs twice'),
        ("calibration.json", "maps.main.method", "cubic", "calibration.json: unknown variant `cubic`"),
        ("calibration.json", "maps.main.x.0", None, "calibration.json: invalid type: null"),
        ("reference.json", "training.count", 1999, "training: counts must add up to count"),
    ],
)
def test_files_that_contradict_each_other_are_refused(
    score_bundle: Trained, tmp_path: Path, file: str, path: str, value: object, message: str
) -> None:
    directory = tmp_path / "bundle"
    shutil.copytree(score_bundle.path, directory)
    content = json.loads((directory / file).read_text())
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = content
    for part in way:
        place = place[part]
    place[last] = value
    (directory / file).write_text(json.dumps(content))
    seal(directory, json.loads((directory / "manifest.json").read_text()))
    assert message in refusal(directory)


def test_the_digest_can_be_checked_with_common_tools(directory: Path) -> None:
    """The test follows the instructions in docs/bundle-format.md."""
    import hashlib

    text = (directory / "manifest.json").read_text()
    digest = json.loads(text)["digest"]
    blank = text.replace(digest, "sha256:" + "0" * 64)
    assert digest == "sha256:" + hashlib.sha256(blank.encode()).hexdigest()
    for name, entry in json.loads(text)["files"].items():
        content = (directory / name).read_bytes()
        assert entry == {"sha256": "sha256:" + hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def test_rows_of_another_shape_are_refused(score_bundle: Trained, action_bundle: Trained) -> None:
    for rows in (np.zeros((2, 3)), np.zeros(4), np.zeros((2, 5))):
        with pytest.raises(BundleError, match=r"\[n, 4\] is needed"):
            score_bundle.bundle.score(rows)
    with pytest.raises(BundleError, match="the bundle is of kind score; use a bundle of kind action"):
        score_bundle.bundle.select(np.zeros(4), checkpoint="c", decision_id="d")
    with pytest.raises(BundleError, match="row 0: the bundle is of kind action"):
        action_bundle.bundle.score(np.zeros((1, 4)))
    with pytest.raises(BundleError, match="no action is eligible"):
        action_bundle.bundle.select(np.zeros(4), checkpoint="c", decision_id="d", eligible=[False] * 6)
    with pytest.raises(BundleError, match="2 bytes, 6 actions take 1"):
        action_bundle.bundle.select(np.zeros(4), checkpoint="c", decision_id="d", eligible=b"\x01\x00")
    with pytest.raises(BundleError, match="bit 6 is set, the catalogue has 6 actions"):
        action_bundle.bundle.select(np.zeros(4), checkpoint="c", decision_id="d", eligible=b"\x40")
    with pytest.raises(BundleError, match=r'row 1: feature "amount": the value is below'):
        score_bundle.bundle.check(np.array([[1, 1, 1, 1], [-1, 1, 1, 1]]))


def test_scoring_releases_the_interpreter(score_bundle: Trained) -> None:
    """Another thread runs while rows are scored, which requires that the call releases the GIL."""
    rows = np.ascontiguousarray(np.tile(score_bundle.rows, (20, 1)))
    started, gate, ran = threading.Event(), threading.Lock(), []

    def other() -> None:
        started.set()
        with gate:
            ran.append(True)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1_000)  # The interpreter does not force a thread to release the GIL meanwhile.
    thread = threading.Thread(target=other)
    try:
        gate.acquire()
        thread.start()
        started.wait()
        gate.release()
        # On a busy machine the other thread may start to run only after a call has ended.
        for _ in range(500):
            score_bundle.bundle.score(rows)
            if ran:
                break
        assert ran
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_a_bundle_of_a_newer_format_is_reported_as_such(directory: Path) -> None:
    text = (directory / "manifest.json").read_text()
    (directory / "manifest.json").write_text(text.replace('"format": 1', '"format": 2'))
    assert "format 2 is not the format 1 that this build reads; upgrade scorer" in refusal(directory)


def test_the_python_class_and_the_extension_load_the_same_bundle(directory: Path) -> None:
    assert Bundle.load(directory).digest == bridge.RawBundle.load(str(directory)).digest
