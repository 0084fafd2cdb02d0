//! The keys of a request's entities.

use std::borrow::Cow;
use std::collections::HashMap;

use scorer_core::schema::Value;
use scorer_engine::{ActiveLane, Engine};
use scorer_engine::{Content, EntityKeys, Features, MAX_ENTITIES, NamedValues, Rejection};
use scorer_proto::v1::RowKeys;

/// The keys of one row, in the form in which they are stored.
#[derive(Default)]
pub(crate) struct Keys<'a>(Vec<(&'a str, Cow<'a, str>)>);

/// The keys of each row of a batch, by entity.
#[derive(Default)]
pub(crate) struct BatchKeys(Vec<(String, Vec<String>)>);

/// The features of a row, with the keys of its entities.
pub(crate) struct Keyed<'a, F> {
    pub(crate) features: F,
    pub(crate) keys: &'a Keys<'a>,
}

/// Greatest number of keys of a request. A bundle reads the features of one set, and a request may serve two bundles.
const MAX_KEYS: usize = 2 * MAX_ENTITIES;

// === impl Keys ===

impl<'a> Keys<'a> {
    /// Checks the keys of a request and converts them to the form in which they are stored.
    ///
    /// # Errors
    /// There are too many, one is too long, or one contains a card number.
    pub(crate) fn of(engine: &Engine, given: &'a HashMap<String, String>) -> Result<Keys<'a>, Rejection> {
        // A request without keys allocates nothing.
        let mut keys = Vec::with_capacity(given.len().min(MAX_KEYS));
        check_count(given.len())?;
        for (entity, key) in given {
            if !key.is_empty() {
                keys.push((entity.as_str(), engine.privacy.key(key)?));
            }
        }
        keys.sort_unstable_by_key(|(entity, _)| *entity);
        Ok(Keys(keys))
    }
}

fn check_count(count: usize) -> Result<(), Rejection> {
    if count > MAX_KEYS {
        return Err(Rejection::TooManyKeys { got: count, max: MAX_KEYS });
    }
    Ok(())
}

impl EntityKeys for Keys<'_> {
    fn key(&self, entity: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| *name == entity).map(|(_, key)| &**key)
    }
}

// === impl BatchKeys ===

impl BatchKeys {
    /// Checks the keys of a batch and converts them to the form in which they are stored.
    ///
    /// # Errors
    /// As [`Keys::of`], or an entity does not have one key per row.
    pub(crate) fn of(
        engine: &Engine,
        given: HashMap<String, RowKeys>,
        rows: u32,
    ) -> Result<BatchKeys, Rejection> {
        check_count(given.len())?;
        let mut all = Vec::with_capacity(given.len());
        for (entity, RowKeys { keys }) in given {
            if keys.len() != rows as usize {
                return Err(Rejection::KeysPerRow { got: keys.len(), rows });
            }
            let mut stored = Vec::with_capacity(keys.len());
            for key in keys {
                let converted = match engine.privacy.key(&key)? {
                    Cow::Borrowed(_) => None,
                    Cow::Owned(converted) => Some(converted),
                };
                stored.push(converted.unwrap_or(key));
            }
            all.push((entity, stored));
        }
        Ok(BatchKeys(all))
    }

    /// The key of an entity in one row.
    pub(crate) fn key(&self, row: usize, entity: &str) -> Option<&str> {
        let (_, keys) = self.0.iter().find(|(name, _)| name == entity)?;
        keys.get(row).map(String::as_str).filter(|key| !key.is_empty())
    }
}

// === impl Keyed ===

impl<F: Features> Features for Keyed<'_, F> {
    type Error = F::Error;

    fn accept(&self, lane: &ActiveLane) -> Result<(), Self::Error> {
        self.features.accept(lane)
    }

    fn encode(&self, lane: &ActiveLane, row: &mut Vec<f32>) -> Result<(), Self::Error> {
        self.features.encode(lane, row)
    }

    fn encode_with(
        &self,
        lane: &ActiveLane,
        row: &mut Vec<f32>,
        given: &[(&str, Value<'_>)],
    ) -> Result<(), Self::Error> {
        self.features.encode_with(lane, row, given)
    }

    fn check_read(&self, first: &ActiveLane, second: &ActiveLane) -> Result<(), Self::Error> {
        self.features.check_read(first, second)
    }

    /// Adds the keys, if there are any, so that the hash of a request without keys is the same in every version.
    fn hash(&self, content: &mut Content) {
        self.features.hash(content);
        if !self.keys.0.is_empty() {
            content.number(self.keys.0.len() as u64);
            for (entity, key) in &self.keys.0 {
                content.bytes(entity.as_bytes());
                content.bytes(key.as_bytes());
            }
        }
    }

    fn named(&self) -> &dyn NamedValues {
        self.features.named()
    }

    fn keys(&self) -> &dyn EntityKeys {
        self.keys
    }
}
