//! Stage 8: answers on the wire.

use scorer_proto::v1::{ScoreResponse, SelectActionResponse, Served};

use super::Times;
use super::score::Scored;
use super::select::Selected;
use crate::lanes::Source;
use crate::metrics::Reason;

pub(crate) fn served(source: &Source, fallback: Option<Reason>, times: Times) -> Served {
    Served {
        bundle: source.bundle.to_string(),
        lane: source.lane.clone(),
        lane_table: source.lane_table,
        fallback_source: fallback.map_or_else(String::new, |reason| reason.source().to_owned()),
        fallback_reason: fallback.map_or_else(String::new, |reason| reason.as_str().to_owned()),
        data_load_us: times.data_load_us,
        exec_us: times.exec_us,
    }
}

pub(crate) fn score(id: String, scored: &Scored) -> ScoreResponse {
    ScoreResponse {
        decision_id: id,
        score: scored.score,
        margin: scored.margin,
        decision: scored.label.to_string(),
        served: Some(served(&scored.source, scored.fallback, scored.times)),
    }
}

pub(crate) fn selection(id: String, selected: &Selected, replayed: bool) -> SelectActionResponse {
    let action = selected.source.actions.get(selected.index as usize);
    SelectActionResponse {
        decision_id: id,
        action: action.map_or_else(String::new, |action| action.id.clone()),
        action_index: selected.index,
        propensity: selected.propensity,
        expected_reward: selected.expected_reward,
        factors: action.map_or_else(Default::default, |action| action.factors.clone()),
        pmf: selected.pmf.as_deref().map_or_else(Vec::new, <[f32]>::to_vec),
        logged: selected.logged,
        replayed,
        served: Some(served(&selected.source, selected.fallback, selected.times)),
    }
}
