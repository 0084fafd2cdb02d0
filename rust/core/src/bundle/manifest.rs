//! `manifest.json`: the bundle's name, kind, program, files and lineage.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::explain::{COVERS, REASONS};
use super::features::FEATURES;
use super::functions::{FUNCTIONS, is_module_file};
use super::nets::MODEL;
use super::overlay::OVERLAY;
use super::rules::{RULES, is_list_file};
use super::score_map::SCORE_MAP;
use super::tables::TABLES;
use super::{BundleError, Digest};

/// The file name of the manifest.
pub const MANIFEST: &str = "manifest.json";
/// The file name of the signature. The manifest cannot list it, because the signature covers the manifest's digest.
pub const SIGNATURE: &str = "signature.json";
/// The format that this build reads and writes.
pub const FORMAT: u64 = 1;
/// Size of the largest manifest in bytes.
pub const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// Size of the largest other file in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 30;

/// Length of the longest description of a fault in the manifest's JSON, in characters.
const MAX_PROBLEM: usize = 200;

const ZERO: Digest = Digest([0; 32]);

/// The file names that a bundle may have, besides the manifest, the signature, `member-01.bin` to `member-64.bin`,
/// `member-01.onnx` to `member-64.onnx`, `list-01.txt` to `list-64.txt` and `function-01.wasm` to `function-16.wasm`.
const NAMES: [&str; 15] = [
    "forest.bin",
    MODEL,
    "schema.json",
    "actions.json",
    "calibration.json",
    TABLES,
    SCORE_MAP,
    OVERLAY,
    "reference.json",
    "golden.bin",
    COVERS,
    REASONS,
    RULES,
    FEATURES,
    FUNCTIONS,
];

/// The kind of result that a bundle gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A score and the band it falls in.
    Score,
    /// One action of a catalogue.
    Action,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Score => "score",
            Kind::Action => "action",
        })
    }
}

/// One file as the manifest lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// SHA-256 of the content.
    pub sha256: Digest,
    /// Size in bytes.
    pub bytes: u64,
}

impl FileEntry {
    /// The entry of a file with this content.
    #[must_use]
    pub fn of(bytes: &[u8]) -> FileEntry {
        FileEntry { sha256: Digest::of(bytes), bytes: bytes.len() as u64 }
    }
}

/// The data, code and training run that the bundle was built from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lineage {
    /// Digest of the training data.
    pub data_digest: String,
    /// Version of the training code, such as a commit.
    pub code_version: String,
    /// Versions of the libraries that trained the model.
    pub library_versions: BTreeMap<String, String>,
    /// The training run.
    pub run_id: String,
    /// Metrics of the training run, such as the AUC.
    #[serde(default)]
    pub metrics: BTreeMap<String, serde_json::Value>,
    /// The fields of a revision and fields that this build does not know. They are kept unchanged.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// The contents of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format; see [`FORMAT`].
    pub format: u64,
    /// SHA-256 of this file with the 64 digits of this field replaced by zeros.
    pub digest: Digest,
    /// Name of the bundle, such as `fraud-checkout`.
    pub name: String,
    /// The kind of result that the bundle gives.
    pub kind: Kind,
    /// Time of the build, in RFC 3339.
    pub created_at: String,
    /// The nodes, in the order in which they run.
    pub program: Vec<serde_json::Value>,
    /// Every other file of the bundle by name.
    pub files: BTreeMap<String, FileEntry>,
    /// The data, code and training run that the bundle was built from.
    pub lineage: Lineage,
}

impl Manifest {
    /// Parses the manifest and checks its form, its digest and the names of its files. It does not read the files.
    ///
    /// # Errors
    /// Fails if `bytes` is not a sealed manifest of format [`FORMAT`].
    pub fn parse(bytes: &[u8]) -> Result<Manifest, BundleError> {
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(BundleError::Manifest(format!(
                "{} bytes, the limit is {MAX_MANIFEST_BYTES}",
                bytes.len()
            )));
        }
        // The format is checked first, because manifests of later formats may have other fields.
        #[derive(Deserialize)]
        struct Header {
            format: u64,
        }
        // serde's message quotes the manifest, so control characters are replaced and the length is limited.
        let shown =
            |character: char| if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
        let invalid = |error: serde_json::Error| {
            BundleError::Manifest(error.to_string().chars().take(MAX_PROBLEM).map(shown).collect())
        };
        let header: Header = serde_json::from_slice(bytes).map_err(invalid)?;
        if header.format != FORMAT {
            return Err(BundleError::Format { found: header.format, known: FORMAT });
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(invalid)?;
        let got = digest_of(bytes, &manifest.digest)?;
        if got != manifest.digest {
            return Err(BundleError::Altered { got, stated: manifest.digest });
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks the names found in a bundle's directory: the manifest must list each of them, except itself and the
    /// signature. A listed file that is missing is reported when it is read.
    ///
    /// # Errors
    /// Returns an error with the first name that is not listed.
    pub fn check_listing<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<(), BundleError> {
        match names
            .into_iter()
            .find(|&name| ![MANIFEST, SIGNATURE].contains(&name) && !self.files.contains_key(name))
        {
            None => Ok(()),
            Some(name) => Err(BundleError::Extra(name.to_owned())),
        }
    }

    /// Sets the digest that belongs to the content and renders the manifest.
    ///
    /// # Errors
    /// Fails if a field breaks a rule or cannot be rendered.
    pub fn seal(&mut self) -> Result<Vec<u8>, BundleError> {
        self.digest = ZERO;
        self.check()?;
        let render = |manifest: &Manifest| {
            let mut text = serde_json::to_string_pretty(manifest)
                .map_err(|error| BundleError::Manifest(error.to_string()))?;
            text.push('\n');
            Ok(text)
        };
        let text = render(self)?;
        self.digest = Digest::of(text.as_bytes());
        render(self).map(String::into_bytes)
    }

    fn check(&self) -> Result<(), BundleError> {
        let field = |field: &str, rule| Err(BundleError::Field { field: field.to_owned(), rule });
        let printable =
            |text: &str| !text.is_empty() && text.len() <= 128 && !text.chars().any(char::is_control);
        if !self.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            || !printable(&self.name)
            || self.name.starts_with('.')
        {
            return field(
                "name",
                "must be 1 to 128 letters, digits, '-', '_' or '.', and not start with '.'",
            );
        }
        if !printable(&self.created_at) {
            return field("created_at", "must be a time such as 2026-11-21T12:00:00Z");
        }
        if self.lineage.data_digest.is_empty() || self.lineage.code_version.is_empty() {
            return field("lineage", "must state data_digest and code_version");
        }
        match self.files.keys().find(|name| !is_file_name(name)) {
            None => Ok(()),
            Some(name) => Err(BundleError::FileName(name.clone())),
        }
    }
}

/// Whether a bundle may have a file of this name. The set of names is closed, so a name cannot be a path to a file
/// outside the bundle.
#[must_use]
pub fn is_file_name(name: &str) -> bool {
    NAMES.contains(&name) || is_member_name(name) || is_list_file(name) || is_module_file(name)
}

/// Whether `name` is the model of an ensemble member: `member-01.bin` to `member-64.bin`, or the same with `.onnx`.
fn is_member_name(name: &str) -> bool {
    (1..=64)
        .any(|number| name == format!("member-{number:02}.bin") || name == format!("member-{number:02}.onnx"))
}

/// Computes the SHA-256 of the bytes with the digits of the stated digest replaced by zeros.
pub(super) fn digest_of(bytes: &[u8], stated: &Digest) -> Result<Digest, BundleError> {
    let digits = stated.hex();
    let mut places = bytes.windows(64).enumerate().filter(|(_, window)| *window == digits.as_bytes());
    let (Some((at, _)), None) = (places.next(), places.next()) else {
        return Err(BundleError::Manifest(
            "the digest must appear in the digest field and nowhere else".to_owned(),
        ));
    };
    let mut blank = bytes.to_vec();
    blank[at..at + 64].fill(b'0');
    Ok(Digest::of(&blank))
}
