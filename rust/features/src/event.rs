//! An event.

use std::cell::Cell;

use crate::definition::{EventDefinition, FeatureSet};
use crate::distinct;

/// An event, as its sender states it.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// Its kind.
    pub kind: &'a str,
    /// Its id, unique within the kind.
    pub id: &'a str,
    /// Time of the event in microseconds since the Unix epoch.
    pub occurred_at_us: i64,
    /// Keys by name of the entity.
    pub keys: &'a [(&'a str, &'a str)],
    /// Numbers by name of the field.
    pub numbers: &'a [(&'a str, f64)],
    /// Texts by name of the field.
    pub texts: &'a [(&'a str, &'a str)],
}

/// The values of an event in the order of the fields that one set declares, found once for all its features.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    /// Position of its kind in the set.
    pub(crate) kind: usize,
    pub(crate) occurred_at_us: i64,
    values: Vec<Field<'a>>,
}

#[derive(Debug)]
enum Field<'a> {
    Absent,
    Number(f64),
    /// A text or key, with its place in a sketch as soon as it is known.
    Text(&'a str, Cell<Option<(u16, u8)>>),
}

/// Position of the number field, or of the text field or entity, in the fields of a kind.
pub(crate) fn position(kind: &EventDefinition, name: &str) -> Option<usize> {
    names(kind).position(|known| known == name)
}

fn names(kind: &EventDefinition) -> impl Iterator<Item = &String> {
    kind.entities.iter().chain(&kind.texts).chain(&kind.numbers)
}

// === impl Fields ===

impl<'a> Fields<'a> {
    /// The values of an event of a set; `None` if the set does not declare its kind.
    pub(crate) fn new(set: &FeatureSet, event: &Event<'a>) -> Option<Fields<'a>> {
        let (kind, (_, definition)) =
            set.events().iter().enumerate().find(|(_, (name, _))| *name == event.kind)?;
        let text =
            |text: Option<&'a str>| text.map_or(Field::Absent, |text| Field::Text(text, Cell::new(None)));
        let keys = definition.entities.iter().map(|name| text(event.key(name)));
        let texts = definition.texts.iter().map(|name| text(event.text(name)));
        let number = |name: &String| event.number(name).map_or(Field::Absent, Field::Number);
        let values = keys.chain(texts).chain(definition.numbers.iter().map(number)).collect();
        Some(Fields { kind, occurred_at_us: event.occurred_at_us, values })
    }

    pub(crate) fn number(&self, at: usize) -> Option<f64> {
        match self.values.get(at)? {
            Field::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn text(&self, at: usize) -> Option<&'a str> {
        match self.values.get(at)? {
            Field::Text(text, _) => Some(text),
            _ => None,
        }
    }

    /// Register and rank of a text or key.
    pub(crate) fn place(&self, at: usize) -> Option<(u16, u8)> {
        match self.values.get(at)? {
            Field::Text(text, place) => {
                let known = place.get().unwrap_or_else(|| distinct::place(text));
                place.set(Some(known));
                Some(known)
            }
            _ => None,
        }
    }
}

// === impl Event ===

impl<'a> Event<'a> {
    /// The key of an entity.
    #[must_use]
    pub fn key(&self, entity: &str) -> Option<&'a str> {
        self.keys.iter().find(|(name, _)| *name == entity).map(|(_, key)| *key)
    }

    /// The value of a number field.
    #[must_use]
    pub fn number(&self, field: &str) -> Option<f64> {
        self.numbers.iter().find(|(name, _)| *name == field).map(|(_, value)| *value)
    }

    /// The value of a text field.
    #[must_use]
    pub fn text(&self, field: &str) -> Option<&'a str> {
        self.texts.iter().find(|(name, _)| *name == field).map(|(_, text)| *text)
    }
}
