//! Observe lanes: what other bundles would have answered.
//!
//! A request that has its answer is offered to the observe lanes of its checkpoint ([`watch`]): one keyed draw, each
//! lane's filter, and a copy into the lane's bounded queue. Nothing wakes up for it. Each lane's own thread
//! ([`thread`]) looks at its queue every few milliseconds, evaluates with what the processor has to spare, and
//! leaves its records for the keeper ([`keeper`]), which gives them to the decision log and says which lane is stuck.
//!
//! No lock, no memory and no thread is common to the two sides but for that queue and the counters: a lane that
//! loops, panics or is flooded changes nothing but its own numbers.

mod brake;
mod counters;
mod evaluate;
mod filter;
mod job;
pub(crate) mod keeper;
mod lane;
mod mapping;
mod quantiles;
mod queue;
mod table;
mod thread;
mod watch;

pub use filter::{Condition, Op};
pub(crate) use job::{Answer, Observed};
pub(crate) use keeper::Keeper;
pub(crate) use lane::Lane;
pub(crate) use mapping::Shape;
pub use table::ObserveLane;
pub(crate) use table::{Compiled, compile, watch};
pub(crate) use thread::Env as KeeperEnv;
pub(crate) use watch::{Said, Watched, offer};
