"""The oracle beside the models that it was chosen over."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Compared:
    """One model in the comparison; all were trained and judged on the same rows.

    Attributes:
        model: its name.
        auc: area under the ROC curve.
        aucpr: area under the precision-recall curve of authorisations.
        aucpr_declines: the same of declines, the rarer class.
        log_loss: mean, in nats.
        artifact_bytes: of the saved model.
        decision_us: median time to score one context over the whole catalogue, microseconds, by the
            library's own Python call.
        engine_us: the same by this project's engine; None where it does not run the model.
    """

    model: str
    auc: float
    aucpr: float
    aucpr_declines: float
    log_loss: float
    artifact_bytes: int
    decision_us: float
    engine_us: float | None

    def as_dict(self) -> dict[str, Any]:
        """For lineage."""
        return asdict(self)
