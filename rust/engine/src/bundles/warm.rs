//! Warms up a candidate and measures its evaluation time, before it receives requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use scorer_core::budget::Unlimited;
use scorer_core::bundle::{Bundle, EvalScratch, GoldenRow, Kind};
use serde::Serialize;

/// Number of rows to replay. The golden rows are repeated as often as needed.
const ROWS: usize = 1000;
/// Number of rows to replay on a candidate that shares all forests with the live bundle: they are in the caches, and
/// their times are known.
const ROWS_OF_SHARED: usize = 200;
/// Number of measurements per row. The shortest one counts, which excludes disturbances by other processes.
const TIMES: usize = 3;
/// Time limit of the measurement. A bundle that takes longer has been measured sufficiently.
const LONG_ENOUGH: Duration = Duration::from_secs(2);
/// Minimum number of rows for a 99th percentile.
const FEWEST: usize = 100;
/// The decision id with which warm-up selections are drawn.
const ID: &str = "warm-up";

/// Times of one evaluation at warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmUp {
    /// Number of rows replayed.
    pub rows: usize,
    /// Median time of a row.
    pub p50: Duration,
    /// 99th percentile of the times of rows.
    pub p99: Duration,
}

/// The times at warm-up in microseconds, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WarmUpReport {
    /// Number of rows replayed.
    pub rows: usize,
    /// Median time of an evaluation in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the times in microseconds.
    pub p99_us: f64,
}

/// A bundle and the rows that are replayed on it.
pub(crate) struct Subject<'a> {
    bundle: &'a Bundle,
    rows: &'a [GoldenRow],
    scratch: EvalScratch,
    times: Vec<Duration>,
}

/// Replays the golden rows of the candidate and of the live bundle alternately, so that both are measured under the
/// same conditions.
pub(crate) fn warm_up(mut candidate: Subject<'_>, live: Option<Subject<'_>>) -> (WarmUp, Option<WarmUp>) {
    let mut live = live;
    let began = Instant::now();
    let shares = live.as_ref().is_some_and(|live| shares(candidate.bundle, live.bundle));
    for turn in 0..if shares { ROWS_OF_SHARED } else { ROWS } {
        candidate.replay(turn);
        if let Some(live) = &mut live {
            live.replay(turn);
        }
        if turn >= FEWEST && began.elapsed() >= LONG_ENOUGH {
            break;
        }
    }
    (candidate.result(), live.map(Subject::result))
}

/// Whether every forest of `bundle` is shared with `other`.
fn shares(bundle: &Bundle, other: &Bundle) -> bool {
    bundle.nets().len() == 0
        && bundle.forests().iter().all(|own| other.forests().iter().any(|theirs| Arc::ptr_eq(own, theirs)))
}

// === impl Subject ===

impl<'a> Subject<'a> {
    pub(crate) fn new(bundle: &'a Bundle, rows: &'a [GoldenRow]) -> Subject<'a> {
        Subject { bundle, rows, scratch: EvalScratch::new(bundle), times: Vec::with_capacity(ROWS) }
    }

    fn replay(&mut self, turn: usize) {
        let Some(row) = self.rows.get(turn % self.rows.len().max(1)) else { return };
        let mut least = Duration::MAX;
        for _ in 0..TIMES {
            let began = Instant::now();
            // Verification has evaluated all golden rows, so none fails here.
            match (self.bundle.kind(), &row.eligible) {
                (Kind::Action, Some(eligible)) => {
                    _ = self.bundle.select(&row.row, eligible, ID, ID, &Unlimited, &mut self.scratch);
                }
                _ => _ = self.bundle.score(&row.row, &Unlimited, &mut self.scratch),
            }
            least = least.min(began.elapsed());
        }
        self.times.push(least);
    }

    fn result(mut self) -> WarmUp {
        self.times.sort_unstable();
        let rows = self.times.len();
        let at = |share: f64| {
            let rank = (rows as f64 * share).ceil() as usize;
            self.times.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        WarmUp { rows, p50: at(0.5), p99: at(0.99) }
    }
}

// === impl WarmUp ===

impl WarmUp {
    /// Converts the times to microseconds.
    #[must_use]
    pub fn report(&self) -> WarmUpReport {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        WarmUpReport { rows: self.rows, p50_us: micros(self.p50), p99_us: micros(self.p99) }
    }
}

#[cfg(test)]
mod tests {
    use scorer_core::bundle::Bundle;
    use scorer_core::bundle::testing::{self, Files};

    use super::*;

    fn loaded(files: &Files) -> (Bundle, Vec<GoldenRow>) {
        let read = |name: &str| Ok(files[name].clone());
        Bundle::assemble_in_steps(&files["manifest.json"], &read, &[], &mut |_| ()).unwrap()
    }

    #[test]
    fn replays_a_thousand_rows_of_both_kinds() {
        let (score, score_rows) = loaded(&testing::score_files("fraud", 0.0));
        let (action, action_rows) = loaded(&testing::action_files("action", 0.0));
        assert!(score_rows.len() >= 256 && score_rows.iter().all(|row| row.eligible.is_none()));
        assert!(action_rows.iter().all(|row| row.eligible.is_some()));
        let (candidate, live) =
            warm_up(Subject::new(&score, &score_rows), Some(Subject::new(&action, &action_rows)));
        let live = live.unwrap();
        assert_eq!((candidate.rows, live.rows), (1000, 1000));
        let files =
            testing::action_recipe("action", 0.0, serde_json::json!({"rule": "uniform"})).build().unwrap();
        let read = |name: &str| Ok(files[name].clone());
        let (revision, rows) =
            Bundle::assemble_in_steps(&files["manifest.json"], &read, &[&action], &mut |_| ()).unwrap();
        let beside = Some(Subject::new(&action, &action_rows));
        assert_eq!(warm_up(Subject::new(&revision, &rows), beside).0.rows, 200);
        for times in [candidate, live] {
            assert!(Duration::ZERO < times.p50 && times.p50 <= times.p99, "{times:?}");
        }
    }
}
