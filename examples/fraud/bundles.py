"""The bundle of a fraud model, with lineage, reference statistics and golden cases."""

from __future__ import annotations

from pathlib import Path

from examples.fraud.training import FraudModel, fraud_columns
from scorer.bundle import Band, SchemaFile, build_score_bundle
from scorer.bundle.lineage import describe_lineage
from scorer.learn.training.trained import Built


def build_fraud(model: FraudModel, output: Path, run_id: str, name: str = "fraud-checkout") -> Built:
    """Build the bundle of a fraud model.

    Args:
        model: The trained and calibrated model.
        output: The directory to create.
        run_id: Id of the training run, for lineage.
        name: Name of the bundle.
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
        calibration=model.calibration,
    )
    return Built(name, built.path, built.digest)
