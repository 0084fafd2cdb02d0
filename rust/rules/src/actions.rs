//! The actions whose eligibility rules decide, and sets of them.

use std::fmt;

use crate::fault::nearest;
use crate::limits::MAX_ACTIONS;
use crate::source::Selection;

/// The values of each action's factors, such as `three_ds` and `exemption`.
#[derive(Debug, Clone, Default)]
pub struct Actions {
    count: usize,
    factors: Vec<(String, Vec<String>)>,
}

/// The factors do not fit to the number of actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionsError(String);

impl fmt::Display for ActionsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for ActionsError {}

impl Actions {
    /// Makes a catalogue of factors: each has a name and a value for every action.
    ///
    /// # Errors
    /// Fails if there are too many actions, a factor has not one value for each, or two have the same name.
    pub fn new(count: usize, factors: Vec<(String, Vec<String>)>) -> Result<Actions, ActionsError> {
        if count > MAX_ACTIONS {
            return Err(ActionsError(format!(
                "there are {count} actions, more than {MAX_ACTIONS}; remove some"
            )));
        }
        for (at, (name, values)) in factors.iter().enumerate() {
            if values.len() != count {
                return Err(ActionsError(format!(
                    "factor {name:?}: has {} values for {count} actions; give each action one",
                    values.len()
                )));
            }
            if factors[..at].iter().any(|(other, _)| other == name) {
                return Err(ActionsError(format!("factor {name:?}: is given twice; remove one of the two")));
            }
        }
        Ok(Actions { count, factors })
    }

    /// Number of actions.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn factors(&self) -> &[(String, Vec<String>)] {
        &self.factors
    }

    /// The words of a set of actions.
    pub(crate) fn words(&self) -> usize {
        self.count.div_ceil(64)
    }

    /// The set of all actions.
    pub(crate) fn all(&self) -> Vec<u64> {
        self.set(|_| true)
    }

    /// The set of the actions for which `has` is true.
    pub(crate) fn set(&self, has: impl Fn(usize) -> bool) -> Vec<u64> {
        let mut words = vec![0; self.words()];
        for action in (0..self.count).filter(|action| has(*action)) {
            words[action / 64] |= 1 << (action % 64);
        }
        words
    }

    /// The set of the actions that have one of the values of each factor.
    pub(crate) fn select(&self, selection: &Selection) -> Result<Vec<u64>, String> {
        let mut columns = Vec::new();
        for (name, values) in selection {
            let Some((_, column)) = self.factors.iter().find(|(factor, _)| factor == name) else {
                let near = nearest(name, self.factors.iter().map(|(factor, _)| factor.as_str()));
                return Err(format!("unknown factor {name:?}{near}; correct it"));
            };
            if let Some(value) = values.iter().find(|value| !column.contains(value)) {
                let near = nearest(value, column.iter().map(String::as_str));
                return Err(format!("no action has {name} = {value:?}{near}; correct it"));
            }
            columns.push((column, values));
        }
        if columns.is_empty() {
            return Err("no factor is named; name one, or write the condition on the action".to_owned());
        }
        Ok(self.set(|action| columns.iter().all(|(column, values)| values.contains(&column[action]))))
    }
}
