//! The pool's side: a call is checked as a whole, then its requests are handed to the lanes that observe.
//!
//! A call that breaks a rule is refused by that rule's name and nothing of it is taken: its sender is of another
//! version, or no server of ours.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use scorer_core::bundle::FunctionSet;
use scorer_core::policy::Mask;
use scorer_engine::{
    Answered, Checkpoint, Kind, Origins, Outcome, Pmf, Privacy, Timings, check_decision_id, check_entity,
};
use scorer_observe::{KnownSchema, MAX_REQUESTS, NamedList, ObserveLanes, Observed, Subscription};
use scorer_proto::v1::{
    DecisionRecord, Feature, ObserveRequest, ObserveResponse, ObservedRequest, ObservedSchema,
};

use super::ShadowError;
use crate::services::Services;

/// Longest name of a server, checkpoint, lane, label, action or reason, bytes.
const MAX_TEXT: usize = 256;
/// Schemas that one call may bring.
const MAX_SCHEMAS: usize = 64;
/// Features that one request may bring beside the schema's.
const MAX_OTHERS: usize = scorer_core::schema::MAX_FEATURES;

/// One request, checked.
struct Checked {
    live: Arc<KnownSchema>,
    decision: DecisionRecord,
    bundle: [u8; 32],
    /// Absent where every action was eligible.
    eligible: Option<Mask>,
    others: Vec<Feature>,
}

/// Takes what there is room for and counts the rest.
pub(crate) fn receive(services: &Services, message: ObserveRequest) -> Result<ObserveResponse, ShadowError> {
    let ObserveRequest { server, schemas, requests } = message;
    let plain = |server| services.engine.privacy.plain("server", server).map_err(|error| error.to_string());
    text("server", &server)
        .and_then(|()| plain(&server))
        .map_err(|rule| ShadowError::Observe { what: "server".to_owned(), rule })?;
    let requests = check(services, schemas, requests)?;
    let lanes = services.observers.active();
    let mut observing = Observing { services, lanes: &lanes, subscriptions: HashMap::new() };
    let mut response = ObserveResponse::default();
    for request in &requests {
        match observing.take(request) {
            true => response.accepted += 1,
            false => response.dropped += 1,
        }
    }
    services.senders.count(&server, response.accepted, response.dropped);
    Ok(response)
}

/// One call's way to the lanes.
struct Observing<'a> {
    services: &'a Services,
    lanes: &'a ObserveLanes,
    /// The lanes of a checkpoint, in terms of a live schema.
    subscriptions: HashMap<(usize, *const KnownSchema), Option<Subscription>>,
}

impl Observing<'_> {
    /// Whether there are lanes for the request, and each that takes it has room.
    fn take(&mut self, request: &Checked) -> bool {
        let Checked { live, decision, others, .. } = request;
        let Some(checkpoint) = self.services.engine.checkpoints.find(&decision.checkpoint) else {
            return false;
        };
        let at = self.answered(decision.decided_at_us);
        let (services, lanes) = (self.services, self.lanes);
        let subscribe = || services.observers.subscribe(lanes, checkpoint.index, &live.schema);
        let key = (checkpoint.index, Arc::as_ptr(live));
        let Some(subscription) = self.subscriptions.entry(key).or_insert_with(subscribe) else {
            return false;
        };
        let named = NamedList(others);
        let answered = request.answered(checkpoint, &named);
        subscription.offer(&checkpoint.name, &decision.decision_id, &decision.features, || Observed {
            answered: &answered,
            answered_at_us: decision.decided_at_us,
            at,
        })
    }

    /// When that was by this machine's clock, as far as two machines agree on the time.
    fn answered(&self, at_us: i64) -> Instant {
        let ago = u64::try_from(self.services.engine.clock.unix_us().saturating_sub(at_us)).unwrap_or(0);
        let now = Instant::now();
        now.checked_sub(Duration::from_micros(ago)).unwrap_or(now)
    }
}

// === impl Checked ===

impl Checked {
    /// What the live server answered.
    fn answered<'a>(&'a self, checkpoint: &'a Checkpoint, named: &'a NamedList<'a>) -> Answered<'a> {
        let Checked { live, decision, bundle, eligible, .. } = self;
        Answered {
            checkpoint: &checkpoint.name,
            linked: &decision.linked_checkpoint,
            lane: &decision.lane,
            lane_table: decision.lane_table,
            bundle,
            shape: &live.shape,
            id: &decision.decision_id,
            entity: &decision.entity,
            row: &decision.features,
            named,
            // A shadow pool has no source of features; it observes with the values of the live server.
            keys: &(),
            origins: Origins::default(),
            fallback_source: &decision.fallback_source,
            fallback_reason: &decision.fallback_reason,
            timings: Timings {
                decided_at_us: decision.decided_at_us,
                data_load_us: decision.data_load_us,
                exec_us: decision.exec_us,
            },
            reasons: &[],
            // Another bundle observes, whose own rules and functions are applied.
            ruled: None,
            faulted: FunctionSet::default(),
            outcome: match checkpoint.kind {
                Kind::Score => {
                    let (margin, score) = (decision.margin, decision.score);
                    Outcome::Score { margin, score, label: &decision.decision }
                }
                Kind::Action => Outcome::Action {
                    eligible: eligible.as_ref().filter(|mask| !mask.is_full()),
                    requested: None,
                    pmf: Pmf::Omitted,
                    index: decision.action_index as usize,
                    action: &decision.action,
                    propensity: decision.propensity,
                    expected_reward: decision.expected_reward,
                },
            },
        }
    }
}

fn check(
    services: &Services,
    schemas: Vec<ObservedSchema>,
    requests: Vec<ObservedRequest>,
) -> Result<Vec<Checked>, ShadowError> {
    let at = |what: &str, index: usize, rule: String| ShadowError::Observe {
        what: format!("{what}[{index}]"),
        rule,
    };
    for (what, got, most) in
        [("schemas", schemas.len(), MAX_SCHEMAS), ("requests", requests.len(), MAX_REQUESTS)]
    {
        if got > most {
            let rule = format!("{got} of them; at most {most} are allowed in one call");
            return Err(ShadowError::Observe { what: what.to_owned(), rule });
        }
    }
    let mut known = Vec::with_capacity(schemas.len());
    for (index, schema) in schemas.into_iter().enumerate() {
        known.push(services.schemas.get(schema).map_err(|rule| at("schemas", index, rule))?);
    }
    let requests = requests.into_iter().enumerate();
    requests
        .map(|(index, request)| {
            check_request(&services.engine.privacy, &known, request)
                .map_err(|rule| at("requests", index, rule))
        })
        .collect()
}

fn check_request(
    privacy: &Privacy,
    known: &[Arc<KnownSchema>],
    request: ObservedRequest,
) -> Result<Checked, String> {
    let ObservedRequest { schema, decision, others } = request;
    let live = known.get(schema as usize).ok_or_else(|| {
        format!("schema is {schema} and the call has {}; refer to one of them by its place", known.len())
    })?;
    let decision = decision.ok_or("decision is absent; send the answer that was given")?;
    check_decision_id(&decision.decision_id).map_err(|error| error.to_string())?;
    check_entity(&decision.entity).map_err(|error| error.to_string())?;
    for (field, value) in [("decision_id", &decision.decision_id), ("entity", &decision.entity)] {
        privacy.plain(field, value).map_err(|error| error.to_string())?;
    }
    for (field, value) in [
        ("checkpoint", &decision.checkpoint),
        ("lane", &decision.lane),
        ("decision", &decision.decision),
        ("action", &decision.action),
        ("fallback_source", &decision.fallback_source),
        ("fallback_reason", &decision.fallback_reason),
    ] {
        text(field, value)?;
        privacy.plain(field, value).map_err(|error| error.to_string())?;
    }
    let bundle = decision.bundle.as_slice().try_into();
    let bundle =
        bundle.map_err(|_| format!("bundle has {} bytes; a digest has 32", decision.bundle.len()))?;
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
    let actions = live.shape.actions.len();
    let eligible = match decision.eligible_mask.as_slice() {
        [] => None,
        bytes => Some(Mask::from_bytes(actions, bytes).map_err(|error| format!("eligible_mask: {error}"))?),
    };
    check_others(live, &others)?;
    Ok(Checked { live: Arc::clone(live), decision, bundle, eligible, others })
}

fn check_others(live: &KnownSchema, others: &[Feature]) -> Result<(), String> {
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
