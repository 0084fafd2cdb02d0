//! Settings of a run, and their rules.

use std::collections::BTreeMap;

use bytes::Bytes;
use scorer_identity::tls::ClientTlsConfig;
use serde::{Deserialize, Serialize};

/// Settings of one run.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LoadConfig {
    /// `host:port` or `unix:/path`.
    pub target: String,
    /// TLS towards a target over TCP; absent: plaintext.
    #[serde(default)]
    pub tls: Option<ClientTlsConfig>,
    /// What is spoken.
    #[serde(default)]
    pub protocol: Protocol,
    /// Requests per second over all connections.
    pub rate: f64,
    /// The measured part in stretches of different load; their seconds add up to `seconds`. Empty: one.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// Who calls. Empty: one caller of all methods, at the run's rate.
    #[serde(default)]
    pub callers: Vec<Caller>,
    /// How the requests are spread over time.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// Length of the measured part, seconds.
    pub seconds: f64,
    /// Length of the part before it that is sent but not measured, seconds.
    #[serde(default)]
    pub warmup_seconds: f64,
    /// Connections of each caller, spread evenly over the threads.
    pub connections: usize,
    /// Threads that send.
    #[serde(default = "one")]
    pub threads: usize,
    /// Most requests without a reply at a time; a request due beyond that is an error, never a delay.
    #[serde(default = "default_outstanding")]
    pub max_outstanding: usize,
    /// When a request is given up, milliseconds after it is sent.
    pub timeout_ms: f64,
    /// The deadline that is sent with the request, milliseconds. Absent: `timeout_ms`.
    #[serde(default)]
    pub deadline_ms: Option<f64>,
    /// Share of the requests that are cancelled on purpose, unless the reply comes first.
    #[serde(default)]
    pub cancel: f64,
    /// When: at a random time up to so many milliseconds after the send.
    #[serde(default = "default_cancel_within")]
    pub cancel_within_ms: f64,
    /// A reply later than this, from the intended send time, is a miss. Absent: nothing is.
    #[serde(default)]
    pub sla_ms: Option<f64>,
    /// Length of the windows that the run is judged by, seconds.
    #[serde(default = "default_window")]
    pub window_seconds: f64,
    /// Seed of the Poisson gaps, of the choice among methods and of the cancellations.
    #[serde(default)]
    pub seed: u64,
    /// What is called.
    pub methods: Vec<Method>,
}

/// A stretch of the measured part.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its length.
    pub seconds: f64,
    /// Its load as a multiple of the run's rate; 0 is silence.
    pub load: f64,
}

/// A caller with connections of its own.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Caller {
    /// Its name in the report.
    pub name: String,
    /// Its load in each step, on top of the step's own, as a multiple of the run's rate; the warm-up is at
    /// the first one. One number holds for all steps.
    pub load: Vec<f64>,
    /// Names of the methods that it calls. Empty: all.
    #[serde(default)]
    pub methods: Vec<String>,
    /// Headers of its requests.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// What is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Unary gRPC over HTTP/2: many requests share a connection.
    #[default]
    Grpc,
    /// POST over HTTP/1.1: one request at a time on a connection, the next waits for a free one.
    Http,
}

/// One method and its share of the requests.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// Its name in the report.
    pub name: String,
    /// `/package.Service/Method`; with HTTP any path.
    pub path: String,
    /// Share relative to the other methods.
    pub weight: f64,
    /// How to read its replies.
    pub reply: Reply,
    /// Append a fresh `request_id` (field 2) to every request.
    pub fresh_id: bool,
}

/// How to read a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// `ScoreResponse`.
    Score,
    /// `ScoreBatchResponse`.
    Batch,
    /// `SelectActionResponse`.
    Action,
    /// Not looked into.
    Opaque,
}

/// How requests are spread over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Evenly: request i at i / rate.
    #[default]
    Uniform,
    /// As independent users arrive: exponential gaps.
    Poisson,
}

/// A setting that breaks a rule.
#[derive(Debug, thiserror::Error)]
#[error("{name} {rule}, not {value}")]
pub struct ConfigError {
    name: &'static str,
    rule: &'static str,
    value: String,
}

/// The longest run that is kept in memory: a histogram per window.
const MAX_WINDOWS: f64 = 100_000.0;

impl LoadConfig {
    /// Checks every rule that needs no network; `payloads[i]` are the requests of `methods[i]`.
    pub(crate) fn check(&self, payloads: &[Vec<Bytes>]) -> Result<(), ConfigError> {
        let above_zero = "must be a finite number above 0";
        number(
            "rate",
            self.rate,
            self.rate > 0.0 && self.rate <= 1e6,
            "must be above 0 and at most 1,000,000 per second",
        )?;
        number("seconds", self.seconds, self.seconds > 0.0, above_zero)?;
        number(
            "warmup_seconds",
            self.warmup_seconds,
            self.warmup_seconds >= 0.0,
            "must be a finite number of at least 0",
        )?;
        number(
            "timeout_ms",
            self.timeout_ms,
            self.timeout_ms >= 1.0 && self.timeout_ms <= 60_000.0,
            "must be 1 to 60000",
        )?;
        number("window_seconds", self.window_seconds, self.window_seconds > 0.0, above_zero)?;
        if let Some(sla) = self.sla_ms {
            number(
                "sla_ms",
                sla,
                sla > 0.0 && sla <= self.timeout_ms,
                "must be above 0 and at most timeout_ms",
            )?;
        }
        number(
            "seconds",
            self.seconds,
            self.seconds / self.window_seconds <= MAX_WINDOWS,
            "is too long for its windows; make them longer",
        )?;
        count("threads", self.threads, (1..=64).contains(&self.threads), "must be 1 to 64")?;
        count(
            "connections",
            self.connections,
            self.connections >= self.threads && self.connections <= 10_000,
            "must be at least one per thread and at most 10,000",
        )?;
        count(
            "max_outstanding",
            self.max_outstanding,
            self.max_outstanding >= self.threads,
            "must be at least one per thread",
        )?;
        count(
            "methods",
            self.methods.len(),
            !self.methods.is_empty() && self.methods.len() == payloads.len(),
            "must be at least one, each with its requests",
        )?;
        self.check_load()?;
        if let Some(deadline) = self.deadline_ms {
            let keeps = deadline > 0.0 && deadline <= self.timeout_ms;
            number("deadline_ms", deadline, keeps, "must be above 0 and at most timeout_ms")?;
        }
        number("cancel", self.cancel, (0.0..=1.0).contains(&self.cancel), "must be a share from 0 to 1")?;
        number("cancel_within_ms", self.cancel_within_ms, self.cancel_within_ms > 0.0, above_zero)?;
        for (method, requests) in self.methods.iter().zip(payloads) {
            number("weight", method.weight, method.weight > 0.0, above_zero)?;
            count("requests of a method", requests.len(), !requests.is_empty(), "must be at least one")?;
        }
        Ok(())
    }
}

impl LoadConfig {
    /// The stretches of the measured part.
    pub(crate) fn steps(&self) -> Vec<Step> {
        match self.steps.as_slice() {
            [] => vec![Step { seconds: self.seconds, load: 1.0 }],
            steps => steps.to_vec(),
        }
    }

    /// Who calls.
    pub(crate) fn callers(&self) -> Vec<Caller> {
        match self.callers.as_slice() {
            [] => vec![Caller { name: "all".into(), load: vec![1.0], ..Caller::default() }],
            callers => callers.to_vec(),
        }
    }

    fn check_load(&self) -> Result<(), ConfigError> {
        let load = "must be a finite number of at least 0";
        let (steps, callers) = (self.steps(), self.callers());
        for step in &steps {
            number("seconds of a step", step.seconds, step.seconds > 0.0, "must be a finite number above 0")?;
            number("load of a step", step.load, step.load >= 0.0, load)?;
        }
        let sum: f64 = steps.iter().map(|step| step.seconds).sum();
        number(
            "seconds",
            self.seconds,
            (sum - self.seconds).abs() < 1e-6 * sum,
            "must be the sum of the steps'",
        )?;
        for caller in &callers {
            let fits = caller.load.len() == 1 || caller.load.len() == steps.len();
            count("loads of a caller", caller.load.len(), fits, "must be one, or one for each step")?;
            for factor in &caller.load {
                number("load of a caller", *factor, *factor >= 0.0, load)?;
            }
            for name in &caller.methods {
                if !self.methods.iter().any(|method| method.name == *name) {
                    let rule = "must name methods of the run";
                    return Err(ConfigError { name: "methods of a caller", rule, value: name.clone() });
                }
            }
        }
        Ok(())
    }
}

impl Caller {
    /// Its load in a step.
    pub(crate) fn load(&self, step: usize) -> f64 {
        self.load.get(step).or(self.load.first()).copied().unwrap_or(0.0)
    }
}

fn number(name: &'static str, value: f64, keeps: bool, rule: &'static str) -> Result<(), ConfigError> {
    if value.is_finite() && keeps {
        Ok(())
    } else {
        Err(ConfigError { name, rule, value: value.to_string() })
    }
}

fn count(name: &'static str, value: usize, keeps: bool, rule: &'static str) -> Result<(), ConfigError> {
    if keeps { Ok(()) } else { Err(ConfigError { name, rule, value: value.to_string() }) }
}

fn one() -> usize {
    1
}

fn default_outstanding() -> usize {
    10_000
}

fn default_cancel_within() -> f64 {
    10.0
}

fn default_window() -> f64 {
    1.0
}
