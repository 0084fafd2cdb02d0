//! The lists of a bundle's rules at one time.

use std::sync::Arc;

use scorer_core::bundle::Digest;
use scorer_rules::Lists;

/// A list that the rules of a bundle read, as decisions record it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListRead {
    /// Name of the list.
    pub name: String,
    /// The version; 0 if none was loaded, so that the content was that of the bundle's own file, if it has one.
    pub version: u64,
    /// Digest of the version; absent if none was loaded.
    pub digest: Option<Digest>,
}

/// The lists of one bundle at one time.
#[derive(Debug)]
pub struct BoundLists {
    /// Every list of the rules.
    pub lists: Lists,
    /// The external ones, by name.
    pub read: Arc<[ListRead]>,
}
