//! The pool's side: a call is checked as a whole, then its requests are handed to the lanes that observe.
//!
//! A call that breaks a rule is refused by that rule's name and nothing of it is taken: its sender is of another
//! version, or no server of ours.

use std::collections::HashSet;
use std::sync::Arc;

use scorer_proto::v1::{DecisionRecord, Feature, ObserveRequest, ObserveResponse, ObservedRequest};

use super::{Known, MAX_REQUESTS};
use crate::answer::decode;
use crate::refusal::Refusal;
use crate::state::Shared;

/// Longest name of a server, checkpoint, lane, label, action or reason, bytes.
const MAX_TEXT: usize = 256;
/// Bytes of a bundle's digest.
const DIGEST: usize = 32;
/// Schemas that one call may bring.
const MAX_SCHEMAS: usize = 64;
/// Features that one request may bring beside the schema's.
const MAX_OTHERS: usize = scorer_core::schema::MAX_FEATURES;

/// One request, checked.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) live: Arc<Known>,
    pub(crate) decision: DecisionRecord,
    pub(crate) others: Vec<Feature>,
}

/// Takes what there is room for and counts the rest.
pub(crate) fn answer(shared: &Shared, message: ObserveRequest) -> Result<ObserveResponse, Refusal> {
    let ObserveRequest { server, schemas, requests } = message;
    text("server", &server).map_err(|rule| Refusal::Observe { what: "server".to_owned(), rule })?;
    let requests = check(shared, schemas, requests)?;
    let mut response = ObserveResponse::default();
    for request in requests {
        if hand_over(shared, request) {
            response.accepted += 1;
        } else {
            response.dropped += 1;
        }
    }
    shared.senders.count(&server, response.accepted, response.dropped);
    Ok(response)
}

/// Whether every lane took it that wants it. Nobody does yet.
fn hand_over(_shared: &Shared, _request: Received) -> bool {
    false
}

fn check(
    shared: &Shared,
    schemas: Vec<scorer_proto::v1::ObservedSchema>,
    requests: Vec<ObservedRequest>,
) -> Result<Vec<Received>, Refusal> {
    let at =
        |what: &str, index: usize, rule: String| Refusal::Observe { what: format!("{what}[{index}]"), rule };
    for (what, got, most) in
        [("schemas", schemas.len(), MAX_SCHEMAS), ("requests", requests.len(), MAX_REQUESTS)]
    {
        if got > most {
            let rule = format!("{got} of them; at most {most} are allowed in one call");
            return Err(Refusal::Observe { what: what.to_owned(), rule });
        }
    }
    let mut known = Vec::with_capacity(schemas.len());
    for (index, schema) in schemas.into_iter().enumerate() {
        known.push(shared.schemas.know(schema).map_err(|rule| at("schemas", index, rule))?);
    }
    let requests = requests.into_iter().enumerate();
    requests.map(|(index, it)| one(&known, it).map_err(|rule| at("requests", index, rule))).collect()
}

fn one(known: &[Arc<Known>], request: ObservedRequest) -> Result<Received, String> {
    let ObservedRequest { schema, decision, others } = request;
    let live = known.get(schema as usize).ok_or_else(|| {
        format!("schema is {schema} and the call has {}; refer to one of them by its place", known.len())
    })?;
    let decision = decision.ok_or("decision is absent; send the answer that was given")?;
    decode::decision_id(&decision.decision_id).map_err(|error| error.to_string())?;
    decode::entity(&decision.entity).map_err(|error| error.to_string())?;
    for (field, value) in [
        ("checkpoint", &decision.checkpoint),
        ("lane", &decision.lane),
        ("decision", &decision.decision),
        ("action", &decision.action),
        ("fallback_source", &decision.fallback_source),
        ("fallback_reason", &decision.fallback_reason),
    ] {
        text(field, value)?;
    }
    if decision.bundle.len() != DIGEST {
        return Err(format!("bundle has {} bytes; a digest has {DIGEST}", decision.bundle.len()));
    }
    if decision.schema_fingerprint != live.schema.fingerprint() {
        return Err(format!(
            "schema_fingerprint {:#018x} is not that of schema {schema}, {:#018x}",
            decision.schema_fingerprint,
            live.schema.fingerprint()
        ));
    }
    live.schema.check_dense(&decision.features).map_err(|error| format!("features: {error}"))?;
    for (field, value) in [
        ("margin", decision.margin),
        ("score", decision.score),
        ("propensity", decision.propensity),
        ("expected_reward", decision.expected_reward),
    ] {
        if !value.is_finite() {
            return Err(format!("{field} is {value}; no answer has that"));
        }
    }
    if decision.decided_at_us < 0 {
        return Err(format!("decided_at_us is {}; give microseconds since 1970", decision.decided_at_us));
    }
    let mask = live.actions().len().div_ceil(8);
    if !decision.eligible_mask.is_empty() && decision.eligible_mask.len() != mask {
        return Err(format!(
            "eligible_mask has {} bytes; {} actions need {mask}, or none if all are eligible",
            decision.eligible_mask.len(),
            live.actions().len()
        ));
    }
    check_others(live, &others)?;
    Ok(Received { live: Arc::clone(live), decision, others })
}

fn check_others(live: &Known, others: &[Feature]) -> Result<(), String> {
    if others.len() > MAX_OTHERS {
        return Err(format!("others: {} features; at most {MAX_OTHERS} are allowed", others.len()));
    }
    let mut names = HashSet::with_capacity(others.len());
    for other in others {
        text("others: a name", &other.name)?;
        if live.schema.index_of(&other.name).is_some() {
            return Err(format!("others: {:?} is a feature of the schema; give it once", other.name));
        }
        if !names.insert(other.name.as_str()) {
            return Err(format!("others: {:?} occurs twice; give it once", other.name));
        }
    }
    Ok(())
}

fn text(field: &str, value: &str) -> Result<(), String> {
    if value.len() > MAX_TEXT {
        return Err(format!("{field} has {} bytes; at most {MAX_TEXT} are allowed", value.len()));
    }
    match value.chars().position(char::is_control) {
        Some(at) => Err(format!("{field}: character {at} is a control character; send plain text")),
        None => Ok(()),
    }
}
