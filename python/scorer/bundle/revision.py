"""The next revision of an action bundle: the same forests, another overlay or other prices.

A revision is a bundle like any other, with its own digest, made in a fraction of the time: nothing is trained
or asked of a library. Its forests have the same content, so a server that has those in memory shares them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from os import PathLike, path
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from scorer import bridge
from scorer.bundle.check import MANIFEST, read_manifest
from scorer.bundle.models import OverlayNode, OverlaySpec, to_json
from scorer.bundle.write import WrittenBundle, timestamp, write_bundle
from scorer.errors import BundleError

OVERLAY = "overlay.json"

_T = TypeVar("_T")


def revise(
    live: str | PathLike[str],
    output: str | PathLike[str],
    *,
    overlay: OverlaySpec | None = None,
    remove_overlay: bool = False,
    caps: Mapping[str, float] | None = None,
    notes: Mapping[str, Any] | None = None,
    created_at: datetime | None = None,
) -> WrittenBundle:
    """Makes the next revision of the action bundle in a directory.

    Forests, schema, catalogue, calibration and reference statistics are the same files; golden cases keep
    their rows and the libraries' margins, and what follows from them is the engine's. Both bundles are
    verified as the server would.

    Args:
        live: The bundle's directory, itself a revision or not.
        output: The directory to make; it must not exist.
        overlay: The new overlay. None keeps the one there is, if any.
        remove_overlay: Leave the overlay out instead.
        caps: New lambdas by attribute, for caps that the policy has.
        notes: What the revision was made from; kept as ``revision_notes`` in the lineage.
        created_at: Default: now. The same inputs and time give the same digest.

    Raises:
        BundleError: The bundle is not one of actions, or something does not fit it.
    """
    directory = Path(path.realpath(live))
    before = read_manifest(directory)
    if before.kind != "action":
        raise BundleError(f'"{directory}" is a {before.kind} bundle; only action bundles are revised')
    if overlay is not None and remove_overlay:
        raise BundleError("an overlay is given and to be removed; do one of both")
    if overlay is None and not remove_overlay and not caps:
        raise BundleError("nothing to revise; give an overlay, remove it, or give a cap's lambda")
    if remove_overlay and OVERLAY not in before.files:
        raise BundleError(f'"{directory}" has no overlay to remove; leave that out')
    # The document itself: whatever it says beside what is known here stays.
    document: dict[str, Any] = json.loads((directory / MANIFEST).read_bytes())
    program = document["program"]
    if remove_overlay:
        program = without_overlay(program)
    elif overlay is not None and OVERLAY not in before.files:
        program = _with_overlay(program)
    _set_prices(program[-1]["policy"], caps or {})
    head = {key: value for key, value in document.items() if key not in ("digest", "files")}
    head |= {"program": program, "created_at": timestamp(created_at)}
    head["lineage"] |= {
        "revision_of": before.digest,
        "revision": before.lineage.revision + 1,
        "revision_notes": dict(notes or {}),
    }
    kept = set(before.files) - {"golden.bin", OVERLAY}
    content = None if overlay is None else to_json(overlay)
    if overlay is None and not remove_overlay and OVERLAY in before.files:
        content = (directory / OVERLAY).read_bytes()
    manifest, golden = bridge.revise_bundle(directory, before.digest, _dumped(head), content)
    files = {"golden.bin": golden, MANIFEST: manifest}
    if content is not None:
        files[OVERLAY] = content
    digest = write_bundle(Path(output), files, {name: directory / name for name in sorted(kept)})
    return WrittenBundle(Path(output), digest)


def read_overlay(file: Path) -> OverlaySpec:
    """An overlay from a JSON file.

    Raises:
        BundleError: With one line that names file, place and rule.
    """
    return _read(file, "overlay", OverlaySpec.model_validate_json)


def read_notes(file: Path) -> dict[str, Any]:
    """Notes from a JSON file, which holds an object.

    Raises:
        BundleError: With one line that names file and rule.
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
    """Puts an overlay node between every score that the policy reads and the policy."""
    *steps, end = program
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
    return [*steps, _reading(end, moved)]


def without_overlay(program: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a program without its overlay nodes; what read the output of one reads its input."""
    steps = []
    source: dict[str, str] = {}
    for step in program:
        here = _reading(step, source)
        if here["kind"] == "overlay":
            source[here["output"]] = here["input"]
        else:
            steps.append(here)
    return steps


def _reading(step: dict[str, Any], instead: Mapping[str, str]) -> dict[str, Any]:
    """The step with other slots in place of those that it reads."""
    changed = {**step, "input": instead.get(step["input"], step["input"])}
    if step.get("voters"):
        changed["voters"] = [instead.get(slot, slot) for slot in step["voters"]]
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
