//! `_scorer.Policy`: a policy without a bundle, for simulation and off-policy evaluation.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use scorer_core::policy::{self as core, Action, ActionCatalogue, Mask, PolicyScratch, PolicySpec, Salt};

use super::buffers::{copy_in, copy_out};
use super::failed;

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct Policy {
    inner: core::Policy,
}

#[pymethods]
impl Policy {
    /// Compiles a policy. `spec` and `actions` are JSON in the formats of the manifest and of `actions.json`.
    #[new]
    fn new(spec: &str, actions: &str) -> PyResult<Policy> {
        let spec: PolicySpec = serde_json::from_str(spec).map_err(failed)?;
        let actions: Vec<Action> = serde_json::from_str(actions).map_err(failed)?;
        let catalogue = ActionCatalogue::new(actions).map_err(failed)?;
        Ok(Policy { inner: core::Policy::compile(&spec, &catalogue).map_err(failed)? })
    }

    #[getter]
    fn voters(&self) -> usize {
        self.inner.voters()
    }

    /// Writes the probabilities `[n, actions]` for scores `[n, (1 + voters) * actions]`. `masks` contains one eligible
    /// set per row, one after the other; with `None` every action is eligible.
    #[pyo3(signature = (scores, masks, pmf))]
    fn pmf(
        &self,
        py: Python<'_>,
        scores: PyBuffer<f64>,
        masks: Option<&[u8]>,
        pmf: PyBuffer<f64>,
    ) -> PyResult<()> {
        let scores = copy_in(py, &scores, "scores")?;
        let actions = self.inner.actions();
        let width = actions * (1 + self.inner.voters());
        let (count, bytes) = (scores.len() / width, actions.div_ceil(8));
        if !scores.len().is_multiple_of(width) || masks.is_some_and(|masks| masks.len() != count * bytes) {
            return Err(failed(format!("scores need {width} values and masks {bytes} bytes per row")));
        }
        let out = py.detach(|| {
            let mut scratch = PolicyScratch::new(&self.inner);
            let mut eligible = Mask::all(actions);
            let mut out = vec![0.0; count * actions];
            for (at, (scores, out)) in
                scores.chunks_exact(width).zip(out.chunks_exact_mut(actions)).enumerate()
            {
                if let Some(masks) = masks {
                    eligible.read(&masks[at * bytes..(at + 1) * bytes]).map_err(failed)?;
                }
                let given = self.inner.pmf(scores, &eligible, out, &mut scratch);
                given.map_err(|error| failed(format!("row {at}: {error}")))?;
            }
            PyResult::Ok(out)
        })?;
        copy_out(py, &pmf, "pmf", &out)
    }

    /// Returns the index of the action that is drawn for a decision. Returns `None` only if no probability is above 0.
    fn choose(
        &self,
        py: Python<'_>,
        pmf: PyBuffer<f64>,
        checkpoint: &str,
        decision_id: &str,
    ) -> PyResult<Option<usize>> {
        let pmf = copy_in(py, &pmf, "pmf")?;
        Ok(core::choose(&pmf, core::draw(&self.inner.salt().0, checkpoint, decision_id)))
    }
}

/// Returns the number in [0, 1) by which the action of a decision is drawn.
#[pyfunction]
pub(crate) fn draw(salt: &str, checkpoint: &str, decision_id: &str) -> PyResult<f64> {
    Ok(core::draw(&Salt::parse(salt).map_err(failed)?.0, checkpoint, decision_id))
}
