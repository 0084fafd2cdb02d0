//! The keys of one feature set.

use scorer_features::FeatureSet;

/// Names the keys of a feature set. Sets of different versions have no key in common, so that a new version is built
/// beside the old one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// Prefix, name and version, with a colon at the end.
    base: String,
}

// === impl Keys ===

impl Keys {
    /// The keys of a set below a prefix.
    #[must_use]
    pub fn new(prefix: &str, set: &FeatureSet) -> Keys {
        Keys { base: format!("{prefix}{}:", set.label()) }
    }

    /// The key that exists while the state is complete: a feed has read its topic at least once from the beginning to
    /// the end of that time.
    #[must_use]
    pub fn complete(&self) -> Vec<u8> {
        format!("{}complete", self.base).into_bytes()
    }

    /// The key with the digest of the set.
    #[must_use]
    pub fn definition(&self) -> Vec<u8> {
        format!("{}definition", self.base).into_bytes()
    }

    /// The key of the blob of an entity.
    #[must_use]
    pub fn blob(&self, entity: &str, key: &str) -> Vec<u8> {
        format!("{}e:{entity}:{key}", self.base).into_bytes()
    }

    /// The key of the id of an event.
    #[must_use]
    pub fn id(&self, id: [u8; 16]) -> Vec<u8> {
        let mut key = format!("{}i:", self.base).into_bytes();
        key.extend_from_slice(&id);
        key
    }

    /// The key of the position in a partition of a topic.
    #[must_use]
    pub fn position(&self, topic: &str, partition: i32) -> Vec<u8> {
        format!("{}p:{topic}:{partition}", self.base).into_bytes()
    }
}
