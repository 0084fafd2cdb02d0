//! Makes the next revision of a bundle: the same forests, schema and catalogue with another overlay or score map, other
//! cap prices or other rules.

use std::collections::BTreeMap;

use super::overlay::OVERLAY;
use super::rules::{RULES, is_list_file};
use super::score_map::SCORE_MAP;
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
    /// replaced. `changing` has the contents of the revision's overlay, score map, rules and lists, as far as it has them,
    /// and the reference statistics if they change with the score map. `read` reads this bundle's own files.
    ///
    /// # Errors
    /// Fails if [`Bundle::assemble`] would refuse the revision, or if a file of this bundle has changed.
    pub fn revise(
        &self,
        mut manifest: Manifest,
        changing: &BTreeMap<String, Vec<u8>>,
        read: &ReadFile<'_>,
    ) -> Result<Revised, BundleError> {
        manifest.files = self.manifest.files.clone();
        let before = manifest.files.remove("golden.bin");
        manifest.files.retain(|name, _| !changes(name));
        if let Some(fixed) = changing.keys().find(|name| !changes(name) && *name != REFERENCE) {
            return Err(BundleError::Surplus { file: fixed.clone(), why: "a revision keeps this file" });
        }
        manifest.files.extend(changing.iter().map(|(name, bytes)| (name.clone(), FileEntry::of(bytes))));
        let read_new = |name: &str| match changing.get(name) {
            Some(bytes) => Ok(bytes.clone()),
            None => read(name),
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

/// The file of the distribution of scores, which another score map changes.
const REFERENCE: &str = "reference.json";

/// Whether a revision has its own content of a file, or does not have the file.
fn changes(name: &str) -> bool {
    name == OVERLAY || name == SCORE_MAP || name == RULES || is_list_file(name)
}
