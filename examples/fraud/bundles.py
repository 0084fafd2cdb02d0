"""The bundle of a fraud model: lineage, reference statistics and golden cases included."""

from __future__ import annotations

from pathlib import Path

from examples.fraud.training import FraudModel, fraud_columns
from scorer.bundle import Band, IsotonicMap, SchemaFile, build_score_bundle
from scorer.bundle.lineage import describe_lineage
from scorer.learn.training.trained import Built


def build_fraud(model: FraudModel, output: Path, run_id: str, name: str = "fraud-checkout") -> Built:
    """Builds the bundle of a fraud model.

    Args:
        model: trained and calibrated.
        output: the directory to make.
        run_id: the training run, for lineage.
        name: the bundle's.
    """
    built = build_score_bundle(
        output,
        name=name,
        model=model.booster,
        schema=SchemaFile(features=list(fraud_columns())),
        bands=[Band.model_validate({"from": start, "label": label}) for start, label in model.thresholds],
        training=model.training_rows,
        validation=model.reference_rows,
        lineage=describe_lineage(data_digest=model.data_digest, run_id=run_id, metrics=model.lineage()),
        calibration=IsotonicMap(
            x=model.calibration.outputs.tolist(), y=model.calibration.probabilities.tolist()
        ),
    )
    return Built(name, built.path, built.digest)
