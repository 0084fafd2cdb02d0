//! Converts errors of the data plane to exceptions of `scorer.errors`. The matches have no default branch, so that
//! every new error must be added here.

use pyo3::prelude::*;
use scorer_features::ForgetError;
use scorer_server::{
    ForgetEntityError, ListError, LoadError, ServerError, SwapError, UnloadError, WriteError,
};

mod python {
    pyo3::import_exception!(scorer.errors, ConfigError);
    pyo3::import_exception!(scorer.errors, FeedError);
    pyo3::import_exception!(scorer.errors, FeedUnavailableError);
    pyo3::import_exception!(scorer.errors, FeatureStoreError);
    pyo3::import_exception!(scorer.errors, ForkedProcessError);
    pyo3::import_exception!(scorer.errors, LoadError);
    pyo3::import_exception!(scorer.errors, LogError);
    pyo3::import_exception!(scorer.errors, PositionMovedError);
    pyo3::import_exception!(scorer.errors, ServerError);
    pyo3::import_exception!(scorer.errors, SwapError);
    pyo3::import_exception!(scorer.loadtest.errors, LoadTestError);
}

/// The class and the message of an exception.
#[derive(Debug)]
pub(crate) struct Failure {
    class: Class,
    message: String,
}

/// The exception classes of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Config,
    Feed,
    FeedUnavailable,
    FeatureStore,
    Forked,
    Load,
    LoadTest,
    Log,
    PositionMoved,
    Server,
    Swap,
}

impl Failure {
    fn new(class: Class, error: impl ToString) -> Failure {
        Failure { class, message: error.to_string() }
    }

    /// The handle belongs to another process, of which this one is a fork.
    pub(crate) fn forked(owner: u32) -> Failure {
        let message = format!(
            "the server was started by process {owner} and its threads do not exist in this fork; \
             start child processes with multiprocessing's \"spawn\" method"
        );
        Failure::new(Class::Forked, message)
    }

    /// The decision log cannot be read.
    pub(crate) fn log(error: &scorer_log::LogError) -> Failure {
        Failure::new(Class::Log, error)
    }

    /// A record of the log was written by another program.
    pub(crate) fn foreign_record(error: &impl ToString) -> Failure {
        Failure::new(Class::Log, error.to_string())
    }

    /// A decision of the log cannot be decided again.
    pub(crate) fn replay(message: String) -> Failure {
        Failure::new(Class::Log, message)
    }

    /// The key of the pseudonyms cannot be used.
    pub(crate) fn key(error: &scorer_privacy::KeyError) -> Failure {
        Failure::new(Class::Log, error)
    }

    /// Certificates cannot be created or used.
    pub(crate) fn identity(error: &scorer_identity::IdentityError) -> Failure {
        Failure::new(Class::Config, error)
    }

    /// A feature set, its store or a column of a call is invalid.
    pub(crate) fn features(message: String) -> Failure {
        Failure::new(Class::Config, message)
    }

    /// An argument from Python is invalid.
    pub(crate) fn argument(message: String) -> Failure {
        Failure::new(Class::Server, message)
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Failure {
        let class = match &error {
            ServerError::Config(_) | ServerError::Identity(_) | ServerError::Checkpoint(_) => Class::Config,
            ServerError::Log(_) => Class::Log,
            ServerError::Bind(_) | ServerError::Start { .. } | ServerError::Stopped => Class::Server,
        };
        Failure::new(class, error)
    }
}

impl From<ForgetEntityError> for Failure {
    fn from(error: ForgetEntityError) -> Failure {
        let class = match &error {
            ForgetEntityError::Privacy(_)
            | ForgetEntityError::Store(ForgetError::UnknownEntity { .. } | ForgetError::Key { .. }) => {
                Class::Config
            }
            ForgetEntityError::NoStore
            | ForgetEntityError::Store(ForgetError::TooMany { .. } | ForgetError::Write(_)) => {
                Class::FeatureStore
            }
        };
        Failure::new(class, error)
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        let class = match &error {
            LoadError::Digest { .. }
            | LoadError::Bundle { .. }
            | LoadError::Signature { .. }
            | LoadError::Features { .. }
            | LoadError::Memory { .. }
            | LoadError::Slower { .. }
            | LoadError::TooSlow { .. }
            | LoadError::UnknownCheckpoint { .. }
            | LoadError::Panic { .. } => Class::Load,
            LoadError::Thread(_) | LoadError::Stopped => Class::Server,
        };
        Failure::new(class, error)
    }
}

impl From<ListError> for Failure {
    fn from(error: ListError) -> Failure {
        match error {
            ListError::Manifest { .. }
            | ListError::Elements { .. }
            | ListError::Read { .. }
            | ListError::Unexpected { .. }
            | ListError::Older { .. }
            | ListError::Twice { .. }
            | ListError::Type { .. }
            | ListError::Shrunk { .. }
            | ListError::Memory { .. }
            | ListError::Signature { .. } => Failure::new(Class::Load, error),
            ListError::Load(error) => error.into(),
        }
    }
}

impl From<SwapError> for Failure {
    fn from(error: SwapError) -> Failure {
        let class = match &error {
            SwapError::Table(_)
            | SwapError::Version { .. }
            | SwapError::UnknownCheckpoint { .. }
            | SwapError::LeftOut { .. }
            | SwapError::Lane { .. }
            | SwapError::Shares { .. } => Class::Swap,
            SwapError::Stopped => Class::Server,
        };
        Failure::new(class, error)
    }
}

impl From<UnloadError> for Failure {
    fn from(error: UnloadError) -> Failure {
        let class = match &error {
            UnloadError::Digest { .. } | UnloadError::InUse { .. } | UnloadError::Observes { .. } => {
                Class::Load
            }
        };
        Failure::new(class, error)
    }
}

impl From<scorer_loadgen::LoadError> for Failure {
    fn from(error: scorer_loadgen::LoadError) -> Failure {
        use scorer_loadgen::LoadError::{Address, Config, Connect, Crashed, Interrupted, Worker};
        let class = match &error {
            Config(_) | Address(_) | Connect { .. } | Worker(_) | Interrupted | Crashed => Class::LoadTest,
        };
        Failure::new(class, error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::new(Class::Server, format!("the answer cannot be written as JSON: {error}"))
    }
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Failure {
        let class = match &error {
            WriteError::Unavailable { .. } => Class::FeedUnavailable,
            WriteError::Moved => Class::PositionMoved,
            WriteError::Definition { .. } => Class::Feed,
        };
        Failure::new(class, error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        let Failure { class, message } = failure;
        match class {
            Class::Config => python::ConfigError::new_err(message),
            Class::FeatureStore => python::FeatureStoreError::new_err(message),
            Class::Forked => python::ForkedProcessError::new_err(message),
            Class::Load => python::LoadError::new_err(message),
            Class::LoadTest => python::LoadTestError::new_err(message),
            Class::Log => python::LogError::new_err(message),
            Class::Server => python::ServerError::new_err(message),
            Class::Feed => python::FeedError::new_err(message),
            Class::FeedUnavailable => python::FeedUnavailableError::new_err(message),
            Class::PositionMoved => python::PositionMovedError::new_err(message),
            Class::Swap => python::SwapError::new_err(message),
        }
    }
}
