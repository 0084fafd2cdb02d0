//! Features of entities, such as the payments of a card within seven days, computed from events.
//!
//! A [`FeatureSet`] defines the features. A [`Store`] applies events to the state of entities, writes them to a journal,
//! and reads the values of features as of a time. The journal is the truth: the state is rebuilt from it at the start. A
//! snapshot shortens this.

#![forbid(unsafe_code)]

mod blob;
mod bytes;
mod canonical;
mod check;
mod definition;
mod digest;
mod distinct;
mod entity;
mod erasures;
mod error;
mod event;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod ids;
mod journal;
mod kinds;
mod md5;
mod plan;
mod recovery;
mod segments;
mod sequential;
mod shard;
mod slot;
mod snapshot;
mod state;
mod store;
mod tables;
mod tiles;
mod upkeep;
mod value;

pub use blob::{BlobError, Blobs, Changes, Part};
pub use definition::{Aggregate, EventDefinition, Feature, FeatureSet, Ratio, Window};
pub use error::{DefinitionError, EventError, ForgetError, OpenError, PlanError, Refusal};
pub use event::Event;
pub use plan::{Known, Plan};
pub use store::{Recorded, Recovery, SnapshotRule, SnapshotStatus, Stats, Store, StoreOptions, Written};

/// Microseconds of one second.
pub(crate) const SECOND: i64 = 1_000_000;
