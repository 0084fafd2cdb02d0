"""Bundles, the only deployable artifact: building, verifying, inspecting and using them offline.

Importing this package loads neither numpy nor a training library. They are loaded when a function that builds
or encodes is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from scorer.bundle.check import Inspection, inspect, read_manifest, verify
from scorer.bundle.loaded import Bundle, RowReasons, Scores, Selection, Selections
from scorer.bundle.models import (
    Action,
    Band,
    CalibrationMap,
    Cap,
    Feature,
    IsotonicMap,
    Lineage,
    Log1p,
    Manifest,
    OverlaySpec,
    PolicySpec,
    ReasonEntry,
    ReasonsFile,
    SchemaFile,
    SigmoidMap,
    Standardise,
)

if TYPE_CHECKING:
    from scorer.bundle.build import (
        HeldOut,
        build_action_bundle,
        build_score_bundle,
        preview_action_bundle,
    )
    from scorer.bundle.calibrate import fit_isotonic, fit_sigmoid
    from scorer.bundle.columns import encode, transform
    from scorer.bundle.lineage import describe_lineage
    from scorer.bundle.policy import Policy
    from scorer.bundle.revision import revise

_HOMES = {
    "HeldOut": "scorer.bundle.build",
    "Policy": "scorer.bundle.policy",
    "build_action_bundle": "scorer.bundle.build",
    "build_score_bundle": "scorer.bundle.build",
    "describe_lineage": "scorer.bundle.lineage",
    "encode": "scorer.bundle.columns",
    "fit_isotonic": "scorer.bundle.calibrate",
    "fit_sigmoid": "scorer.bundle.calibrate",
    "preview_action_bundle": "scorer.bundle.build",
    "revise": "scorer.bundle.revision",
    "transform": "scorer.bundle.columns",
}

__all__ = [
    "Action",
    "Band",
    "Bundle",
    "CalibrationMap",
    "Cap",
    "Feature",
    "HeldOut",
    "Inspection",
    "IsotonicMap",
    "Lineage",
    "Log1p",
    "Manifest",
    "OverlaySpec",
    "Policy",
    "PolicySpec",
    "ReasonEntry",
    "ReasonsFile",
    "RowReasons",
    "SchemaFile",
    "Scores",
    "Selection",
    "Selections",
    "SigmoidMap",
    "Standardise",
    "build_action_bundle",
    "build_score_bundle",
    "describe_lineage",
    "encode",
    "fit_isotonic",
    "fit_sigmoid",
    "inspect",
    "preview_action_bundle",
    "read_manifest",
    "revise",
    "transform",
    "verify",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
