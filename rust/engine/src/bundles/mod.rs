//! Bundles in memory: how they are loaded, warmed up, kept and freed.

mod memory;
mod reaper;
mod store;
mod warm;

pub use memory::resident;
pub use store::{ActionInfo, BundleListener, Live, LoadReport, LoadRequest, Loaded, Shape, Store};
pub use warm::{WarmUp, WarmUpReport};
