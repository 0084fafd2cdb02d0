//! Queries to the engine, independent of protocols. Each protocol of the server has an adapter that converts its
//! requests to queries and the answers to replies.

use crate::answered::NamedValues;
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

    /// Adds the values to the hash of the request's content.
    fn hash(&self, content: &mut Content);

    /// The values by name, for observers that read features which the answering bundle does not read.
    fn named(&self) -> &dyn NamedValues {
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
    fn values(self, lane: &ActiveLane) -> Result<Vec<f32>, Self::Error>;
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
