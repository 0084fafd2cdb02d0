//! `_scorer.Bundle` and `_scorer.Policy`: verified bundles and policies for offline work.
//!
//! Rows and results are passed as buffers. The caller (`scorer.bundle`) allocates outputs and passes rows in chunks.

mod buffers;
mod build;
mod measure;
mod policy;
mod rows;
mod rule_cost;
mod rules;
mod ruling;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use scorer_core::budget::Unlimited;
use scorer_core::bundle::{self as core, Digest, EvalScratch};
use scorer_core::policy::Mask;

use buffers::{copy_in, copy_out};
pub(crate) use build::{build_golden, draft_bundle, revise_bundle, seal_manifest, transform_rows};
pub(crate) use measure::{golden_rows, measure_bundles};
pub(crate) use policy::{Policy, draw};
pub(crate) use rows::{score_columns, select_columns};
pub(crate) use rule_cost::rule_costs;
pub(crate) use rules::{RuleSet, compile_action_rules, compile_rules, rules_of};

pyo3::import_exception!(scorer.errors, BundleError);

/// Converts any error of this module to `BundleError`.
fn failed(error: impl std::fmt::Display) -> PyErr {
    BundleError::new_err(error.to_string())
}

/// File, number of columns, number of constants, and operators of an ONNX model.
type NetFacts = (String, usize, usize, Vec<(String, usize)>);

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct Bundle {
    inner: Arc<core::Bundle>,
    /// Working memory of explanations, which threads take and return.
    explaining: Mutex<Vec<EvalScratch>>,
}

#[pymethods]
impl Bundle {
    /// Reads and verifies a bundle's directory, including the golden cases.
    #[staticmethod]
    #[pyo3(signature = (path, expect_digest = None))]
    fn load(py: Python<'_>, path: PathBuf, expect_digest: Option<&str>) -> PyResult<Bundle> {
        let expected = expect_digest.map(str::parse::<Digest>).transpose().map_err(failed)?;
        let loaded = py.detach(|| scorer_server::bundle_dir::load(&path, expected.as_ref()));
        loaded.map(|bundle| Bundle { inner: Arc::new(bundle), explaining: Mutex::default() }).map_err(failed)
    }

    /// The digest: `sha256:` and 64 hexadecimal digits.
    #[getter]
    fn digest(&self) -> String {
        self.inner.digest().to_string()
    }

    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// `score` or `action`.
    #[getter]
    fn kind(&self) -> String {
        self.inner.kind().to_string()
    }

    #[getter]
    fn num_features(&self) -> usize {
        self.inner.schema().len()
    }

    #[getter]
    fn num_actions(&self) -> usize {
        self.inner.catalogue().len()
    }

    /// Fingerprint of the schema, which requests with dense rows must contain.
    #[getter]
    fn schema_fingerprint(&self) -> u64 {
        self.inner.schema().fingerprint()
    }

    #[getter]
    fn labels(&self) -> Vec<String> {
        self.inner.labels().to_vec()
    }

    #[getter]
    fn action_ids(&self) -> Vec<String> {
        self.inner.catalogue().iter().map(|action| action.id.clone()).collect()
    }

    /// Names of the functions, in the order of their bits in sets of functions.
    #[getter]
    fn functions(&self) -> Vec<String> {
        let entries = self.inner.functions().map_or(&[][..], |functions| functions.entries());
        entries.iter().map(|entry| entry.name.clone()).collect()
    }

    /// Whether the bundle has the covers that reasons need.
    #[getter]
    fn explains(&self) -> bool {
        self.inner.explains()
    }

    /// Names of the columns of the forest: the features of the request, then those of the action.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        (0..).map_while(|column| self.inner.column_name(column).map(str::to_owned)).collect()
    }

    /// Reason codes of the columns of the forest; empty if the bundle gives no reasons.
    #[getter]
    fn reason_codes(&self) -> Vec<String> {
        (0..).map_while(|column| self.inner.reason_code(column).map(str::to_owned)).collect()
    }

    /// Returns the expectation of the margin, and writes the exact contribution of each column of the forest to `out`.
    #[pyo3(signature = (row, action, out))]
    fn explain(
        &self,
        py: Python<'_>,
        row: PyBuffer<f32>,
        action: Option<usize>,
        out: PyBuffer<f64>,
    ) -> PyResult<f64> {
        let row = copy_in(py, &row, "row")?;
        let kept = || self.explaining.lock().unwrap_or_else(PoisonError::into_inner);
        let (found, scratch) = py.detach(|| {
            let mut scratch = kept().pop().unwrap_or_else(|| EvalScratch::new(&self.inner));
            (self.inner.explain(&row, action, &Unlimited, &mut scratch), scratch)
        });
        let written = found.map_err(failed).and_then(|found| {
            copy_out(py, &out, "out", scratch.contributions())?;
            Ok(found.expectation)
        });
        kept().push(scratch);
        written
    }

    /// Number of trees, nodes and outputs of each forest, in the order of the program.
    #[getter]
    fn forests(&self) -> Vec<(usize, usize, usize)> {
        self.inner.forests().iter().map(|f| (f.num_trees(), f.num_nodes(), f.num_outputs())).collect()
    }

    /// File, number of columns, number of constants and operators of each ONNX model, in the order of the program. The
    /// operators are names with the number of nodes of each.
    #[getter]
    fn nets(&self) -> Vec<NetFacts> {
        let nets = self.inner.nets();
        nets.map(|net| (net.file.to_owned(), net.columns, net.constants, net.operators.to_vec())).collect()
    }

    #[getter]
    fn policy(&self) -> Option<String> {
        self.inner.policy().map(|policy| policy.spec().to_string())
    }

    /// Checks rows against the schema. The error names the first invalid row.
    fn check_rows(&self, py: Python<'_>, rows: PyBuffer<f32>) -> PyResult<()> {
        let rows = copy_in(py, &rows, "rows")?;
        let width = self.width(&rows)?;
        py.detach(|| {
            rows.chunks_exact(width).enumerate().try_for_each(|(at, row)| {
                self.inner.schema().check_dense(row).map_err(|error| failed(format!("row {at}: {error}")))
            })
        })
    }

    /// Scores rows and writes one entry per row to each of the four outputs. The last one is the set of functions that
    /// had no result, a bit for each.
    fn score(
        &self,
        py: Python<'_>,
        rows: PyBuffer<f32>,
        margins: PyBuffer<f64>,
        scores: PyBuffer<f64>,
        bands: PyBuffer<u32>,
        faulted: PyBuffer<u64>,
    ) -> PyResult<()> {
        let rows = copy_in(py, &rows, "rows")?;
        let width = self.width(&rows)?;
        let outs = py.detach(|| {
            let mut scratch = EvalScratch::new(&self.inner);
            let score = |(at, row)| {
                self.inner
                    .score(row, &Unlimited, &mut scratch)
                    .map_err(|error| failed(format!("row {at}: {error}")))
            };
            rows.chunks_exact(width).enumerate().map(score).collect::<PyResult<Vec<_>>>()
        })?;
        copy_out(py, &margins, "margins", &outs.iter().map(|out| out.margin).collect::<Vec<_>>())?;
        copy_out(py, &scores, "scores", &outs.iter().map(|out| out.score).collect::<Vec<_>>())?;
        copy_out(py, &bands, "bands", &outs.iter().map(|out| out.band as u32).collect::<Vec<_>>())?;
        let sets: Vec<_> = outs.iter().map(|out| out.faulted.bits()).collect();
        copy_out(py, &faulted, "functions without a result", &sets)
    }

    /// Repeats one selection. Returns `(index, propensity, expected reward, functions without a result)`, and writes the
    /// pmf and the expected rewards of all actions to the outputs. `mask` has the format of the wire; with `None` every
    /// action is eligible. Without `ids` the best action is selected, as while exploration is stopped.
    #[pyo3(signature = (row, mask, ids, pmf, rewards))]
    fn select(
        &self,
        py: Python<'_>,
        row: PyBuffer<f32>,
        mask: Option<&[u8]>,
        ids: Option<(&str, &str)>,
        pmf: PyBuffer<f64>,
        rewards: PyBuffer<f64>,
    ) -> PyResult<(usize, f64, f64, u64)> {
        let row = copy_in(py, &row, "row")?;
        let eligible = self.mask(mask)?;
        let (out, scratch) = py.detach(|| {
            let mut scratch = EvalScratch::new(&self.inner);
            let out = match ids {
                Some((checkpoint, decision)) => {
                    self.inner.select(&row, &eligible, checkpoint, decision, &Unlimited, &mut scratch)
                }
                None => self.inner.select_greedy(&row, &eligible, &Unlimited, &mut scratch),
            };
            (out, scratch)
        });
        let out = out.map_err(failed)?;
        copy_out(py, &pmf, "pmf", scratch.pmf())?;
        copy_out(py, &rewards, "rewards", scratch.expected_rewards())?;
        Ok((out.index, out.propensity, out.expected_reward, out.faulted.bits()))
    }

    /// Writes the expected rewards and the pmf of many rows, `[n, actions]`. `masks` contains one mask per row, one
    /// after the other.
    #[pyo3(signature = (rows, masks, pmf, rewards))]
    fn evaluate_actions(
        &self,
        py: Python<'_>,
        rows: PyBuffer<f32>,
        masks: Option<&[u8]>,
        pmf: PyBuffer<f64>,
        rewards: PyBuffer<f64>,
    ) -> PyResult<()> {
        let rows = copy_in(py, &rows, "rows")?;
        let width = self.width(&rows)?;
        let count = rows.len() / width;
        let bytes = self.num_actions().div_ceil(8);
        if masks.is_some_and(|masks| masks.len() != count * bytes) {
            return Err(failed(format!("masks: {count} rows need {bytes} bytes each")));
        }
        let (all_pmf, all_rewards) = py.detach(|| {
            let mut scratch = EvalScratch::new(&self.inner);
            let mut eligible = Mask::all(self.num_actions());
            let (mut all_pmf, mut all_rewards) = (Vec::new(), Vec::new());
            for (at, row) in rows.chunks_exact(width).enumerate() {
                let failed = |error: &dyn std::fmt::Display| failed(format!("row {at}: {error}"));
                if let Some(masks) = masks {
                    eligible.read(&masks[at * bytes..(at + 1) * bytes]).map_err(|error| failed(&error))?;
                }
                self.inner
                    .select(row, &eligible, "", "", &Unlimited, &mut scratch)
                    .map_err(|error| failed(&error))?;
                all_pmf.extend_from_slice(scratch.pmf());
                all_rewards.extend_from_slice(scratch.expected_rewards());
            }
            PyResult::Ok((all_pmf, all_rewards))
        })?;
        copy_out(py, &pmf, "pmf", &all_pmf)?;
        copy_out(py, &rewards, "rewards", &all_rewards)
    }
}

impl Bundle {
    /// Returns the length of a row. Fails if `rows` is not a whole number of rows.
    fn width(&self, rows: &[f32]) -> PyResult<usize> {
        let width = self.num_features();
        if width == 0 || !rows.len().is_multiple_of(width) {
            return Err(failed(format!(
                "rows: {} values are no whole number of rows of {width}",
                rows.len()
            )));
        }
        Ok(width)
    }

    fn mask(&self, mask: Option<&[u8]>) -> PyResult<Mask> {
        match mask {
            None => Ok(Mask::all(self.num_actions())),
            Some(bytes) => Mask::from_bytes(self.num_actions(), bytes).map_err(failed),
        }
    }
}
