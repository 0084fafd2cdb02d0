//! The computed features of an observed request: those that the answering bundle reads as well have its values, and the
//! others are read when the request is answered.

use scorer_engine::{Answered, Computed, Loaded, Origins, Shape};

/// The computed features of one request for one lane.
#[derive(Default)]
pub(crate) struct Observed {
    /// Values of the lane's columns; empty if none was read.
    values: Vec<f32>,
    /// Where the values of the lane's columns came from.
    origins: Origins,
    /// Where the values of the answering bundle's columns came from.
    live: Origins,
}

// === impl Observed ===

impl Observed {
    /// Reads what the answering bundle does not have, as of the time at which its features were read.
    pub(crate) fn read(&mut self, loaded: &Loaded, answered: &Answered<'_>, answered_at_us: i64) {
        self.values.clear();
        self.origins = Origins::default();
        self.live = answered.origins;
        let Some(own) = &loaded.shape.computed else { return };
        if answered.shape.computed.as_ref().is_some_and(|live| live.is_same(own)) {
            self.origins = answered.origins;
            return;
        }
        let at_us = if self.live.at_us == 0 { answered_at_us } else { self.live.at_us };
        self.origins = own.read_now(answered.keys, at_us, &mut self.values);
    }

    /// Writes the values into a row of the lane's bundle. `from` describes the row of the answering bundle, and `absent`
    /// lists the columns that the request does not have.
    pub(crate) fn fill(&mut self, own: &Computed, from: &Shape, row: &mut [f32], absent: &mut Vec<u32>) {
        let filled = |at: &u32| own.feature_at(*at as usize).is_none();
        if self.values.is_empty() {
            absent.retain(filled);
            return;
        }
        for (number, (at, (name, digest))) in own.positions().zip(own.named()).enumerate() {
            let Some(place) = row.get_mut(at) else { continue };
            let known = from.computed.as_ref().and_then(|live| {
                let (column, (_, known)) = live.named().enumerate().find(|(_, (known, _))| *known == name)?;
                Some((self.live.is_stated(column), known == digest))
            });
            let (stated, kept) = match known {
                Some((stated, same)) => (stated, stated || same),
                None => (!place.is_nan(), !place.is_nan()),
            };
            if stated {
                self.origins.state(number);
            }
            if !kept {
                *place = self.values.get(number).copied().unwrap_or(f32::NAN);
            }
        }
        absent.retain(filled);
    }

    /// Where the values came from.
    pub(crate) fn origins(&self) -> &Origins {
        &self.origins
    }
}
