//! Settings of a checkpoint's limits and exposure caps.

use serde::{Deserialize, Serialize};

use super::{FallbackConfig, Kind};

/// Longest window of exposure caps: a day, in seconds.
const MAX_WINDOW: f64 = 86_400.0;

/// Effect of a checkpoint's limits.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Every request is admitted. Only the caller's deadline applies.
    Off,
    /// As `Off`, but requests that `Enforce` would have shed are counted.
    Observe,
    /// Requests that cannot meet their deadline are shed or answered by the fallback.
    #[default]
    Enforce,
}

/// Limits on decisions without the model, so that an overload cannot be used to bypass it.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct CapsConfig {
    /// Length of the window in seconds.
    #[serde(default = "default_window")]
    pub window_seconds: f64,
    /// Greatest number of fallback answers per window.
    #[serde(default)]
    pub max_count: Option<u64>,
    /// Greatest sum of the amounts of fallback answers per window.
    #[serde(default)]
    pub max_total_amount: Option<f64>,
    /// Greatest amount of one fallback answer.
    #[serde(default)]
    pub max_single_amount: Option<f64>,
    /// The feature that holds the amount. If a request does not have it, limits on amounts count as reached.
    #[serde(default)]
    pub amount_feature: Option<String>,
    /// The answer beyond the caps.
    #[serde(default)]
    pub on_cap: OnCap,
}

/// The answer beyond the exposure caps.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(untagged)]
pub enum OnCap {
    /// No answer: RESOURCE_EXHAUSTED.
    Refuse(Refuse),
    /// A stricter static answer.
    Answer(FallbackConfig),
}

/// The value `"refuse"`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Refuse {
    /// Requests beyond the caps are refused.
    #[default]
    Refuse,
}

impl Default for OnCap {
    fn default() -> OnCap {
        OnCap::Refuse(Refuse::Refuse)
    }
}

// === impl CapsConfig ===

impl CapsConfig {
    /// The answer beyond the caps, unless it is a refusal.
    #[must_use]
    pub fn answer(&self) -> Option<&FallbackConfig> {
        match &self.on_cap {
            OnCap::Answer(answer) => Some(answer),
            OnCap::Refuse(Refuse::Refuse) => None,
        }
    }

    pub(crate) fn check(&self, name: &str, kind: Kind, has_fallback: bool, wrong: &mut Vec<String>) {
        let mut say = |text: String| wrong.push(format!("checkpoint {name:?}: {text}"));
        if !has_fallback {
            say("\"caps\" limit the fallback, and there is none; add \"fallback\" or remove \"caps\""
                .to_owned());
        }
        if !(self.window_seconds.is_finite() && (1.0..=MAX_WINDOW).contains(&self.window_seconds)) {
            let given = self.window_seconds;
            say(format!("caps: \"window_seconds\" is {given}; use 1 to {MAX_WINDOW}"));
        }
        let amounts =
            [("max_total_amount", self.max_total_amount), ("max_single_amount", self.max_single_amount)];
        for (key, amount) in amounts {
            if amount.is_some_and(|amount| !(amount.is_finite() && amount >= 0.0)) {
                say(format!("caps: \"{key}\" is {}; use a number of at least 0", amount.unwrap_or(f64::NAN)));
            }
        }
        let by_amount = amounts.iter().any(|(_, amount)| amount.is_some());
        if self.max_count.is_none() && !by_amount {
            say("caps: no limit is set; set \"max_count\", \"max_total_amount\" or \"max_single_amount\""
                .to_owned());
        }
        match (&self.amount_feature, by_amount) {
            (None, true) => say("caps: limits on amounts need \"amount_feature\"".to_owned()),
            (Some(_), false) => {
                say("caps: \"amount_feature\" is set and no limit on amounts is; set one or remove it"
                    .to_owned());
            }
            _ => {}
        }
        if let Some(answer) = self.answer() {
            answer.check("\"on_cap\"", name, kind, wrong);
        }
    }
}

// === impl FallbackConfig ===

impl FallbackConfig {
    /// Checks that the answer matches a checkpoint of `kind`. `what` names the answer in messages.
    pub(crate) fn check(&self, what: &str, name: &str, kind: Kind, wrong: &mut Vec<String>) {
        match (self, kind) {
            (FallbackConfig::Action { .. }, Kind::Action) => {}
            (FallbackConfig::Score { score, decision }, Kind::Score) => {
                if !(0.0..=1.0).contains(score) || decision.is_empty() {
                    wrong.push(format!(
                        "checkpoint {name:?}: {what} needs a \"decision\" and a \"score\" from 0 to 1"
                    ));
                }
            }
            (_, Kind::Score) => wrong.push(format!(
                "checkpoint {name:?} is of kind score: {what} is {{\"decision\": .., \"score\": ..}}"
            )),
            (_, Kind::Action) => {
                wrong.push(format!("checkpoint {name:?} is of kind action: {what} is {{\"action\": ..}}"));
            }
        }
    }
}

fn default_window() -> f64 {
    60.0
}
