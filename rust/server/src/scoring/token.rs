//! The claims of an answer's decision token.

use scorer_engine::{
    Answer, Arrival, Claims, Engine, Reason, Scored, ScoredBatch, Selected, Source, Timings, TokenKind,
};

pub(crate) fn of_score(engine: &Engine, arrival: &Arrival, answer: &Answer<Scored>) -> Vec<u8> {
    let scored = &answer.value;
    let claims = claims(TokenKind::Score, &scored.source, scored.fallback, scored.timings);
    engine.decision_token(arrival, &answer.id, &claims)
}

pub(crate) fn of_batch(engine: &Engine, arrival: &Arrival, answer: &Answer<ScoredBatch>) -> Vec<u8> {
    let batch = &answer.value;
    let fallback = batch.rows.iter().find_map(|row| row.fallback);
    let claims = claims(TokenKind::Batch, &batch.source, fallback, batch.timings);
    let index = u32::try_from(batch.rows.len()).unwrap_or(u32::MAX);
    engine.decision_token(arrival, &answer.id, &Claims { index, ..claims })
}

pub(crate) fn of_selection(engine: &Engine, arrival: &Arrival, answer: &Answer<Selected>) -> Vec<u8> {
    let selected = &answer.value;
    let claims = Claims {
        index: selected.index,
        propensity: selected.propensity,
        ..claims(TokenKind::Action, &selected.source, selected.fallback, selected.timings)
    };
    engine.decision_token(arrival, &answer.id, &claims)
}

fn claims(kind: TokenKind, source: &Source, fallback: Option<Reason>, timings: Timings) -> Claims {
    Claims {
        kind,
        fallback: fallback.is_some(),
        decided_at_ms: u64::try_from(timings.decided_at_us / 1000).unwrap_or(0),
        bundle: source.bundle_prefix,
        index: 0,
        propensity: 1.0,
    }
}
