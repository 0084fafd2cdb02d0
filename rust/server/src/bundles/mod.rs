//! Bundles in memory: reading them in, warming them up, keeping them, letting them go.

mod journey;
mod memory;
mod reaper;
mod store;
mod warm;

pub use journey::{LoadFor, Stages};
pub(crate) use memory::{Budget, resident};
pub(crate) use reaper::Reaper;
pub use store::LoadReport;
pub(crate) use store::{ActionInfo, Live, Loaded, Store, Task};
pub use warm::WarmUpReport;
