//! Queries to the engine, independent of protocols. Each protocol of the server has an adapter that converts its
//! requests to queries and the answers to replies.

use scorer_core::schema::Value;

use crate::answered::NamedValues;
use crate::computed::EntityKeys;
use crate::content::Content;
use crate::lanes::ActiveLane;
use crate::rejection::Rejection;

/// One row to be scored.
pub struct Query<'a, F> {
    /// Name of the checkpoint.
    pub checkpoint: &'a str,
    /// The caller's idempotency key, which becomes the decision's id; empty if there is none.
    pub request_id: String,
    /// The entity of the decision. All decisions of an entity use the same lane. May be empty.
    pub entity: &'a str,
    /// The row.
    pub features: F,
    /// Number of reasons that the answer should have.
    pub reasons: u32,
}

/// One context for which an action is to be selected.
pub struct SelectQuery<'a, F> {
    /// Checkpoint, id, entity and context.
    pub query: Query<'a, F>,
    /// The actions that may be chosen; `None` for all.
    pub eligible: Option<Eligible<'a>>,
    /// Whether the answer must contain the probability of every action.
    pub include_pmf: bool,
}

/// One payment that is scored, and for which an action is then selected.
pub struct DecideQuery<'a, F, G> {
    /// The score. Its request id and entity are those of both decisions.
    pub score: Query<'a, F>,
    /// The selection. Its request id and entity are not used.
    pub action: SelectQuery<'a, G>,
    /// The features of the action's bundle that receive the result of the score.
    pub passed: PassedOn<'a>,
    /// Whether an action is selected although the decision of the score is the strictest.
    pub action_if_declined: bool,
}

/// Names of features of an action bundle that receive the result of a score. A bundle that does not have the feature
/// receives nothing; an empty name is not passed on.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassedOn<'a> {
    /// The number that receives the score.
    pub score: &'a str,
    /// The category that receives the decision.
    pub decision: &'a str,
}

/// A set of actions, by ids or as one bit per action of the catalogue. Exactly one of both is not empty.
#[derive(Clone, Copy, Debug)]
pub struct Eligible<'a> {
    /// Ids of actions, each once.
    pub ids: &'a [String],
    /// Bits, least significant first.
    pub mask: &'a [u8],
}

/// The features of one row in a request.
pub trait Features: Sync {
    /// The adapter's error: a rejection, or an error of its own.
    type Error: From<Rejection>;

    /// Checks that the drawn lane may answer the request.
    ///
    /// # Errors
    /// Fails if the lane may not answer.
    fn accept(&self, _lane: &ActiveLane) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Fills `row` in the order of the schema of the lane's bundle.
    ///
    /// # Errors
    /// Fails if the schema rejects a value.
    fn encode(&self, lane: &ActiveLane, row: &mut Vec<f32>) -> Result<(), Self::Error>;

    /// Fills `row` as [`Features::encode`] does, with values that the request does not state.
    ///
    /// # Errors
    /// Fails if the schema rejects a value, or if the request states one of them as well.
    fn encode_with(
        &self,
        lane: &ActiveLane,
        row: &mut Vec<f32>,
        given: &[(&str, Value<'_>)],
    ) -> Result<(), Self::Error> {
        match given.first() {
            None => self.encode(lane, row),
            Some((feature, _)) => Err(Rejection::NotPassed { feature: (*feature).to_owned() }.into()),
        }
    }

    /// Checks that one of the bundles of a request with two decisions reads each feature. `self` are the features of
    /// the first decision.
    ///
    /// # Errors
    /// Fails with the first feature that neither reads.
    fn check_read(&self, _first: &ActiveLane, _second: &ActiveLane) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Adds the values to the hash of the request's content.
    fn hash(&self, content: &mut Content);

    /// The values by name, for observers that read features which the answering bundle does not read.
    fn named(&self) -> &dyn NamedValues {
        &()
    }

    /// The keys of the entities of computed features.
    fn keys(&self) -> &dyn EntityKeys {
        &()
    }
}

/// The rows of a batch in a request.
pub trait Rows: Sync {
    /// The adapter's error: a rejection, or an error of its own.
    type Error: From<Rejection>;

    /// Checks that the drawn lane may answer the request, as [`Features::accept`] does.
    ///
    /// # Errors
    /// Fails if the lane may not answer.
    fn accept(&self, _lane: &ActiveLane) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Number of rows.
    fn count(&self) -> u32;

    /// Returns all values, row by row, each row in the order of the schema of the lane's bundle. The engine checks the
    /// shape and the values.
    ///
    /// # Errors
    /// Fails if the values cannot be arranged for this schema.
    fn values(&mut self, lane: &ActiveLane) -> Result<Vec<f32>, Self::Error>;

    /// Checks the keys of the rows.
    ///
    /// # Errors
    /// Fails if the keys do not match the rows.
    fn check_keys(&self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The key of an entity of computed features in one row, in the form in which it is stored.
    fn key(&self, _row: usize, _entity: &str) -> Option<&str> {
        None
    }
}

/// Many rows to be scored by one bundle.
pub struct BatchQuery<'a, R> {
    /// Name of the checkpoint.
    pub checkpoint: &'a str,
    /// The batch's id; empty if there is none.
    pub request_id: String,
    /// The entity of the batch. May be empty.
    pub entity: &'a str,
    /// The rows.
    pub rows: R,
}
