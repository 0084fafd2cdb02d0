//! `Explain`: the exact contributions to the score of a row.

use std::sync::Arc;

use scorer_core::explain::Contribution;
use scorer_engine::{Arrival, Attributed, ExplainQuery, Loaded, Rejection, Shape, direction};
use scorer_proto::v1::explain_request::Features;
use scorer_proto::v1::{self as wire, ExplainRequest, ExplainResponse};

use super::features::Row;
use crate::services::Services;

/// Explains one row.
pub(crate) async fn explain(
    services: &Services,
    arrival: &Arrival,
    request: ExplainRequest,
) -> Result<ExplainResponse, Rejection> {
    let engine = &services.engine;
    let query = ExplainQuery {
        checkpoint: &request.checkpoint,
        bundle: &request.bundle,
        observing: &observing(services, &request.checkpoint),
        features: match &request.features {
            None => Row::Absent,
            Some(Features::Named(named)) => Row::named(engine, named)?,
            Some(Features::Dense(dense)) => Row::Dense(dense),
        },
        action: &request.action,
        against: &request.against,
        reasons: request.reasons,
    };
    let explanation = engine.explain(arrival, query).await?;
    let message = |attributed: &Attributed| message(&explanation.shape, attributed);
    Ok(ExplainResponse {
        bundle: explanation.bundle.to_string(),
        explanation: Some(message(&explanation.explained)),
        against: explanation.against.as_ref().map(message),
        difference: explanation.difference.as_ref().map(message),
        exec_us: explanation.exec_us,
        faulted_functions: explanation.faulted.names().map(str::to_owned).collect(),
    })
}

/// Returns the bundles of this server that observe at a checkpoint.
fn observing(services: &Services, checkpoint: &str) -> Vec<Arc<Loaded>> {
    let active = services.observers.active();
    let lanes = active.all().filter(|lane| lane.checkpoint == checkpoint);
    lanes.filter_map(|lane| lane.loaded().cloned()).collect()
}

fn message(shape: &Shape, attributed: &Attributed) -> wire::Explanation {
    let action = attributed.action.and_then(|at| shape.actions.get(at));
    let contribution = |(column, &amount): (&scorer_engine::ReasonColumn, &f64)| wire::Contribution {
        feature: column.feature.clone(),
        amount,
    };
    let reason = |reason: &Contribution| {
        let column = shape.reasons.get(reason.feature as usize)?;
        Some(wire::Reason {
            code: column.code.clone(),
            feature: column.feature.clone(),
            contribution: reason.amount,
            direction: direction(reason.amount).into(),
        })
    };
    wire::Explanation {
        action: action.map_or_else(String::new, |action| action.id.clone()),
        baseline: attributed.baseline,
        margin: attributed.margin,
        score: attributed.score,
        contributions: shape.reasons.iter().zip(&attributed.contributions).map(contribution).collect(),
        reasons: attributed.reasons.iter().filter_map(reason).collect(),
    }
}
