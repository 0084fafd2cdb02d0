//! The errors with which a bundle is refused and with which an evaluation fails.

use super::{Digest, Kind};
use crate::budget::OutOfTime;
use crate::explain::CoversError;
use crate::forest::ForestError;
use crate::policy::{CatalogueError, PolicyError, SpecError};
use crate::schema::SchemaError;

/// The reason why a file could not be read. The caller's [`ReadFile`](super::ReadFile) function returns it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no such file.
    #[error("the file is missing")]
    Missing,
    /// The name is that of something other than a regular file.
    #[error("it is {0}, not a regular file")]
    NotAFile(&'static str),
    /// The file is larger than any bundle file may be.
    #[error("it has {bytes} bytes, more than the limit of {limit}")]
    TooLarge {
        /// Size of the file in bytes.
        bytes: u64,
        /// Greatest allowed size in bytes.
        limit: u64,
    },
    /// The operating system returned an error.
    #[error("{0}")]
    Io(String),
}

/// The reason why a bundle was refused. Each message is one line that names the item, the rule and the remedy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BundleError {
    /// `manifest.json` cannot be parsed.
    #[error("manifest.json: {0}; the file is truncated or altered, restore or rebuild the bundle")]
    Manifest(String),
    /// The manifest has a format that this build does not read.
    #[error(
        "manifest.json: format {found} is not the format {known} that this build reads; upgrade scorer or rebuild the bundle"
    )]
    Format {
        /// The format that the manifest states.
        found: u64,
        /// The format that this build reads.
        known: u64,
    },
    /// A field of the manifest breaks a rule.
    #[error("manifest.json: {field} {rule}; correct it and rebuild the bundle")]
    Field {
        /// The field.
        field: String,
        /// The rule that its value must follow.
        rule: &'static str,
    },
    /// The manifest lists a name that no bundle file has.
    #[error("file {0:?}: a bundle has no such file; remove it")]
    FileName(String),
    /// The manifest does not list a file that the bundle's kind or program needs.
    #[error("manifest.json: {file} is not listed, {why}; rebuild the bundle")]
    NotListed {
        /// The file.
        file: String,
        /// The reason why the bundle needs it.
        why: &'static str,
    },
    /// The bundle has a file that nothing refers to.
    #[error("{file}: {why}; remove it and rebuild the bundle")]
    Surplus {
        /// The file.
        file: String,
        /// The reason why the bundle must not have it.
        why: &'static str,
    },
    /// The bundle's directory holds a file that the manifest does not list.
    #[error("file {0:?}: not listed in manifest.json; remove it")]
    Extra(String),
    /// A file could not be read.
    #[error("{file}: {source}; restore or rebuild the bundle")]
    Read {
        /// The file.
        file: String,
        /// The reason.
        source: ReadError,
    },
    /// The size of a file differs from the one that the manifest states.
    #[error(
        "{file}: {got} bytes, manifest.json says {expected}; the file is truncated or altered, restore or rebuild the bundle"
    )]
    Size {
        /// The file.
        file: String,
        /// Size of the file in bytes.
        got: u64,
        /// Size that the manifest states, in bytes.
        expected: u64,
    },
    /// The hash of a file differs from the one that the manifest states.
    #[error(
        "{file}: content is {got}, manifest.json says {expected}; the file was altered, restore or rebuild the bundle"
    )]
    Hash {
        /// The file.
        file: String,
        /// SHA-256 of the file.
        got: Digest,
        /// SHA-256 that the manifest states.
        expected: Digest,
    },
    /// The manifest was altered after it was sealed.
    #[error(
        "manifest.json: content is {got}, its digest field says {stated}; the file was altered, restore or rebuild the bundle"
    )]
    Altered {
        /// Digest computed from the manifest.
        got: Digest,
        /// Digest that the manifest states.
        stated: Digest,
    },
    /// The bundle is not the requested one.
    #[error("bundle is {found}, {expected} was expected; check the alias or the directory")]
    Unexpected {
        /// The bundle's digest.
        found: Digest,
        /// The digest that was requested.
        expected: Digest,
    },
    /// A JSON file cannot be parsed.
    #[error("{file}: {reason}; correct it and rebuild the bundle")]
    Json {
        /// The file.
        file: &'static str,
        /// The position and the kind of the fault.
        reason: String,
    },
    /// A forest was refused.
    #[error("{file}: {source}")]
    Forest {
        /// The file.
        file: String,
        /// The reason.
        source: ForestError,
    },
    /// An ONNX model was refused.
    #[error("{file}: {source}")]
    Net {
        /// The file.
        file: String,
        /// The reason.
        source: Box<scorer_onnx::NetError>,
    },
    /// The functions were refused.
    #[error("functions.json: {0}")]
    Functions(String),
    /// A module of functions was refused.
    #[error("{file}: {source}")]
    Module {
        /// The file.
        file: String,
        /// The reason.
        source: Box<scorer_wasm::ModuleError>,
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
    /// The program has a node of a kind that this build does not know.
    #[error(
        "manifest.json: program node {node} has unknown kind {kind:?}; this build knows {known}; upgrade scorer or rebuild the bundle"
    )]
    UnknownNode {
        /// Position in the program.
        node: usize,
        /// Kind that the node states.
        kind: String,
        /// The kinds that this build knows.
        known: String,
    },
    /// A node of the program breaks a rule.
    #[error("manifest.json: program node {node} ({kind}): {reason}")]
    Node {
        /// Position in the program.
        node: usize,
        /// Kind of the node.
        kind: &'static str,
        /// The rule that the node breaks, and the remedy.
        reason: String,
    },
    /// The program as a whole breaks a rule.
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
    /// A table was refused.
    #[error("tables.json: table {table:?}: {reason}; correct the table and rebuild the bundle")]
    Table {
        /// The table.
        table: String,
        /// The rule it breaks.
        reason: String,
    },
    /// The score map was refused.
    #[error("score_map.json: {0}; correct it and revise the bundle again")]
    ScoreMap(String),
    /// An overlay was refused.
    #[error("overlay.json: {0}; correct it and revise the bundle again")]
    Overlay(String),
    /// The covers of the explained forest were refused.
    #[error("covers.bin: {0}; rebuild the bundle")]
    Covers(CoversError),
    /// The dictionary of reasons was refused.
    #[error("reasons.json: {0}; correct it and rebuild the bundle")]
    Reasons(String),
    /// The rules were refused.
    #[error("rules.toml: {0}")]
    Rules(String),
    /// The computed features were refused.
    #[error("features.json: {0}; rebuild the bundle")]
    Features(String),
    /// Reference statistics were refused.
    #[error("reference.json: {0}; rebuild the bundle")]
    Reference(String),
    /// The golden file is malformed.
    #[error("golden.bin: {0}; rebuild the bundle")]
    GoldenFile(String),
    /// A value of a golden case differs from the expected one in at least one bit.
    #[error(
        "golden case {case}: {what} 0x{got:016x} expected 0x{expected:016x} ({got_value} against {expected_value}); this engine does not reproduce the model, rebuild the bundle with this version"
    )]
    Golden {
        /// Number of the case.
        case: usize,
        /// The value that differs: `margin`, `score`, `probability` or `choice`, with its position if the case has
        /// several.
        what: String,
        /// Bits of the computed value.
        got: u64,
        /// Bits of the expected value.
        expected: u64,
        /// The computed value as a number.
        got_value: f64,
        /// The expected value as a number.
        expected_value: f64,
    },
    /// The output of an ONNX model for a golden case is not near that of the model's own runtime.
    #[error(
        "golden case {case}: {file} gives {got}, its own runtime gave {expected}; this engine does not reproduce the model, standardise its inputs or rebuild the bundle with this version"
    )]
    GoldenOutput {
        /// Number of the case.
        case: usize,
        /// File of the model.
        file: String,
        /// The computed output.
        got: f64,
        /// The output of the model's own runtime.
        expected: f64,
    },
    /// A golden case could not be evaluated.
    #[error("golden case {case}: {reason}; rebuild the bundle")]
    GoldenCase {
        /// Number of the case.
        case: usize,
        /// The reason.
        reason: String,
    },
}

/// The reason why one evaluation failed. The server then answers with the checkpoint's fallback.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EvalError {
    /// The row has not as many values as the schema has features.
    #[error(
        "features: {got} values, the bundle's schema has {expected}; call Describe for the features and their order"
    )]
    RowLength {
        /// Number of values in the row.
        got: usize,
        /// Number of features in the schema.
        expected: usize,
    },
    /// An action was requested from a score bundle, or a score from an action bundle.
    #[error("the bundle is of kind {found}; use a bundle of kind {wanted}")]
    Kind {
        /// The bundle's kind.
        found: Kind,
        /// The kind that the call needs.
        wanted: Kind,
    },
    /// A transformation or the calibrated score is not finite.
    #[error("{what} is {value}; the bundle cannot score this row")]
    NotFinite {
        /// The value that is not finite.
        what: &'static str,
        /// The value itself: infinite or NaN.
        value: f64,
    },
    /// Reasons were requested from a bundle without covers.
    #[error("the bundle has no covers.bin, so it gives no reasons; build it again from the model")]
    NoCovers,
    /// The reasons of an action that the catalogue does not have were requested.
    #[error("explained action: must be one of the {actions} actions of the catalogue; correct it")]
    Action {
        /// Number of actions in the catalogue.
        actions: usize,
    },
    /// The policy refused the scores or the eligible set.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The scratch was made for another bundle.
    #[error("the scratch was made for another bundle; make it with EvalScratch::new for this one")]
    Scratch,
    /// The budget was spent before the score was computed.
    #[error(transparent)]
    OutOfTime(#[from] OutOfTime),
}
