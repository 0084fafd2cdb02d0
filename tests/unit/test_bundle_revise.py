"""Tests of revisions: the same forests with another overlay or other prices, verified like every bundle."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ACTIONS as TINY
from bundles import FEATURES
from bundles import rows as tiny_rows
from servers import scorer_in_process
from trained import ACTIONS, CONTEXT, LINEAGE, SALT, Trained, contexts, train

from scorer.bundle import (
    Action,
    Bundle,
    Cap,
    Feature,
    HeldOut,
    Lineage,
    OverlaySpec,
    Policy,
    PolicySpec,
    SchemaFile,
    build_action_bundle,
    inspect,
    read_manifest,
    revise,
    verify,
)
from scorer.errors import BundleError
from scorer.learn.oracle import OracleTask
from scorer.learn.overlay.design import adjusted
from scorer.learn.overlay.design import offsets as overlay_offsets
from scorer.registry import Registry

CREATED = datetime(2026, 1, 3, tzinfo=UTC)
COUNTRIES = CONTEXT[2].categories
OVERLAY = OverlaySpec(
    segment="country",
    limit=1.5,
    everywhere={"three_ds": {"challenge": -0.5}, "exemption": {"tra": 0.25}},
    segments={
        "DE": {"three_ds": {"challenge": 4.0}, "exemption": {"low": -0.125}},
        "FR": {"exemption": {"tra": -0.25}},
    },
)


def offsets(spec: OverlaySpec, rows: np.ndarray) -> np.ndarray:
    """Return the offsets that the documentation defines, by row and action."""
    out = np.zeros((len(rows), len(ACTIONS)))
    for at, row in enumerate(rows):
        segment = None if np.isnan(row[2]) else COUNTRIES[int(row[2])]
        own = {} if segment is None else spec.segments.get(segment, {})
        for number, action in enumerate(ACTIONS):
            terms = [
                of.get(f, {}).get(level, 0)
                for f, level in action.factors.items()
                for of in (spec.everywhere, own)
            ]
            out[at, number] = np.clip(sum(terms), -spec.limit, spec.limit)
    return out


def moved(rewards: np.ndarray, by: np.ndarray) -> np.ndarray:
    clipped = np.clip(rewards, 1e-9, 1 - 1e-9)
    return 1 / (1 + np.exp(-(np.log(clipped / (1 - clipped)) + by)))


def hashes(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}


def test_a_revision_changes_every_score_by_the_offset_of_its_overlay(
    action_bundle: Trained, tmp_path: Path
) -> None:
    revised = revise(
        action_bundle.path, tmp_path / "r1", overlay=OVERLAY, notes={"until": "2026-01-03T10:00", "rows": 812}
    )
    bundle = verify(revised.path, revised.digest)
    rows = contexts(400, seed=5)
    eligible = np.random.default_rng(1).random((400, len(ACTIONS))) < 0.6
    eligible[:, 0] |= ~eligible.any(axis=1)
    before = action_bundle.bundle.evaluate(rows, eligible=eligible)[1]
    pmf, rewards = bundle.evaluate(rows, eligible=eligible)
    expected = moved(before, offsets(OVERLAY, rows))
    assert np.allclose(rewards, expected, rtol=0, atol=1e-15, equal_nan=True)
    # The probabilities equal those of the policy on the changed scores, bit for bit.
    spec = inspect(revised.path).manifest.program[-1].policy
    assert np.array_equal(pmf, Policy(spec, ACTIONS).pmf(rewards, eligible))
    assert np.abs(pmf - action_bundle.bundle.evaluate(rows, eligible=eligible)[0]).max() > 0.1
    lineage = inspect(revised.path).manifest.lineage
    assert (lineage.revision_of, lineage.revision) == (action_bundle.bundle.digest, 1)
    assert lineage.revision_notes == {"until": "2026-01-03T10:00", "rows": 812}
    assert (lineage.run_id, lineage.metrics) == ("run-1", {"auc": 0.5}), (
        "the lineage of the model is unchanged"
    )
    assert inspect(revised.path).overlay == OVERLAY


def test_the_expected_values_of_learning_equal_those_of_the_engine(
    action_bundle: Trained, tmp_path: Path
) -> None:
    task = OracleTask(
        name="authorise",
        context=tuple(CONTEXT),
        action=(),
        actions=tuple(ACTIONS),
    )
    rows = contexts(300, seed=8)
    before = action_bundle.bundle.evaluate(rows)[1]
    revised = revise(action_bundle.path, tmp_path / "r1", overlay=OVERLAY)
    served = verify(revised.path).evaluate(rows)[1]
    expected = adjusted(before, overlay_offsets(OVERLAY, task, rows))
    assert np.allclose(served, expected, rtol=0, atol=1e-12)
    assert np.abs(served - before).max() > 0.1


def test_unchanged_files_are_shared(action_bundle: Trained, tmp_path: Path) -> None:
    revised = revise(action_bundle.path, tmp_path / "r1", overlay=OVERLAY)
    before, after = hashes(action_bundle.path), hashes(revised.path)
    assert {name for name in after if after[name] != before.get(name)} == {
        "manifest.json",
        "golden.bin",
        "overlay.json",
    }
    for name in ("forest.bin", "schema.json", "actions.json", "calibration.json", "reference.json"):
        assert (revised.path / name).samefile(action_bundle.path / name)
    # Rows and margins of the library are unchanged. The test reads the first case by the documented layout.
    start, golden = 28, [path / "golden.bin" for path in (action_bundle.path, revised.path)]
    rows_and_margins = 4 * len(CONTEXT) + 1 + 8 * len(ACTIONS)
    one, other = (file.read_bytes()[start : start + rows_and_margins] for file in golden)
    assert one == other


def test_reverting_a_revision_gives_the_original_bundle(action_bundle: Trained, tmp_path: Path) -> None:
    first = revise(action_bundle.path, tmp_path / "r1", overlay=OVERLAY)
    second = revise(first.path, tmp_path / "r2", overlay=OverlaySpec(segment="country"))
    third = revise(second.path, tmp_path / "r3", remove_overlay=True)
    manifests = [read_manifest(path) for path in (action_bundle.path, first.path, second.path, third.path)]
    assert [manifest.lineage.revision for manifest in manifests] == [0, 1, 2, 3]
    assert [manifest.lineage.revision_of for manifest in manifests[1:]] == [it.digest for it in manifests[:3]]
    # A replaced overlay adds no second node.
    assert manifests[1].program == manifests[2].program
    assert manifests[3].program == manifests[0].program
    assert manifests[3].files == manifests[0].files
    assert "revision_of" not in json.loads((action_bundle.path / "manifest.json").read_bytes())["lineage"]
    rows = contexts(200, seed=6)
    for path in (second.path, third.path):
        for one, other in zip(
            Bundle.load(path).evaluate(rows), action_bundle.bundle.evaluate(rows), strict=True
        ):
            assert np.array_equal(one, other), (
                "an overlay of zeros changes no bit, and neither does its removal"
            )


def test_the_same_inputs_and_time_give_the_same_digest(action_bundle: Trained, tmp_path: Path) -> None:
    one = revise(action_bundle.path, tmp_path / "a", overlay=OVERLAY, created_at=CREATED)
    other = revise(action_bundle.path, tmp_path / "b", overlay=OVERLAY, created_at=CREATED)
    later = revise(action_bundle.path, tmp_path / "c", overlay=OVERLAY, created_at=CREATED.replace(day=4))
    assert one.digest == other.digest != later.digest


@pytest.fixture(scope="module")
def priced(action_bundle: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("priced") / "bundle"
    caps = [Cap(attribute="three_ds", lambda_=0.0, limit=0.3)]
    build_action_bundle(
        path,
        name="priced",
        model=action_bundle.model,
        schema=action_bundle.schema,
        actions=ACTIONS,
        policy=PolicySpec(rule="softmax", inverse_temperature=30, salt=SALT, caps=caps),
        training=action_bundle.rows[:2000],
        validation=action_bundle.rows[2000:],
        lineage=LINEAGE,
    )
    return path


def test_new_prices_change_only_the_policy(priced: Path, tmp_path: Path) -> None:
    revised = revise(priced, tmp_path / "r1", caps={"three_ds": 0.125})
    before, after = (inspect(path) for path in (priced, revised.path))
    caps = after.manifest.program[-1].policy.caps
    assert caps == [Cap(attribute="three_ds", lambda_=0.125, limit=0.3)]
    rows = contexts(200, seed=7)
    pmf, rewards = verify(revised.path).evaluate(rows)
    plain, same = verify(priced).evaluate(rows)
    assert np.array_equal(rewards, same), "a price changes the choice and not the expected reward"
    assert np.array_equal(pmf, Policy(after.manifest.program[-1].policy, ACTIONS).pmf(rewards))
    assert pmf[:, 3:].sum() < plain[:, 3:].sum() / 2
    again = revise(revised.path, tmp_path / "r2", caps={"three_ds": 0.0})
    assert read_manifest(again.path).program == before.manifest.program
    assert read_manifest(again.path).files == before.manifest.files


def test_new_prices_keep_the_overlay(priced: Path, tmp_path: Path) -> None:
    first = revise(priced, tmp_path / "r1", overlay=OVERLAY)
    second = revise(first.path, tmp_path / "r2", caps={"three_ds": 0.125})
    both = revise(priced, tmp_path / "both", overlay=OVERLAY, caps={"three_ds": 0.125})
    assert read_manifest(second.path).program == read_manifest(both.path).program
    assert read_manifest(second.path).files == read_manifest(both.path).files


def test_an_overlay_also_changes_voters(tmp_path: Path) -> None:
    data = tiny_rows(1500)
    own = np.array([[at // 3, at % 3] for at in range(6)], dtype=np.float32)
    random = np.random.default_rng(0)
    taken = random.integers(0, 6, len(data))
    segment = random.integers(0, 2, len(data)).astype(np.float32)
    whole = np.concatenate([data, segment[:, None], own[taken]], axis=1)
    names = [*FEATURES, "segment", "three_ds", "exemption"]
    models = [
        train(whole, (random.random(len(whole)) < 0.7).astype(np.float32), names, seed=seed, max_depth=2)
        for seed in range(3)
    ]
    context = whole[:, :5]
    features = [
        *(Feature(name=name) for name in FEATURES),
        Feature(name="segment", type="category", categories=["a", "b"]),
    ]
    build_action_bundle(
        tmp_path / "bag",
        name="bag",
        model=models[0],
        voters=models,
        schema=SchemaFile(
            features=features, action_features=[Feature(name="three_ds"), Feature(name="exemption")]
        ),
        actions=[
            Action(
                id=name, factors=dict(part.split("=") for part in name.split("|")), features=own[at].tolist()
            )
            for at, name in enumerate(TINY)
        ],
        policy=PolicySpec(rule="bagging", voters=3, salt=SALT),
        training=context[:1000],
        validation=context[1000:],
        calibration=HeldOut(context[1000:], whole[1000:, 0] > 80, taken[1000:], "sigmoid"),
        lineage=Lineage(data_digest="sha256:x", code_version="test"),
    )
    spec = OverlaySpec(segment="segment", limit=9, segments={"b": {"3ds": {"frictionless": 9.0}}})
    revised = revise(tmp_path / "bag", tmp_path / "r1", overlay=spec)
    nodes = [node for node in read_manifest(revised.path).program if node.kind == "overlay"]
    assert len(nodes) == 4, "the calibrated oracle and three voters"
    pmf, _ = verify(revised.path).evaluate(context)
    plain, _ = verify(tmp_path / "bag").evaluate(context)
    in_b = context[:, 4] == 1
    assert np.array_equal(pmf[~in_b], plain[~in_b])
    # Odds times 8,000 exceed the differences between these trees, so every voter prefers one of those
    # actions.
    assert np.all(pmf[in_b, 3:].sum(axis=1) == pytest.approx(1)) and np.any(plain[in_b, :3] > 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "nothing to revise; give rules, a score map or an overlay"),
        ({"overlay": OVERLAY, "remove_overlay": True}, "do one of both"),
        ({"remove_overlay": True}, "has no overlay.json to remove"),
        ({"caps": {"cost": 0.1}}, 'cap "cost": the policy has no caps; correct the name'),
        ({"overlay": OVERLAY, "notes": {"loss": float("nan")}}, "caps and notes must be what JSON can hold"),
        ({"overlay": OVERLAY, "notes": {"when": CREATED}}, "caps and notes must be what JSON can hold"),
        (
            {"overlay": OVERLAY.model_copy(update={"segment": "issuer"})},
            'overlay.json: segment "issuer" is not a feature of the request; name one of its categories',
        ),
        (
            {"overlay": OVERLAY.model_copy(update={"segments": {"ES": {}}})},
            'overlay.json: segments: "ES" is not a category of "country"; correct it or leave it out',
        ),
        (
            {"overlay": OVERLAY.model_copy(update={"everywhere": {"route": {"a": 1.0}}})},
            'overlay.json: everywhere: "route" is not a factor of the actions',
        ),
        (
            {"overlay": OVERLAY.model_copy(update={"everywhere": {"exemption": {"mit": 1.0}}})},
            'overlay.json: everywhere.exemption: no action has the level "mit"',
        ),
    ],
)
def test_invalid_revisions_are_refused(
    action_bundle: Trained, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(BundleError) as error:
        revise(action_bundle.path, tmp_path / "r1", **arguments)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_an_overlay_revises_only_valid_action_bundles(
    action_bundle: Trained, score_bundle: Trained, tmp_path: Path
) -> None:
    out = tmp_path / "out" / "r1"
    with pytest.raises(BundleError, match="is a score bundle; overlay and caps are for action bundles"):
        revise(score_bundle.path, out, overlay=OVERLAY)
    with pytest.raises(BundleError, match=r"holds no manifest\.json"):
        revise(tmp_path, out, overlay=OVERLAY)
    changes: list[tuple[str, Callable[[bytes], bytes]]] = [
        ("forest.bin", lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:]),
        ("manifest.json", lambda content: content.replace(b'"gamma": 50', b'"gamma": 51')),
        ("reference.json", lambda content: content + b" "),
        ("golden.bin", lambda content: content[:-1]),
        ("actions.json", lambda content: content.replace(b'"tra"', b'"tro"')),
    ]
    for name, change in changes:
        broken = tmp_path / f"broken-{name}"
        shutil.copytree(action_bundle.path, broken)
        good = (broken / name).read_bytes()
        (broken / name).write_bytes(change(good))
        assert (broken / name).read_bytes() != good
        with pytest.raises(BundleError, match=name.replace(".", r"\.")):
            revise(broken, out, overlay=OVERLAY)
    assert not out.exists() and not list(tmp_path.glob("out/*"))
    revise(action_bundle.path, out, overlay=OVERLAY)
    with pytest.raises(BundleError, match="exists; bundles are immutable"):
        revise(action_bundle.path, out, overlay=OVERLAY)


def test_a_file_that_cannot_be_linked_is_copied(
    action_bundle: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    revised = revise(action_bundle.path, tmp_path / "r1", overlay=OVERLAY)
    assert not (revised.path / "forest.bin").samefile(action_bundle.path / "forest.bin")
    verify(revised.path, revised.digest)


def test_a_revision_is_written_completely_or_not_at_all(
    action_bundle: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def refuse(directory: Path) -> Bundle:
        seen.append(sorted(file.name for file in directory.iterdir()))
        assert not (tmp_path / "r1").exists()
        raise BundleError("the disk lies")

    monkeypatch.setattr("scorer.bundle.write.verify", refuse)
    with pytest.raises(BundleError, match="the disk lies"):
        revise(action_bundle.path, tmp_path / "r1", overlay=OVERLAY)
    assert seen and "overlay.json" in seen[0] and not list(tmp_path.iterdir())


def test_the_command_revises_a_bundle(action_bundle: Trained, priced: Path, tmp_path: Path) -> None:
    overlay, notes = tmp_path / "overlay.json", tmp_path / "notes.json"
    overlay.write_text(OVERLAY.model_dump_json())
    notes.write_text('{"window_hours": 24}')
    output = tmp_path / "r1"
    arguments = ("--overlay", str(overlay), "--notes", str(notes), "--output", str(output), "--json")
    done = scorer_in_process("bundle", "revise", str(action_bundle.path), *arguments)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"digest": verify(output).digest, "path": str(output)}
    shown = scorer_in_process("bundle", "inspect", str(output)).stdout
    assert f"1 of {action_bundle.bundle.digest}" in shown and "window_hours" in shown and "overlay" in shown
    done = scorer_in_process(
        "bundle", "revise", str(output), "--remove-overlay", "--output", str(tmp_path / "r2")
    )
    assert done.returncode == 0 and done.stdout.startswith("sha256:")
    done = scorer_in_process(
        "bundle", "revise", str(priced), "--cap", "three_ds=0.5", "-o", str(tmp_path / "r3")
    )
    assert done.returncode == 0
    assert read_manifest(tmp_path / "r3").program[-1].policy.caps[0].lambda_ == 0.5
    overlay.write_text('{"segment": "country", "limit": 11}')
    notes.write_text("[]")
    for more, message in (
        (("--overlay", str(overlay)), "limit: Input should be less than or equal to 10"),
        (("--overlay", str(tmp_path / "none")), "cannot be read: No such file or directory"),
        (("--cap", "three_ds"), 'cap "three_ds" is not of the form ATTRIBUTE=LAMBDA'),
        (("--cap", "three_ds=much"), 'cap "three_ds=much" is not of the form'),
        (("--cap", "three_ds=-1"), "lambda"),
        (("--cap", "three_ds=nan"), "caps and notes must be what JSON can hold"),
        (("--cap", "three_ds=1", "--notes", str(notes)), "file: Input should be an object"),
    ):
        done = scorer_in_process("bundle", "revise", str(priced), *more, "--output", str(tmp_path / "r4"))
        assert done.returncode != 0 and message in done.stderr, done.stderr
        assert not (tmp_path / "r4").exists()


def test_a_registry_stores_a_forest_of_many_revisions_once(action_bundle: Trained, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    stored = registry.path / "bundles" / registry.push(action_bundle.path).removeprefix("sha256:")
    # Built outside of the registry: none of its files is a link into the registry.
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(action_bundle.path, elsewhere)
    first = revise(elsewhere, tmp_path / "r1", overlay=OVERLAY)
    kept = registry.path / "bundles" / registry.push(first.path).removeprefix("sha256:")
    assert (kept / "forest.bin").samefile(stored / "forest.bin")
    assert not (kept / "golden.bin").samefile(stored / "golden.bin")
    assert not (kept / "forest.bin").samefile(elsewhere / "forest.bin")
    verify(kept, first.digest)
    # A damaged file is not shared.
    second = revise(first.path, tmp_path / "r2", overlay=OverlaySpec(segment="country"))
    damaged = bytearray((kept / "forest.bin").read_bytes())
    damaged[50] ^= 1
    (kept / "forest.bin").chmod(0o644)
    (kept / "forest.bin").write_bytes(damaged)
    whole = registry.path / "bundles" / registry.push(second.path).removeprefix("sha256:")
    assert not (whole / "forest.bin").samefile(kept / "forest.bin")
    verify(whole, second.digest)
