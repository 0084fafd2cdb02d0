//! The description of an answered request, from which the log's record and the jobs of observe lanes are created.

use std::sync::Arc;

use scorer_core::bundle::FunctionSet;
use scorer_core::explain::Contribution;
use scorer_core::policy::Mask;
use scorer_core::schema::Value;

use crate::bundles::{Ruled, Shape};
use crate::computed::{EntityKeys, Origins};
use crate::timings::Timings;

/// One answered request. A receiver copies what it keeps.
#[derive(Clone, Copy)]
pub struct Answered<'a> {
    /// Name of the checkpoint.
    pub checkpoint: &'a str,
    /// Name of the checkpoint of the other decision of the same request; empty if there is none.
    pub linked: &'a str,
    /// Name of the lane.
    pub lane: &'a str,
    /// Revision of the lane table.
    pub lane_table: u64,
    /// The bundle's digest as raw bytes.
    pub bundle: &'a [u8; 32],
    /// Features and actions that the values of `row` and the bits of an eligible set refer to.
    pub shape: &'a Arc<Shape>,
    /// The decision's id.
    pub id: &'a str,
    /// Entity of the decision; may be empty.
    pub entity: &'a str,
    /// The row, as the bundle decoded it.
    pub row: &'a [f32],
    /// Values that the request names; most of them are also in the row.
    pub named: &'a dyn NamedValues,
    /// The keys of the request's entities.
    pub keys: &'a dyn EntityKeys,
    /// Where the values of computed features came from.
    pub origins: Origins,
    /// Source that answered instead of the model and its policy; empty if none did.
    pub fallback_source: &'a str,
    /// Reason of the fallback; empty if there was none.
    pub fallback_reason: &'a str,
    /// Times of the stages.
    pub timings: Timings,
    /// The reasons that were computed, the largest first. They refer to the columns in `shape`.
    pub reasons: &'a [Contribution],
    /// What the bundle's rules did; absent if the bundle has no rules.
    pub ruled: Option<&'a Ruled>,
    /// The functions of the bundle that had no result.
    pub faulted: FunctionSet,
    /// The answer.
    pub outcome: Outcome<'a>,
}

/// The answer itself.
#[derive(Clone, Copy)]
pub enum Outcome<'a> {
    /// The answer of a checkpoint of kind `score`.
    Score {
        /// The bundle's margin, such as log-odds.
        margin: f64,
        /// The score, from 0 to 1.
        score: f64,
        /// The label of the band or of the static answer.
        label: &'a str,
    },
    /// The answer of a checkpoint of kind `action`.
    Action {
        /// The actions that could be chosen; `None` for all. For observers it is the eligible set of the request,
        /// because the rules of another bundle may allow other actions.
        eligible: Option<&'a Mask>,
        /// The eligible set of the request, if the bundle has rules; `None` for all.
        requested: Option<&'a Mask>,
        /// Every action's probability.
        pmf: Pmf<'a>,
        /// Index of the action in the catalogue.
        index: usize,
        /// Id of the action.
        action: &'a str,
        /// The probability with which it was chosen.
        propensity: f64,
        /// The calibrated expected reward.
        expected_reward: f64,
    },
}

/// The probabilities over the catalogue.
#[derive(Clone, Copy)]
pub enum Pmf<'a> {
    /// The probabilities of the policy.
    Policy(&'a [f64]),
    /// Probability 1 for one action.
    Only {
        /// The action.
        index: usize,
        /// Size of the catalogue.
        actions: usize,
    },
    /// The probabilities are omitted.
    Omitted,
}

/// Feature values by name.
pub trait NamedValues: Sync {
    /// Calls `visit` with each name and value.
    fn visit(&self, visit: &mut dyn FnMut(&str, Value<'_>));
}

/// An empty list of values.
impl NamedValues for () {
    fn visit(&self, _: &mut dyn FnMut(&str, Value<'_>)) {}
}

// === impl Pmf ===

impl Pmf<'_> {
    /// Adds every action's probability to an empty vector, as float64 for records and float32 for replies.
    pub(crate) fn extend<T: Clone>(self, to: &mut Vec<T>, convert: impl Fn(f64) -> T) {
        match self {
            Pmf::Policy(pmf) => to.extend(pmf.iter().map(|&p| convert(p))),
            Pmf::Only { index, actions } => {
                to.resize(actions, convert(0.0));
                if let Some(only) = to.get_mut(index) {
                    *only = convert(1.0);
                }
            }
            Pmf::Omitted => {}
        }
    }
}
