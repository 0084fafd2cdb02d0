//! The interface of sources of features.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use scorer_core::bundle::ComputedFeatures;

/// Greatest number of entities of one feature set.
pub const MAX_ENTITIES: usize = 16;

/// A source of features: a store in this process, or a service.
pub trait FeatureSource: Send + Sync {
    /// Prepares the reads of a bundle.
    ///
    /// # Errors
    /// The source does not have one of the features as the bundle declares it.
    fn prepare(&self, features: &ComputedFeatures) -> Result<Arc<dyn FeatureReader>, SourceRefusal>;
}

/// Reads the computed features of one bundle.
pub trait FeatureReader: Send + Sync {
    /// Names of the entities whose keys a read takes; at most [`MAX_ENTITIES`].
    fn entities(&self) -> &[String];

    /// The columns of the bundle, in the order in which a read returns their values.
    fn columns(&self) -> &[ReadColumn];

    /// Reads the values as of `at_us`, in microseconds since the Unix epoch. `keys` are in the order of
    /// [`FeatureReader::entities`]; `out` has one place per column. The call must not block.
    fn read(&self, keys: &[Option<&str>], at_us: i64, out: &mut [f32]) -> Loading;
}

/// A column as a source reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadColumn {
    /// Digest of the feature's definition. Columns of two bundles with the same digest have the same value.
    pub digest: [u8; 32],
    /// One bit for each entity whose key the feature needs, by its position in [`FeatureReader::entities`].
    pub entities: u16,
}

/// The values of a read that has not ended, one per column.
pub type LaterValues = Pin<Box<dyn Future<Output = Result<(Vec<f32>, Found), SourceError>> + Send>>;

/// The result of a read.
pub enum Loading {
    /// `out` has the values.
    Ready(Found),
    /// The values cannot be read. `out` is not used.
    Failed,
    /// The values follow.
    Waiting(LaterValues),
}

/// Facts about a completed read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Whether the source has never seen one of the entities.
    pub unknown_entity: bool,
    /// One bit for each entity whose state cannot be used, by its position in [`FeatureReader::entities`]. The features
    /// that need it have their declared defaults.
    pub unusable: u16,
}

/// A read failed.
#[derive(Debug, thiserror::Error)]
#[error("the source of features cannot be read: {0}")]
pub struct SourceError(pub String);

/// A source does not have the features of a bundle.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SourceRefusal(pub String);

/// The keys of a request's entities.
pub trait EntityKeys: Sync {
    /// Returns the key of an entity, in the form in which it is stored.
    fn key(&self, entity: &str) -> Option<&str>;
}

/// No keys.
impl EntityKeys for () {
    fn key(&self, _: &str) -> Option<&str> {
        None
    }
}

impl EntityKeys for HashMap<String, String> {
    fn key(&self, entity: &str) -> Option<&str> {
        self.get(entity).map(String::as_str)
    }
}
