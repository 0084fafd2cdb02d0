//! What is asked of the engine, in no protocol's terms. Each protocol of the server is an adapter that makes a query of
//! its request and a reply of the answer.

use crate::answered::NamedValues;
use crate::content::Content;
use crate::lanes::ActiveLane;
use crate::rejection::Rejection;

/// One row to be scored.
pub struct Query<'a, F> {
    /// Name of the checkpoint.
    pub checkpoint: &'a str,
    /// The caller's idempotency key, which becomes the decision's id; empty for none.
    pub request_id: String,
    /// Whom the decision is about: it stays in one lane. May be empty.
    pub entity: &'a str,
    /// The row.
    pub features: F,
}

/// One context for which an action is to be selected.
pub struct SelectQuery<'a, F> {
    /// Checkpoint, id, entity and context.
    pub query: Query<'a, F>,
    /// The actions that may be chosen; `None` for all.
    pub eligible: Option<Eligible<'a>>,
    /// Whether the answer holds every action's probability.
    pub include_pmf: bool,
}

/// A set of actions: by their ids, or as a bit for each action of the catalogue. Exactly one of them is not empty.
#[derive(Clone, Copy, Debug)]
pub struct Eligible<'a> {
    /// Ids of actions, each once.
    pub ids: &'a [String],
    /// Bits, least significant first.
    pub mask: &'a [u8],
}

/// The features of one row, as a request brings them.
pub trait Features: Sync {
    /// What an adapter reports: a rejection, or an error of its own.
    type Error: From<Rejection>;

    /// Whether the drawn lane may answer at all.
    ///
    /// # Errors
    /// It may not.
    fn accept(&self, _lane: &ActiveLane) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Fills `row` in the order of the schema of the lane's bundle.
    ///
    /// # Errors
    /// The schema rejects a value.
    fn encode(&self, lane: &ActiveLane, row: &mut Vec<f32>) -> Result<(), Self::Error>;

    /// Adds the values to the hash of the request's content.
    fn hash(&self, content: &mut Content);

    /// The values by name, for observers that read more of them than the answering bundle does.
    fn named(&self) -> &dyn NamedValues {
        &()
    }
}

/// The rows of a batch, as a request brings them.
pub trait Rows: Sync {
    /// What an adapter reports: a rejection, or an error of its own.
    type Error: From<Rejection>;

    /// As [`Features::accept`].
    ///
    /// # Errors
    /// It may not.
    fn accept(&self, _lane: &ActiveLane) -> Result<(), Self::Error> {
        Ok(())
    }

    /// How many rows there are.
    fn count(&self) -> u32;

    /// All values, row by row, each row in the order of the schema of the lane's bundle. The engine checks shape and
    /// values.
    ///
    /// # Errors
    /// The values cannot be laid out for this schema.
    fn values(self, lane: &ActiveLane) -> Result<Vec<f32>, Self::Error>;
}

/// Many rows to be scored by one bundle.
pub struct BatchQuery<'a, R> {
    /// Name of the checkpoint.
    pub checkpoint: &'a str,
    /// The batch's id; empty for none.
    pub request_id: String,
    /// Whom the batch is about. May be empty.
    pub entity: &'a str,
    /// The rows.
    pub rows: R,
}
