//! Computed features: the store of their state, and the recording of events.

mod record;
mod store;

pub(crate) use record::record_events;
pub(crate) use store::FeatureStore;
pub use store::StoreStatus;
