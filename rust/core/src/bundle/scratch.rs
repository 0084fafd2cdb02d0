//! Working memory of evaluation: made once per thread and bundle, after which nothing allocates.

use super::program::End;
use super::{Bundle, Digest};
use crate::forest::Scratch;
use crate::policy::PolicyScratch;

/// Working memory for one bundle.
#[derive(Debug, Clone)]
pub struct EvalScratch {
    pub(super) bundle: Digest,
    pub(super) buffers: Buffers,
    /// `[1 + voters, actions]`: the oracle's scores, then each voter's. NaN where not eligible.
    pub(super) scores: Vec<f64>,
    /// `[actions, margins]`.
    pub(super) margins: Vec<f64>,
    pub(super) pmf: Vec<f64>,
    pub(super) policy: Option<PolicyScratch>,
}

/// What a program runs on.
#[derive(Debug, Clone)]
pub(super) struct Buffers {
    pub(super) rows: Vec<f32>,
    pub(super) values: Vec<f64>,
    pub(super) linked: Vec<f64>,
    pub(super) forests: Vec<Scratch>,
}

impl EvalScratch {
    /// Allocates everything that evaluating this bundle needs.
    #[must_use]
    pub fn new(bundle: &Bundle) -> EvalScratch {
        let program = &bundle.program;
        let margins: usize = program.margins.iter().map(ExactSizeIterator::len).sum();
        let actions = bundle.catalogue.len();
        EvalScratch {
            bundle: bundle.digest,
            buffers: Buffers {
                rows: vec![0.0; program.rows * program.width],
                values: vec![0.0; program.values],
                linked: vec![0.0; program.margins.iter().map(ExactSizeIterator::len).max().unwrap_or(0)],
                forests: program.forests.iter().map(Scratch::new).collect(),
            },
            scores: vec![f64::NAN; actions * (1 + program.voters.len())],
            margins: vec![f64::NAN; actions * margins],
            pmf: vec![0.0; actions],
            policy: match &program.end {
                End::Policy(policy) => Some(PolicyScratch::new(policy)),
                End::Threshold(_) => None,
            },
        }
    }

    /// The probability of every action of the catalogue, as the last selection left it.
    #[must_use]
    pub fn pmf(&self) -> &[f64] {
        &self.pmf
    }

    /// The oracle's expected reward of every action, as the last selection left it; NaN where not eligible.
    #[must_use]
    pub fn expected_rewards(&self) -> &[f64] {
        &self.scores[..self.pmf.len()]
    }
}
