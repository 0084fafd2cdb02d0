//! Computed features: the store of their state in this process or in Redis, and the recording of events.

mod feed;
mod forget;
mod prepare;
mod record;
mod redis;
mod store;

pub use feed::{FeatureFeed, FeedMessage};
pub(crate) use forget::forget;
pub use forget::{ForgetEntityError, Forgotten};
pub(crate) use record::record_events;
pub(crate) use redis::RedisFeatures;
pub(crate) use store::FeatureStore;
pub use store::StoreStatus;
