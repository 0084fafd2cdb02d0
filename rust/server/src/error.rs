//! The errors of starting a server.

use std::io;

use scorer_engine::AddError;
use scorer_http::bind::BindError;
use scorer_identity::IdentityError;
use scorer_log::LogError;

/// The reason why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration breaks a rule.
    #[error("server configuration: {0}")]
    Config(String),
    /// A listening socket could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Certificates or keys cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The decision log could not be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A thread or the runtime could not be started.
    #[error("cannot start {what}: {source}; check the limits on threads and open files")]
    Start {
        /// The thread, runtime or listener.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A checkpoint cannot be added.
    #[error(transparent)]
    Checkpoint(#[from] AddError),
    /// The server has been drained.
    #[error("the server has been stopped; start a new one")]
    Stopped,
}
