//! The bundle: the only artifact that can be deployed. It is verified completely before it serves.
//!
//! A bundle is a directory of files that its manifest lists with their SHA-256. This module works on bytes; the
//! caller reads the files. [`Bundle::assemble`] checks the manifest's form and digest, the size and hash of every
//! file, the schema, catalogue, forests, calibration maps, reference statistics and program (see [`node`]), and
//! finally every golden case, bit for bit.

mod branches;
mod calibration;
mod combine;
mod date;
mod digest;
mod error;
mod explain;
mod features;
mod functions;
pub mod golden;
mod list;
mod manifest;
mod measure;
mod nets;
pub mod node;
mod oracle;
mod overlay;
mod program;
mod reference;
mod revise;
mod rules;
mod score;
mod score_map;
mod score_rows;
mod scratch;
mod select;
mod switch;
mod tables;
#[doc(hidden)]
pub mod testing;
mod threshold;
mod times;
mod transform;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;

pub use calibration::{Calibration, CalibrationMap};
pub use digest::{Digest, DigestError};
pub use error::{BundleError, EvalError, ReadError};
pub use explain::{Explained, ReasonEntry, ReasonsFile};
pub use features::{ComputedColumn, ComputedFeatures};
pub use functions::{CustomFunctions, FunctionEntry, FunctionSet, FunctionsFile};
pub use golden::GoldenRow;
pub use list::{Element, ElementType, LIST_ELEMENTS, ListManifest, ListParser};
pub use manifest::{
    FORMAT, FileEntry, Kind, Lineage, MANIFEST, MAX_FILE_BYTES, MAX_MANIFEST_BYTES, Manifest, SIGNATURE,
    is_file_name,
};
pub use measure::{Measured, NodeSum, measure};
pub use nets::NetFacts;
pub use node::Band;
pub use overlay::{Offsets, OverlayFile};
pub use reference::{Distribution, Reference};
pub use revise::Revised;
pub use rules::{ExternalList, ListEntry, ListFiles, ListSource, RuledScore, Rules};
pub use score::ScoreOut;
pub use score_map::ScoreMap;
pub use scratch::EvalScratch;
pub use select::SelectOut;
pub use tables::{Table, TablesFile};
pub use times::NodeInfo;

use crate::budget::Unlimited;
use crate::forest::Forest;
use crate::policy::{Action, ActionCatalogue, CatalogueError, Policy, Salt};
use crate::schema::{FeatureSpec, Schema, SchemaError};
use explain::{COVERS, Explainer, REASONS};
use features::FEATURES;
use functions::FUNCTIONS;
use node::Node;
use oracle::{Oracle, distinct};
use overlay::{OVERLAY, Overlay};
use program::{End, Parts, Program};
use rules::{RULES, Surroundings};
use score_map::SCORE_MAP;
use tables::{TABLES, Tables};

/// Reads one file of a bundle by its plain name.
pub type ReadFile<'a> = dyn Fn(&str) -> Result<Vec<u8>, ReadError> + 'a;

/// A completed step of [`Bundle::assemble_in_steps`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Every file has been read and has the size and hash that the manifest lists.
    Verified,
    /// Schema, forests, calibration maps and program have been validated and compiled.
    Compiled,
    /// Every golden case gave the expected bits.
    Golden,
}

/// A verified bundle. It is immutable and `Send + Sync`; share it in an `Arc`.
#[derive(Debug)]
pub struct Bundle {
    manifest: Manifest,
    digest: Digest,
    schema: Schema,
    action_schema: Schema,
    catalogue: ActionCatalogue,
    /// `[actions, action_width]`.
    action_rows: Vec<f32>,
    action_width: usize,
    program: Program,
    /// The specialised program, if this is an action bundle whose program can run for all actions at once.
    oracle: Option<Oracle>,
    /// The explanation of the score, if the bundle has covers.
    explainer: Option<Explainer>,
    /// The rules, if the program has a rules node.
    rules: Option<Rules>,
    /// The team's own functions, if there are some.
    functions: Option<CustomFunctions>,
    /// The features that the server computes, if there are any.
    computed: Option<ComputedFeatures>,
    reference: Option<Reference>,
}

/// The contents of `schema.json`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchemaFile {
    /// The features of a request, in the order of the forest's columns.
    pub features: Vec<FeatureSpec>,
    /// The columns after those of the request, filled from the catalogue. Only action bundles have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub action_features: Vec<FeatureSpec>,
}

impl Bundle {
    /// Verifies everything and compiles the program. `read` is called once per file, only with names from the closed
    /// set of bundle files. [`Manifest::check_listing`] finds files in the directory that the manifest does not list.
    ///
    /// # Errors
    /// Returns the first fault found; no part of the bundle is then usable.
    pub fn assemble(manifest: &[u8], read: &ReadFile<'_>) -> Result<Bundle, BundleError> {
        Bundle::assemble_in_steps(manifest, read, &[], &mut |_| ()).map(|(bundle, _)| bundle)
    }

    /// Does what [`Bundle::assemble`] does, and calls `done` after each step, so that a caller with a clock can measure
    /// them. Also returns the rows of the golden cases, which serve as realistic requests for the warm-up.
    ///
    /// A forest whose file has the same SHA-256 as one of the `known` bundles is shared with that bundle instead of
    /// being parsed and compiled again. So is its specialisation to the same catalogue. Every file is still read and
    /// hashed, and every golden case is still scored.
    ///
    /// # Errors
    /// Fails as [`Bundle::assemble`] does.
    pub fn assemble_in_steps(
        manifest: &[u8],
        read: &ReadFile<'_>,
        known: &[&Bundle],
        done: &mut dyn FnMut(Step),
    ) -> Result<(Bundle, Vec<GoldenRow>), BundleError> {
        let manifest = Manifest::parse(manifest)?;
        let mut files = read_files(&manifest.files, read)?;
        done(Step::Verified);
        let golden = files.remove("golden.bin").ok_or_else(|| not_listed("golden.bin"))?;
        let reference = files.remove("reference.json").ok_or_else(|| not_listed("reference.json"))?;
        let mut bundle = Bundle::compile(manifest, files, known)?;
        bundle.reference = Some(Reference::parse(&reference)?);
        done(Step::Compiled);
        let rows = golden::verify(&bundle, &golden)?;
        done(Step::Golden);
        Ok((bundle, rows))
    }

    /// Assembles a bundle without reference statistics and golden cases, so that a builder can compute both with it.
    /// Everything else is verified.
    ///
    /// # Errors
    /// Fails as [`Bundle::assemble`] does.
    pub fn draft(manifest: &[u8], read: &ReadFile<'_>) -> Result<Bundle, BundleError> {
        Bundle::draft_beside(manifest, read, &[])
    }

    /// Does what [`Bundle::draft`] does, and shares forests as [`Bundle::assemble_in_steps`] does.
    ///
    /// # Errors
    /// Fails as [`Bundle::assemble`] does.
    pub fn draft_beside(
        manifest: &[u8],
        read: &ReadFile<'_>,
        known: &[&Bundle],
    ) -> Result<Bundle, BundleError> {
        let manifest = Manifest::parse(manifest)?;
        let mut files = read_files(&manifest.files, read)?;
        files.remove("golden.bin");
        files.remove("reference.json");
        Bundle::compile(manifest, files, known)
    }

    fn compile(
        manifest: Manifest,
        mut files: BTreeMap<String, Vec<u8>>,
        known: &[&Bundle],
    ) -> Result<Bundle, BundleError> {
        let mut take = |name: &'static str| files.remove(name);
        let schema_file: SchemaFile =
            parse_json("schema.json", &take("schema.json").ok_or_else(|| not_listed("schema.json"))?)?;
        let actions = take("actions.json");
        let overlay = take(OVERLAY);
        let (covers, reasons, rules) = (take(COVERS), take(REASONS), take(RULES));
        let computed = take(FEATURES);
        let functions = take(FUNCTIONS);
        if covers.is_none() && reasons.is_some() {
            return Err(BundleError::Surplus {
                file: REASONS.to_owned(),
                why: "without covers.bin the bundle gives no reasons",
            });
        }
        let tables = take(TABLES).map(|bytes| Tables::parse(&bytes)).transpose()?.unwrap_or_default();
        let score_map = take(SCORE_MAP).map(|bytes| ScoreMap::parse(&bytes)).transpose()?;
        let calibration = take("calibration.json").map(|bytes| Calibration::parse(&bytes)).transpose()?;
        let SchemaFile { mut features, action_features } = schema_file;
        let schema = Schema::new(features.clone()).map_err(BundleError::Schema)?;
        let action_schema = Schema::new(action_features.clone()).map_err(BundleError::Schema)?;
        let computed = computed.map(|bytes| ComputedFeatures::parse(&bytes, &schema)).transpose()?;
        if let Some(feature) = action_features.iter().find(|feature| schema.index_of(&feature.name).is_some())
        {
            return Err(BundleError::Schema(SchemaError::RepeatedName(feature.name.clone())));
        }
        features.extend(action_features);
        let (catalogue, action_rows) = match (manifest.kind, actions) {
            (Kind::Action, Some(bytes)) => read_actions(&bytes, &action_schema)?,
            (Kind::Action, None) => {
                return Err(BundleError::NotListed {
                    file: "actions.json".to_owned(),
                    why: "an action bundle needs its catalogue",
                });
            }
            (Kind::Score, Some(_)) => {
                return Err(BundleError::Surplus {
                    file: "actions.json".to_owned(),
                    why: "a score bundle has no actions",
                });
            }
            (Kind::Score, None) if !action_schema.is_empty() => {
                return Err(BundleError::Json {
                    file: "schema.json",
                    reason: "action_features are for action bundles only".to_owned(),
                });
            }
            (Kind::Score, None) => (ActionCatalogue::default(), Vec::new()),
        };
        let overlay = match (manifest.kind, overlay) {
            (_, None) => None,
            (Kind::Action, Some(bytes)) => Some(Overlay::parse(&bytes, &schema, &catalogue)?),
            (Kind::Score, Some(_)) => {
                return Err(BundleError::Surplus {
                    file: OVERLAY.to_owned(),
                    why: "a score bundle has no actions to adjust",
                });
            }
        };
        let (mut lists, files): (BTreeMap<_, _>, BTreeMap<_, _>) =
            files.into_iter().partition(|(name, _)| rules::is_list_file(name));
        let (modules, files): (BTreeMap<_, _>, BTreeMap<_, _>) =
            files.into_iter().partition(|(name, _)| functions::is_module_file(name));
        let (nets, files): (BTreeMap<_, _>, BTreeMap<_, _>) =
            files.into_iter().partition(|(name, _)| nets::is_net_name(name));
        let mut forests: BTreeMap<String, (Digest, Arc<Forest>)> = BTreeMap::new();
        for (name, bytes) in files {
            let digest = manifest.files.get(&name).map_or_else(|| Digest::of(&bytes), |entry| entry.sha256);
            let own = forests.values().find(|(known, _)| *known == digest).map(|(_, forest)| forest);
            let forest = match own.or_else(|| known.iter().find_map(|known| known.forest_of(&digest))) {
                Some(forest) => Arc::clone(forest),
                None => Arc::new(
                    Forest::from_bytes(&bytes)
                        .map_err(|source| BundleError::Forest { file: name.clone(), source })?,
                ),
            };
            forests.insert(name, (digest, forest));
        }
        let functions = read_functions(&manifest, functions, modules, known)?;
        let nodes: Vec<Node> = manifest
            .program
            .iter()
            .enumerate()
            .map(|(at, node)| Node::parse(at, node))
            .collect::<Result<_, _>>()?;
        let parts = Parts {
            kind: manifest.kind,
            features: &features,
            forests,
            nets,
            tables,
            functions: functions.as_ref(),
            calibration,
            score_map,
            overlay,
            catalogue: &catalogue,
        };
        let program = Program::compile(&nodes, parts)?;
        let around = Surroundings {
            kind: manifest.kind,
            features: schema.features(),
            labels: program.labels(),
            catalogue: &catalogue,
            functions: functions.as_ref(),
        };
        let rules = read_rules(&nodes, rules, &mut lists, around)?;
        let oracle = match manifest.kind {
            Kind::Action => {
                let known: Vec<&Oracle> = known.iter().filter_map(|known| known.oracle.as_ref()).collect();
                Oracle::new(&program, functions.as_ref(), schema.len(), catalogue.len(), &action_rows, &known)
            }
            Kind::Score => None,
        };
        let explainer = covers
            .map(|covers| Explainer::new(&program, &features, &covers, reasons.as_deref(), known))
            .transpose()?;
        Ok(Bundle {
            digest: manifest.digest,
            action_width: action_schema.len(),
            manifest,
            schema,
            action_schema,
            catalogue,
            action_rows,
            program,
            oracle,
            explainer,
            rules,
            functions,
            computed,
            reference: None,
        })
    }

    /// The digest that identifies the bundle.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The bundle's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.manifest.name
    }

    /// The kind of result that the bundle gives.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.manifest.kind
    }

    /// The manifest, including the lineage.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The schema of a request's features.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The schema of the features that the catalogue states for each action; empty for a score bundle.
    #[must_use]
    pub fn action_schema(&self) -> &Schema {
        &self.action_schema
    }

    /// The actions; empty for a score bundle.
    #[must_use]
    pub fn catalogue(&self) -> &ActionCatalogue {
        &self.catalogue
    }

    /// The nodes of the program, in its order.
    #[must_use]
    pub fn nodes(&self) -> &[NodeInfo] {
        &self.program.infos
    }

    /// The labels of the score bands in ascending order; empty for an action bundle.
    #[must_use]
    pub fn labels(&self) -> &[String] {
        self.program.labels()
    }

    /// The score bands in ascending order; empty for an action bundle.
    #[must_use]
    pub fn bands(&self) -> &[Band] {
        match &self.program.end {
            End::Threshold(thresholds) => &thresholds.bands,
            End::Policy(_) => &[],
        }
    }

    /// The policy of an action bundle.
    #[must_use]
    pub fn policy(&self) -> Option<&Policy> {
        match &self.program.end {
            End::Policy(policy) => Some(policy),
            End::Threshold(_) => None,
        }
    }

    /// The features that the server computes; `None` if requests state all features.
    #[must_use]
    pub fn computed(&self) -> Option<&ComputedFeatures> {
        self.computed.as_ref()
    }

    /// The reference statistics; `None` for a draft.
    #[must_use]
    pub fn reference(&self) -> Option<&Reference> {
        self.reference.as_ref()
    }

    /// The forests in program order: the first is the oracle's.
    #[must_use]
    pub fn forests(&self) -> &[Arc<Forest>] {
        &self.program.forests
    }

    /// The ONNX models in program order.
    pub fn nets(&self) -> impl ExactSizeIterator<Item = NetFacts<'_>> {
        self.program.nets.iter().map(nets::NetNode::facts)
    }

    /// Number of margins of a golden case for one row: those of all forests, then the outputs of the ONNX models.
    #[must_use]
    pub fn num_margins(&self) -> usize {
        self.program.margins.iter().map(ExactSizeIterator::len).sum::<usize>() + self.program.nets.len()
    }

    /// The forest of a file with this SHA-256.
    fn forest_of(&self, digest: &Digest) -> Option<&Arc<Forest>> {
        let at = self.program.digests.iter().position(|known| known == digest)?;
        self.program.forests.get(at)
    }

    /// Writes the action's own features into one row of the forest's input, after the context's features.
    ///
    /// # Panics
    /// Panics if `row` is shorter than the context's and the action's features together, or if there is no such action.
    pub fn fill_action(&self, action: usize, row: &mut [f32]) {
        let own = &self.action_rows[action * self.action_width..(action + 1) * self.action_width];
        row[self.schema.len()..self.schema.len() + self.action_width].copy_from_slice(own);
    }

    /// Heap memory of the forests, their specialisations to the catalogue, the overlay and the explanations, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let forests: usize = distinct(self.forests().iter()).map(|forest| forest.heap_bytes()).sum();
        let overlay = self.program.overlay.as_ref().map_or(0, Overlay::heap_bytes)
            + self.program.heap_bytes()
            + self.explainer.as_ref().map_or(0, Explainer::heap_bytes)
            + self.rules.as_ref().map_or(0, Rules::heap_bytes)
            + self.functions.as_ref().map_or(0, CustomFunctions::heap_bytes);
        forests + self.oracle.as_ref().map_or(0, Oracle::heap_bytes) + overlay
    }

    /// Total size of all listed files in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.manifest.files.values().map(|entry| entry.bytes).sum()
    }

    /// Total size, in bytes, of the files of forests that this bundle shares with `others`. Their memory is not freed
    /// when this bundle is dropped.
    #[must_use]
    pub fn shared_bytes(&self, others: &[&Bundle]) -> u64 {
        let shared = |digest: &Digest| {
            let Some(own) = self.forest_of(digest) else { return false };
            others.iter().filter_map(|other| other.forest_of(digest)).any(|theirs| Arc::ptr_eq(own, theirs))
        };
        self.manifest.files.values().filter(|entry| shared(&entry.sha256)).map(|entry| entry.bytes).sum()
    }
}

/// Compiles the functions of a bundle that has some.
fn read_functions(
    manifest: &Manifest,
    functions: Option<Vec<u8>>,
    modules: BTreeMap<String, Vec<u8>>,
    known: &[&Bundle],
) -> Result<Option<CustomFunctions>, BundleError> {
    match (functions, modules.keys().next()) {
        (None, None) => Ok(None),
        (None, Some(file)) => Err(BundleError::Surplus {
            file: file.clone(),
            why: "without functions.json nothing calls its functions",
        }),
        (Some(functions), _) => {
            let listed = |name: &String| manifest.files.get(name).map(|entry| entry.sha256);
            let modules = modules
                .into_iter()
                .map(|(name, bytes)| {
                    let digest = listed(&name).unwrap_or_else(|| Digest::of(&bytes));
                    (name, (digest, bytes))
                })
                .collect();
            CustomFunctions::parse(&functions, modules, known).map(Some)
        }
    }
}

/// Compiles the rules of a program that has a rules node.
fn read_rules(
    nodes: &[Node],
    text: Option<Vec<u8>>,
    lists: &mut BTreeMap<String, Vec<u8>>,
    around: Surroundings<'_>,
) -> Result<Option<Rules>, BundleError> {
    let node = nodes.iter().enumerate().find_map(|(at, node)| match node {
        Node::Rules { lists, salt, .. } => Some((at, lists, salt)),
        _ => None,
    });
    let read = match (node, text) {
        (None, None) => None,
        (None, Some(_)) => {
            return Err(BundleError::Surplus { file: RULES.to_owned(), why: "no rules node uses it" });
        }
        (Some(_), None) => {
            return Err(BundleError::NotListed {
                file: RULES.to_owned(),
                why: "the program has a rules node",
            });
        }
        (Some((node, entries, salt)), Some(text)) => {
            let fail = |reason: String| BundleError::Node { node, kind: "rules", reason };
            if entries.len() > rules::MAX_LISTS {
                return Err(fail(format!(
                    "{} lists, at most {}; remove some",
                    entries.len(),
                    rules::MAX_LISTS
                )));
            }
            let salt = Salt::parse(salt).map_err(|_| {
                fail("salt must be 32 hexadecimal digits; make one with `openssl rand -hex 16`".to_owned())
            })?;
            Some(rules::read(&text, entries, lists, around, &salt)?)
        }
    };
    match lists.keys().next() {
        None => Ok(read),
        Some(file) => {
            Err(BundleError::Surplus { file: file.clone(), why: "no rules node names it as a list" })
        }
    }
}

fn read_files(
    listed: &BTreeMap<String, FileEntry>,
    read: &ReadFile<'_>,
) -> Result<BTreeMap<String, Vec<u8>>, BundleError> {
    let mut files = BTreeMap::new();
    for (name, entry) in listed {
        let bytes = read(name).map_err(|source| BundleError::Read { file: name.clone(), source })?;
        let got = bytes.len() as u64;
        if got != entry.bytes {
            return Err(BundleError::Size { file: name.clone(), got, expected: entry.bytes });
        }
        let got = Digest::of(&bytes);
        if got != entry.sha256 {
            return Err(BundleError::Hash { file: name.clone(), got, expected: entry.sha256 });
        }
        files.insert(name.clone(), bytes);
    }
    Ok(files)
}

/// The content of `functions.json`, and the modules by file name.
type FunctionFiles<'a> = (&'a [u8], &'a BTreeMap<String, Vec<u8>>);

/// Applies the steps of a transform node to row-major `[n, features]` rows and returns the new rows, which have the added
/// columns as well. Training uses it, so that models are trained on the same values that they score. `tables` is the
/// content of `tables.json`, if there is one, and `functions` that of `functions.json` with the modules by file name.
///
/// # Errors
/// Fails if the steps do not match the features or the tables, if `rows` is not a whole number of rows, or if a value does
/// not stay finite.
pub fn transform_rows(
    features: &[FeatureSpec],
    steps: &[node::TransformStep],
    tables: Option<&[u8]>,
    functions: Option<FunctionFiles<'_>>,
    rows: &[f32],
) -> Result<Vec<f32>, BundleError> {
    let fail = |reason: String| BundleError::Node { node: 0, kind: "transform", reason };
    let mut tables = tables.map(Tables::parse).transpose()?.unwrap_or_default();
    let functions = functions
        .map(|(file, modules)| {
            let modules =
                modules.iter().map(|(name, bytes)| (name.clone(), (Digest::of(bytes), bytes.clone())));
            CustomFunctions::parse(file, modules.collect(), &[])
        })
        .transpose()?;
    let columns = transform::input_columns(features);
    let (transform, columns) =
        transform::Transform::compile(steps, &columns, &mut tables, functions.as_ref()).map_err(fail)?;
    let mut calls = functions.as_ref().map(|functions| functions.start(&transform.calls(functions)));
    let width = features.len().max(1);
    if !rows.len().is_multiple_of(width) {
        return Err(fail(format!(
            "{} values are not a whole number of rows of {width}; reshape them",
            rows.len()
        )));
    }
    let mut out = vec![f32::NAN; rows.len() / width * columns.len()];
    for (at, (row, out)) in
        rows.chunks_exact(width).zip(out.chunks_exact_mut(columns.len().max(1))).enumerate()
    {
        out[..width].copy_from_slice(row);
        let mut run = transform::Run { budget: &Unlimited, calls: calls.as_mut(), until: usize::MAX };
        transform.apply(out, &mut run).map_err(|error| match error {
            EvalError::NotFinite { value, .. } => {
                fail(format!("row {at}: a value became {value}; keep it within the schema's range"))
            }
            other => fail(format!("row {at}: {other}")),
        })?;
    }
    Ok(out)
}

/// Builds the manifest's list of files from their contents.
#[must_use]
pub fn file_entries(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, FileEntry> {
    files
        .iter()
        .filter(|(name, _)| *name != MANIFEST)
        .map(|(name, bytes)| (name.clone(), FileEntry::of(bytes)))
        .collect()
}

fn not_listed(file: &str) -> BundleError {
    BundleError::NotListed { file: file.to_owned(), why: "every bundle needs it" }
}

fn parse_json<T: DeserializeOwned>(file: &'static str, bytes: &[u8]) -> Result<T, BundleError> {
    serde_json::from_slice(bytes).map_err(|error| BundleError::Json { file, reason: error.to_string() })
}

/// Parses `actions.json` and returns the catalogue, and the actions' features as rows of float32.
fn read_actions(bytes: &[u8], schema: &Schema) -> Result<(ActionCatalogue, Vec<f32>), BundleError> {
    let actions: Vec<Action> = parse_json("actions.json", bytes)?;
    let catalogue = ActionCatalogue::new(actions).map_err(BundleError::Catalogue)?;
    let mut rows = Vec::with_capacity(catalogue.len() * schema.len());
    for action in catalogue.iter() {
        let row: Vec<f32> =
            action.features.iter().map(|value| value.map_or(f32::NAN, |value| value as f32)).collect();
        let refuse = |error: CatalogueError| BundleError::Catalogue(error);
        if row.len() != schema.len() {
            return Err(refuse(CatalogueError::FeatureCount {
                action: action.id.clone(),
                got: row.len(),
                expected: schema.len(),
            }));
        }
        schema.check_dense(&row).map_err(|error| {
            refuse(CatalogueError::Feature { action: action.id.clone(), reason: error.to_string() })
        })?;
        rows.extend(row);
    }
    Ok((catalogue, rows))
}

#[cfg(test)]
mod tests;
