//! Why a bundle is refused, and why an evaluation fails.

use super::{Digest, Kind};
use crate::budget::OutOfTime;
use crate::forest::ForestError;
use crate::policy::{CatalogueError, PolicyError, SpecError};
use crate::schema::SchemaError;

/// Why a file could not be read; given by the reader of the files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no such file.
    #[error("the file is missing")]
    Missing,
    /// The name stands for something else than a regular file.
    #[error("it is {0}, not a regular file")]
    NotAFile(&'static str),
    /// The file is larger than any bundle file may be.
    #[error("it has {bytes} bytes, more than the limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The operating system refused.
    #[error("{0}")]
    Io(String),
}

/// Why a bundle was refused. Every message is one line that names the thing, the rule and the remedy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BundleError {
    /// `manifest.json` cannot be understood.
    #[error("manifest.json: {0}; the file is truncated or altered, restore or rebuild the bundle")]
    Manifest(String),
    /// A format of the future.
    #[error(
        "manifest.json: format {found} is not the format {known} that this build reads; upgrade scorer or rebuild the bundle"
    )]
    Format {
        /// The manifest's format.
        found: u64,
        /// The one this build reads.
        known: u64,
    },
    /// A text of the manifest breaks a rule.
    #[error("manifest.json: {field} {rule}; correct it and rebuild the bundle")]
    Field {
        /// The field.
        field: String,
        /// What it must be.
        rule: &'static str,
    },
    /// A name that no bundle file has.
    #[error("file {0:?}: a bundle has no such file; remove it")]
    FileName(String),
    /// A file that the bundle's kind or program needs is not listed.
    #[error("manifest.json: {file} is not listed, {why}; rebuild the bundle")]
    NotListed {
        /// The file.
        file: String,
        /// Who needs it.
        why: &'static str,
    },
    /// A file that nothing refers to.
    #[error("{file}: {why}; remove it and rebuild the bundle")]
    Surplus {
        /// The file.
        file: String,
        /// Why it does not belong.
        why: &'static str,
    },
    /// A file that the manifest does not list.
    #[error("file {0:?}: not listed in manifest.json; remove it")]
    Extra(String),
    /// A file could not be read.
    #[error("{file}: {source}; restore or rebuild the bundle")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: ReadError,
    },
    /// A file has another size than the manifest states.
    #[error(
        "{file}: {got} bytes, manifest.json says {expected}; the file is truncated or altered, restore or rebuild the bundle"
    )]
    Size {
        /// The file.
        file: String,
        /// Its size.
        got: u64,
        /// The manifest's.
        expected: u64,
    },
    /// A file has another content than the manifest states.
    #[error(
        "{file}: content is {got}, manifest.json says {expected}; the file was altered, restore or rebuild the bundle"
    )]
    Hash {
        /// The file.
        file: String,
        /// Its SHA-256.
        got: Digest,
        /// The manifest's.
        expected: Digest,
    },
    /// The manifest is not the one that was sealed.
    #[error(
        "manifest.json: content is {got}, its digest field says {stated}; the file was altered, restore or rebuild the bundle"
    )]
    Altered {
        /// Computed.
        got: Digest,
        /// Stated in the manifest.
        stated: Digest,
    },
    /// Another bundle than the one asked for.
    #[error("bundle is {found}, {expected} was expected; check the alias or the directory")]
    Unexpected {
        /// The bundle's digest.
        found: Digest,
        /// The one asked for.
        expected: Digest,
    },
    /// A JSON file cannot be understood.
    #[error("{file}: {reason}; correct it and rebuild the bundle")]
    Json {
        /// The file.
        file: &'static str,
        /// Where and what.
        reason: String,
    },
    /// A forest was refused.
    #[error("{file}: {source}")]
    Forest {
        /// The file.
        file: String,
        /// Why.
        source: ForestError,
    },
    /// The schema was refused.
    #[error("schema.json: {0}")]
    Schema(SchemaError),
    /// The catalogue was refused.
    #[error("actions.json: {0}")]
    Catalogue(CatalogueError),
    /// The policy was refused.
    #[error("manifest.json: {0}")]
    Policy(SpecError),
    /// A node kind of the future.
    #[error(
        "manifest.json: program node {node} has unknown kind {kind:?}; this build knows {known}; upgrade scorer or rebuild the bundle"
    )]
    UnknownNode {
        /// Position in the program.
        node: usize,
        /// Its kind.
        kind: String,
        /// The kinds of this build.
        known: String,
    },
    /// A node that does not fit.
    #[error("manifest.json: program node {node} ({kind}): {reason}")]
    Node {
        /// Position in the program.
        node: usize,
        /// Its kind.
        kind: &'static str,
        /// Rule and remedy.
        reason: String,
    },
    /// The program as a whole does not fit.
    #[error("manifest.json: program {0}")]
    Program(String),
    /// A calibration map was refused.
    #[error("calibration.json: map {map:?}: {reason}; correct the map and rebuild the bundle")]
    Calibration {
        /// The map.
        map: String,
        /// The rule it breaks.
        reason: String,
    },
    /// An overlay was refused.
    #[error("overlay.json: {0}; correct it and revise the bundle again")]
    Overlay(String),
    /// Reference statistics were refused.
    #[error("reference.json: {0}; rebuild the bundle")]
    Reference(String),
    /// The golden file is malformed.
    #[error("golden.bin: {0}; rebuild the bundle")]
    GoldenFile(String),
    /// A golden case did not come out bit for bit.
    #[error(
        "golden case {case}: {what} 0x{got:016x} expected 0x{expected:016x} ({got_value} against {expected_value}); this engine does not reproduce the model, rebuild the bundle with this version"
    )]
    Golden {
        /// Number of the case.
        case: usize,
        /// What differs: `margin`, `score`, `pmf`, `choice`, with the action where there is one.
        what: String,
        /// Bits that came out.
        got: u64,
        /// Bits expected.
        expected: u64,
        /// The same as a number.
        got_value: f64,
        /// The same as a number.
        expected_value: f64,
    },
    /// A golden case could not be evaluated.
    #[error("golden case {case}: {reason}; rebuild the bundle")]
    GoldenCase {
        /// Number of the case.
        case: usize,
        /// Why.
        reason: String,
    },
}

/// Why one evaluation failed; the server answers with the checkpoint's fallback.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EvalError {
    /// The row's length is not the schema's.
    #[error(
        "features: {got} values, the bundle's schema has {expected}; call Describe for the features and their order"
    )]
    RowLength {
        /// Values given.
        got: usize,
        /// Features of the schema.
        expected: usize,
    },
    /// A score bundle was asked for an action, or the other way round.
    #[error("the bundle is of kind {found}; ask a bundle of kind {wanted}")]
    Kind {
        /// The bundle's kind.
        found: Kind,
        /// The kind that could answer.
        wanted: Kind,
    },
    /// A transformation or the calibrated score is not finite.
    #[error("{what} is {value}; the bundle cannot score this row")]
    NotFinite {
        /// What.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// The policy refused.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The scratch was made for another bundle.
    #[error("the scratch was made for another bundle; make it with EvalScratch::new for this one")]
    Scratch,
    /// The budget was spent before there was a score.
    #[error(transparent)]
    OutOfTime(#[from] OutOfTime),
}
