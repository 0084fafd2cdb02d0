//! Writes the events of a feed to Redis or Valkey, by the rules of `RecordEvents`.

use prost::Message as _;
use scorer_engine::{Privacy, PrivacyConfig};
use scorer_features::{Event as Recordable, FeatureSet};
use scorer_features_redis::{Applied, Change, Position, RedisConfig, WriteError, Writer};
use scorer_proto::v1::Event;

use super::record::{PRIVACY, Stored, stored};

/// The result of a message that is not an event.
const MESSAGE: &str = "message";

/// Applies the messages of a topic to the state of one feature set.
pub struct FeatureFeed {
    writer: Writer,
    privacy: Privacy,
}

/// A message of a partition.
#[derive(Clone, Copy, Debug)]
pub struct FeedMessage<'a> {
    /// An encoded event (`scorer.v1.Event`).
    pub event: &'a [u8],
    /// Time of its receipt in microseconds since the Unix epoch.
    pub received_at_us: i64,
}

// === impl FeatureFeed ===

impl FeatureFeed {
    /// A feed of a feature set.
    ///
    /// # Errors
    /// Returns the setting that is not valid.
    pub fn new(redis: RedisConfig, set: &[u8], privacy: &PrivacyConfig) -> Result<FeatureFeed, String> {
        let mut wrong = Vec::new();
        redis.check(&mut wrong);
        if !wrong.is_empty() {
            return Err(wrong.join("; "));
        }
        let set = FeatureSet::parse(set).map_err(|error| error.to_string())?;
        let privacy = Privacy::new(privacy).map_err(|error| error.to_string())?;
        let writer = Writer::new(redis, set).map_err(|error| error.to_string())?;
        Ok(FeatureFeed { writer, privacy })
    }

    /// The position after the last write of a partition; see [`Writer::position`].
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn position(&mut self, topic: &str, partition: i32) -> Result<Option<Position>, WriteError> {
        self.writer.position(topic, partition)
    }

    /// Marks the state as complete if every partition has caught up; see [`Writer::complete`].
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn complete(&mut self, topic: &str, partitions: i32) -> Result<bool, WriteError> {
        self.writer.complete(topic, partitions)
    }

    /// The rule by which the server evicts keys; see [`Writer::eviction_policy`].
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn eviction_policy(&mut self) -> Result<String, WriteError> {
        self.writer.eviction_policy()
    }

    /// The writer, for reads of features.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Applies messages and moves the position of their partition from `from` to `to`, in one transaction. Returns one
    /// result per message: `new`, `duplicate` or the reason of the refusal.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn write(
        &mut self,
        topic: &str,
        partition: i32,
        from: Option<Position>,
        to: Position,
        messages: &[FeedMessage<'_>],
    ) -> Result<Applied, WriteError> {
        let decoded: Vec<Option<Event>> =
            messages.iter().map(|message| Event::decode(message.event).ok()).collect();
        let mut results = vec![MESSAGE; messages.len()];
        let mut refusal = None;
        let mut events: Vec<(usize, &Event, Stored<'_>)> = Vec::with_capacity(messages.len());
        for (at, event) in decoded.iter().enumerate() {
            let Some(event) = event else { continue };
            match stored(&self.privacy, event) {
                Ok(stored) => events.push((at, event, stored)),
                Err(rejection) => {
                    if let Some(result) = results.get_mut(at) {
                        *result = PRIVACY;
                    }
                    refusal.get_or_insert(rejection.to_string());
                }
            }
        }
        let fields: Vec<Fields<'_>> =
            events.iter().map(|(_, event, stored)| Fields::of(event, stored)).collect();
        let changes: Vec<Change<'_>> = events
            .iter()
            .zip(&fields)
            .map(|((at, event, stored), fields)| Change {
                event: fields.event(event, stored),
                received_at_us: messages.get(*at).map_or(0, |message| message.received_at_us),
            })
            .collect();
        let mut applied = self.writer.write(topic, partition, from, to, &changes)?;
        for ((at, ..), result) in events.iter().zip(&applied.results) {
            if let Some(place) = results.get_mut(*at) {
                *place = result;
            }
        }
        applied.results = results;
        applied.refusal = refusal.or(applied.refusal);
        Ok(applied)
    }
}

/// The fields of an event by name.
pub(super) struct Fields<'a> {
    keys: Vec<(&'a str, &'a str)>,
    numbers: Vec<(&'a str, f64)>,
    texts: Vec<(&'a str, &'a str)>,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    pub(super) fn of(event: &'a Event, stored: &'a Stored<'_>) -> Fields<'a> {
        Fields {
            keys: stored.keys.iter().map(|(entity, key)| (*entity, &**key)).collect(),
            numbers: event.numbers.iter().map(|(name, value)| (&**name, *value)).collect(),
            texts: event.texts.iter().map(|(name, text)| (&**name, &**text)).collect(),
        }
    }

    /// The event as a store takes it.
    pub(super) fn event<'b>(&'b self, event: &'b Event, stored: &'b Stored<'_>) -> Recordable<'b> {
        Recordable {
            kind: &event.kind,
            id: &stored.id,
            occurred_at_us: event.occurred_at_us,
            keys: &self.keys,
            numbers: &self.numbers,
            texts: &self.texts,
        }
    }
}
