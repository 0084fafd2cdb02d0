//! The explanation of the score: which features contribute to its margin, and the codes by which they are reported.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::program::{Added, Program, Step};
use super::scratch::Buffers;
use super::transform::Run;
use super::{Bundle, BundleError, Digest, EvalError, EvalScratch, Kind, ScoreOut, parse_json};
use crate::budget::{Budget, Unlimited};
use crate::explain::{Covers, Largest, PathAttributions, PathScratch, ShapScratch, TreeShap};
use crate::schema::FeatureSpec;

/// File with the cover of each node of the forest that the score comes from.
pub(super) const COVERS: &str = "covers.bin";
/// File with the codes and texts of the features.
pub(super) const REASONS: &str = "reasons.json";
/// Greatest length of a code, of the tag of a language and of a text, in bytes.
const MAX_CODE: usize = 64;
const MAX_LANGUAGE: usize = 35;
const MAX_TEXT: usize = 1000;

/// The contents of `reasons.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReasonsFile {
    /// The reasons by the name of the feature. A feature that is not listed has its name as the code.
    pub features: BTreeMap<String, ReasonEntry>,
}

/// The reason that is given if a feature contributes to a score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReasonEntry {
    /// The code, such as `R04`. Several features may have one code.
    pub code: String,
    /// Texts by language, such as `en`.
    #[serde(default)]
    pub text: BTreeMap<String, String>,
}

/// The exact explanation of one score. The contributions, which add up to the difference between margin and
/// expectation, are in the scratch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Explained {
    /// Expectation of the margin over the training rows.
    pub expectation: f64,
    /// The margin that is explained.
    pub margin: f64,
    /// The score that comes from the margin: a calibrated probability, or an action's expected reward.
    pub score: f64,
}

/// Working memory of exact explanations, allocated when it is first needed.
#[derive(Debug, Clone)]
pub(super) struct ExactScratch {
    shap: ShapScratch,
    /// The contribution of each column.
    contributions: Vec<f64>,
}

impl ExactScratch {
    fn new(exact: &TreeShap) -> ExactScratch {
        let features = exact.forest().num_features();
        ExactScratch { shap: ShapScratch::new(exact), contributions: vec![0.0; features] }
    }
}

/// The explanation of a bundle's score.
#[derive(Debug)]
pub(super) struct Explainer {
    parts: Arc<Attributions>,
    /// Position of the explained forest in the program.
    forest: usize,
    /// The code of each column.
    codes: Vec<String>,
}

/// The contributions of one forest's leaves, which bundles with the same forest and covers share.
#[derive(Debug)]
struct Attributions {
    /// SHA-256 of the file of covers.
    digest: Digest,
    covers: Covers,
    paths: PathAttributions,
    /// The exact method, prepared when it is first needed.
    exact: OnceLock<TreeShap>,
}

impl ReasonsFile {
    fn parse(bytes: &[u8], columns: &[&str]) -> Result<ReasonsFile, BundleError> {
        let file: ReasonsFile = parse_json(REASONS, bytes)?;
        let fail = |feature: &str, rule: String| Err(BundleError::Reasons(format!("{feature:?}: {rule}")));
        let printable = |text: &str, most: usize| {
            !text.trim().is_empty() && text.len() <= most && !text.chars().any(char::is_control)
        };
        for (name, entry) in &file.features {
            if !columns.contains(&name.as_str()) {
                return fail(name, "the schema has no such feature, and no transform adds it".to_owned());
            }
            if !printable(&entry.code, MAX_CODE) {
                return fail(name, format!("a code has 1 to {MAX_CODE} printable bytes"));
            }
            for (language, text) in &entry.text {
                let tag = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                if !printable(language, MAX_LANGUAGE) || !language.bytes().all(tag) {
                    return fail(name, format!("{language:?} is not the tag of a language, such as \"en\""));
                }
                if !printable(text, MAX_TEXT) {
                    return fail(
                        name,
                        format!("the text in {language:?} has not 1 to {MAX_TEXT} printable bytes"),
                    );
                }
            }
        }
        Ok(file)
    }
}

impl Explainer {
    /// Prepares the explanation of a program's score, or shares what a `known` bundle has of the same forest and
    /// covers.
    pub(super) fn new(
        program: &Program,
        features: &[FeatureSpec],
        covers: &[u8],
        reasons: Option<&[u8]>,
        known: &[&Bundle],
    ) -> Result<Explainer, BundleError> {
        let at = program.margins.iter().position(|margins| margins.contains(&program.margin));
        let forest = at.ok_or_else(|| BundleError::Surplus {
            file: COVERS.to_owned(),
            why: "no single forest explains the score of an ensemble or of an ONNX model",
        })?;
        let added = program.slot_of(forest).added.iter().map(|column| column.name.as_str());
        let columns: Vec<&str> = features.iter().map(|feature| feature.name.as_str()).chain(added).collect();
        let reasons =
            reasons.map(|bytes| ReasonsFile::parse(bytes, &columns)).transpose()?.unwrap_or_default();
        let output = program.margin - program.margins[forest].start;
        let own = &program.forests[forest];
        let digest = Digest::of(covers);
        let same = |known: &&Attributions| {
            known.digest == digest && Arc::ptr_eq(known.paths.forest(), own) && known.paths.output() == output
        };
        let shared = known
            .iter()
            .filter_map(|known| known.explainer.as_ref())
            .map(|explainer| &explainer.parts)
            .find(|parts| same(&&***parts));
        let parts = match shared {
            Some(parts) => Arc::clone(parts),
            None => {
                let covers = Covers::from_bytes(own, covers).map_err(BundleError::Covers)?;
                let paths = PathAttributions::new(own, &covers, output);
                Arc::new(Attributions { digest, covers, paths, exact: OnceLock::new() })
            }
        };
        let code = |column: &&str| {
            let entry = reasons.features.get(*column);
            entry.map_or_else(|| (*column).to_owned(), |entry| entry.code.clone())
        };
        Ok(Explainer { parts, forest, codes: columns.iter().map(code).collect() })
    }

    /// Allocates the working memory of path attributions.
    pub(super) fn new_scratch(&self) -> PathScratch {
        PathScratch::new(&self.parts.paths)
    }

    /// Heap memory in bytes, without that of the forest.
    pub(super) fn heap_bytes(&self) -> usize {
        let Attributions { covers, paths, exact, .. } = &*self.parts;
        let codes: usize = self.codes.iter().map(|code| size_of::<String>() + code.capacity()).sum();
        covers.heap_bytes() + paths.heap_bytes() + exact.get().map_or(0, TreeShap::heap_bytes) + codes
    }

    #[cfg(test)]
    pub(super) fn parts_for_tests(&self) -> *const () {
        Arc::as_ptr(&self.parts).cast()
    }

    /// Position of the explained forest in the program, and its contributions.
    pub(super) fn of_forest(&self) -> (usize, &PathAttributions) {
        (self.forest, &self.parts.paths)
    }
}

impl Bundle {
    /// Whether the bundle has the covers that explanations need.
    #[must_use]
    pub fn explains(&self) -> bool {
        self.explainer.is_some()
    }

    /// The name of a column of the explained forest: a feature of the request or of the action, or a column that a
    /// transform adds.
    #[must_use]
    pub fn column_name(&self, column: usize) -> Option<&str> {
        let context = self.schema.len();
        let feature = match column.checked_sub(context) {
            None => self.schema.features().get(column),
            Some(own) => self.action_schema.features().get(own),
        };
        feature.map(|feature| feature.name.as_str()).or_else(|| Some(self.added(column)?.name.as_str()))
    }

    /// The columns of the input's row that a column of the explained forest is computed from: features of the request,
    /// then of the action.
    #[must_use]
    pub fn column_origins(&self, column: usize) -> Vec<usize> {
        self.added(column).map_or_else(|| vec![column], |added| added.origins.clone())
    }

    /// A column that a transform adds for the explained forest.
    fn added(&self, column: usize) -> Option<&Added> {
        let slot = self.program.slot_of(self.explainer.as_ref()?.forest);
        slot.added.get(column.checked_sub(self.program.width)?)
    }

    /// The reason code of a column of the forest; `None` if the bundle has no explanations or no such column.
    #[must_use]
    pub fn reason_code(&self, column: usize) -> Option<&str> {
        self.explainer.as_ref()?.codes.get(column).map(String::as_str)
    }

    /// The expectation of the explained margin over the training rows; `None` if the bundle has no explanations.
    #[must_use]
    pub fn expected_margin(&self) -> Option<f64> {
        Some(self.explainer.as_ref()?.parts.paths.expectation())
    }

    /// Scores one row as [`Bundle::score`] does, with the same bits. Afterwards [`EvalScratch::reasons`] returns the
    /// features with the largest path attributions.
    ///
    /// # Errors
    /// Fails as [`Bundle::score`] does, and if the bundle has no explanations.
    pub fn score_explained(
        &self,
        row: &[f32],
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
    ) -> Result<ScoreOut, EvalError> {
        self.set_row(row, scratch)?;
        let explainer = self.explainer.as_ref().ok_or(EvalError::NoCovers)?;
        self.program.run(budget, &mut scratch.buffers, Some(explainer))?;
        self.timed_band(&mut scratch.buffers)
    }

    /// Computes the path attributions of one action's expected reward, for [`EvalScratch::reasons`]. `row` is the
    /// context.
    ///
    /// # Errors
    /// Fails as [`Bundle::select`] does, if there is no such action and if the bundle has no explanations.
    pub fn explain_action(
        &self,
        row: &[f32],
        action: usize,
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
    ) -> Result<(), EvalError> {
        self.check_row(row, scratch)?;
        let explainer = self.explainer.as_ref().ok_or(EvalError::NoCovers)?;
        self.fill_input(row, Some(action), scratch)?;
        self.forest_input(explainer, &mut scratch.buffers)?;
        let Buffers { rows, values, forests, attributions, .. } = &mut scratch.buffers;
        let (forest, paths) = explainer.of_forest();
        let row = &rows[self.program.row_of(forest)];
        let margins = &mut values[self.program.margins[forest].clone()];
        let attributions = attributions.as_mut().ok_or(EvalError::NoCovers)?;
        paths.margins(row, budget, &mut forests[forest], margins, attributions)?;
        Ok(())
    }

    /// Computes the exact contribution of every column of the forest to the margin that the score comes from: that of a
    /// score bundle, or that of one action. [`EvalScratch::contributions`] returns them. The bundle prepares the method
    /// when it is first called, which takes milliseconds; later calls with the same scratch allocate nothing.
    ///
    /// # Errors
    /// Fails if the row has the wrong length, an action is given to a score bundle or none to an action bundle, there is
    /// no such action, the scratch belongs to another bundle, the bundle has no explanations, the score is not finite,
    /// or the budget is spent before the end.
    pub fn explain(
        &self,
        row: &[f32],
        action: Option<usize>,
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
    ) -> Result<Explained, EvalError> {
        self.check_row(row, scratch)?;
        let explainer = self.explainer.as_ref().ok_or(EvalError::NoCovers)?;
        self.fill_input(row, action, scratch)?;
        let EvalScratch { buffers, exact: memory, .. } = scratch;
        buffers.action = action.unwrap_or_default();
        self.program.run(budget, buffers, None)?;
        let (margin, score) = (buffers.values[self.program.margin], buffers.values[self.program.score]);
        if !score.is_finite() {
            return Err(EvalError::NotFinite { what: "the score", value: score });
        }
        let Attributions { covers, paths, exact, .. } = &*explainer.parts;
        let exact = exact.get_or_init(|| TreeShap::new(paths.forest(), covers));
        let row = &buffers.rows[self.program.row_of(explainer.forest)];
        let memory = memory.get_or_insert_with(|| ExactScratch::new(exact));
        let ExactScratch { shap, contributions } = memory;
        exact.contributions_within(row, paths.output(), budget, shap, contributions)?;
        Ok(Explained { expectation: exact.expectation(paths.output()), margin, score })
    }

    fn fill_input(
        &self,
        row: &[f32],
        action: Option<usize>,
        scratch: &mut EvalScratch,
    ) -> Result<(), EvalError> {
        let rows = &mut scratch.buffers.rows;
        rows[..row.len()].copy_from_slice(row);
        match (self.kind(), action) {
            (Kind::Score, None) => Ok(()),
            (Kind::Action, Some(action)) if action < self.catalogue.len() => {
                self.fill_action(action, rows);
                Ok(())
            }
            (Kind::Action, _) => Err(EvalError::Action { actions: self.catalogue.len() }),
            (Kind::Score, Some(_)) => Err(EvalError::Kind { found: Kind::Score, wanted: Kind::Action }),
        }
    }

    /// Computes the row that the explained forest reads, from the row in slot 0.
    fn forest_input(&self, explainer: &Explainer, buffers: &mut Buffers) -> Result<(), EvalError> {
        for step in &self.program.steps {
            match step {
                Step::Transform { transform, from, to } => {
                    let calls = buffers.functions.as_mut();
                    let run = Run { budget: &Unlimited, calls, until: usize::MAX };
                    self.program.transform(transform, *from, *to, &mut buffers.rows, run)?;
                }
                Step::Forest { forest, .. } if *forest == explainer.forest => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }
}

impl EvalScratch {
    /// The features with the largest contributions in the last explained evaluation. It allocates nothing.
    #[must_use]
    pub fn reasons(&self, count: usize) -> Largest {
        Largest::of(self.buffers.attributions.as_ref().map_or(&[], PathScratch::contributions), count)
    }

    /// The exact contribution of each column in the last [`Bundle::explain`]; empty before the first.
    #[must_use]
    pub fn contributions(&self) -> &[f64] {
        self.exact.as_ref().map_or(&[], |exact| &exact.contributions)
    }
}
