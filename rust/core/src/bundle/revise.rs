//! Makes the next revision of a bundle: the same forests, schema and catalogue with another overlay or other cap
//! prices.

use std::collections::BTreeMap;

use super::overlay::OVERLAY;
use super::{Bundle, BundleError, FileEntry, Manifest, ReadFile, golden, read_files};

/// The files in which a revision differs from the bundle that it revises.
#[derive(Debug)]
pub struct Revised {
    /// The sealed `manifest.json`.
    pub manifest: Vec<u8>,
    /// `golden.bin` with the rows and the training library's margins of the revised bundle, and newly computed results.
    pub golden: Vec<u8>,
}

impl Bundle {
    /// Makes the next revision of this bundle. `manifest` is the revision's manifest; its digest and files are
    /// replaced. `overlay` is the revision's overlay file, if it has one. `read` reads this bundle's own files.
    ///
    /// # Errors
    /// Fails if [`Bundle::assemble`] would refuse the revision, or if a file of this bundle has changed.
    pub fn revise(
        &self,
        mut manifest: Manifest,
        overlay: Option<&[u8]>,
        read: &ReadFile<'_>,
    ) -> Result<Revised, BundleError> {
        manifest.files = self.manifest.files.clone();
        let before = manifest.files.remove("golden.bin");
        manifest.files.remove(OVERLAY);
        manifest.files.extend(overlay.map(|bytes| (OVERLAY.to_owned(), FileEntry::of(bytes))));
        let read_new = |name: &str| match overlay {
            Some(bytes) if name == OVERLAY => Ok(bytes.to_vec()),
            _ => read(name),
        };
        let draft = Bundle::draft_beside(&manifest.seal()?, &read_new, &[self])?;
        let listed: BTreeMap<_, _> =
            before.into_iter().map(|entry| ("golden.bin".to_owned(), entry)).collect();
        let cases = read_files(&listed, read)?.remove("golden.bin").unwrap_or_default();
        let golden = golden::revise(&draft, &cases)?;
        manifest.files.insert("golden.bin".to_owned(), FileEntry::of(&golden));
        Ok(Revised { manifest: manifest.seal()?, golden })
    }
}
