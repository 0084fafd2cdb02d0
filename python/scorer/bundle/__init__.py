"""Bundles, the only deployable artifact: building, verifying, inspecting and using them offline.

Importing this package loads neither numpy nor a training library. They are loaded when a function that builds
or encodes is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from scorer.bundle.check import Inspection, inspect, read_manifest, verify
from scorer.bundle.loaded import Bundle, NetFacts, RowReasons, Scores, Selection, Selections
from scorer.bundle.models import (
    Action,
    Arithmetic,
    Band,
    Bucket,
    CalibrationMap,
    Cap,
    CategoryTable,
    Clip,
    DatePart,
    Feature,
    FeatureRatio,
    FunctionCall,
    IsotonicMap,
    Lineage,
    Log1p,
    Manifest,
    MissingFlag,
    OverlaySpec,
    PolicySpec,
    ReasonEntry,
    ReasonsFile,
    SchemaFile,
    ScoreMapFile,
    SigmoidMap,
    Standardise,
    TableLookup,
)

if TYPE_CHECKING:
    from scorer.bundle.build import (
        HeldOut,
        build_action_bundle,
        build_score_bundle,
        preview_action_bundle,
    )
    from scorer.bundle.calibrate import fit_centred_isotonic, fit_isotonic, fit_sigmoid
    from scorer.bundle.columns import added_columns, encode, transform
    from scorer.bundle.computed import ComputedFeatures
    from scorer.bundle.ensemble import MeanEnsemble, SegmentCase, StackEnsemble, SwitchEnsemble
    from scorer.bundle.functions import CustomFunction
    from scorer.bundle.lineage import describe_lineage
    from scorer.bundle.net import OnnxModel
    from scorer.bundle.policy import Policy
    from scorer.bundle.revision import revise
    from scorer.bundle.score_map import ScoreReference, fit_score_map
    from scorer.bundle.tables import fit_target_table

_HOMES = {
    "ComputedFeatures": "scorer.bundle.computed",
    "CustomFunction": "scorer.bundle.functions",
    "HeldOut": "scorer.bundle.build",
    "MeanEnsemble": "scorer.bundle.ensemble",
    "OnnxModel": "scorer.bundle.net",
    "Policy": "scorer.bundle.policy",
    "ScoreReference": "scorer.bundle.score_map",
    "SegmentCase": "scorer.bundle.ensemble",
    "StackEnsemble": "scorer.bundle.ensemble",
    "SwitchEnsemble": "scorer.bundle.ensemble",
    "added_columns": "scorer.bundle.columns",
    "build_action_bundle": "scorer.bundle.build",
    "build_score_bundle": "scorer.bundle.build",
    "describe_lineage": "scorer.bundle.lineage",
    "encode": "scorer.bundle.columns",
    "fit_centred_isotonic": "scorer.bundle.calibrate",
    "fit_isotonic": "scorer.bundle.calibrate",
    "fit_score_map": "scorer.bundle.score_map",
    "fit_sigmoid": "scorer.bundle.calibrate",
    "fit_target_table": "scorer.bundle.tables",
    "preview_action_bundle": "scorer.bundle.build",
    "revise": "scorer.bundle.revision",
    "transform": "scorer.bundle.columns",
}

__all__ = [
    "Action",
    "Arithmetic",
    "Band",
    "Bucket",
    "Bundle",
    "CalibrationMap",
    "Cap",
    "CategoryTable",
    "Clip",
    "ComputedFeatures",
    "CustomFunction",
    "DatePart",
    "Feature",
    "FeatureRatio",
    "FunctionCall",
    "HeldOut",
    "Inspection",
    "IsotonicMap",
    "Lineage",
    "Log1p",
    "Manifest",
    "MeanEnsemble",
    "MissingFlag",
    "NetFacts",
    "OnnxModel",
    "OverlaySpec",
    "Policy",
    "PolicySpec",
    "ReasonEntry",
    "ReasonsFile",
    "RowReasons",
    "SchemaFile",
    "ScoreMapFile",
    "ScoreReference",
    "Scores",
    "SegmentCase",
    "Selection",
    "Selections",
    "SigmoidMap",
    "StackEnsemble",
    "Standardise",
    "SwitchEnsemble",
    "TableLookup",
    "added_columns",
    "build_action_bundle",
    "build_score_bundle",
    "describe_lineage",
    "encode",
    "fit_centred_isotonic",
    "fit_isotonic",
    "fit_score_map",
    "fit_sigmoid",
    "fit_target_table",
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
