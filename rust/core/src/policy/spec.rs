//! The specification of a policy in the manifest.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::ActionCatalogue;

/// Largest number of ensemble members.
const MAX_VOTERS: usize = 64;

/// The rule that turns scores into probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Gives every eligible action the same probability.
    Uniform,
    /// Chooses the best action, or with probability `epsilon` any eligible action.
    EpsilonGreedy {
        /// From 0 to 1.
        epsilon: f64,
    },
    /// Probabilities are proportional to `exp(inverse_temperature * score)`.
    Softmax {
        /// At least 0, which is uniform. Scores are probabilities, so 20 to 200 is the useful range.
        inverse_temperature: f64,
    },
    /// Inverse-gap weighting with `mu0 = K`, the number of eligible actions.
    SquareCb {
        /// At least 0, which is uniform.
        gamma: f64,
    },
    /// Inverse-gap weighting of losses `1 - score`, scaled by the least loss.
    FastCb {
        /// At least 0, which is uniform.
        gamma: f64,
    },
    /// Probabilities are proportional to `(least loss / loss)^exponent`, with losses `1 - score`.
    LossRatio {
        /// At least 0, which is uniform. 100 is a good initial value.
        exponent: f64,
    },
    /// The probability of an action is the share of ensemble members whose best action it is.
    Bagging {
        /// Number of ensemble members, 2 to 64.
        voters: usize,
    },
}

/// A cap, expressed as a price: `lambda` times the action's attribute is subtracted from its score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cap {
    /// The attribute of the catalogue that is capped, such as `cost` or `three_ds`.
    pub attribute: String,
    /// The price of one unit, in units of the score; not negative.
    pub lambda: f64,
    /// The mean of the attribute that `lambda` was computed for. Reports show it; serving does not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
}

/// A policy: the rule, floors, caps and the key of the draw.
///
/// In JSON, `rule` is the name of the rule and its settings are fields beside it:
/// `{"rule": "squarecb", "gamma": 200, "floor": 0.02, "salt": "00112233445566778899aabbccddeeff"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct PolicySpec {
    /// The rule that turns scores into probabilities.
    pub rule: Rule,
    /// Total probability, from 0 to 1, that is distributed evenly as a minimum: each of `K` eligible actions has at
    /// least `floor / K`.
    pub floor: f64,
    /// Least probability of single actions when they are eligible, by action id.
    pub action_floors: BTreeMap<String, f64>,
    /// Prices on attributes of actions.
    pub caps: Vec<Cap>,
    /// The key of the draw, 32 hexadecimal digits.
    pub salt: String,
}

/// The reason why a policy was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// The rule's name is not known.
    #[error(
        "policy: unknown rule {0:?}; this build knows uniform, epsilon_greedy, softmax, squarecb, fastcb, loss_ratio, bagging"
    )]
    UnknownRule(String),
    /// The rule needs a setting.
    #[error("policy: rule {rule} needs `{setting}`; add it")]
    Missing {
        /// The rule.
        rule: &'static str,
        /// The setting.
        setting: &'static str,
    },
    /// The rule does not take a setting.
    #[error("policy: rule {rule} does not take `{setting}`; remove it")]
    Surplus {
        /// The rule.
        rule: &'static str,
        /// The setting.
        setting: &'static str,
    },
    /// A setting is out of range.
    #[error("policy: {setting} is {value}, it must be {rule}; correct it")]
    Range {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: f64,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// A setting names an action that is not in the catalogue.
    #[error("policy: {setting} names action {action:?}, which is not in the catalogue; correct the id")]
    UnknownAction {
        /// The setting.
        setting: &'static str,
        /// The id.
        action: String,
    },
    /// An action's floor is out of range.
    #[error("policy: the floor of action {action:?} is {value}, it must be between 0 and 1; correct it")]
    ActionFloor {
        /// The action's id.
        action: String,
        /// Its floor.
        value: f64,
    },
    /// The floors cannot be satisfied for every eligible set.
    #[error(
        "policy: floor plus all action_floors is {sum}, above 1; lower them until they fit every eligible set"
    )]
    FloorsTooHigh {
        /// Their sum.
        sum: f64,
    },
    /// A cap names an attribute that no action has.
    #[error("policy: cap on {0:?}, an attribute that no action has; correct the name or add the attribute")]
    UnknownAttribute(String),
    /// An attribute has two caps.
    #[error("policy: two caps on {0:?}; keep one")]
    DuplicateCap(String),
    /// A number of a cap is negative or not finite.
    #[error("policy: cap on {attribute:?} has {setting} {value}; it must be finite and not negative")]
    Cap {
        /// The capped attribute.
        attribute: String,
        /// `lambda` or `limit`.
        setting: &'static str,
        /// Its value.
        value: f64,
    },
    /// The salt is not 32 hexadecimal digits.
    #[error("policy: salt must be 32 hexadecimal digits; make one with `openssl rand -hex 16`")]
    Salt,
    /// The catalogue is empty.
    #[error("policy: the bundle has no actions; add actions.json")]
    NoActions,
}

impl Rule {
    /// The name in the manifest.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Rule::Uniform => "uniform",
            Rule::EpsilonGreedy { .. } => "epsilon_greedy",
            Rule::Softmax { .. } => "softmax",
            Rule::SquareCb { .. } => "squarecb",
            Rule::FastCb { .. } => "fastcb",
            Rule::LossRatio { .. } => "loss_ratio",
            Rule::Bagging { .. } => "bagging",
        }
    }

    pub(super) fn voters(&self) -> usize {
        if let Rule::Bagging { voters } = self { *voters } else { 0 }
    }

    pub(super) fn check(&self) -> Result<(), SpecError> {
        let not_negative = |setting, value: f64| {
            if value.is_finite() && value >= 0.0 {
                Ok(())
            } else {
                Err(SpecError::Range { setting, value, rule: "finite and not negative" })
            }
        };
        match *self {
            Rule::Uniform => Ok(()),
            Rule::EpsilonGreedy { epsilon } if (0.0..=1.0).contains(&epsilon) => Ok(()),
            Rule::EpsilonGreedy { epsilon } => {
                Err(SpecError::Range { setting: "epsilon", value: epsilon, rule: "between 0 and 1" })
            }
            Rule::Softmax { inverse_temperature } => not_negative("inverse_temperature", inverse_temperature),
            Rule::SquareCb { gamma } | Rule::FastCb { gamma } => not_negative("gamma", gamma),
            Rule::LossRatio { exponent } => not_negative("exponent", exponent),
            Rule::Bagging { voters } if (2..=MAX_VOTERS).contains(&voters) => Ok(()),
            Rule::Bagging { voters } => {
                Err(SpecError::Range { setting: "voters", value: voters as f64, rule: "2 to 64" })
            }
        }
    }
}

impl fmt::Display for PolicySpec {
    /// Formats the policy for display, such as `squarecb(gamma=200) floor=0.02`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule.name())?;
        match self.rule {
            Rule::Uniform => {}
            Rule::EpsilonGreedy { epsilon } => write!(f, "(epsilon={epsilon})")?,
            Rule::Softmax { inverse_temperature } => {
                write!(f, "(inverse_temperature={inverse_temperature})")?
            }
            Rule::SquareCb { gamma } | Rule::FastCb { gamma } => write!(f, "(gamma={gamma})")?,
            Rule::LossRatio { exponent } => write!(f, "(exponent={exponent})")?,
            Rule::Bagging { voters } => write!(f, "(voters={voters})")?,
        }
        if self.floor > 0.0 {
            write!(f, " floor={}", self.floor)?;
        }
        if !self.action_floors.is_empty() {
            write!(f, " action_floors={}", self.action_floors.len())?;
        }
        self.caps.iter().try_for_each(|cap| write!(f, " {}*{}", cap.lambda, cap.attribute))
    }
}

/// Computes the sum over caps of `lambda * attribute` for each action; empty without caps.
pub(super) fn penalties(caps: &[Cap], catalogue: &ActionCatalogue) -> Result<Box<[f64]>, SpecError> {
    let sane = |cap: &Cap, setting, value: f64| {
        if value.is_finite() && value >= 0.0 {
            Ok(())
        } else {
            Err(SpecError::Cap { attribute: cap.attribute.clone(), setting, value })
        }
    };
    for (at, cap) in caps.iter().enumerate() {
        sane(cap, "lambda", cap.lambda)?;
        sane(cap, "limit", cap.limit.unwrap_or(0.0))?;
        if !catalogue.iter().any(|action| action.attributes.contains_key(&cap.attribute)) {
            return Err(SpecError::UnknownAttribute(cap.attribute.clone()));
        }
        if caps[..at].iter().any(|earlier| earlier.attribute == cap.attribute) {
            return Err(SpecError::DuplicateCap(cap.attribute.clone()));
        }
    }
    if caps.is_empty() {
        return Ok(Box::default());
    }
    let of = |attributes: &BTreeMap<String, f64>| {
        caps.iter().map(|cap| cap.lambda * attributes.get(&cap.attribute).copied().unwrap_or(0.0)).sum()
    };
    Ok(catalogue.iter().map(|action| of(&action.attributes)).collect())
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    rule: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epsilon: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inverse_temperature: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gamma: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exponent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    voters: Option<usize>,
    #[serde(default)]
    floor: f64,
    #[serde(default)]
    action_floors: BTreeMap<String, f64>,
    #[serde(default)]
    caps: Vec<Cap>,
    salt: String,
}

impl TryFrom<Raw> for PolicySpec {
    type Error = SpecError;

    fn try_from(mut raw: Raw) -> Result<PolicySpec, SpecError> {
        fn need<T>(rule: &'static str, setting: &'static str, value: &mut Option<T>) -> Result<T, SpecError> {
            value.take().ok_or(SpecError::Missing { rule, setting })
        }
        let rule = match raw.rule.as_str() {
            "uniform" => Rule::Uniform,
            "epsilon_greedy" => {
                Rule::EpsilonGreedy { epsilon: need("epsilon_greedy", "epsilon", &mut raw.epsilon)? }
            }
            "softmax" => Rule::Softmax {
                inverse_temperature: need("softmax", "inverse_temperature", &mut raw.inverse_temperature)?,
            },
            "squarecb" => Rule::SquareCb { gamma: need("squarecb", "gamma", &mut raw.gamma)? },
            "fastcb" => Rule::FastCb { gamma: need("fastcb", "gamma", &mut raw.gamma)? },
            "loss_ratio" => Rule::LossRatio { exponent: need("loss_ratio", "exponent", &mut raw.exponent)? },
            "bagging" => Rule::Bagging { voters: need("bagging", "voters", &mut raw.voters)? },
            _ => return Err(SpecError::UnknownRule(raw.rule)),
        };
        // `need` has taken the settings of the rule, so any setting that is left belongs to another rule.
        let surplus = [
            ("epsilon", raw.epsilon.is_some()),
            ("inverse_temperature", raw.inverse_temperature.is_some()),
            ("gamma", raw.gamma.is_some()),
            ("exponent", raw.exponent.is_some()),
            ("voters", raw.voters.is_some()),
        ];
        if let Some((setting, _)) = surplus.into_iter().find(|(_, given)| *given) {
            return Err(SpecError::Surplus { rule: rule.name(), setting });
        }
        rule.check()?;
        Ok(PolicySpec {
            rule,
            floor: raw.floor,
            action_floors: raw.action_floors,
            caps: raw.caps,
            salt: raw.salt,
        })
    }
}

impl From<PolicySpec> for Raw {
    fn from(spec: PolicySpec) -> Raw {
        let mut raw = Raw {
            rule: spec.rule.name().to_owned(),
            epsilon: None,
            inverse_temperature: None,
            gamma: None,
            exponent: None,
            voters: None,
            floor: spec.floor,
            action_floors: spec.action_floors,
            caps: spec.caps,
            salt: spec.salt,
        };
        match spec.rule {
            Rule::Uniform => {}
            Rule::EpsilonGreedy { epsilon } => raw.epsilon = Some(epsilon),
            Rule::Softmax { inverse_temperature } => raw.inverse_temperature = Some(inverse_temperature),
            Rule::SquareCb { gamma } | Rule::FastCb { gamma } => raw.gamma = Some(gamma),
            Rule::LossRatio { exponent } => raw.exponent = Some(exponent),
            Rule::Bagging { voters } => raw.voters = Some(voters),
        }
        raw
    }
}
