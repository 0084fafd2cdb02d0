//! Redis or Valkey as the source of computed features.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use scorer_core::bundle::ComputedFeatures;
use scorer_engine::{
    Events, FeatureReader, FeatureSource, Found, Histogram, Level, Loading, ReadColumn, SourceError,
    SourceRefusal,
};
use scorer_features::{BlobError, Blobs, FeatureSet, Plan};
use scorer_features_redis::{BlobResult, Keys, Message, Pool, ReadFailure, Reply, command};
use serde_json::json;
use tokio::runtime::Handle;

use super::prepare::{parse_sets, plan, unknown_entity};
use super::store::StoreStatus;
use crate::config::FeatureConfig;
use crate::error::ServerError;

/// The feature sets, and the connections to their state.
pub(crate) struct RedisFeatures {
    blobs: Arc<Blobs>,
    keys: Arc<[Keys]>,
    pub(crate) pool: Arc<Pool>,
    /// Times from a read to its values.
    pub(crate) times: Arc<Histogram>,
    events: Arc<Events>,
}

/// The reads of one bundle.
struct Reader {
    shared: Arc<Shared>,
    columns: Vec<ReadColumn>,
}

/// What a read that waits for its values needs.
struct Shared {
    blobs: Arc<Blobs>,
    keys: Arc<[Keys]>,
    pool: Arc<Pool>,
    times: Arc<Histogram>,
    plan: Plan,
    /// The position of the set and of the entity of each state that is read.
    parts: Vec<Part>,
    /// Positions of the sets.
    sets: Vec<usize>,
}

/// A state that is read.
struct Part {
    set: usize,
    entity: usize,
    name: String,
}

/// A read that was sent.
struct Sent {
    keys: Vec<Option<String>>,
    at_us: i64,
    /// By the position of a state: the position of its value in the reply.
    places: Vec<Option<usize>>,
}

// === impl RedisFeatures ===

impl RedisFeatures {
    pub(crate) fn new(
        config: &FeatureConfig,
        events: &Arc<Events>,
    ) -> Result<Option<Arc<RedisFeatures>>, ServerError> {
        let Some(redis) = &config.redis else { return Ok(None) };
        let sets = parse_sets(config)?;
        let keys = sets.iter().map(|set| Keys::new(&redis.prefix, set)).collect();
        Ok(Some(Arc::new(RedisFeatures {
            blobs: Arc::new(Blobs::new(sets)),
            keys,
            pool: Pool::new(redis.clone()),
            times: Arc::new(Histogram::of_reads()),
            events: Arc::clone(events),
        })))
    }

    /// Opens the connections on the runtime that answers requests.
    pub(crate) fn start(&self, runtime: &Handle) {
        let events = Arc::clone(&self.events);
        let address = self.pool.config().address.clone();
        let report = move |message: Message<'_>| match message {
            Message::Connected => {
                events.push(Level::Info, "feature_redis_connected", json!({"address": &address}));
            }
            Message::Away(error) => {
                let fields = json!({"address": &address, "error": error});
                events.push(Level::Error, "feature_redis_away", fields);
            }
            Message::Evicting(keys) => {
                let fields = json!({"address": &address, "evicted_keys": keys});
                events.push(Level::Warning, "feature_redis_evicting", fields);
            }
        };
        self.pool.start(runtime, Arc::new(report));
    }

    /// The current status.
    pub(crate) fn status(&self) -> StoreStatus {
        StoreStatus {
            sets: self.blobs.sets().map(FeatureSet::label).collect(),
            state: self.pool.error().unwrap_or_else(|| "ok".to_owned()),
            directory: format!("redis {}", self.pool.config().address),
            ..StoreStatus::default()
        }
    }
}

impl FeatureSource for RedisFeatures {
    fn prepare(&self, features: &ComputedFeatures) -> Result<Arc<dyn FeatureReader>, SourceRefusal> {
        let plan = plan(features, |wanted| self.blobs.plan(wanted))?;
        let parts: Vec<Part> = self
            .blobs
            .parts(&plan)
            .map(|part| Part { set: part.set, entity: part.entity, name: part.name.to_owned() })
            .collect();
        let mut sets: Vec<usize> = parts.iter().map(|part| part.set).collect();
        sets.sort_unstable();
        sets.dedup();
        let columns = plan.features().map(|(digest, entities)| ReadColumn { digest, entities }).collect();
        let shared = Shared {
            blobs: Arc::clone(&self.blobs),
            keys: Arc::clone(&self.keys),
            pool: Arc::clone(&self.pool),
            times: Arc::clone(&self.times),
            plan,
            parts,
            sets,
        };
        Ok(Arc::new(Reader { shared: Arc::new(shared), columns }))
    }
}

impl FeatureReader for Reader {
    fn entities(&self) -> &[String] {
        self.shared.plan.entities()
    }

    fn columns(&self) -> &[ReadColumn] {
        &self.columns
    }

    /// Sends one MGET: whether the state of each set is complete, and the states. A read without keys needs none.
    fn read(&self, keys: &[Option<&str>], at_us: i64, out: &mut [f32]) -> Loading {
        let shared = &self.shared;
        if keys.iter().all(Option::is_none) {
            let blobs = vec![None; shared.parts.len()];
            shared.blobs.read(&shared.plan, keys, &blobs, at_us, out, &mut Vec::new());
            return Loading::Ready(Found::default());
        }
        let mut names: Vec<Vec<u8>> = vec![b"MGET".to_vec()];
        names.extend(shared.sets.iter().filter_map(|set| shared.keys.get(*set)).map(Keys::complete));
        let mut places = Vec::with_capacity(shared.parts.len());
        for part in &shared.parts {
            let key = keys.get(part.entity).copied().flatten();
            places.push(key.zip(shared.keys.get(part.set)).map(|(key, names_of)| {
                names.push(names_of.blob(&part.name, key));
                names.len() - 2
            }));
        }
        let began = std::time::Instant::now();
        let frame = Bytes::from(command(names.iter().map(Vec::as_slice)));
        let Ok(read) = shared.pool.read(frame) else { return Loading::Failed };
        let keys = keys.iter().map(|key| key.map(str::to_owned)).collect();
        let sent = Sent { keys, at_us, places };
        let (shared, columns, expected) = (Arc::clone(shared), self.columns.clone(), names.len() - 1);
        Loading::Waiting(Box::pin(async move {
            let result = read.values().await;
            shared.times.record(began.elapsed());
            let fail = |failure: ReadFailure| SourceError(failure.as_str().to_owned());
            let values = result.map_err(fail)?;
            if values.len() != expected {
                shared.pool.counters().failed(ReadFailure::Refused);
                return Err(fail(ReadFailure::Refused));
            }
            shared.values(&sent, &values, &columns)
        }))
    }
}

// === impl Shared ===

impl Shared {
    /// Computes the features from the values of a reply.
    fn values(
        &self,
        sent: &Sent,
        values: &[Reply],
        columns: &[ReadColumn],
    ) -> Result<(Vec<f32>, Found), SourceError> {
        let counters = self.pool.counters();
        // An empty state would give the values of entities without events, which are wrong and look right.
        if !values.iter().take(self.sets.len()).all(|value| value.value().is_some()) {
            counters.failed(ReadFailure::Incomplete);
            return Err(SourceError(ReadFailure::Incomplete.as_str().to_owned()));
        }
        let blobs: Vec<Option<&[u8]>> = sent
            .places
            .iter()
            .map(|place| values.get((*place)?).and_then(Reply::value).map(|value| &**value))
            .collect();
        let keys: Vec<Option<&str>> = sent.keys.iter().map(Option::as_deref).collect();
        let (mut out, mut errors) = (vec![f32::NAN; columns.len()], Vec::new());
        let known = self.blobs.read(&self.plan, &keys, &blobs, sent.at_us, &mut out, &mut errors);
        let mut unusable = 0_u16;
        for (at, (place, blob)) in sent.places.iter().zip(&blobs).enumerate() {
            if place.is_none() {
                continue;
            }
            let error = errors.iter().find(|(wrong, _)| *wrong == at).map(|(_, error)| *error);
            counters.blob(match (error, blob) {
                (Some(BlobError::Version), _) => BlobResult::Version,
                (Some(BlobError::Corrupt), _) => BlobResult::Corrupt,
                (None, Some(_)) => BlobResult::Found,
                (None, None) => BlobResult::Missing,
            });
            if let Some(part) = self.parts.get(at).filter(|_| error.is_some()) {
                unusable |= 1 << part.entity;
            }
        }
        let unknown = unknown_entity(columns, &keys, |at| known.has(at));
        Ok((out, Found { unknown_entity: unknown && unusable == 0, unusable }))
    }
}

// === impl metrics ===

impl RedisFeatures {
    /// Numbers of reads by result: `values`, and the reasons of failures.
    pub(crate) fn reads(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counters = self.pool.counters();
        let failures = counters.failures().map(|(reason, count)| (reason.as_str(), count));
        std::iter::once(("values", counters.reads.load(Relaxed))).chain(failures)
    }
}
