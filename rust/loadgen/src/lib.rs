//! An open-loop load generator for unary gRPC.
//!
//! Requests are sent on a schedule that is independent of the replies, and every latency is
//! measured from the time at which the request *should* have been sent. A closed loop, in
//! which each user waits for a reply before asking again, sends nothing while the server
//! stalls and so leaves out exactly the requests that would have suffered (coordinated
//! omission).
//!
//! The order of a run: [`config`] is checked, [`worker`] threads connect, each walks its part
//! of the [`schedule`] with a [`timer`] finer than tokio's, and what comes back is kept by a
//! [`record`] per thread, merged into one [`report`] at the end.

#![forbid(unsafe_code)]

mod codec;
mod config;
mod connection;
mod exchange;
mod http1;
mod record;
mod report;
mod rng;
mod run;
mod schedule;
mod target;
mod timer;
mod worker;

pub use config::{Arrivals, Caller, ConfigError, LoadConfig, Method, Protocol, Reply, Step};
pub use report::{CallerReport, MethodReport, Progress, Report, StepReport, Summary, WindowReport};
pub use run::{LoadError, run};
