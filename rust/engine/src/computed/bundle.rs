//! The computed columns of one loaded bundle.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use scorer_core::bundle::ComputedFeatures;
use sha2::{Digest as _, Sha256};

use super::origins::Origins;
use super::source::{EntityKeys, FeatureReader, FeatureSource, Found, Loading, MAX_ENTITIES, SourceRefusal};
use crate::counters::FeatureCounters;
use crate::defaulted::Defaulted;

/// The computed columns of a bundle, bound to the source of their values.
pub struct Computed {
    reader: Arc<dyn FeatureReader>,
    columns: Box<[Column]>,
    /// Equal for bundles that read the same features into columns of the same names.
    key: [u8; 32],
    counters: Arc<FeatureCounters>,
}

/// A computed column.
struct Column {
    /// Position in the row.
    at: usize,
    /// Name in the schema.
    name: String,
    /// Name of the feature.
    feature: String,
    default: f32,
}

// === impl Computed ===

impl Computed {
    /// Binds the features of a bundle to a source. `name_of` returns the name of a column by its position.
    ///
    /// # Errors
    /// There is no source, or it does not have the features.
    pub(crate) fn bind<'a>(
        features: &ComputedFeatures,
        name_of: impl Fn(usize) -> &'a str,
        source: Option<&dyn FeatureSource>,
        counters: impl FnOnce() -> Arc<FeatureCounters>,
    ) -> Result<Computed, SourceRefusal> {
        let source = source.ok_or_else(|| {
            SourceRefusal("this server has no feature sets; add the set to [features] sets".to_owned())
        })?;
        let reader = source.prepare(features)?;
        if reader.columns().len() != features.columns.len() || reader.entities().len() > MAX_ENTITIES {
            return Err(SourceRefusal(
                "the source does not read these columns; report the defect".to_owned(),
            ));
        }
        let columns: Box<[Column]> = features
            .columns
            .iter()
            .map(|column| Column {
                at: column.at,
                name: name_of(column.at).to_owned(),
                feature: column.feature.clone(),
                default: column.default,
            })
            .collect();
        let mut hasher = Sha256::new();
        for (column, read) in columns.iter().zip(reader.columns()) {
            hasher.update((column.name.len() as u64).to_le_bytes());
            hasher.update(column.name.as_bytes());
            hasher.update(read.digest);
        }
        Ok(Computed { reader, columns, key: hasher.finalize().into(), counters: counters() })
    }

    /// Number of columns.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether there are no columns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// The entities whose keys a request should have.
    #[must_use]
    pub fn entities(&self) -> &[String] {
        self.reader.entities()
    }

    /// Whether both read the same features into columns of the same names.
    #[must_use]
    pub fn is_same(&self, other: &Computed) -> bool {
        self.key == other.key
    }

    /// Returns the name of the feature that fills a position of the row.
    #[must_use]
    pub fn feature_at(&self, at: usize) -> Option<&str> {
        let column = self.columns.binary_search_by_key(&at, |column| column.at).ok()?;
        self.columns.get(column).map(|column| &*column.feature)
    }

    /// The positions of the columns in the row, ascending.
    pub fn positions(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.columns.iter().map(|column| column.at)
    }

    /// The name and the digest of each column, in the order of the row.
    pub fn named(&self) -> impl ExactSizeIterator<Item = (&str, &[u8; 32])> {
        self.columns.iter().zip(self.reader.columns()).map(|(column, read)| (&*column.name, &read.digest))
    }

    /// The counters of the feature set.
    #[must_use]
    pub fn counters(&self) -> &FeatureCounters {
        &self.counters
    }

    /// Begins a read of all columns as of `at_us`. With [`Loading::Ready`], `out` has one value per column.
    pub(crate) fn begin(&self, keys: &dyn EntityKeys, at_us: i64, out: &mut Vec<f32>) -> Loading {
        let mut given = [None; MAX_ENTITIES];
        for (place, entity) in given.iter_mut().zip(self.entities()) {
            *place = keys.key(entity);
        }
        out.clear();
        out.resize(self.columns.len(), f32::NAN);
        let given = &given[..self.entities().len()];
        // A source that panics must not take the request with it.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.reader.read(given, at_us, out)))
            .unwrap_or(Loading::Failed)
    }

    /// Reads all columns for an observer. A source that does not answer at once counts as late.
    pub fn read_now(&self, keys: &dyn EntityKeys, at_us: i64, out: &mut Vec<f32>) -> Origins {
        let began = Instant::now();
        let result = match self.begin(keys, at_us, out) {
            Loading::Ready(found) => Ok(found),
            Loading::Failed => Err(Defaulted::Failed),
            Loading::Waiting(_) => Err(Defaulted::Late),
        };
        if result.is_err() {
            self.write_defaults(out);
        }
        let mut origins = Origins::at(at_us);
        self.count(result, began.elapsed());
        match result {
            Ok(found) => {
                origins.unusable = found.unusable;
                self.note_missing(keys, &mut origins);
            }
            Err(reason) => origins.default_for(reason),
        }
        origins
    }

    /// Notes the columns of a row whose values are there already.
    pub(crate) fn note_stated(&self, row: &[f32], origins: &mut Origins) {
        for (number, column) in self.columns.iter().enumerate() {
            if row.get(column.at).is_some_and(|value| !value.is_nan()) {
                origins.state(number);
            }
        }
    }

    /// Writes values into the columns that the request did not state. `Err` writes the defaults for a reason.
    pub(crate) fn apply(
        &self,
        values: Result<&[f32], Defaulted>,
        keys: &dyn EntityKeys,
        row: &mut [f32],
        origins: &mut Origins,
    ) {
        for (number, column) in self.columns.iter().enumerate() {
            if origins.is_stated(number) {
                continue;
            }
            let value = values.ok().and_then(|values| values.get(number).copied());
            if let Some(place) = row.get_mut(column.at) {
                *place = value.unwrap_or(column.default);
            }
        }
        match values {
            Ok(_) => self.note_missing(keys, origins),
            Err(reason) => origins.default_for(reason),
        }
        self.counters.stated.fetch_add(u64::from(origins.stated()), Relaxed);
        if let Some(reason) = origins.defaulted {
            self.counters.defaulted(reason);
        }
    }

    /// Notes the columns with defaults because an entity has no key, or its state cannot be used.
    fn note_missing(&self, keys: &dyn EntityKeys, origins: &mut Origins) {
        let mut missing = 0_u16;
        for (at, entity) in self.entities().iter().enumerate() {
            if keys.key(entity).is_none() {
                missing |= 1 << at;
            }
        }
        for (entities, reason) in [(missing, Defaulted::NoKey), (origins.unusable, Defaulted::Failed)] {
            let mut read = self.reader.columns().iter().enumerate();
            if entities != 0
                && read.any(|(at, column)| column.entities & entities != 0 && !origins.is_stated(at))
            {
                origins.default_for(reason);
            }
        }
    }

    /// Counts a read.
    pub(crate) fn count(&self, result: Result<Found, Defaulted>, took: Duration) {
        self.counters.loads.fetch_add(1, Relaxed);
        self.counters.times.record(took);
        if result.is_ok_and(|found| found.unknown_entity) {
            self.counters.unknown_entities.fetch_add(1, Relaxed);
        }
    }

    /// Writes the default of each column.
    fn write_defaults(&self, out: &mut Vec<f32>) {
        out.clear();
        out.extend(self.columns.iter().map(|column| column.default));
    }
}
