"""Revisions of a bundle: the same forests with other rules, score map, overlay or cap prices.

A revision is a complete bundle with its own digest. It is created faster than a new bundle, because nothing
is trained and no training library is called. A server that has the same forests in memory shares them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from os import PathLike, path
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from scorer import bridge
from scorer.bundle.check import MANIFEST, read_manifest
from scorer.bundle.models import (
    Manifest,
    OverlayNode,
    OverlaySpec,
    ReferenceFile,
    ScoreMapFile,
    ScoreMapNode,
    to_json,
)
from scorer.bundle.rules import RULES, BundleRules, rules_node
from scorer.bundle.score_map import SCORE_MAP, read_score_map, remapped
from scorer.bundle.write import WrittenBundle, timestamp, write_bundle
from scorer.errors import BundleError

OVERLAY = "overlay.json"
REFERENCE = "reference.json"

_T = TypeVar("_T")


def revise(
    live: str | PathLike[str],
    output: str | PathLike[str],
    *,
    overlay: OverlaySpec | None = None,
    remove_overlay: bool = False,
    score_map: ScoreMapFile | None = None,
    remove_score_map: bool = False,
    rules: BundleRules | None = None,
    remove_rules: bool = False,
    caps: Mapping[str, float] | None = None,
    notes: Mapping[str, Any] | None = None,
    created_at: datetime | None = None,
) -> WrittenBundle:
    """Create the next revision of a bundle.

    Forests, schema, catalogue, calibration and reference statistics are the same files. With another score
    map, the reference statistics are those of the scores that it maps. Golden cases keep their rows and the
    margins of the training libraries; the engine computes their other results again. Both bundles are
    verified with all checks of a server.

    Args:
        live: Directory of the bundle to revise, which may itself be a revision.
        output: The directory to create; it must not exist.
        overlay: The new overlay; None keeps the present one, if any.
        remove_overlay: Remove the overlay.
        score_map: The new score map of a score bundle; None keeps the present one, if any.
        remove_score_map: Remove the score map.
        rules: The new rules with their lists; None keeps the present ones, if any.
        remove_rules: Remove the rules.
        caps: New prices (lambda) by attribute, for caps that the policy has.
        notes: Notes that are stored as ``revision_notes`` in the lineage.
        created_at: Time of the revision; default: now. The same inputs and time give the same digest.

    Raises:
        BundleError: Nothing is to be changed, a change is for bundles of the other kind, or it does not match
            the bundle.
    """
    directory = Path(path.realpath(live))
    before = read_manifest(directory)
    if before.kind != "action" and (overlay is not None or remove_overlay or caps):
        raise BundleError(
            f'"{directory}" is a {before.kind} bundle; overlay and caps are for action bundles; '
            "give rules or a score map"
        )
    if before.kind != "score" and score_map is not None:
        raise BundleError(
            f'"{directory}" is an {before.kind} bundle, which has no thresholds; give no score map'
        )
    parts = (
        ("an overlay", overlay, remove_overlay, OVERLAY),
        ("a score map", score_map, remove_score_map, SCORE_MAP),
        ("a rule set", rules, remove_rules, RULES),
    )
    _check_parts(directory, before, parts, caps)
    # The parsed JSON and not the model, so that fields which this version does not know are kept.
    document: dict[str, Any] = json.loads((directory / MANIFEST).read_bytes())
    program = document["program"]
    if remove_overlay:
        program = without_overlay(program)
    if remove_score_map:
        program = _without(program, "scoremap")
    elif score_map is not None and SCORE_MAP not in before.files:
        program = _with_score_map(program)
    if overlay is not None and OVERLAY not in before.files:
        program = _with_overlay(program)
    if caps:
        _set_prices(program[-1]["policy"], caps)
    changing = _changing(directory, before)
    if overlay is not None or remove_overlay:
        _replace(changing, OVERLAY, overlay)
    if score_map is not None or remove_score_map:
        present = read_score_map(directory / SCORE_MAP) if SCORE_MAP in before.files else None
        changing[REFERENCE] = to_json(_reference(directory, present, score_map))
        _replace(changing, SCORE_MAP, score_map)
    if rules is not None or remove_rules:
        program = _without_rules(program)
        changing = {name: content for name, content in changing.items() if not _is_of_rules(name)}
    if rules is not None:
        program, files_of_rules = _with_rules(program, rules)
        changing |= files_of_rules
    head = {key: value for key, value in document.items() if key not in ("digest", "files")}
    head |= {"program": program, "created_at": timestamp(created_at)}
    head["lineage"] |= {
        "revision_of": before.digest,
        "revision": before.lineage.revision + 1,
        "revision_notes": dict(notes or {}),
    }
    kept = {name for name in before.files if name != "golden.bin" and not _changes(name)} - changing.keys()
    manifest, golden = bridge.revise_bundle(directory, before.digest, _dumped(head), changing)
    files = {"golden.bin": golden, MANIFEST: manifest, **changing}
    digest = write_bundle(Path(output), files, {name: directory / name for name in sorted(kept)})
    return WrittenBundle(Path(output), digest)


def _check_parts(
    directory: Path,
    before: Manifest,
    parts: Sequence[tuple[str, object, bool, str]],
    caps: Mapping[str, float] | None,
) -> None:
    """Check that something changes, and that each part is either given or removed."""
    for what, given, remove, file in parts:
        if given is not None and remove:
            raise BundleError(f"{what} is given and to be removed; do one of both")
        if remove and file not in before.files:
            raise BundleError(f'"{directory}" has no {file} to remove; leave that out')
    if not caps and all(given is None and not remove for _, given, remove, _ in parts):
        raise BundleError(
            "nothing to revise; give rules, a score map or an overlay, remove one, or give a cap's lambda"
        )


def _changes(name: str) -> bool:
    """Whether a revision can have another content of a file."""
    return name in (OVERLAY, SCORE_MAP) or _is_of_rules(name)


def _is_of_rules(name: str) -> bool:
    return name == RULES or name.startswith("list-")


def _changing(directory: Path, before: Manifest) -> dict[str, bytes]:
    """Read the files of a bundle that a revision can change."""
    return {name: (directory / name).read_bytes() for name in before.files if _changes(name)}


def _replace(files: dict[str, bytes], name: str, content: BaseModel | None) -> None:
    """Replace a file; None removes it."""
    files.pop(name, None)
    if content is not None:
        files[name] = to_json(content)


def _reference(
    directory: Path, present: ScoreMapFile | None, score_map: ScoreMapFile | None
) -> ReferenceFile:
    """Return the reference statistics with another score map."""
    reference = ReferenceFile.model_validate_json((directory / REFERENCE).read_bytes())
    return ReferenceFile(
        training=remapped(reference.training, present, score_map),
        validation=remapped(reference.validation, present, score_map),
    )


def read_overlay(file: Path) -> OverlaySpec:
    """Read an overlay from a JSON file.

    Raises:
        BundleError: The file cannot be read or is not an overlay. The message names file, field and rule.
    """
    return _read(file, "overlay", OverlaySpec.model_validate_json)


def read_notes(file: Path) -> dict[str, Any]:
    """Read notes from a file with one JSON object.

    Raises:
        BundleError: The file cannot be read or is not a JSON object. The message names file and rule.
    """
    return _read(file, "notes", TypeAdapter(dict[str, Any]).validate_json)


def _read(file: Path, what: str, parse: Callable[[bytes], _T]) -> _T:
    try:
        return parse(file.read_bytes())
    except OSError as error:
        raise BundleError(f'{what} "{file}" cannot be read: {error.strerror}') from None
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = "".join(f"{part}." for part in first["loc"]).rstrip(".") or "file"
        raise BundleError(f'{what} "{file}": {where}: {first["msg"]}; correct it') from None


def _with_overlay(program: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a program with an overlay node between the policy and each score that it reads."""
    *steps, end = program
    # Rules stay directly before the policy.
    rules = [steps.pop()] if steps and steps[-1]["kind"] == "rules" else []
    taken = {"row", *(step["output"] for step in program)}
    moved: dict[str, str] = {}
    for slot in (end["input"], *end.get("voters", [])):
        if slot not in moved:
            name = f"{slot}-moved"
            while name in taken:
                name += "-"
            taken.add(name)
            moved[slot] = name
            steps.append(OverlayNode(file=OVERLAY, input=slot, output=name).model_dump())
    return [*steps, *rules, _reading(end, moved)]


def without_overlay(program: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a program without its overlay nodes. Nodes that read an overlay's output now read its input.

    Args:
        program: The nodes of a manifest's program, as JSON.
    """
    return _without(program, "overlay")


def _without(program: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return a program without the nodes of a kind that writes a score from a score."""
    steps = []
    source: dict[str, str] = {}
    for step in program:
        here = _reading(step, source)
        if here["kind"] == kind:
            source[here["output"]] = here["input"]
        else:
            steps.append(here)
    return steps


def _with_score_map(program: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a program with a scoremap node after the score that the rules or the threshold read."""
    *steps, end = program
    tail = [steps.pop(), end] if steps and steps[-1]["kind"] == "rules" else [end]
    output = "mapped"
    while output in {"row", *(step["output"] for step in program)}:
        output += "-"
    node = ScoreMapNode(input=tail[0]["input"], output=output).model_dump()
    return [*steps, node, {**tail[0], "input": output}, *tail[1:]]


def _without_rules(program: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a program without its rules node."""
    *steps, end = program
    if not steps or steps[-1]["kind"] != "rules":
        return program
    rules = steps.pop()
    end = {key: value for key, value in end.items() if key != "eligible"}
    return [*steps, _reading(end, {rules["output"]: rules["input"]})]


def _with_rules(
    program: list[dict[str, Any]], rules: BundleRules
) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Return a program with a rules node before its last node, and the files of the rules."""
    *steps, end = program
    output = "ruled"
    while output in {"row", *(step["output"] for step in program)}:
        output += "-"
    if end["kind"] == "policy":
        node, files = rules_node(rules, "row", output)
        end = {**end, "eligible": output}
    else:
        node, files = rules_node(rules, end["input"], output)
        end = {**end, "input": output}
    return [*steps, node.model_dump(), end], files


def _reading(step: dict[str, Any], instead: Mapping[str, str]) -> dict[str, Any]:
    """Return a node that reads other slots: `instead` maps the present slot to the new one."""
    changed = dict(step)
    for field in ("input", "default"):
        if field in step:
            changed[field] = instead.get(step[field], step[field])
    for field in ("inputs", "voters"):
        if step.get(field):
            changed[field] = [instead.get(slot, slot) for slot in step[field]]
    if step.get("cases"):
        changed["cases"] = [_reading(case, instead) for case in step["cases"]]
    return changed


def _set_prices(policy: dict[str, Any], caps: Mapping[str, float]) -> None:
    known = {cap["attribute"]: cap for cap in policy.get("caps", [])}
    for attribute, price in caps.items():
        if attribute not in known:
            raise BundleError(
                f'cap "{attribute}": the policy has {", ".join(known) or "no caps"}; '
                "correct the name, or build the bundle with it (a lambda of 0 does nothing)"
            )
        known[attribute]["lambda"] = float(price)


def _dumped(head: Mapping[str, Any]) -> str:
    try:
        return json.dumps(head, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BundleError(f"revision: {error}; caps and notes must be what JSON can hold") from None
