//! The effect of an objective on predictions: the link, and the conversion of the base score to a margin.

use scorer_core::forest::{ForestError, Link};

use crate::error::ReadError;

/// The properties of an objective that predictions depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Objective {
    pub(crate) link: Link,
    to_margin: ToMargin,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ToMargin {
    Identity,
    Logit,
    Log,
}

impl Objective {
    /// Returns the objective with this name in the file. Fails if it is not supported.
    pub(crate) fn named(name: &str) -> Result<Self, ReadError> {
        let sigmoid = Link::Sigmoid { alpha: 1.0 };
        let (link, to_margin) = match name {
            "reg:squarederror"
            | "reg:linear"
            | "reg:squaredlogerror"
            | "reg:pseudohubererror"
            | "reg:absoluteerror"
            | "reg:quantileerror"
            | "binary:logitraw"
            | "rank:pairwise"
            | "rank:ndcg"
            | "rank:map" => (Link::Identity, ToMargin::Identity),
            "binary:logistic" | "reg:logistic" => (sigmoid, ToMargin::Logit),
            "binary:hinge" => (Link::Hinge, ToMargin::Identity),
            "multi:softprob" => (Link::Softmax, ToMargin::Identity),
            "multi:softmax" => (Link::ArgMax, ToMargin::Identity),
            "count:poisson" | "reg:gamma" | "reg:tweedie" | "survival:cox" | "survival:aft" => {
                (Link::Exp, ToMargin::Log)
            }
            _ => {
                return Err(ForestError::unsupported(
                    format!("XGBoost objective {name:?}"),
                    "its link and base score are not known here",
                    "train with one of XGBoost's binary:, multi:, reg:, count:, rank: or survival: objectives up to 3.2",
                )
                .into());
            }
        };
        Ok(Self { link, to_margin })
    }

    /// Converts a base score to a margin, in float32 like XGBoost. From version 3.2 on, XGBoost clamps probabilities,
    /// so that constant labels are allowed.
    pub(crate) fn base_margin(self, score: f32, version: (i64, i64)) -> Result<f32, ReadError> {
        let margin = match self.to_margin {
            ToMargin::Identity => score,
            ToMargin::Log => score.ln(),
            ToMargin::Logit => {
                let score = if version >= (3, 2) { score.clamp(1e-6, 1.0 - 1e-6) } else { score };
                -(1.0 / score - 1.0).ln()
            }
        };
        if margin.is_finite() {
            return Ok(margin);
        }
        let rule = format!("{score:e} has no finite margin under this objective");
        Err(ReadError::field("learner.learner_model_param.base_score", rule))
    }
}

/// Parses the base scores: `"5E-1"` up to XGBoost 3.0, `"[5E-1]"` or `"[1E-1,2E-1]"` from 3.1 on.
pub(crate) fn base_scores(text: &str) -> Option<Vec<f32>> {
    let text = text.trim();
    let inner = match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None => text,
    };
    let scores: Option<Vec<f32>> = inner.split(',').map(|score| score.trim().parse().ok()).collect();
    scores.filter(|scores| scores.iter().all(|score| score.is_finite()))
}
