//! Loads, warms up, keeps and frees bundles in memory.

mod bound;
mod functions;
mod lists;
mod memory;
mod nodes;
mod reaper;
mod rules;
mod store;
mod vetting;
mod warm;

pub use bound::{BoundLists, ListRead};
pub use functions::{FaultedFunctions, FunctionCounters};
pub use lists::{
    ListError, ListRefusal, ListReport, ListRequest, ListStatus, ListTable, verify_list, with_versions,
};
pub use memory::resident;
pub use nodes::{NodeCounters, NodeTime};
pub use rules::{FiredRule, RuleCounters, Ruled};
pub(crate) use store::Computing;
pub use store::{
    ActionInfo, BundleListener, Live, LoadReport, LoadRequest, Loaded, ReasonColumn, Shape, Store,
};
pub use vetting::Vetting;
pub use warm::{WarmUp, WarmUpReport};
