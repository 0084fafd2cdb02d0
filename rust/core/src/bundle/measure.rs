//! Measures evaluations of bundles on one thread, in turns with and without the times of the nodes.

use std::time::{Duration, Instant};

use scorer_rules::{Exhausted, Request};

use super::times::nanos_of;
use super::{Bundle, EvalError, EvalScratch, GoldenRow};
use crate::budget::Unlimited;
use crate::policy::Mask;

/// Greatest number of passes over the rows of each kind.
const MOST_PASSES: usize = 1000;
/// Greatest number of measured requests of each kind.
const MOST_REQUESTS: usize = 1 << 20;
/// Decision id and checkpoint of the evaluations.
const ID: &str = "measured";

/// What [`measure`] has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Nanoseconds of each request whose nodes were not timed, pass after pass.
    pub plain: Vec<u64>,
    /// Nanoseconds of each request whose nodes were timed, pass after pass.
    pub timed: Vec<u64>,
    /// The times of the nodes in those requests, for each bundle in the order of [`Bundle::nodes`].
    pub nodes: Vec<Vec<NodeSum>>,
}

/// The times of one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeSum {
    /// Total time in nanoseconds.
    pub nanos: u64,
    /// Number of evaluations in which the node ran.
    pub evaluations: u64,
}

/// A bundle with the rows that it evaluates.
struct Subject<'a> {
    bundle: &'a Bundle,
    rows: &'a [GoldenRow],
    scratch: EvalScratch,
    /// All actions.
    every: Mask,
    eligible: Mask,
}

/// Evaluates rows as a server does, the rules included, until `limit` is over but at least once. A request is one row of
/// each bundle, one after the other; bundles with fewer rows repeat them. A pass over all rows without the times of
/// nodes and one with them take turns; the first pass of each only warms up. Rows of an action bundle without an
/// eligible set have all actions. `seconds` since 1970 is the time that rules see.
///
/// # Errors
/// Fails as [`Bundle::score`] or [`Bundle::select`] does.
pub fn measure(
    bundles: &[(&Bundle, &[GoldenRow])],
    seconds: i64,
    limit: Duration,
) -> Result<Measured, EvalError> {
    let mut subjects: Vec<Subject<'_>> =
        bundles.iter().map(|(bundle, rows)| Subject::new(bundle, rows)).collect();
    let requests = bundles.iter().map(|(_, rows)| rows.len()).max().unwrap_or(0);
    let nodes = |bundle: &Bundle| vec![NodeSum::default(); bundle.nodes().len()];
    let mut found = Measured {
        plain: Vec::new(),
        timed: Vec::new(),
        nodes: bundles.iter().map(|(bundle, _)| nodes(bundle)).collect(),
    };
    let request = Request { seconds, id: ID.as_bytes(), exhausted: Exhausted::NONE };
    let began = Instant::now();
    for pass in 0..=MOST_PASSES {
        // Each kind is the first one in every other pass.
        for timed in if pass % 2 == 0 { [false, true] } else { [true, false] } {
            for at in 0..requests {
                subjects.iter_mut().for_each(|subject| subject.prepare(at, timed));
                let since = Instant::now();
                subjects.iter_mut().try_for_each(|subject| subject.evaluate(at, request))?;
                let nanos = nanos_of(since.elapsed());
                if pass == 0 {
                    continue;
                }
                if timed { &mut found.timed } else { &mut found.plain }.push(nanos);
                for (subject, sums) in subjects.iter().zip(&mut found.nodes) {
                    subject.add_times(sums);
                }
            }
        }
        if pass > 0 && (began.elapsed() >= limit || found.plain.len() + requests > MOST_REQUESTS) {
            break;
        }
    }
    Ok(found)
}

// === impl Subject ===

impl<'a> Subject<'a> {
    fn new(bundle: &'a Bundle, rows: &'a [GoldenRow]) -> Subject<'a> {
        let every = Mask::all(bundle.catalogue().len());
        Subject { bundle, rows, scratch: EvalScratch::new(bundle), eligible: every.clone(), every }
    }

    fn row(&self, request: usize) -> Option<&'a GoldenRow> {
        self.rows.get(request % self.rows.len().max(1))
    }

    fn prepare(&mut self, request: usize, timed: bool) {
        let own = self.row(request).and_then(|row| row.eligible.as_ref());
        self.eligible.clone_from(own.unwrap_or(&self.every));
        self.scratch.time_nodes(timed);
    }

    /// Evaluates program and rules. The rules restrict the eligible actions; if they leave none, the set stays.
    fn evaluate(&mut self, number: usize, request: Request<'_>) -> Result<(), EvalError> {
        let Some(GoldenRow { row, .. }) = self.row(number) else { return Ok(()) };
        let Subject { bundle, scratch, eligible, .. } = self;
        if bundle.policy().is_some() {
            if bundle.apply_rules(row, None, request, scratch)? {
                _ = bundle.restrict(eligible, scratch);
            }
            bundle.select(row, eligible, ID, ID, &Unlimited, scratch)?;
        } else {
            let out = bundle.score(row, &Unlimited, scratch)?;
            if bundle.apply_rules(row, Some(out.score), request, scratch)? {
                _ = bundle.ruled_score(out.score, scratch);
            }
        }
        Ok(())
    }

    fn add_times(&self, sums: &mut [NodeSum]) {
        for (sum, &nanos) in sums.iter_mut().zip(self.scratch.node_times().unwrap_or(&[])) {
            sum.nanos += nanos;
            sum.evaluations += u64::from(nanos > 0);
        }
    }
}
