//! `_scorer.RuleSet`: the rules of a bundle, or other rules that are compiled for it, evaluated on rows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scorer_core::bundle::{self as core, ElementType, ListFiles, ListSource};
use scorer_core::policy::{Action, ActionCatalogue, Mask, Salt};
use scorer_core::schema::{FeatureSpec, Schema};
use scorer_rules::{Exhausted, Fault, Lists, Request};

use super::buffers::{copy_in, copy_out};
use super::{Bundle, failed};

/// A fault: the rule's id, line, column, and the problem with its remedy.
type Found = (String, u32, u32, String);
/// A rule: id, decision, reason, source, queue, cap, floor, priority, whether it restricts actions, its line, and its
/// daily budget: the most decisions, and the number that is added up with the greatest sum.
type Described = (
    String,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<f64>,
    Option<f64>,
    i64,
    bool,
    u32,
    Option<u64>,
    Option<(String, f64)>,
);
/// The result on one row: the rules with an effect, the numbers of unknown, failed and contradicting ones, and the set
/// of functions that had no result.
type Applied = (Vec<u16>, u32, u32, u32, u64);
/// Lists by name: whether the elements are ints, the content, and the oldest version of an external list.
type GivenLists = BTreeMap<String, (bool, Option<Vec<u8>>, Option<u64>)>;
/// Which rules remove which actions from each row: the end of each row's entries (u32), the rule of each entry (u16), the
/// actions that it removes (one bit each, in whole bytes), and the numbers of unknown, failed and contradicting rules.
type Removals<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, (u64, u64, u64));

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct RuleSet {
    /// Absent: rules for features and actions without a bundle.
    bundle: Option<Arc<core::Bundle>>,
    /// Absent: the rules of the bundle.
    other: Option<Arc<core::Rules>>,
    /// Absent: the lists of the bundle's files.
    lists: Option<Lists>,
    /// Number of features of a row.
    pub(super) width: usize,
    /// Number of actions.
    actions: usize,
}

/// Compiles rules for a bundle. Returns them, or the faults that were found.
#[pyfunction]
pub(crate) fn compile_rules(
    py: Python<'_>,
    bundle: &Bundle,
    text: &str,
    lists: GivenLists,
    salt: &str,
) -> PyResult<(Option<RuleSet>, Vec<Found>)> {
    let salt = parsed(salt)?;
    Ok(py.detach(|| {
        let rules = bundle.inner.compile_rules(text, &listed(&lists), &salt);
        compiled(rules, |rules| RuleSet::of(&bundle.inner, Some(rules)))
    }))
}

/// Compiles rules about actions for features and actions, which are JSON in the formats of schema.json and actions.json.
/// Returns them, or the faults that were found.
#[pyfunction]
pub(crate) fn compile_action_rules(
    py: Python<'_>,
    features: &str,
    actions: &str,
    text: &str,
    lists: GivenLists,
    salt: &str,
) -> PyResult<(Option<RuleSet>, Vec<Found>)> {
    let salt = parsed(salt)?;
    let features: Vec<FeatureSpec> = serde_json::from_str(features).map_err(failed)?;
    let actions: Vec<Action> = serde_json::from_str(actions).map_err(failed)?;
    let schema = Schema::new(features).map_err(failed)?;
    let catalogue = ActionCatalogue::new(actions).map_err(failed)?;
    Ok(py.detach(|| {
        let rules = core::Rules::for_actions(text, &schema, &catalogue, &listed(&lists), &salt);
        let (width, actions) = (schema.len(), catalogue.len());
        compiled(rules, |rules| RuleSet {
            bundle: None,
            other: Some(Arc::new(rules)),
            lists: None,
            width,
            actions,
        })
    }))
}

fn parsed(salt: &str) -> PyResult<Salt> {
    Salt::parse(salt).map_err(|_| {
        failed("rules: salt must be 32 hexadecimal digits; make one with `openssl rand -hex 16`")
    })
}

fn listed(lists: &GivenLists) -> ListFiles<'_> {
    let kind = |int: bool| if int { ElementType::Int } else { ElementType::String };
    lists
        .iter()
        .map(|(name, (int, content, external))| {
            let source = ListSource { kind: kind(*int), content: content.as_deref(), external: *external };
            (name.as_str(), source)
        })
        .collect()
}

fn compiled(
    rules: Result<core::Rules, Vec<Fault>>,
    set: impl FnOnce(core::Rules) -> RuleSet,
) -> (Option<RuleSet>, Vec<Found>) {
    match rules {
        Ok(rules) => (Some(set(rules)), Vec::new()),
        Err(faults) => {
            let found = |fault: Fault| (fault.rule, fault.line, fault.column, fault.problem);
            (None, faults.into_iter().map(found).collect())
        }
    }
}

/// Returns the rules of a bundle, if it has some.
#[pyfunction]
pub(crate) fn rules_of(bundle: &Bundle) -> Option<RuleSet> {
    bundle.inner.rules().map(|_| RuleSet::of(&bundle.inner, None))
}

#[pymethods]
impl RuleSet {
    /// The external lists: name, whether the elements are ints, and the oldest version that the rules may read.
    #[getter]
    fn external(&self) -> PyResult<Vec<(String, bool, u64)>> {
        let describe =
            |of: &core::ExternalList| (of.name.clone(), of.kind == ElementType::Int, of.minimum_version);
        Ok(self.rules()?.external().iter().map(describe).collect())
    }

    /// Returns the rules with the versions of external lists in these directories, by name. Lists without a directory are
    /// as they are while no version is loaded.
    fn with_versions(&self, py: Python<'_>, versions: BTreeMap<String, PathBuf>) -> PyResult<RuleSet> {
        let rules = self.rules()?;
        let lists = py.detach(|| scorer_server::with_versions(rules, &versions)).map_err(failed)?;
        let RuleSet { bundle, other, width, actions, .. } = self;
        Ok(RuleSet {
            bundle: bundle.clone(),
            other: other.clone(),
            lists: Some(lists),
            width: *width,
            actions: *actions,
        })
    }

    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.rules()?.set().name().to_owned())
    }

    /// Whether the rules depend on the id of a request, because one of them is rolled out to a share of the requests.
    #[getter]
    fn needs_ids(&self) -> PyResult<bool> {
        Ok(self.rules()?.set().needs_ids())
    }

    #[getter]
    fn rules_in_order(&self) -> PyResult<Vec<Described>> {
        let describe = |rule: &scorer_rules::Rule| {
            let amount = rule.budget.as_ref().and_then(|budget| budget.amount.as_ref());
            (
                rule.id.clone(),
                rule.decision.clone(),
                rule.reason.clone(),
                rule.source.clone(),
                rule.queue.clone(),
                rule.cap,
                rule.floor,
                rule.priority,
                rule.restricts,
                rule.line,
                rule.budget.as_ref().and_then(|budget| budget.decisions),
                amount.map(|limit| (limit.of.clone(), limit.most)),
            )
        };
        Ok(self.rules()?.rules().iter().map(describe).collect())
    }

    /// Whether a value or a condition reads a feature.
    fn reads(&self, feature: &str) -> PyResult<bool> {
        Ok(self.rules()?.set().reads(feature))
    }

    /// Evaluates rules about actions on rows, each with a time in seconds since 1970 and an id; without `ids` all have
    /// the empty one. Returns which rules remove which actions.
    #[pyo3(signature = (rows, seconds, ids))]
    fn removals<'py>(
        &self,
        py: Python<'py>,
        rows: PyBuffer<f32>,
        seconds: PyBuffer<i64>,
        ids: Option<Vec<String>>,
    ) -> PyResult<Removals<'py>> {
        let rules = self.rules()?;
        let (rows, seconds) = (copy_in(py, &rows, "rows")?, copy_in(py, &seconds, "seconds")?);
        let (width, count) = (self.width, seconds.len());
        if width == 0 || rows.len() != count * width || ids.as_ref().is_some_and(|ids| ids.len() != count) {
            return Err(failed(format!(
                "rows and ids: {count} times need as many rows of {width} values and ids; give one of each per row"
            )));
        }
        if u32::try_from(count.saturating_mul(rules.rules().len())).is_err() {
            return Err(failed(format!("rows: {count} are too many for one call; pass them in parts")));
        }
        let bytes = self.actions.div_ceil(8);
        let lists = self.lists(rules);
        let (ends, by, removed, totals) = py.detach(|| {
            let (mut ends, mut by, mut removed) = (Vec::with_capacity(4 * count), Vec::new(), Vec::new());
            let (mut entries, mut totals) = (0_u32, (0_u64, 0_u64, 0_u64));
            let all = rows.chunks_exact(width).zip(&seconds).enumerate().map(|(at, (row, seconds))| {
                let id = ids.as_ref().map_or(&b""[..], |ids| ids[at].as_bytes());
                (row, None, Request { seconds: *seconds, id, exhausted: Exhausted::NONE })
            });
            rules.evaluate_all(lists, all, |_, decision| {
                for rule in decision.applied() {
                    let words = decision.removed(*rule);
                    if words.iter().all(|word| *word == 0) {
                        continue;
                    }
                    entries += 1;
                    by.extend(rule.to_ne_bytes());
                    removed.extend(words.iter().flat_map(|word| word.to_le_bytes()).take(bytes));
                }
                ends.extend(entries.to_ne_bytes());
                totals.0 += u64::from(decision.unknown());
                totals.1 += u64::from(decision.errors());
                totals.2 += u64::from(decision.conflicts());
            });
            (ends, by, removed, totals)
        });
        let bytes = |content: &[u8]| PyBytes::new(py, content);
        Ok((bytes(&ends), bytes(&by), bytes(&removed), totals))
    }

    /// Evaluates the rules on rows. Each row has a score (NaN: missing), a time in seconds since 1970 and an id. Writes
    /// the score within caps and floors and the band to the outputs of a score bundle, and returns what was applied to
    /// each row and, for an action bundle, one mask per row of the eligible actions that the rules allow.
    ///
    /// `written` is 1 where a rule wrote the decision. `exhausted` are the rules of each row whose daily budgets were
    /// used up; without it, budgets do not apply.
    #[pyo3(signature = (rows, scores, seconds, ids, within, bands, written, exhausted = None))]
    #[expect(clippy::too_many_arguments, reason = "the columns of the rows and of the results")]
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        rows: PyBuffer<f32>,
        scores: PyBuffer<f64>,
        seconds: PyBuffer<i64>,
        ids: Vec<String>,
        within: PyBuffer<f64>,
        bands: PyBuffer<u32>,
        written: PyBuffer<u32>,
        exhausted: Option<Vec<Vec<String>>>,
    ) -> PyResult<(Vec<Applied>, Bound<'py, PyBytes>)> {
        let rules = self.rules()?;
        let rows = copy_in(py, &rows, "rows")?;
        let (scores, seconds) = (copy_in(py, &scores, "scores")?, copy_in(py, &seconds, "seconds")?);
        let width = self.width;
        if width == 0
            || rows.len() != ids.len() * width
            || scores.len() != ids.len()
            || seconds.len() != ids.len()
            || exhausted.as_ref().is_some_and(|exhausted| exhausted.len() != ids.len())
        {
            return Err(failed(format!(
                "rows, scores, seconds and exhausted: {} ids need as many rows of {width} values; give one of each per row",
                ids.len()
            )));
        }
        let actions = self.actions;
        let lists = self.lists(rules);
        let (applied, columns, masks) = py.detach(|| {
            let mut applied: Vec<Applied> = Vec::with_capacity(ids.len());
            let mut columns: (Vec<f64>, Vec<u32>, Vec<u32>) = Default::default();
            let mut masks = Vec::new();
            let known = |score: f64| Some(score).filter(|score| !score.is_nan());
            let without = |at: usize| match exhausted.as_ref().and_then(|of_rows| of_rows.get(at)) {
                Some(ids) => rules.set().exhausted(ids.iter().map(String::as_str)),
                None => Exhausted::NONE,
            };
            let all = rows.chunks_exact(width).zip(&ids).zip(&scores).zip(&seconds).enumerate().map(
                |(at, (((row, id), score), seconds))| {
                    let (seconds, exhausted) = (*seconds, without(at));
                    (row, known(*score), Request { seconds, id: id.as_bytes(), exhausted })
                },
            );
            rules.evaluate_all(lists, all, |at, decision| {
                applied.push((
                    decision.applied().to_vec(),
                    decision.unknown(),
                    decision.errors(),
                    decision.conflicts(),
                    decision.failed_functions(),
                ));
                let score = decision.score(scores[at]);
                let own = rules.band(decision);
                let band = own.or_else(|| self.bundle.as_ref()?.band_of(score)).unwrap_or(0);
                columns.0.push(score);
                columns.1.push(u32::try_from(band).unwrap_or(u32::MAX));
                columns.2.push(u32::from(own.is_some()));
                if actions > 0 {
                    let mut mask = Mask::all(actions);
                    if !mask.retain(decision.allowed()) {
                        mask.clear();
                    }
                    masks.extend(mask.to_bytes());
                }
            });
            (applied, columns, masks)
        });
        copy_out(py, &within, "within", &columns.0)?;
        copy_out(py, &bands, "bands", &columns.1)?;
        copy_out(py, &written, "written", &columns.2)?;
        Ok((applied, PyBytes::new(py, &masks)))
    }
}

impl RuleSet {
    fn of(bundle: &Arc<core::Bundle>, other: Option<core::Rules>) -> RuleSet {
        let (width, actions) = (bundle.schema().len(), bundle.catalogue().len());
        RuleSet { bundle: Some(Arc::clone(bundle)), other: other.map(Arc::new), lists: None, width, actions }
    }

    /// The contents of the lists that conditions read.
    pub(crate) fn lists<'a>(&'a self, rules: &'a core::Rules) -> &'a Lists {
        self.lists.as_ref().unwrap_or_else(|| rules.lists())
    }

    /// The bundle that the rules were compiled for.
    pub(crate) fn bundle(&self) -> PyResult<&core::Bundle> {
        self.bundle.as_deref().ok_or_else(|| failed("the rules were compiled without a bundle; give one"))
    }

    pub(crate) fn rules(&self) -> PyResult<&core::Rules> {
        let of_bundle = || self.bundle.as_ref().and_then(|bundle| bundle.rules());
        self.other.as_deref().or_else(of_bundle).ok_or_else(|| failed("the bundle has no rules"))
    }
}
