//! `_scorer.RuleSet`: the rules of a bundle, or other rules that are compiled for it, evaluated on rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scorer_core::bundle::{self as core, ElementType, ListFiles};
use scorer_core::policy::{Mask, Salt};
use scorer_rules::{Fault, Request};

use super::buffers::{copy_in, copy_out};
use super::{Bundle, failed};

/// A fault: the rule's id, line, column, and the problem with its remedy.
type Found = (String, u32, u32, String);
/// A rule: id, decision, reason, source, queue, cap, floor, priority, whether it restricts actions, and its line.
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
);
/// The result on one row: the rules with an effect, and the numbers of unknown, failed and contradicting ones.
type Applied = (Vec<u16>, u32, u32, u32);
/// The contents of lists by name, each with whether its elements are ints.
type GivenLists = BTreeMap<String, (bool, Vec<u8>)>;

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct RuleSet {
    bundle: Arc<core::Bundle>,
    /// Absent: the rules of the bundle.
    other: Option<core::Rules>,
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
    let salt = Salt::parse(salt).map_err(|_| {
        failed("rules: salt must be 32 hexadecimal digits; make one with `openssl rand -hex 16`")
    })?;
    Ok(py.detach(|| {
        let kind = |int: bool| if int { ElementType::Int } else { ElementType::String };
        let lists: ListFiles<'_> = lists
            .iter()
            .map(|(name, (int, bytes))| (name.as_str(), (kind(*int), bytes.as_slice())))
            .collect();
        match bundle.inner.compile_rules(text, &lists, &salt) {
            Ok(rules) => {
                (Some(RuleSet { bundle: Arc::clone(&bundle.inner), other: Some(rules) }), Vec::new())
            }
            Err(faults) => {
                let found = |fault: Fault| (fault.rule, fault.line, fault.column, fault.problem);
                (None, faults.into_iter().map(found).collect())
            }
        }
    }))
}

/// Returns the rules of a bundle, if it has some.
#[pyfunction]
pub(crate) fn rules_of(bundle: &Bundle) -> Option<RuleSet> {
    bundle.inner.rules().map(|_| RuleSet { bundle: Arc::clone(&bundle.inner), other: None })
}

#[pymethods]
impl RuleSet {
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
            )
        };
        Ok(self.rules()?.rules().iter().map(describe).collect())
    }

    /// Evaluates the rules on rows. Each row has a score (NaN: missing), a time in seconds since 1970 and an id. Writes
    /// the score within caps and floors and the band to the outputs of a score bundle, and returns what was applied to
    /// each row and, for an action bundle, one mask per row of the eligible actions that the rules allow.
    ///
    /// `written` is 1 where a rule wrote the decision.
    #[pyo3(signature = (rows, scores, seconds, ids, within, bands, written))]
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
    ) -> PyResult<(Vec<Applied>, Bound<'py, PyBytes>)> {
        let rules = self.rules()?;
        let rows = copy_in(py, &rows, "rows")?;
        let (scores, seconds) = (copy_in(py, &scores, "scores")?, copy_in(py, &seconds, "seconds")?);
        let width = self.bundle.schema().len();
        if width == 0
            || rows.len() != ids.len() * width
            || scores.len() != ids.len()
            || seconds.len() != ids.len()
        {
            return Err(failed(format!(
                "rows, scores and seconds: {} ids need as many rows of {width} values; give one of each per row",
                ids.len()
            )));
        }
        let actions = self.bundle.catalogue().len();
        let (applied, columns, masks) = py.detach(|| {
            let mut decision = rules.start();
            let mut applied: Vec<Applied> = Vec::with_capacity(ids.len());
            let mut columns: (Vec<f64>, Vec<u32>, Vec<u32>) = Default::default();
            let mut masks = Vec::new();
            for (((row, id), score), seconds) in rows.chunks_exact(width).zip(&ids).zip(&scores).zip(&seconds)
            {
                let score = Some(*score).filter(|score| !score.is_nan());
                let request = Request { seconds: *seconds, id: id.as_bytes() };
                rules.evaluate(row, score, request, &mut decision);
                applied.push((
                    decision.applied().to_vec(),
                    decision.unknown(),
                    decision.errors(),
                    decision.conflicts(),
                ));
                let score = decision.score(score.unwrap_or(f64::NAN));
                let own = rules.band(&decision);
                let band = own.or_else(|| self.bundle.band_of(score)).unwrap_or(0);
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
            }
            (applied, columns, masks)
        });
        copy_out(py, &within, "within", &columns.0)?;
        copy_out(py, &bands, "bands", &columns.1)?;
        copy_out(py, &written, "written", &columns.2)?;
        Ok((applied, PyBytes::new(py, &masks)))
    }
}

impl RuleSet {
    fn rules(&self) -> PyResult<&core::Rules> {
        self.other.as_ref().or_else(|| self.bundle.rules()).ok_or_else(|| failed("the bundle has no rules"))
    }
}
