//! The definition of a feature set.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::DefinitionError;
use crate::{canonical, check, digest};

/// A validated feature set.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureSet {
    pub(crate) name: String,
    pub(crate) version: u64,
    pub(crate) owner: String,
    pub(crate) text: String,
    pub(crate) events: BTreeMap<String, EventDefinition>,
    pub(crate) features: Vec<Feature>,
}

/// A kind of events.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventDefinition {
    /// Names of entities. An event may have a key of each.
    #[serde(default)]
    pub entities: Vec<String>,
    /// Names of number fields.
    #[serde(default)]
    pub numbers: Vec<String>,
    /// Names of text fields.
    #[serde(default)]
    pub texts: Vec<String>,
    /// Greatest age of an event at its receipt in seconds, and how long its id is remembered.
    pub accept_late: i64,
}

/// A feature.
#[derive(Debug, Clone, PartialEq)]
pub enum Feature {
    /// An aggregate of events.
    Window(Window),
    /// A ratio of two features.
    Ratio(Ratio),
}

/// An aggregate of the events of one entity.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// Name of the feature.
    pub name: String,
    /// Description.
    pub text: String,
    /// Name of the entity.
    pub entity: String,
    /// Kind of the events.
    pub event: String,
    /// The aggregate.
    pub aggregate: Aggregate,
    /// The number field, text field or entity that is aggregated; empty for aggregates without one.
    pub of: String,
    /// Length of the window, or the half-life of a decayed aggregate, in seconds.
    pub window: i64,
    /// Age in seconds that an event must have to be counted.
    pub delay: i64,
    /// Length of a tile in seconds; 0 for decayed aggregates.
    pub tile: i64,
    /// Allowed values of text fields; all must hold.
    pub conditions: BTreeMap<String, Vec<String>>,
    /// Value if nothing is known; NaN is a missing value.
    pub default: f64,
}

/// A ratio of two features of the set.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    /// Name of the feature.
    pub name: String,
    /// Description.
    pub text: String,
    /// Name of the numerator and of the denominator.
    pub parts: [String; 2],
    /// Value if the denominator is 0 or nothing is known; NaN is a missing value.
    pub default: f64,
}

/// An aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregate {
    /// Number of events.
    Count,
    /// Sum of a number.
    Sum,
    /// Mean of a number.
    Mean,
    /// Least number.
    Min,
    /// Greatest number.
    Max,
    /// Estimated number of distinct texts or keys.
    Distinct,
    /// Seconds since the last event.
    SecondsSinceLast,
    /// Seconds since the first event.
    SecondsSinceFirst,
    /// Number of events, each with a weight that halves with its age.
    DecayedCount,
    /// Sum of a number with such weights.
    DecayedSum,
}

// === impl Aggregate ===

impl Aggregate {
    /// The name in definitions.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Aggregate::Count => "count",
            Aggregate::Sum => "sum",
            Aggregate::Mean => "mean",
            Aggregate::Min => "min",
            Aggregate::Max => "max",
            Aggregate::Distinct => "distinct",
            Aggregate::SecondsSinceLast => "seconds_since_last",
            Aggregate::SecondsSinceFirst => "seconds_since_first",
            Aggregate::DecayedCount => "decayed_count",
            Aggregate::DecayedSum => "decayed_sum",
        }
    }

    /// Whether the weight of an event halves with its age.
    #[must_use]
    pub fn is_decayed(self) -> bool {
        matches!(self, Aggregate::DecayedCount | Aggregate::DecayedSum)
    }

    /// Whether the aggregate is of a number field.
    #[must_use]
    pub fn of_number(self) -> bool {
        use Aggregate::{DecayedSum, Max, Mean, Min, Sum};
        matches!(self, Sum | Mean | Min | Max | DecayedSum)
    }

    /// Whether the value of a known key without events is 0 and not the default.
    pub(crate) fn is_zero_without_events(self) -> bool {
        use Aggregate::{Count, DecayedCount, DecayedSum, Distinct, Sum};
        matches!(self, Count | Sum | Distinct | DecayedCount | DecayedSum)
    }
}

// === impl Feature ===

impl Feature {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Feature::Window(window) => &window.name,
            Feature::Ratio(ratio) => &ratio.name,
        }
    }
}

// === impl FeatureSet ===

impl FeatureSet {
    /// Parses and validates a definition: its canonical form, or that form without fields that have their defaults.
    ///
    /// # Errors
    /// Returns the first rule that the definition breaks.
    pub fn parse(json: &[u8]) -> Result<FeatureSet, DefinitionError> {
        let set: Raw = serde_json::from_slice(json).map_err(|error| DefinitionError(error.to_string()))?;
        let features = set.features.into_iter().map(RawFeature::feature).collect::<Result<_, _>>()?;
        let set = FeatureSet {
            name: set.name,
            version: set.version,
            owner: set.owner,
            text: set.text,
            events: set.events,
            features,
        };
        check::check(&set)?;
        Ok(set)
    }

    /// Name of the set.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Version of the set.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Name and version, as `name@version`.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }

    /// The features in the order of the definition.
    #[must_use]
    pub fn features(&self) -> &[Feature] {
        &self.features
    }

    /// The feature of this name.
    #[must_use]
    pub fn feature(&self, name: &str) -> Option<&Feature> {
        self.features.iter().find(|feature| feature.name() == name)
    }

    /// The kinds of events by name.
    #[must_use]
    pub fn events(&self) -> &BTreeMap<String, EventDefinition> {
        &self.events
    }

    /// The names of all entities, sorted.
    #[must_use]
    pub fn entities(&self) -> Vec<&str> {
        let mut all: Vec<&str> =
            self.events.values().flat_map(|event| event.entities.iter().map(String::as_str)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The canonical form.
    #[must_use]
    pub fn canonical(&self) -> Vec<u8> {
        canonical::set(self).to_string().into_bytes()
    }

    /// SHA-256 of the canonical form.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        digest::of(&canonical::set(self))
    }

    /// SHA-256 of the definition of a feature without its name and text: with its kind of events, and of a ratio with both
    /// parts. `None` if there is no such feature.
    #[must_use]
    pub fn feature_digest(&self, name: &str) -> Option<[u8; 32]> {
        canonical::meaning(self, self.feature(name)?).map(|meaning| digest::of(&meaning))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: String,
    version: u64,
    #[serde(default)]
    owner: String,
    #[serde(default)]
    text: String,
    events: BTreeMap<String, EventDefinition>,
    features: Vec<RawFeature>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFeature {
    name: String,
    #[serde(default)]
    text: String,
    ratio: Option<[String; 2]>,
    entity: Option<String>,
    event: Option<String>,
    aggregate: Option<Aggregate>,
    of: Option<String>,
    window: Option<i64>,
    half_life: Option<i64>,
    #[serde(default)]
    delay: i64,
    tile: Option<i64>,
    #[serde(default, rename = "where")]
    conditions: BTreeMap<String, Vec<String>>,
    default: Option<Value>,
}

impl RawFeature {
    fn feature(self) -> Result<Feature, DefinitionError> {
        let name = self.name;
        let fail = |rule: &str| DefinitionError(format!("feature {name:?}: {rule}"));
        let default = match &self.default {
            None | Some(Value::Null) => f64::NAN,
            Some(value) => {
                value.as_f64().ok_or_else(|| fail("default is a number, or null for a missing value"))?
            }
        };
        if let Some(parts) = self.ratio {
            let others = [&self.entity, &self.event, &self.of];
            if others.iter().any(|other| other.is_some())
                || self.aggregate.is_some()
                || self.window.is_some()
                || self.half_life.is_some()
            {
                return Err(fail("a ratio has no entity, event, aggregate, of and window; remove them"));
            }
            return Ok(Feature::Ratio(Ratio { name, text: self.text, parts, default }));
        }
        let (Some(entity), Some(event), Some(aggregate)) = (self.entity, self.event, self.aggregate) else {
            return Err(fail("needs entity, event and aggregate, or ratio"));
        };
        let (window, other) = if aggregate.is_decayed() {
            (self.half_life, self.window)
        } else {
            (self.window, self.half_life)
        };
        let (Some(window), None) = (window, other) else {
            return Err(fail("a decayed aggregate has half_life, every other one window"));
        };
        let tile = if aggregate.is_decayed() { 0 } else { self.tile.unwrap_or_else(|| default_tile(window)) };
        if aggregate.is_decayed() && self.tile.is_some_and(|tile| tile != 0) {
            return Err(fail("a decayed aggregate has no tile; remove it"));
        }
        Ok(Feature::Window(Window {
            name,
            text: self.text,
            entity,
            event,
            aggregate,
            of: self.of.unwrap_or_default(),
            window,
            delay: self.delay,
            tile,
            conditions: self.conditions,
            default,
        }))
    }
}

/// The largest usual tile of which a window has at least 24.
fn default_tile(window: i64) -> i64 {
    [86_400, 21_600, 3600, 900, 300, 60].into_iter().find(|tile| *tile <= window / 24).unwrap_or(60)
}
