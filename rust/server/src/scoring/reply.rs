//! Converts the engine's answers to `scorer.v1` messages.

use std::collections::{BTreeMap, BTreeSet};

use scorer_engine::{
    Answer, BatchRow, Defaulted, FaultedFunctions, FiredRule, GivenReasons, GivenRules, Reason, ReasonColumn,
    Ruled, Scored, ScoredBatch, Selected, Source, Timings, direction,
};
use scorer_proto::v1::{self as wire, ScoreBatchResponse, ScoreResponse, SelectActionResponse, Served};

fn served(
    source: &Source,
    fallback: Option<Reason>,
    timings: Timings,
    defaulted: Option<Defaulted>,
    faulted: &FaultedFunctions,
) -> Served {
    Served {
        bundle: source.bundle.to_string(),
        lane: source.lane.clone(),
        lane_table: source.lane_table,
        fallback_source: fallback.map_or_else(String::new, |reason| reason.source().to_owned()),
        fallback_reason: fallback.map_or_else(String::new, |reason| reason.as_str().to_owned()),
        data_load_us: timings.data_load_us,
        exec_us: timings.exec_us,
        features_defaulted: defaulted.map_or_else(String::new, |reason| reason.as_str().to_owned()),
        faulted_functions: faulted.names().map(str::to_owned).collect(),
    }
}

fn reasons(given: &GivenReasons) -> Vec<wire::Reason> {
    let reason = |(column, contribution): (&ReasonColumn, f64)| wire::Reason {
        code: column.code.clone(),
        feature: column.feature.clone(),
        contribution,
        direction: direction(contribution).into(),
    };
    given.iter().map(reason).collect()
}

fn fired_rule(rule: &FiredRule) -> wire::FiredRule {
    wire::FiredRule { id: rule.id.clone(), reason: rule.reason.clone(), source: rule.source.clone() }
}

fn rules(given: &GivenRules) -> Option<wire::AppliedRules> {
    let ruled = given.ruled()?;
    Some(wire::AppliedRules {
        fired: given.fired().map(fired_rule).collect(),
        score: ruled.score,
        queue: given.queue().to_owned(),
        unknown: ruled.unknown,
        errors: ruled.errors,
        conflicts: ruled.conflicts,
        lists: Vec::new(),
        exhausted: Vec::new(),
    })
}

pub(crate) fn score(answer: Answer<Scored>, decision_token: Vec<u8>) -> ScoreResponse {
    let Answer { id, value: scored, .. } = answer;
    ScoreResponse {
        decision_id: id,
        score: scored.score,
        margin: scored.margin,
        decision: scored.label.to_string(),
        served: Some(served(
            &scored.source,
            scored.fallback,
            scored.timings,
            scored.defaulted,
            &scored.faulted,
        )),
        logged: scored.logged,
        decision_token,
        reasons: reasons(&scored.reasons),
        rules: rules(&scored.rules),
    }
}

/// `served` states a fallback if at least one row has one; the records state the rows.
pub(crate) fn batch(answer: Answer<ScoredBatch>, decision_token: Vec<u8>) -> ScoreBatchResponse {
    let (rules, ruled_rows) = rules_of_rows(&answer.value);
    let faulted_rows = faulted_rows(&answer.value);
    let Answer { id, value: batch, .. } = answer;
    let ScoredBatch { source, rows, labels, timings, defaulted, faulted, unlogged, .. } = batch;
    let fallback = rows.iter().find_map(|row| row.fallback);
    ScoreBatchResponse {
        request_id: id,
        scores: rows.iter().map(|row| row.score).collect(),
        margins: rows.iter().map(|row| row.margin).collect(),
        decisions: rows.iter().map(|row| row.label as u32).collect(),
        labels: labels.iter().map(|label| label.to_string()).collect(),
        served: Some(served(&source, fallback, timings, defaulted, &faulted)),
        unlogged,
        decision_token,
        rules,
        ruled_rows,
        faulted_rows,
    }
}

/// Returns the rows in which a function had no result.
fn faulted_rows(batch: &ScoredBatch) -> Vec<wire::FaultedRow> {
    let faulted = batch.faulted.set();
    let row = |(at, row): (usize, &BatchRow)| {
        let own = row.faulted.bits();
        let functions = (0..).zip(faulted.iter()).filter(|(_, function)| own >> function & 1 == 1);
        let functions: Vec<u32> = functions.map(|(place, _)| place).collect();
        (!functions.is_empty()).then_some(wire::FaultedRow { row: at as u32, functions })
    };
    batch.rows.iter().enumerate().filter_map(row).collect()
}

/// Returns the rules that had an effect on at least one row, and what the rules did to each row.
fn rules_of_rows(batch: &ScoredBatch) -> (Vec<wire::FiredRule>, Vec<wire::RuledRow>) {
    let numbers: BTreeSet<u16> = batch.ruled.iter().flat_map(|ruled| ruled.applied()).copied().collect();
    let places: BTreeMap<u16, u32> = numbers.into_iter().zip(0..).collect();
    let row = |ruled: &Ruled| wire::RuledRow {
        fired: ruled.applied().iter().filter_map(|number| places.get(number).copied()).collect(),
        score: ruled.score,
        queue: ruled.queue(&batch.shape).to_owned(),
        unknown: ruled.unknown,
        errors: ruled.errors,
        conflicts: ruled.conflicts,
    };
    let fired = places.keys().filter_map(|number| batch.shape.rules.get(usize::from(*number)));
    (fired.map(fired_rule).collect(), batch.ruled.iter().map(row).collect())
}

pub(crate) fn selection(answer: Answer<Selected>, decision_token: Vec<u8>) -> SelectActionResponse {
    let Answer { id, value: selected, replayed } = answer;
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
        served: Some(served(
            &selected.source,
            selected.fallback,
            selected.timings,
            selected.defaulted,
            &selected.faulted,
        )),
        decision_token,
        reasons: reasons(&selected.reasons),
        rules: rules(&selected.rules),
    }
}
