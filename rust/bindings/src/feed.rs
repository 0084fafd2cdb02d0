//! `_scorer.FeatureFeed`: writes the events of a feed to Redis or Valkey.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scorer_server::{FeatureFeed as Feed, FeedMessage, Position, PrivacyConfig, RedisConfig};
use serde::Deserialize;

use crate::error::Failure;
use crate::features::{Texts, pairs, read_rows, same_length, wanted};

/// The settings of a feed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    redis: RedisConfig,
    #[serde(default)]
    privacy: PrivacyConfig,
}

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct FeatureFeed {
    feed: Mutex<Feed>,
}

/// The offset of the next message, and whether the feed has caught up.
type Place = (i64, bool);

#[pymethods]
impl FeatureFeed {
    /// A feed of one feature set. It connects at the first call.
    #[new]
    fn new(settings: &str, definition: &[u8]) -> PyResult<Self> {
        let settings: Settings =
            serde_json::from_str(settings).map_err(|error| Failure::features(error.to_string()))?;
        let feed = Feed::new(settings.redis, definition, &settings.privacy).map_err(Failure::features)?;
        Ok(Self { feed: Mutex::new(feed) })
    }

    /// The position after the last write of a partition; `None` if there is none.
    fn position(&self, py: Python<'_>, topic: &str, partition: i32) -> PyResult<Option<Place>> {
        let found = py.detach(|| self.lock().position(topic, partition)).map_err(Failure::from)?;
        Ok(found.map(|position| (position.next, position.caught_up)))
    }

    /// Applies messages and moves the position of their partition, in one transaction. Returns the result of each
    /// message, the message of the first refusal, and the number of states that were begun again.
    #[allow(clippy::too_many_arguments, reason = "one argument per part of a write")]
    fn write(
        &self,
        py: Python<'_>,
        topic: &str,
        partition: i32,
        begin: Option<Place>,
        end: Place,
        messages: Vec<Bound<'_, PyBytes>>,
        received_at_us: Vec<i64>,
    ) -> PyResult<(Vec<&'static str>, Option<String>, u64)> {
        if messages.len() != received_at_us.len() {
            let message = "messages and received_at_us have other lengths; give one time per message";
            return Err(Failure::features(message.to_owned()).into());
        }
        let messages: Vec<FeedMessage<'_>> = messages
            .iter()
            .zip(received_at_us)
            .map(|(event, received_at_us)| FeedMessage { event: event.as_bytes(), received_at_us })
            .collect();
        let place = |(next, caught_up): Place| Position { next, caught_up };
        let (begin, end) = (begin.map(place), place(end));
        let written = py.detach(|| self.lock().write(topic, partition, begin, end, &messages));
        let applied = written.map_err(Failure::from)?;
        Ok((applied.results, applied.refusal, applied.replaced))
    }

    /// Reads features by name, whether or not the state is complete; as `FeatureStore.read_batch`.
    fn read_batch<'py>(
        &self,
        py: Python<'py>,
        features: Vec<String>,
        keys: BTreeMap<String, Texts>,
        now_us: Vec<i64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        same_length(now_us.len(), keys.values().map(Vec::len))?;
        let read = py.detach(|| {
            let mut feed = self.lock();
            let writer = feed.writer();
            let wanted = wanted(writer.blobs().sets(), &features).map_err(Failure::features)?;
            let plan = writer.blobs().plan(&pairs(&wanted));
            let plan = plan.map_err(|error| Failure::features(error.to_string()))?;
            read_rows(&plan, &keys, &now_us, |keys, now_us, values| writer.read(&plan, keys, now_us, values))
                .map_err(Failure::from)
        });
        Ok(PyBytes::new(py, &read?))
    }

    /// Marks the state as complete if every partition has caught up. Returns whether it is.
    fn complete(&self, py: Python<'_>, topic: &str, partitions: i32) -> PyResult<bool> {
        Ok(py.detach(|| self.lock().complete(topic, partitions)).map_err(Failure::from)?)
    }

    /// The rule by which the server evicts keys; empty if it does not state it.
    fn eviction_policy(&self, py: Python<'_>) -> PyResult<String> {
        Ok(py.detach(|| self.lock().eviction_policy()).map_err(Failure::from)?)
    }
}

impl FeatureFeed {
    fn lock(&self) -> std::sync::MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
