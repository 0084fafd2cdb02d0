//! Computed features: the store of their state, and the recording of events.

mod forget;
mod record;
mod store;

pub(crate) use forget::forget;
pub use forget::{ForgetEntityError, Forgotten};
pub(crate) use record::record_events;
pub(crate) use store::FeatureStore;
pub use store::StoreStatus;
