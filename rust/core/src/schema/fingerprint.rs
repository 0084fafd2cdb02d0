//! The fingerprint by which callers of dense rows state the schema that they were built for.

use sha2::{Digest as _, Sha256};

use super::FeatureSpec;

/// Returns the first eight bytes (big endian) of the SHA-256 of the schema's canonical rendering.
///
/// The rendering is the text `scorer-schema-1`, then for each feature its name, its type and the number of its
/// categories in decimal, then the categories; every text is preceded by its length in bytes as a little-endian u64.
pub(super) fn of(features: &[FeatureSpec]) -> u64 {
    let mut hasher = Sha256::new();
    let mut text = |text: &str| {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    text("scorer-schema-1");
    for feature in features {
        text(&feature.name);
        text(feature.kind.name());
        text(&feature.categories.len().to_string());
        feature.categories.iter().for_each(|category| text(category));
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize()[..8]);
    u64::from_be_bytes(first)
}
