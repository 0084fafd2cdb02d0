//! Working memory of evaluations. It is allocated once per thread and bundle, and evaluations then allocate nothing.

use scorer_onnx::NetScratch;
use scorer_wasm::Instances;

use super::explain::{ExactScratch, Explainer};
use super::program::End;
use super::rules::Rules;
use super::score_rows::Blocks;
use super::times::NodeTimes;
use super::{Bundle, Digest, FunctionSet};
use crate::explain::PathScratch;
use crate::forest::Scratch;
use crate::forest::actions::ActionScratch;
use crate::policy::PolicyScratch;

/// Working memory for one bundle.
#[derive(Debug, Clone)]
pub struct EvalScratch {
    pub(super) bundle: Digest,
    pub(super) buffers: Buffers,
    pub(super) blocks: Blocks,
    /// `[1 + voters, actions]`: the oracle's scores, then each voter's. NaN where not eligible.
    pub(super) scores: Vec<f64>,
    pub(super) columns: Columns,
    pub(super) pmf: Vec<f64>,
    pub(super) policy: Option<PolicyScratch>,
    /// The memory of the rules and the result of their last evaluation.
    pub(super) ruling: Option<scorer_rules::Decision>,
    pub(super) exact: Option<ExactScratch>,
}

/// The buffers that a program reads and writes.
#[derive(Debug, Clone)]
pub(super) struct Buffers {
    /// The row slots, one after the other. The first holds the request's row.
    pub(super) rows: Vec<f32>,
    /// The action that `rows` belong to, if the program runs once per action.
    pub(super) action: usize,
    pub(super) values: Vec<f64>,
    /// The branch that each switch has chosen.
    pub(super) chosen: Vec<usize>,
    /// Whether the branches that are not chosen are evaluated as well.
    pub(super) whole: bool,
    pub(super) linked: Vec<f64>,
    pub(super) forests: Vec<Scratch>,
    /// The contribution of each column to the explained margin; `None` if the bundle has no explanations.
    pub(super) attributions: Option<PathScratch>,
    pub(super) nets: Vec<NetScratch>,
    /// The functions that transforms call; `None` if they call none.
    pub(super) functions: Option<Instances>,
    /// The times of the nodes, if evaluations are timed.
    pub(super) times: NodeTimes,
}

impl Buffers {
    /// The functions that had no result in transforms since the last time.
    pub(super) fn take_faulted(&mut self) -> FunctionSet {
        FunctionSet::of_bits(self.functions.as_mut().map_or(0, Instances::take_faulted))
    }
}

/// The program's values of every eligible action.
#[derive(Debug, Clone)]
pub(super) struct Columns {
    /// Number of actions in the catalogue.
    pub(super) actions: usize,
    /// The eligible actions, in the catalogue's order.
    pub(super) eligible: Vec<u32>,
    /// `actions` entries for each value of the program. The first ones hold the values of the eligible actions.
    pub(super) values: Vec<f64>,
    /// Margins of one forest, `[outputs, actions]`.
    pub(super) together: Vec<f64>,
    pub(super) forests: Vec<Option<ActionScratch>>,
}

impl Columns {
    /// Returns one value of the program for each eligible action.
    pub(super) fn of(&self, value: usize) -> &[f64] {
        &self.values[value * self.actions..][..self.eligible.len()]
    }
}

impl EvalScratch {
    /// Allocates everything that evaluating this bundle needs.
    #[must_use]
    pub fn new(bundle: &Bundle) -> EvalScratch {
        let program = &bundle.program;
        let outputs = program.margins.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let actions = bundle.catalogue.len();
        let factored = bundle.oracle.iter().flat_map(|oracle| &oracle.forests);
        let forests = program.forests.iter().zip(factored);
        EvalScratch {
            bundle: bundle.digest,
            buffers: Buffers {
                rows: vec![0.0; program.rows.last().map_or(0, |slot| slot.range.end)],
                action: 0,
                values: vec![0.0; program.values],
                chosen: vec![0; program.selectors.len()],
                // The columns of all actions hold the values of every branch.
                whole: matches!(program.end, End::Policy(_)),
                linked: vec![0.0; outputs],
                forests: program.forests.iter().map(|forest| Scratch::new(forest)).collect(),
                nets: program.nets.iter().map(|node| NetScratch::new(&node.net)).collect(),
                functions: bundle
                    .functions
                    .as_ref()
                    .filter(|_| program.calls.contains(&true))
                    .map(|functions| functions.start(&program.calls)),
                attributions: bundle.explainer.as_ref().map(Explainer::new_scratch),
                times: NodeTimes::new(program.last_node + 1),
            },
            blocks: Blocks::new(program),
            scores: vec![f64::NAN; actions * (1 + program.voters.len())],
            columns: Columns {
                actions,
                eligible: Vec::with_capacity(actions),
                values: vec![0.0; actions * program.values],
                together: vec![0.0; actions * outputs],
                forests: forests
                    .map(|(forest, own)| own.as_ref().map(|own| ActionScratch::new(forest, &own.forest)))
                    .collect(),
            },
            pmf: vec![0.0; actions],
            policy: match &program.end {
                End::Policy(policy) => Some(PolicyScratch::new(policy)),
                End::Threshold(_) => None,
            },
            ruling: bundle.rules.as_ref().map(Rules::start),
            exact: None,
        }
    }

    /// Sets whether evaluations measure the time of each node, and discards the times so far.
    pub fn time_nodes(&mut self, timed: bool) {
        self.buffers.times.set(timed);
    }

    /// The time of each node of [`Bundle::nodes`] since [`EvalScratch::time_nodes`], in nanoseconds, 0 if it did not
    /// run; `None` if evaluations are not timed.
    #[must_use]
    pub fn node_times(&self) -> Option<&[u64]> {
        self.buffers.times.get()
    }

    /// The probability of every action of the catalogue in the last selection.
    #[must_use]
    pub fn pmf(&self) -> &[f64] {
        &self.pmf
    }

    /// The oracle's expected reward of every action in the last selection; NaN for actions that were not eligible.
    #[must_use]
    pub fn expected_rewards(&self) -> &[f64] {
        &self.scores[..self.pmf.len()]
    }
}
