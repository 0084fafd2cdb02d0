//! Computed features: the store of their state, and the recording of events.

mod record;
mod store;

use std::sync::Arc;

use crate::config::FeatureConfig;
use crate::error::ServerError;

pub(crate) fn open(_: &FeatureConfig) -> Result<Arc<dyn EventStore>, ServerError> {
    Err(ServerError::Config("features: not there yet".to_owned()))
}

pub(crate) use record::{PRIVACY, record_events};
pub use store::StoreStatus;
pub(crate) use store::{EventRef, EventStore, NotRecorded, Recorded};
