//! The rules of a bundle on rows that come as columns: what a server would do to each of them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scorer_core::bundle::{self as core, EvalError, EvalScratch, RuledScore};
use scorer_core::policy::Mask;
use scorer_rules::{Exhausted, Request};

use super::buffers::{copy_in, copy_out};
use super::failed;

/// A time in seconds since 1970, the text and the offsets of the rows' ids, and the outputs: score within caps and
/// floors, number of the rule whose review queue is used, and masks of the allowed actions. The outputs are of `n`
/// entries or, if they are not wanted, of none.
pub(super) type RuleOutputs =
    (i64, Option<(PyBuffer<u8>, PyBuffer<i64>)>, PyBuffer<f64>, PyBuffer<u32>, PyBuffer<u8>);
/// The rules that had an effect: the `n + 1` offsets of the rows as int32, and the numbers of rules as uint16.
pub(super) type Fired<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// The ids of rows.
pub(super) struct Ids {
    text: Vec<u8>,
    offsets: Vec<i64>,
}

impl Ids {
    pub(super) fn copy(
        py: Python<'_>,
        (text, offsets): &(PyBuffer<u8>, PyBuffer<i64>),
        rows: usize,
    ) -> PyResult<Ids> {
        let ids = Ids { text: copy_in(py, text, "ids")?, offsets: copy_in(py, offsets, "offsets of ids")? };
        if ids.offsets.len() != rows + 1 {
            let given = ids.offsets.len();
            return Err(failed(format!("offsets of ids: {given} given, {} needed", rows + 1)));
        }
        Ok(ids)
    }

    pub(super) fn id(&self, at: usize) -> Result<&str, String> {
        let end = |at: usize| usize::try_from(self.offsets[at]).unwrap_or(usize::MAX);
        let text = self.text.get(end(at)..end(at + 1)).ok_or("the offsets of ids are not ascending")?;
        std::str::from_utf8(text).map_err(|_| "the decision id is not UTF-8; send text".to_owned())
    }
}

/// The results of the rules, one row after the other.
pub(super) struct Ruling {
    seconds: i64,
    ids: Option<Ids>,
    wants_masks: bool,
    offsets: Vec<i32>,
    numbers: Vec<u16>,
    within: Vec<f64>,
    queues: Vec<u32>,
    masks: Vec<u8>,
}

impl Ruling {
    pub(super) fn new(py: Python<'_>, outputs: &RuleOutputs, rows: usize) -> PyResult<Ruling> {
        let (seconds, ids, _, _, masks) = outputs;
        Ok(Ruling {
            seconds: *seconds,
            ids: ids.as_ref().map(|ids| Ids::copy(py, ids, rows)).transpose()?,
            wants_masks: masks.item_count() > 0,
            offsets: vec![0],
            numbers: Vec::new(),
            within: Vec::with_capacity(rows),
            queues: Vec::with_capacity(rows),
            masks: Vec::with_capacity(masks.item_count()),
        })
    }

    /// Applies the rules to the score of row `at`.
    pub(super) fn score(
        &mut self,
        bundle: &core::Bundle,
        at: usize,
        row: &[f32],
        score: f64,
        scratch: &mut EvalScratch,
    ) -> Result<RuledScore, String> {
        let ruled = self.guarded(bundle, at, scratch, |request, scratch| {
            bundle.apply_rules(row, Some(score), request, scratch)?;
            bundle.ruled_score(score, scratch).ok_or(EvalError::Scratch)
        })?;
        self.push(bundle, scratch, ruled.score, None);
        Ok(ruled)
    }

    /// Removes the actions that the rules do not allow to row `at`.
    pub(super) fn restrict(
        &mut self,
        bundle: &core::Bundle,
        at: usize,
        row: &[f32],
        eligible: &mut Mask,
        scratch: &mut EvalScratch,
    ) -> Result<(), String> {
        let some_left = self.guarded(bundle, at, scratch, |request, scratch| {
            bundle.apply_rules(row, None, request, scratch)?;
            Ok(bundle.restrict(eligible, scratch))
        })?;
        if !some_left {
            return Err("the rules of the bundle leave none of the row's eligible actions, and a server answers with its \
                 fallback; allow other actions or correct the rules"
                .to_owned());
        }
        self.push(bundle, scratch, f64::NAN, Some(eligible));
        Ok(())
    }

    /// Adds a row without results, if its own have not been added.
    pub(super) fn skip(&mut self, bundle: &core::Bundle, at: usize) {
        if self.queues.len() > at {
            return;
        }
        self.offsets.push(self.numbers.len() as i32);
        self.within.push(f64::NAN);
        self.queues.push(u32::MAX);
        if self.wants_masks {
            self.masks.resize(self.masks.len() + bundle.catalogue().len().div_ceil(8), 0);
        }
    }

    /// Runs `work`, which evaluates the rules. A panic becomes the reason for which the row is refused.
    fn guarded<T>(
        &self,
        bundle: &core::Bundle,
        at: usize,
        scratch: &mut EvalScratch,
        work: impl FnOnce(Request<'_>, &mut EvalScratch) -> Result<T, EvalError>,
    ) -> Result<T, String> {
        let id = self.ids.as_ref().map_or(Ok(""), |ids| ids.id(at))?;
        let request = Request { seconds: self.seconds, id: id.as_bytes(), exhausted: Exhausted::NONE };
        match catch_unwind(AssertUnwindSafe(|| work(request, scratch))) {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => {
                *scratch = EvalScratch::new(bundle);
                Err("the evaluation of the rules failed; report this defect with the bundle and the row"
                    .to_owned())
            }
        }
    }

    fn push(&mut self, bundle: &core::Bundle, scratch: &EvalScratch, within: f64, eligible: Option<&Mask>) {
        let applied = scratch.ruling().map_or(&[][..], |ruling| ruling.applied());
        let rules = bundle.rules().map_or(&[][..], |rules| rules.rules());
        let with_queue =
            |number: &&u16| rules.get(usize::from(**number)).is_some_and(|rule| rule.queue.is_some());
        self.queues.push(applied.iter().find(with_queue).map_or(u32::MAX, |number| u32::from(*number)));
        self.numbers.extend_from_slice(applied);
        self.offsets.push(self.numbers.len() as i32);
        self.within.push(within);
        if let Some(eligible) = eligible.filter(|_| self.wants_masks) {
            self.masks.extend(eligible.to_bytes());
        }
    }

    pub(super) fn copy_out<'py>(&self, py: Python<'py>, outputs: &RuleOutputs) -> PyResult<Fired<'py>> {
        let (_, _, within, queues, masks) = outputs;
        copy_out(py, within, "scores within caps and floors", &self.within)?;
        copy_out(py, queues, "queues", &self.queues)?;
        if self.wants_masks {
            copy_out(py, masks, "allowed actions", &self.masks)?;
        }
        let offsets: Vec<u8> = self.offsets.iter().flat_map(|offset| offset.to_ne_bytes()).collect();
        let numbers: Vec<u8> = self.numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        Ok((PyBytes::new(py, &offsets), PyBytes::new(py, &numbers)))
    }
}
