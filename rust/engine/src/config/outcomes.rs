//! Settings of reported outcomes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The settings of outcomes and of the tokens that prove them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutcomeSettings {
    /// File of the keys that sign decision tokens. Without it no tokens are issued.
    pub token_keys: Option<PathBuf>,
    /// The accepted proof of an outcome. The default is `token` with keys and `known` without.
    pub proof: Option<ProofRule>,
    /// The treatment of unproven outcomes.
    pub unproven: Unproven,
    /// The highest revision of an outcome.
    pub max_revision: u32,
    /// Greatest number of reports of one outcome, with any revision and value, that are recorded within a minute.
    pub per_decision_minute: u32,
    /// Greatest number of reports of one caller within a second.
    pub per_caller_second: u32,
}

/// The accepted proof of an outcome.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ProofRule {
    /// The token of its decision.
    Token,
    /// The token of its decision, or the presence of the decision in this server's log.
    Known,
}

/// Treatment of an unproven outcome.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Unproven {
    /// It is recorded as unproven.
    #[default]
    Keep,
    /// It is refused.
    Refuse,
}

/// Range of the values of outcomes of one kind.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RewardRange {
    /// The least value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Default for OutcomeSettings {
    fn default() -> OutcomeSettings {
        OutcomeSettings {
            token_keys: None,
            proof: None,
            unproven: Unproven::Keep,
            max_revision: 1000,
            per_decision_minute: 60,
            per_caller_second: 10_000,
        }
    }
}

// === impl OutcomeSettings ===

impl OutcomeSettings {
    /// The effective rule: the configured one, or the default.
    #[must_use]
    pub fn proof(&self) -> ProofRule {
        self.proof.unwrap_or(match self.token_keys {
            Some(_) => ProofRule::Token,
            None => ProofRule::Known,
        })
    }

    /// Appends a message for each invalid setting to `wrong`.
    pub fn check(&self, wrong: &mut Vec<String>) {
        if self.proof == Some(ProofRule::Token) && self.token_keys.is_none() {
            wrong.push(
                "\"outcomes.proof\" is \"token\" and \"outcomes.token_keys\" is not set: nothing could be proven; \
                 create keys with `scorer token key`"
                    .to_owned(),
            );
        }
        for (key, value) in
            [("per_decision_minute", self.per_decision_minute), ("per_caller_second", self.per_caller_second)]
        {
            if value == 0 {
                wrong.push(format!("\"outcomes.{key}\" is 0; use at least 1"));
            }
        }
    }
}

// === impl RewardRange ===

impl RewardRange {
    /// Whether the range contains a value.
    #[must_use]
    pub fn contains(self, value: f64) -> bool {
        (self.min..=self.max).contains(&value)
    }

    pub(crate) fn check(self, checkpoint: &str, kind: &str, wrong: &mut Vec<String>) {
        if !(self.min.is_finite() && self.max.is_finite() && self.min <= self.max) {
            wrong.push(format!(
                "checkpoint {checkpoint:?}: outcomes of kind {kind:?} are from {} to {}; use two finite numbers, the \
                 lower one first",
                self.min, self.max
            ));
        }
    }
}
