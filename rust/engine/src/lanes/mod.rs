//! Lanes: which bundle answers which share of a checkpoint's traffic.

mod active;
mod table;

pub use active::{ActiveLane, ActiveLanes, AnswerSink, Source};
pub use table::{Condition, Lane, LaneTable, ObserveLane, Op, check_name};
