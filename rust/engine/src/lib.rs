//! The answer path, independent of any protocol: bundles, lanes and decisions.
//!
//! An [`Engine`] takes a query ([`Query`], [`SelectQuery`], [`BatchQuery`]) and returns an answer. It uses no protocol,
//! socket or configuration file; a server provides adapters for these. The stages of an answer are in [`mod@answer`].

#![forbid(unsafe_code)]

mod answer;
mod answered;
mod answers;
mod arrival;
mod budgets;
pub mod bundle_dir;
mod bundles;
mod checkpoint;
mod computed;
mod config;
mod content;
mod counters;
mod deadline;
mod decision_log;
mod defaulted;
mod delivery;
mod desk;
mod engine;
mod error;
mod events;
mod explain;
mod exposure;
#[cfg(feature = "fault-injection")]
mod fault;
mod gate;
mod idempotency;
mod lanes;
#[cfg(all(test, feature = "loom"))]
mod models;
mod pool;
mod privacy;
mod query;
mod reason;
mod rejection;
mod reporting;
mod sensitive;
mod stages;
mod sync;
mod timings;
mod tokens;

pub use answer::{
    OutcomeReport, Reported, check_decision_id, check_dense, check_entity, check_fingerprint, direction,
    fill_faulted, fill_origins, fill_record, rules_of_record,
};
pub use answered::{Answered, NamedValues, Outcome, Pmf};
pub use answers::{
    ActionAnswer, Answer, Band, BatchRow, Decided, GivenReasons, GivenRules, Score, Scored, ScoredBatch,
    Selected,
};
pub use arrival::{Arrival, RequestStep};
pub use budgets::{BudgetUse, Budgets};
pub use bundle_dir::Stages;
pub use bundles::{
    ActionInfo, BoundLists, BundleListener, FaultedFunctions, FiredRule, FunctionCounters, ListError,
    ListRead, ListRefusal, ListReport, ListRequest, ListStatus, ListTable, Live, LoadReport, LoadRequest,
    Loaded, NodeCounters, NodeTime, ReasonColumn, RuleCounters, Ruled, Shape, Store, Vetting, WarmUp,
    WarmUpReport, resident, verify_list, with_versions,
};
pub use checkpoint::{AddError, Checkpoint, Checkpoints};
pub use computed::{
    Computed, EntityKeys, FeatureReader, FeatureSource, Found, LaterValues, Loading, MAX_ENTITIES, Origins,
    ReadColumn, SourceError, SourceRefusal,
};
pub use config::{
    CapsConfig, CheckpointConfig, DurabilityClass, FallbackConfig, Kind, LogSettings, Mode, OnCap,
    OutcomeSettings, ProofRule, Refuse, RewardRange, Unproven,
};
pub use content::Content;
pub use counters::{
    CheckpointCounters, Counters, ExplanationCounters, FeatureCounters, FeatureSetCounters, Histogram,
    NotExplained, OutcomeCounters, Refusal, Unexplained,
};
pub use decision_log::DecisionLog;
pub use defaulted::Defaulted;
pub use engine::{Engine, EngineConfig, EngineError};
pub use error::{LoadError, LoadErrorKind, SwapError, UnloadError};
pub use events::{Events, Level};
pub use explain::{Attributed, ExplainQuery, Explanation};
#[cfg(feature = "fault-injection")]
pub use fault::{EXPLANATION_FAULT, Fault, Faults, Slowness};
pub use gate::{Gate, InflightGuard};
pub use lanes::{
    ActiveLane, ActiveLanes, AnswerSink, Condition, Lane, LaneTable, ObserveLane, Op, Source, check_name,
};
pub use privacy::{CardRule, EntityRule, Privacy, PrivacyConfig, PrivacyError};
pub use query::{BatchQuery, DecideQuery, Eligible, Features, PassedOn, Query, Rows, SelectQuery};
pub use reason::Reason;
pub use rejection::Rejection;
pub use scorer_core::quotable;
pub use scorer_privacy::{KeyError, read_secret};
pub use scorer_token::{Claims, KeyFileError, KeyRing, Kind as TokenKind, Tenant, TokenError};
pub use sensitive::{FeatureRule, FeatureRules, Sensitive};
pub use stages::{Stage, StageTimes};
pub use timings::{Timings, micros};
pub use tokens::Tokens;
