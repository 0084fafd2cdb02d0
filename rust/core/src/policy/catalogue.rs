//! The action catalogue: the actions that can be chosen, in the order that indices, masks and pmfs refer to.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

/// Greatest number of actions of a catalogue.
pub const MAX_ACTIONS: usize = 4096;
/// Length of the longest action id in bytes.
const MAX_ID: usize = 256;

/// One action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// Unique name, such as `3ds=frictionless|exemption=tra`.
    pub id: String,
    /// The level of each factor, such as `{"three_ds": "frictionless"}`. Every action has the same keys.
    #[serde(default)]
    pub factors: BTreeMap<String, String>,
    /// The action's columns of the forest's input, after the context's columns. Null is a missing value.
    #[serde(default)]
    pub features: Vec<Option<f64>>,
    /// Quantities that caps refer to, such as a cost, or 1 for actions that use 3DS. An absent attribute is 0.
    #[serde(default)]
    pub attributes: BTreeMap<String, f64>,
}

/// The reason why a catalogue was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CatalogueError {
    /// The catalogue has too many actions.
    #[error("actions: {0} actions, at most {MAX_ACTIONS} are allowed; drop actions or split the checkpoint")]
    TooMany(usize),
    /// The catalogue has no action.
    #[error("actions: the catalogue is empty; list at least one action")]
    Empty,
    /// An id is empty, too long or not printable.
    #[error("action {0:?}: an id is 1 to {MAX_ID} printable characters; rename it")]
    Id(String),
    /// Two actions have the same id.
    #[error("action {0:?}: the id occurs twice; ids must be unique, rename or remove one")]
    Duplicate(String),
    /// An action has other factor keys than the first action.
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
        /// Number of features of the action.
        got: usize,
        /// Number of action features in the schema.
        expected: usize,
    },
    /// A feature value is not allowed.
    #[error("action {action:?}: {reason}")]
    Feature {
        /// The action's id.
        action: String,
        /// The schema's error.
        reason: String,
    },
    /// An attribute is negative or not finite.
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
    /// Checks the actions: there are 1 to [`MAX_ACTIONS`] of them, ids are unique, factor keys are equal, and
    /// attributes are finite and not negative.
    ///
    /// # Errors
    /// Returns the first rule that an action breaks; the message names the action and the remedy.
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

    /// Whether there are no actions, as in a score bundle.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// The action at a position.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Action> {
        self.actions.get(index)
    }

    /// The position of an action; `None` if the catalogue has no such id.
    #[must_use]
    pub fn index_of(&self, id: &str) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// Every action in catalogue order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Action> {
        self.actions.iter()
    }
}
