//! The time that each rule of a set needs, measured on the calling thread.

use std::time::{Duration, Instant};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use scorer_rules::{CostSettings, Costly, Exhausted, PartCost, Request, Spread};

use super::buffers::copy_in;
use super::{RuleSet, failed};

/// Time of a batch. It is much longer than a reading of the clock, and short beside the time slices of the system.
const BATCH: Duration = Duration::from_micros(20);

/// Whether it is a rule (else a value), name, number of instructions, number of evaluations of a batch, median and 99th
/// percentile of the nanoseconds, and share.
type Part = (bool, String, usize, u64, f64, f64, f64);
/// The parts, then median and 99th percentile of the whole set and of the empty loop, and the number of batches.
type Measurement = (Vec<Part>, (f64, f64), (f64, f64), usize);

/// Measures rules on rows, each with a score (NaN: missing), a time in seconds since 1970 and an id, by `batches` batches
/// of each rule, and no longer than about `seconds`.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the columns of the rows and the limits")]
pub(crate) fn rule_costs(
    py: Python<'_>,
    rules: &RuleSet,
    rows: PyBuffer<f32>,
    scores: PyBuffer<f64>,
    times: PyBuffer<i64>,
    ids: Vec<String>,
    batches: usize,
    seconds: f64,
) -> PyResult<Measurement> {
    let limit = Duration::try_from_secs_f64(seconds).map_err(failed)?;
    let set = rules.rules()?;
    let lists = rules.lists(set);
    let values = copy_in(py, &rows, "rows")?;
    let (scores, times) = (copy_in(py, &scores, "scores")?, copy_in(py, &times, "times")?);
    let all = split(rules.width, &values, &scores, &times, &ids)?;
    let settings = CostSettings { batches, batch_nanos: nanos(BATCH), limit_nanos: nanos(limit) };
    Ok(py.detach(|| {
        let began = Instant::now();
        let costs = set.cost(lists, &all, settings, || nanos(began.elapsed()));
        let pair = |time: Spread| (time.median, time.p99);
        let part = |one: PartCost| {
            let (median, p99) = pair(one.time);
            (one.kind == Costly::Rule, one.name, one.instructions, one.evaluations, median, p99, one.share)
        };
        let parts = costs.parts.into_iter().map(part).collect();
        (parts, pair(costs.whole), pair(costs.empty), costs.batches)
    }))
}

/// A row with its score and request.
type Row<'a> = (&'a [f32], Option<f64>, Request<'a>);

fn split<'a>(
    width: usize,
    values: &'a [f32],
    scores: &[f64],
    times: &[i64],
    ids: &'a [String],
) -> PyResult<Vec<Row<'a>>> {
    if width == 0
        || values.len() != ids.len() * width
        || scores.len() != ids.len()
        || times.len() != ids.len()
    {
        return Err(failed(format!(
            "rows, scores and times: {} ids need as many rows of {width} values; give one of each per row",
            ids.len()
        )));
    }
    let each = values.chunks_exact(width).zip(scores).zip(times).zip(ids);
    Ok(each
        .map(|(((row, score), seconds), id)| {
            let known = Some(*score).filter(|score| !score.is_nan());
            (row, known, Request { seconds: *seconds, id: id.as_bytes(), exhausted: Exhausted::NONE })
        })
        .collect())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
