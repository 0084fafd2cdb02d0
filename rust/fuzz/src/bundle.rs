//! The files of a bundle.

use scorer_core::bundle::testing::{Files, assemble, reseal};
use scorer_core::bundle::{MANIFEST, Manifest};

/// The names of a bundle's files. Each part of the input begins with the index of a name.
pub const NAMES: [&str; 17] = [
    MANIFEST,
    "schema.json",
    "actions.json",
    "calibration.json",
    "overlay.json",
    "forest.bin",
    "golden.bin",
    "reference.json",
    "member-01.bin",
    "covers.bin",
    "reasons.json",
    "rules.toml",
    "list-01.txt",
    "score_map.json",
    "tables.json",
    "member-02.bin",
    "member-03.onnx",
];

/// Splits the input into files. Each part consists of the index of its name, its length in three bytes, and its
/// contents.
pub fn files(mut data: &[u8]) -> Files {
    let mut files = Files::new();
    while let Some((&[name, a, b, c], rest)) = data.split_first_chunk::<4>() {
        let length = (u32::from_le_bytes([a, b, c, 0]) as usize).min(rest.len());
        let (content, rest) = rest.split_at(length);
        files.insert(NAMES[usize::from(name) % NAMES.len()].to_owned(), content.to_vec());
        data = rest;
    }
    files
}

/// Joins files to an input for [`files`]. Forests and covers are written without their checksum.
pub fn join(files: &Files) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, name) in NAMES.iter().enumerate() {
        let Some(content) = files.get(*name) else { continue };
        let content = if has_checksum(name) { &content[..content.len() - 4] } else { &content[..] };
        out.push(index as u8);
        out.extend_from_slice(&(content.len() as u32).to_le_bytes()[..3]);
        out.extend_from_slice(content);
    }
    out
}

/// Whether the file ends with a checksum. A file of covers has that of a forest.
fn has_checksum(name: &str) -> bool {
    name.ends_with(".bin") && name != "golden.bin"
}

/// Parses the manifest unchanged, then completes checksums and digests and assembles the bundle.
pub fn run(data: &[u8]) {
    let mut files = files(data);
    if let Some(manifest) = files.get(MANIFEST) {
        let _ = Manifest::parse(manifest);
    }
    for (name, content) in &mut files {
        if has_checksum(name) {
            *content = crate::forest::with_checksum(content);
        }
    }
    if reseal(&mut files).is_ok() {
        let _ = assemble(&files);
    }
}
