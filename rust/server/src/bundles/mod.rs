//! Bundles in memory: reading them in, keeping them, letting them go.

mod reaper;
mod store;

pub(crate) use reaper::Reaper;
pub use store::LoadReport;
pub(crate) use store::{ActionInfo, Loaded, Store};
