//! Lanes, which assign shares of a checkpoint's traffic to bundles.

mod active;
mod table;

pub use active::{ActiveLane, ActiveLanes, AnswerSink, Source};
pub use table::{Condition, Lane, LaneTable, ObserveLane, Op, check_name};
