//! The next revision of a bundle: the same forests, schema and catalogue; another overlay, other prices.

use std::collections::BTreeMap;

use super::overlay::OVERLAY;
use super::{Bundle, BundleError, FileEntry, Manifest, ReadFile, golden, read_files};

/// What a revision has and the bundle before it has not.
#[derive(Debug)]
pub struct Revised {
    /// `manifest.json`, sealed.
    pub manifest: Vec<u8>,
    /// `golden.bin`: the rows and the libraries' margins of before, what the engine makes of them anew.
    pub golden: Vec<u8>,
}

impl Bundle {
    /// Makes the next revision of this bundle. `manifest` is what it shall be, with any digest and any files;
    /// `overlay` is its overlay's file, if it has one; `read` reads this bundle's own files.
    ///
    /// # Errors
    /// What [`Bundle::assemble`] would refuse in the revision; a file that is not this bundle's any more.
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
