//! Reads and verifies the directory of one version, in one pass and in parts, so that the file is never in memory as a
//! whole.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use scorer_core::bundle::{
    Digest, LIST_ELEMENTS, ListManifest, ListParser, MANIFEST, MAX_MANIFEST_BYTES, Rules,
};
use scorer_rules::{KeySet, KeySetBuilder, ListKey, Lists};
use sha2::{Digest as _, Sha256};

use super::error::ListError;
use crate::bundle_dir;

/// Bytes that are read at a time.
const PART: usize = 1 << 18;

/// Reads the manifest of a version.
pub(super) fn manifest(path: &Path) -> Result<ListManifest, ListError> {
    let bytes = bundle_dir::read(path, MANIFEST, MAX_MANIFEST_BYTES).map_err(|source| ListError::Read {
        path: path.to_owned(),
        file: MANIFEST,
        source,
    })?;
    ListManifest::parse(&bytes).map_err(|reason| ListError::Manifest { path: path.to_owned(), reason })
}

/// Reads the elements of a version, and builds a set for each key. Everything that the manifest states is verified.
pub(super) fn sets(
    path: &Path,
    manifest: &ListManifest,
    keys: &[ListKey],
) -> Result<Vec<(ListKey, Arc<KeySet>)>, ListError> {
    let wrong = |reason: String| ListError::Elements { path: path.to_owned(), reason };
    let unread = |source| ListError::Read { path: path.to_owned(), file: LIST_ELEMENTS, source };
    let entry = manifest.entry().map_err(wrong)?;
    let (mut file, size) = bundle_dir::open(path, LIST_ELEMENTS, entry.bytes).map_err(unread)?;
    if size != entry.bytes {
        return Err(wrong(format!(
            "{size} bytes, the manifest states {}; publish the list again",
            entry.bytes
        )));
    }
    let most = usize::try_from(manifest.list.elements).unwrap_or(usize::MAX);
    let start = |key: &ListKey| {
        let builder = KeySetBuilder::new(manifest.list.version, most);
        builder.map(|builder| (*key, builder)).map_err(|error| wrong(error.to_string()))
    };
    let mut builders: Vec<(ListKey, KeySetBuilder)> = keys.iter().map(start).collect::<Result<_, _>>()?;
    let mut parser = ListParser::new(manifest.list.kind);
    let mut each = |element: scorer_core::bundle::Element<'_>| {
        builders.iter_mut().try_for_each(|(key, builder)| {
            builder.insert(element.hash(*key)).map_err(|_| {
                format!("more elements than the {most} that the manifest states; publish the list again")
            })
        })
    };
    let (mut hash, mut part, mut total) = (Sha256::new(), vec![0; PART], 0_u64);
    loop {
        let count = file.read(&mut part).map_err(|error| unread(bundle_dir::explain(&error)))?;
        if count == 0 {
            break;
        }
        total += count as u64;
        if total > entry.bytes {
            return Err(wrong("it grew while it was read; publish the list again".to_owned()));
        }
        hash.update(&part[..count]);
        parser.push(&part[..count], &mut each).map_err(wrong)?;
    }
    let elements = parser.finish(&mut each).map_err(wrong)?;
    let found = Digest(hash.finalize().into());
    if found != entry.sha256 {
        let stated = entry.sha256;
        return Err(wrong(format!("it is {found}, the manifest states {stated}; publish the list again")));
    }
    if elements != manifest.list.elements {
        let stated = manifest.list.elements;
        return Err(wrong(format!(
            "{elements} elements, the manifest states {stated}; publish the list again"
        )));
    }
    Ok(builders.into_iter().map(|(key, builder)| (key, Arc::new(builder.finish()))).collect())
}

/// Verifies everything of the version in a directory but its signature, and returns its digest.
///
/// # Errors
/// Returns a [`ListError`] with the first fault.
pub fn verify_list(path: &Path) -> Result<Digest, ListError> {
    let manifest = manifest(path)?;
    sets(path, &manifest, &[])?;
    Ok(manifest.digest)
}

/// Returns the lists of rules with the versions in some directories, by name. External lists without a directory have the
/// content of the bundle's own files, if any, as on a server that has loaded no version.
///
/// # Errors
/// Fails if a version cannot be read, or is not one of an external list of these rules.
pub fn with_versions(rules: &Rules, versions: &BTreeMap<String, PathBuf>) -> Result<Lists, ListError> {
    let mut lists = rules.lists().clone();
    for (name, path) in versions {
        let manifest = manifest(path)?;
        let external = rules.external().iter().find(|external| external.name == *name);
        let fits = external.filter(|of| of.kind == manifest.list.kind && manifest.name == *name);
        let Some(external) = fits else {
            return Err(ListError::Unexpected {
                path: path.clone(),
                found: format!("list {:?} of type {}", manifest.name, manifest.list.kind.as_str()),
                expected: format!("the external list {name:?} of the rules"),
            });
        };
        for (_, set) in sets(path, &manifest, &[lists.key()])? {
            lists = lists.with(external.list, set);
        }
    }
    Ok(lists)
}
