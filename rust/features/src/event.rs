//! An event.

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
