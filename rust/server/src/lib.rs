//! The data plane, which serves scores and actions over gRPC from bundles that can be replaced while it runs.
//!
//! [`Server`] is the whole interface: start it with a [`ServerConfig`], [`Server::load`] bundles, [`Server::swap`] lane
//! tables and [`Server::drain`] it. It does not depend on Python or on a registry.
//!
//! The crate contains the composition root and the adapters: the protocols of the engine, health, status and metrics.
//! `scorer-engine` determines the answers, `scorer-observe` contains observe lanes, and `scorer-http` sockets and
//! HTTP/2.

#![forbid(unsafe_code)]

mod answering;
mod arrive;
mod config;
mod content;
mod counters;
mod dispatch;
mod error;
#[cfg(feature = "fault-injection")]
mod fault;
mod features;
mod files;
mod grpc_status;
mod health;
mod metered;
mod method;
mod metrics;
mod oip;
mod probe;
mod rejection_code;
mod rollout;
mod run;
mod scoring;
mod security;
mod senders;
mod server;
mod service;
mod service_names;
mod services;
mod shadow;
mod share;
mod status;
mod token_keys;
mod tracing;

pub use config::{FeatureConfig, Role, ServerConfig, SocketMode, TracingConfig};
pub use error::ServerError;
pub use features::{FeatureFeed, FeedMessage, ForgetEntityError, Forgotten, StoreStatus};
pub use rollout::LoadFor;
pub use run::Addresses;
pub use scorer_engine::PrivacyConfig;
pub use scorer_engine::{
    Budgets, CapsConfig, CheckpointConfig, Condition, DurabilityClass, FallbackConfig, Kind, Lane, LaneTable,
    ListError, ListReport, LoadError, LoadReport, LogSettings, Mode, ObserveLane, OnCap, Op, Refuse, Stages,
    SwapError, UnloadError, WarmUpReport, bundle_dir, verify_list, with_versions,
};
#[cfg(feature = "fault-injection")]
pub use scorer_engine::{Fault, Slowness};
pub use scorer_features_redis::{Position, RedisConfig, WriteError};
pub use scorer_http::bind::BindError;
#[cfg(feature = "fault-injection")]
pub use scorer_observe::LaneFault;
pub use scorer_observe::{ObserverStatus, PoolStatus, ShadowPoolConfig};
pub use security::Operator;
pub use senders::Received;
pub use server::Server;
pub use status::{BundleStatus, LogStatus, SlaStatus, Status};
