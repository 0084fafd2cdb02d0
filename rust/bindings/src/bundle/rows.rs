//! Scores and selections of many rows that come as columns. Each row is checked as the server checks a request.
//!
//! A row that the schema or the evaluation refuses does not end the call: it is returned with its reason.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use scorer_core::budget::Unlimited;
use scorer_core::bundle::{self as core, EvalScratch, FunctionSet, ScoreOut, SelectOut};
use scorer_core::explain::{Contribution, MAX_REASONS};
use scorer_core::policy::Mask;

use super::buffers::{copy_in, copy_out};
use super::ruling::{Fired, Ids, RuleOutputs, Ruling};
use super::{Bundle, failed};

/// Number of rows that are gathered from the columns at a time. Forests evaluate them as one block.
const BLOCK: usize = 64;

/// Positions and reasons of the rows that were refused.
type Refused = Vec<(usize, String)>;

/// The outputs of reasons, `[n, k]`: columns of the forest and their contributions. An entry without a reason is
/// `u32::MAX` and NaN.
type Outputs = (PyBuffer<u32>, PyBuffer<f64>);

/// The outputs of selections: indices, propensities, expected rewards, sets of functions, and the pmf if it is wanted.
type SelectionOutputs = (PyBuffer<u32>, PyBuffer<f64>, PyBuffer<f64>, PyBuffer<u64>, Option<PyBuffer<f64>>);

/// Scores the rows of `columns` `[features, n]` into four outputs of one entry per row, and their reasons if they are
/// wanted. The last output is the set of functions that had no result, also in the rules. The entries of a refused row
/// are NaN, NaN, `u32::MAX` and no function. With `rules` the bundle's rules change the bands, and the rules that had
/// an effect are returned.
#[pyfunction]
#[pyo3(signature = (bundle, columns, margins, scores, bands, faulted, reasons, rules))]
#[expect(clippy::too_many_arguments, reason = "the buffers of one call, which numpy owns")]
pub(crate) fn score_columns<'py>(
    py: Python<'py>,
    bundle: &Bundle,
    columns: PyBuffer<f32>,
    margins: PyBuffer<f64>,
    scores: PyBuffer<f64>,
    bands: PyBuffer<u32>,
    faulted: PyBuffer<u64>,
    reasons: Option<Outputs>,
    rules: Option<RuleOutputs>,
) -> PyResult<(Refused, Option<Fired<'py>>)> {
    let columns = Columns::copy(py, bundle, &columns)?;
    let mut causes = Causes::new(columns.count, reasons.as_ref())?;
    let mut ruling = rules.as_ref().map(|rules| Ruling::new(py, rules, columns.count)).transpose()?;
    let found = py.detach(|| score(&bundle.inner, &columns, &mut causes, ruling.as_mut()))?;
    causes.copy_out(py, reasons.as_ref())?;
    let fired = fired(py, ruling, rules.as_ref())?;
    copy_out(py, &margins, "margins", &found.margins)?;
    copy_out(py, &scores, "scores", &found.scores)?;
    copy_out(py, &bands, "bands", &found.bands)?;
    copy_out(py, &faulted, "functions without a result", &found.faulted)?;
    Ok((found.refused, fired))
}

fn fired<'py>(
    py: Python<'py>,
    ruling: Option<Ruling>,
    outputs: Option<&RuleOutputs>,
) -> PyResult<Option<Fired<'py>>> {
    ruling.zip(outputs).map(|(ruling, outputs)| ruling.copy_out(py, outputs)).transpose()
}

/// Selects an action for each row of `columns` `[features, n]`, as `Bundle.select` does for one row.
///
/// With `reasons` the reasons of each chosen action are written there.
/// `masks` holds one mask after the other; `None` for every action. `ids` is the text of all decision ids and the
/// `n + 1` offsets of their ends. `out` is the index, propensity, expected reward and set of functions without a
/// result of each row and, if it is wanted, the pmf `[n, actions]`. The entries of a refused row are `u32::MAX` and
/// NaN. With `rules` the actions are those that the bundle's rules allow, too, and the rules that had an effect are
/// returned.
#[pyfunction]
#[pyo3(signature = (bundle, columns, masks, checkpoint, ids, out, reasons, rules))]
#[expect(clippy::too_many_arguments, reason = "the buffers of one call, which numpy owns")]
pub(crate) fn select_columns<'py>(
    py: Python<'py>,
    bundle: &Bundle,
    columns: PyBuffer<f32>,
    masks: Option<PyBuffer<u8>>,
    checkpoint: &str,
    ids: (PyBuffer<u8>, PyBuffer<i64>),
    out: SelectionOutputs,
    reasons: Option<Outputs>,
    rules: Option<RuleOutputs>,
) -> PyResult<(Refused, Option<Fired<'py>>)> {
    let columns = Columns::copy(py, bundle, &columns)?;
    let masks = masks.map(|masks| copy_in(py, &masks, "masks")).transpose()?;
    let bytes = bundle.num_actions().div_ceil(8);
    if masks.as_ref().is_some_and(|masks| masks.len() != columns.count * bytes) {
        return Err(failed(format!("masks: {} rows need {bytes} bytes each", columns.count)));
    }
    let ids = Ids::copy(py, &ids, columns.count)?;
    let decisions = Decisions { checkpoint, ids, masks, bytes };
    let with_pmf = out.4.is_some();
    let mut causes = Causes::new(columns.count, reasons.as_ref())?;
    let mut ruling = rules.as_ref().map(|rules| Ruling::new(py, rules, columns.count)).transpose()?;
    let found =
        py.detach(|| select(&bundle.inner, &columns, &decisions, with_pmf, &mut causes, ruling.as_mut()))?;
    causes.copy_out(py, reasons.as_ref())?;
    let fired = fired(py, ruling, rules.as_ref())?;
    copy_out(py, &out.0, "indices", &found.indices)?;
    copy_out(py, &out.1, "propensities", &found.propensities)?;
    copy_out(py, &out.2, "expected rewards", &found.rewards)?;
    copy_out(py, &out.3, "functions without a result", &found.faulted)?;
    if let Some(pmf) = &out.4 {
        copy_out(py, pmf, "pmf", &found.pmf)?;
    }
    Ok((found.refused, fired))
}

/// The values of rows, column by column.
struct Columns {
    values: Vec<f32>,
    width: usize,
    count: usize,
}

impl Columns {
    fn copy(py: Python<'_>, bundle: &Bundle, columns: &PyBuffer<f32>) -> PyResult<Columns> {
        let width = bundle.num_features();
        let &[features, count] = columns.shape() else {
            return Err(failed("columns: an array [features, rows] is needed"));
        };
        if features != width || width == 0 {
            return Err(failed(format!("columns: {features} features are given, the bundle has {width}")));
        }
        Ok(Columns { values: copy_in(py, columns, "columns")?, width, count })
    }

    /// Writes the rows from `start` on into `block`, row-major, as many as it has room for, and returns them.
    fn gather<'block>(&self, start: usize, block: &'block mut [f32]) -> &'block [f32] {
        let end = self.count.min(start + BLOCK);
        for (feature, column) in self.values.chunks_exact(self.count).enumerate() {
            for (row, &value) in block.chunks_exact_mut(self.width).zip(&column[start..end]) {
                row[feature] = value;
            }
        }
        &block[..(end - start) * self.width]
    }
}

/// The reasons of rows, one row after the other.
struct Causes {
    /// Number of reasons per row; 0 if none are wanted.
    count: usize,
    columns: Vec<u32>,
    amounts: Vec<f64>,
}

impl Causes {
    fn new(rows: usize, outputs: Option<&Outputs>) -> PyResult<Causes> {
        let entries = outputs.map_or(0, |(columns, _)| columns.item_count());
        let count = entries.checked_div(rows).unwrap_or(0);
        if count > MAX_REASONS || count * rows != entries {
            return Err(failed(format!("reasons: 0 to {MAX_REASONS} for each row are needed")));
        }
        Ok(Causes { count, columns: Vec::with_capacity(entries), amounts: Vec::with_capacity(entries) })
    }

    /// Adds the reasons of the next row; those of a refused row are empty.
    fn push(&mut self, reasons: &[Contribution]) {
        self.columns.extend(reasons.iter().map(|reason| reason.feature));
        self.columns.extend(std::iter::repeat_n(u32::MAX, self.count - reasons.len()));
        self.amounts.extend(reasons.iter().map(|reason| reason.amount));
        self.amounts.extend(std::iter::repeat_n(f64::NAN, self.count - reasons.len()));
    }

    fn copy_out(&self, py: Python<'_>, outputs: Option<&Outputs>) -> PyResult<()> {
        let Some((columns, amounts)) = outputs else { return Ok(()) };
        copy_out(py, columns, "reasons", &self.columns)?;
        copy_out(py, amounts, "contributions", &self.amounts)
    }
}

#[derive(Default)]
struct Scored {
    margins: Vec<f64>,
    scores: Vec<f64>,
    bands: Vec<u32>,
    faulted: Vec<u64>,
    refused: Refused,
}

fn score(
    bundle: &core::Bundle,
    columns: &Columns,
    causes: &mut Causes,
    mut ruling: Option<&mut Ruling>,
) -> PyResult<Scored> {
    let mut scratch = EvalScratch::new(bundle);
    let mut block = vec![0.0; BLOCK * columns.width];
    let mut results = Vec::with_capacity(BLOCK);
    let mut found = Scored::default();
    for start in (0..columns.count).step_by(BLOCK) {
        let rows = columns.gather(start, &mut block);
        if causes.count == 0 {
            bundle.score_rows(rows, &Unlimited, &mut scratch, &mut results).map_err(failed)?;
        } else {
            for row in rows.chunks_exact(columns.width) {
                let result = bundle.score_explained(row, &Unlimited, &mut scratch);
                let reasons = result.as_ref().map(|_| scratch.reasons(causes.count)).unwrap_or_default();
                causes.push(reasons.as_slice());
                results.push(result);
            }
        }
        for (row, result) in rows.chunks_exact(columns.width).zip(results.drain(..)) {
            let checked = bundle.schema().check_dense(row).map_err(|error| error.to_string());
            let at = found.scores.len();
            let mut scored = checked.and_then(|()| result.map_err(|error| error.to_string()));
            if let Some(ruling) = &mut ruling {
                scored = scored.and_then(|out| {
                    let ruled = ruling.score(bundle, at, row, out.score, &mut scratch)?;
                    let faulted = out.faulted.or(scratch.faulted_in_rules());
                    Ok(ScoreOut { band: ruled.band, faulted, ..out })
                });
                ruling.skip(bundle, at);
            }
            let (margin, score, band, faulted) = match scored {
                Ok(out) => (out.margin, out.score, out.band as u32, out.faulted.bits()),
                Err(reason) => {
                    found.refused.push((at, reason));
                    (f64::NAN, f64::NAN, u32::MAX, 0)
                }
            };
            found.margins.push(margin);
            found.scores.push(score);
            found.bands.push(band);
            found.faulted.push(faulted);
        }
    }
    Ok(found)
}

/// What the draw of each row depends on, and the eligible actions.
struct Decisions<'a> {
    checkpoint: &'a str,
    ids: Ids,
    masks: Option<Vec<u8>>,
    /// Size of one mask.
    bytes: usize,
}

impl Decisions<'_> {
    fn read_mask(&self, at: usize, eligible: &mut Mask) -> Result<(), String> {
        match &self.masks {
            Some(masks) => eligible
                .read(&masks[at * self.bytes..(at + 1) * self.bytes])
                .map_err(|error| error.to_string()),
            None => {
                eligible.fill();
                Ok(())
            }
        }
    }
}

#[derive(Default)]
struct Selected {
    indices: Vec<u32>,
    propensities: Vec<f64>,
    rewards: Vec<f64>,
    faulted: Vec<u64>,
    pmf: Vec<f64>,
    refused: Refused,
}

fn select(
    bundle: &core::Bundle,
    columns: &Columns,
    decisions: &Decisions<'_>,
    with_pmf: bool,
    causes: &mut Causes,
    mut ruling: Option<&mut Ruling>,
) -> PyResult<Selected> {
    let actions = bundle.catalogue().len();
    let mut scratch = EvalScratch::new(bundle);
    let mut eligible = Mask::all(actions);
    let mut block = vec![0.0; BLOCK * columns.width];
    let mut found = Selected::default();
    for start in (0..columns.count).step_by(BLOCK) {
        for row in columns.gather(start, &mut block).chunks_exact(columns.width) {
            let at = found.indices.len();
            let mut one = || {
                bundle.schema().check_dense(row).map_err(|error| error.to_string())?;
                decisions.read_mask(at, &mut eligible)?;
                let id = decisions.ids.id(at)?;
                let mut in_rules = FunctionSet::default();
                if let Some(ruling) = ruling.as_mut().filter(|_| !eligible.is_empty()) {
                    ruling.restrict(bundle, at, row, &mut eligible, &mut scratch)?;
                    in_rules = scratch.faulted_in_rules();
                }
                bundle
                    .select(row, &eligible, decisions.checkpoint, id, &Unlimited, &mut scratch)
                    .map(|out| SelectOut { faulted: out.faulted.or(in_rules), ..out })
                    .map_err(|error| error.to_string())
            };
            let mut chosen = one();
            if let Some(ruling) = &mut ruling {
                ruling.skip(bundle, at);
            }
            if causes.count > 0 {
                let explained = chosen.as_ref().ok().map(|out| {
                    bundle
                        .explain_action(row, out.index, &Unlimited, &mut scratch)
                        .map(|()| scratch.reasons(causes.count))
                });
                match explained {
                    Some(Ok(reasons)) => causes.push(reasons.as_slice()),
                    Some(Err(error)) => {
                        causes.push(&[]);
                        chosen = Err(error.to_string());
                    }
                    None => causes.push(&[]),
                }
            }
            let (index, propensity, reward, faulted) = match &chosen {
                Ok(out) => (out.index as u32, out.propensity, out.expected_reward, out.faulted.bits()),
                Err(_) => (u32::MAX, f64::NAN, f64::NAN, 0),
            };
            found.indices.push(index);
            found.propensities.push(propensity);
            found.rewards.push(reward);
            found.faulted.push(faulted);
            match chosen {
                Ok(_) if with_pmf => found.pmf.extend_from_slice(scratch.pmf()),
                Err(_) if with_pmf => found.pmf.resize(found.pmf.len() + actions, f64::NAN),
                Ok(_) | Err(_) => {}
            }
            if let Err(reason) = chosen {
                found.refused.push((at, reason));
            }
        }
    }
    Ok(found)
}
