//! The action catalogue: what can be chosen, in the order that every index, mask and pmf refers to.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

/// Most actions that a catalogue may have.
pub const MAX_ACTIONS: usize = 4096;
/// Longest action id, bytes.
const MAX_ID: usize = 256;

/// One action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// Unique name, such as `3ds=frictionless|exemption=tra`.
    pub id: String,
    /// What the action is made of, such as `{"three_ds": "frictionless"}`; every action has the same keys.
    #[serde(default)]
    pub factors: BTreeMap<String, String>,
    /// The action's own columns of the forest's input, after the context's; null is a missing value.
    #[serde(default)]
    pub features: Vec<Option<f64>>,
    /// Quantities that caps refer to: a cost, 1 for "uses 3DS". An absent one is 0.
    #[serde(default)]
    pub attributes: BTreeMap<String, f64>,
}

/// Why a catalogue was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CatalogueError {
    /// Too many actions.
    #[error("actions: {0} actions, at most {MAX_ACTIONS} are allowed; drop actions or split the checkpoint")]
    TooMany(usize),
    /// None at all.
    #[error("actions: the catalogue is empty; list at least one action")]
    Empty,
    /// An id is empty, too long or not printable.
    #[error("action {0:?}: an id is 1 to {MAX_ID} printable characters; rename it")]
    Id(String),
    /// Two actions have the same id.
    #[error("action {0:?}: the id occurs twice; ids must be unique, rename or remove one")]
    Duplicate(String),
    /// Factor keys differ.
    #[error(
        "action {action:?}: its factors are {got:?}, the first action's are {expected:?}; give every action the same factors"
    )]
    Factors {
        /// The action's id.
        action: String,
        /// Its keys.
        got: Vec<String>,
        /// The first action's keys.
        expected: Vec<String>,
    },
    /// The number of features differs from the schema's.
    #[error(
        "action {action:?}: {got} features, the schema has {expected} action features; give one value for each"
    )]
    FeatureCount {
        /// The action's id.
        action: String,
        /// Features given.
        got: usize,
        /// Action features of the schema.
        expected: usize,
    },
    /// A feature value is not allowed.
    #[error("action {action:?}: {reason}")]
    Feature {
        /// The action's id.
        action: String,
        /// What the schema says.
        reason: String,
    },
    /// An attribute is not finite.
    #[error(
        "action {action:?}: attribute {attribute:?} is {value}; attributes must be finite and not negative"
    )]
    Attribute {
        /// The action's id.
        action: String,
        /// The attribute.
        attribute: String,
        /// Its value.
        value: f64,
    },
}

/// The actions of a bundle; empty for a score bundle.
#[derive(Debug, Clone, Default)]
pub struct ActionCatalogue {
    actions: Vec<Action>,
    by_id: HashMap<Box<str>, usize>,
}

impl ActionCatalogue {
    /// Checks the actions: at least one, at most [`MAX_ACTIONS`], unique ids, equal factor keys, sane attributes.
    ///
    /// # Errors
    /// Names the action, the rule and the remedy.
    pub fn new(actions: Vec<Action>) -> Result<ActionCatalogue, CatalogueError> {
        if actions.len() > MAX_ACTIONS {
            return Err(CatalogueError::TooMany(actions.len()));
        }
        let first = actions.first().ok_or(CatalogueError::Empty)?;
        let mut by_id = HashMap::with_capacity(actions.len());
        for (index, action) in actions.iter().enumerate() {
            let id = &action.id;
            if id.is_empty() || id.len() > MAX_ID || id.chars().any(char::is_control) {
                return Err(CatalogueError::Id(id.clone()));
            }
            if by_id.insert(id.as_str().into(), index).is_some() {
                return Err(CatalogueError::Duplicate(id.clone()));
            }
            if !action.factors.keys().eq(first.factors.keys()) {
                return Err(CatalogueError::Factors {
                    action: id.clone(),
                    got: action.factors.keys().cloned().collect(),
                    expected: first.factors.keys().cloned().collect(),
                });
            }
            if let Some((attribute, &value)) =
                action.attributes.iter().find(|(_, value)| !value.is_finite() || **value < 0.0)
            {
                return Err(CatalogueError::Attribute {
                    action: id.clone(),
                    attribute: attribute.clone(),
                    value,
                });
            }
        }
        Ok(ActionCatalogue { actions, by_id })
    }

    /// Number of actions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    /// True for a score bundle's catalogue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// The action at a position.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Action> {
        self.actions.get(index)
    }

    /// The position of an action.
    #[must_use]
    pub fn index_of(&self, id: &str) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// Every action in catalogue order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Action> {
        self.actions.iter()
    }
}
