//! `scorer.v1.ScoringService`: each method converts its request to a query of the engine and the answer to a reply.

mod decide;
mod describe;
mod explain;
mod features;
mod keys;
mod reply;
pub(crate) mod token;

use std::sync::Arc;

use scorer_engine::{Arrival, BatchQuery, Eligible, Engine, OutcomeReport, Query, Rejection, SelectQuery};
use scorer_proto::v1::score_request::Features as ScoreFeatures;
use scorer_proto::v1::select_action_request::Features as SelectFeatures;
use scorer_proto::v1::{
    ReportOutcomeRequest, ReportOutcomeResponse, ScoreBatchRequest, ScoreBatchResponse, ScoreRequest,
    ScoreResponse, SelectActionRequest, SelectActionResponse,
};

pub(crate) use decide::decide;
pub(crate) use describe::describe;
pub(crate) use explain::explain;
use features::{DenseRows, Row};
use keys::{BatchKeys, Keyed, Keys};

/// Scores one row.
pub(crate) async fn score(
    engine: &Arc<Engine>,
    arrival: &Arrival,
    mut request: ScoreRequest,
) -> Result<ScoreResponse, Rejection> {
    let keys = &Keys::of(engine, &request.keys)?;
    let features = match &request.features {
        None => Row::Absent,
        Some(ScoreFeatures::Named(named)) => Row::named(engine, named)?,
        Some(ScoreFeatures::Dense(dense)) => Row::Dense(dense),
    };
    let query = Query {
        checkpoint: &request.checkpoint,
        request_id: std::mem::take(&mut request.request_id),
        entity: &request.entity,
        features: Keyed { features, keys },
        reasons: request.reasons,
    };
    let answer = engine.score(arrival, query).await?;
    let token = if request.include_token { token::of_score(engine, arrival, &answer) } else { Vec::new() };
    Ok(reply::score(answer, token))
}

/// Scores many rows.
pub(crate) async fn score_batch(
    engine: &Arc<Engine>,
    arrival: &Arrival,
    request: ScoreBatchRequest,
) -> Result<ScoreBatchResponse, Rejection> {
    let ScoreBatchRequest {
        checkpoint,
        request_id,
        schema_fingerprint,
        values,
        rows,
        entity,
        include_token,
        keys,
    } = request;
    let keys = BatchKeys::of(engine, keys, rows)?;
    let rows = DenseRows { schema_fingerprint, values, rows, keys };
    let query = BatchQuery { checkpoint: &checkpoint, request_id, entity: &entity, rows };
    let answer = engine.score_batch(arrival, query).await?;
    let token = if include_token { token::of_batch(engine, arrival, &answer) } else { Vec::new() };
    Ok(reply::batch(answer, token))
}

/// Selects one action.
pub(crate) async fn select_action(
    engine: &Arc<Engine>,
    arrival: &Arrival,
    mut request: SelectActionRequest,
) -> Result<SelectActionResponse, Rejection> {
    let keys = &Keys::of(engine, &request.keys)?;
    let features = match &request.features {
        None => Row::Absent,
        Some(SelectFeatures::Named(named)) => Row::named(engine, named)?,
        Some(SelectFeatures::Dense(dense)) => Row::Dense(dense),
    };
    let query = Query {
        checkpoint: &request.checkpoint,
        request_id: std::mem::take(&mut request.request_id),
        entity: &request.entity,
        features: Keyed { features, keys },
        reasons: request.reasons,
    };
    let eligible = request.eligible.as_ref();
    let eligible = eligible.map(|given| Eligible { ids: &given.ids, mask: &given.mask });
    let query = SelectQuery { query, eligible, include_pmf: request.include_pmf };
    let answer = engine.select(arrival, query).await?;
    let token = token::of_selection(engine, arrival, &answer);
    Ok(reply::selection(answer, token))
}

/// Records one outcome.
pub(crate) async fn report_outcome(
    engine: &Engine,
    arrival: &Arrival,
    request: ReportOutcomeRequest,
) -> Result<ReportOutcomeResponse, Rejection> {
    let ReportOutcomeRequest {
        checkpoint,
        decision_id,
        kind,
        value,
        revision,
        occurred_at_ms,
        decision_token: token,
        source,
    } = request;
    let report =
        OutcomeReport { checkpoint, decision_id, kind, value, revision, occurred_at_ms, token, source };
    let reported = engine.report_outcome(arrival, report).await?;
    Ok(ReportOutcomeResponse {
        duplicate: reported.duplicate,
        decision_known: reported.decision_known,
        superseded: reported.superseded,
        proven: reported.proven,
    })
}
