//! The data plane: scores and actions over gRPC, from bundles that are swapped while it runs.
//!
//! [`Server`] is the whole interface: start it with a [`ServerConfig`], [`Server::load`] bundles,
//! [`Server::swap`] lane tables, [`Server::drain`] it. No Python, no registry, nothing to wait for.

mod answer;
pub mod bundle_dir;
mod bundles;
mod condition;
mod config;
mod decisions;
mod dispatch;
mod error;
mod events;
#[cfg(feature = "fault-injection")]
mod fault;
mod health;
mod lanes;
mod metrics;
mod observe;
mod oip;
mod pool;
mod refusal;
mod replay;
mod run;
mod server;
mod service;
mod shadow;
mod state;
mod status;

pub use bundles::{LoadFor, LoadReport, Stages, WarmUpReport};
pub use condition::{BundleStatus, LogStatus, ObserverStatus, PromiseStatus, Status};
pub use config::{
    CapsConfig, CheckpointConfig, DurabilityClass, FallbackConfig, Kind, LogSettings, Mode, OnCap, Refuse,
    Role, ServerConfig, ShadowPoolConfig,
};
pub use error::{LoadError, ServerError, SwapError, UnloadError};
#[cfg(feature = "fault-injection")]
pub use fault::{Fault, LaneFault, Slowness};
pub use lanes::{Lane, LaneTable};
pub use observe::{Condition, ObserveLane, Op};
pub use oip::InferError;
pub use refusal::Refusal;
pub use run::Addresses;
pub use scorer_http::bind::BindError;
pub use server::Server;
pub use shadow::{PoolStatus, Received};
