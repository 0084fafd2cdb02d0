//! `Decide`: a score and then an action for one payment.

use std::sync::Arc;

use scorer_engine::{
    ActionAnswer, Arrival, DecideQuery, Decided, Eligible, Engine, PassedOn, Query, Rejection, SelectQuery,
};
use scorer_proto::v1::{DecideRequest, DecideResponse, NoAction};

use super::features::StepRow;
use super::keys::{Keyed, Keys};
use super::{reply, token};
use crate::rejection_code;

/// Scores a payment, and selects an action for it.
pub(crate) async fn decide(
    engine: &Arc<Engine>,
    arrival: &Arrival,
    mut request: DecideRequest,
) -> Result<DecideResponse, Rejection> {
    let request_id = std::mem::take(&mut request.request_id);
    let score = request.score.as_ref().ok_or(Rejection::NoStep { step: "score" })?;
    let action = request.action.as_ref().ok_or(Rejection::NoStep { step: "action" })?;
    let dense = [score.dense.as_ref(), action.dense.as_ref()];
    let [of_score, of_action] = StepRow::both(engine, request.features.as_ref(), dense)?;
    let keys = &Keys::of(engine, &request.keys)?;
    let [of_score, of_action] = [of_score, of_action].map(|features| Keyed { features, keys });
    let eligible = action.eligible.as_ref();
    let passed = PassedOn { score: &request.score_feature, decision: &request.decision_feature };
    let query = DecideQuery {
        score: Query {
            checkpoint: &score.checkpoint,
            request_id,
            entity: &request.entity,
            features: of_score,
            reasons: score.reasons,
        },
        action: SelectQuery {
            query: Query {
                checkpoint: &action.checkpoint,
                request_id: String::new(),
                entity: &request.entity,
                features: of_action,
                reasons: action.reasons,
            },
            eligible: eligible.map(|given| Eligible { ids: &given.ids, mask: &given.mask }),
            include_pmf: action.include_pmf,
        },
        passed,
        action_if_declined: request.action_if_declined,
    };
    let Decided { score: scored, action } = engine.decide(arrival, query).await?;
    let token = if score.include_token { token::of_score(engine, arrival, &scored) } else { Vec::new() };
    let decision_id = scored.id.clone();
    let mut response =
        DecideResponse { decision_id, score: Some(reply::score(scored, token)), ..Default::default() };
    match action {
        ActionAnswer::Selected(answer) => {
            let names = [passed.score, passed.decision].into_iter().zip(answer.value.passed);
            response.passed_features =
                names.filter(|(_, passed)| *passed).map(|(name, _)| name.to_owned()).collect();
            let token = token::of_selection(engine, arrival, &answer);
            response.action = Some(reply::selection(answer, token));
        }
        ActionAnswer::Declined => response.no_action = NoAction::Declined.into(),
        ActionAnswer::Failed(rejection) => {
            response.no_action = NoAction::Failed.into();
            response.action_code = rejection_code::code(&rejection) as i32;
            response.action_error = rejection.to_string();
        }
    }
    Ok(response)
}
