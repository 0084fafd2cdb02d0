//! `RecordEvents`: checks the events of a request against the privacy rules, and passes them to the store one by one.

use std::borrow::Cow;

use scorer_engine::{Arrival, Engine, Privacy, Rejection};
use scorer_features::{EventError, Recorded};
use scorer_proto::v1::{Event, EventResult, EventStatus, RecordEventsRequest, RecordEventsResponse};

use super::feed::Fields;
use super::store::FeatureStore;

/// Greatest number of events of one request.
pub(crate) const MAX_EVENTS: usize = 1000;
/// Number of events that are recorded before other requests may run on this thread.
const CHUNK: usize = 32;
/// Time after which a caller may repeat a request that found the journal's queue full, in milliseconds.
const RETRY_AFTER_MS: u64 = 50;
/// Name of the reason of events that break a privacy rule, in replies and metrics.
pub(crate) const PRIVACY: &str = "privacy";

/// Records events, and replies after they are in the journal.
pub(crate) async fn record_events(
    engine: &Engine,
    store: Option<&FeatureStore>,
    is_elsewhere: bool,
    arrival: &Arrival,
    request: RecordEventsRequest,
) -> Result<RecordEventsResponse, Rejection> {
    let missing = if is_elsewhere { Rejection::EventsElsewhere } else { Rejection::NoFeatureSets };
    let store = store.ok_or(missing)?;
    let count = request.events.len();
    if count == 0 || count > MAX_EVENTS {
        return Err(Rejection::EventCount { got: count, max: MAX_EVENTS });
    }
    arrival.check_deadline()?;
    let mut results = Vec::with_capacity(count);
    for (number, event) in request.events.iter().enumerate() {
        if number % CHUNK == CHUNK - 1 {
            tokio::task::yield_now().await;
        }
        results.push(match one(engine, store, event) {
            Ok(Recorded::New) => result(EventStatus::Recorded),
            Ok(Recorded::Duplicate) => result(EventStatus::Duplicate),
            Err(Failed::Privacy(rejection)) => refused(PRIVACY, rejection.to_string()),
            Err(Failed::Store(EventError::Refused { refusal, message })) => {
                refused(refusal.as_str(), message)
            }
            Err(Failed::Store(EventError::Busy)) => {
                return Err(Rejection::EventsBusy { retry_after_ms: RETRY_AFTER_MS });
            }
            Err(Failed::Store(EventError::Journal(error))) => return Err(Rejection::Journal(error)),
        });
    }
    // A duplicate may be the repetition of a request whose events are not in the journal yet.
    store.store.written().await.map_err(Rejection::Journal)?;
    Ok(RecordEventsResponse { results })
}

fn result(status: EventStatus) -> EventResult {
    EventResult { status: status.into(), ..EventResult::default() }
}

fn refused(reason: &str, error: String) -> EventResult {
    EventResult { reason: reason.to_owned(), error, ..result(EventStatus::Refused) }
}

/// Why an event was not recorded.
enum Failed {
    /// It breaks a privacy rule.
    Privacy(Rejection),
    /// The store does not accept it.
    Store(EventError),
}

fn one(engine: &Engine, store: &FeatureStore, event: &Event) -> Result<Recorded, Failed> {
    let stored = stored(&engine.privacy, event).map_err(|rejection| {
        store.refused_for_privacy();
        Failed::Privacy(rejection)
    })?;
    let fields = Fields::of(event, &stored);
    store.store.record(&fields.event(event, &stored), engine.clock.unix_us()).map_err(Failed::Store)
}

/// The parts of an event that the privacy rules may change.
pub(super) struct Stored<'a> {
    pub(super) id: Cow<'a, str>,
    pub(super) keys: Vec<(&'a str, Cow<'a, str>)>,
}

/// Applies the privacy rules: keys are stored as entities of decisions are, and no part contains a card number.
pub(super) fn stored<'a>(privacy: &Privacy, event: &'a Event) -> Result<Stored<'a>, Rejection> {
    let keys = event.keys.iter().map(|(entity, key)| Ok((entity.as_str(), privacy.key(key)?)));
    let stored = Stored { id: privacy.text("id", &event.id)?, keys: keys.collect::<Result<_, Rejection>>()? };
    privacy.plain("kind", &event.kind)?;
    for text in event.texts.values() {
        privacy.plain("texts", text)?;
    }
    for number in event.numbers.values() {
        privacy.number("numbers", *number)?;
    }
    Ok(stored)
}
