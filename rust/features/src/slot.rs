//! Slots: what the features of an entity store of its events. Features with the same events, field and tile share one.

use crate::SECOND;
use crate::definition::{Aggregate, FeatureSet, Window};
use crate::event::{self, Fields};

/// What a row of a slot has, in this order: each a bit of `Slot::columns`.
const COLUMNS: usize = 6;
/// Bytes of each column.
const WIDTHS: [usize; COLUMNS] = [4, 8, 8, 8, 8, 8];
/// Bytes of the index of a tile.
pub(crate) const TILE: usize = 4;

/// A column of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    Count,
    Sum,
    Least,
    Greatest,
    First,
    Last,
}

/// How the events of a slot are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A row with fixed columns for each tile with events.
    Rows,
    /// A sketch of distinct values for each tile with events.
    Sketches,
    /// One sum whose weights halve.
    Decayed,
}

/// The events of one kind that hold the same conditions, by tile.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Slot {
    /// Position of the kind in the set.
    event: usize,
    /// Positions of fields with their allowed values.
    conditions: Vec<(usize, Vec<String>)>,
    /// Position of the field that is aggregated.
    of: Option<usize>,
    pub(crate) form: Form,
    /// Length of a tile, or the half-life, in microseconds.
    pub(crate) length_us: i64,
    /// Number of tiles that a read may count, the current one included.
    keep: i64,
    columns: u8,
}

/// The part of an event that one slot stores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Time of the event.
    pub(crate) at_us: i64,
    /// The number; 1 for counts.
    pub(crate) number: f64,
    /// Register and rank of the text, for distinct values.
    pub(crate) place: (u16, u8),
}

// === impl Slot ===

impl Slot {
    /// The slots of some features of a set, and the position of each feature's slot.
    pub(crate) fn all(set: &FeatureSet, features: &[Window]) -> (Vec<Slot>, Vec<usize>) {
        let mut slots: Vec<Slot> = Vec::new();
        let positions = features.iter().map(|window| {
            let new = Slot::of(set, window);
            if let Some(at) = slots.iter().position(|slot| slot.shares(&new)) {
                if let Some(slot) = slots.get_mut(at) {
                    slot.columns |= new.columns;
                    slot.keep = slot.keep.max(new.keep);
                }
                return at;
            }
            slots.push(new);
            slots.len() - 1
        });
        let positions = positions.collect();
        (slots, positions)
    }

    fn of(set: &FeatureSet, window: &Window) -> Slot {
        use Aggregate::{DecayedCount, DecayedSum, Distinct};
        let form = match window.aggregate {
            Distinct => Form::Sketches,
            DecayedCount | DecayedSum => Form::Decayed,
            _ => Form::Rows,
        };
        let tile = if form == Form::Decayed { window.window } else { window.tile };
        // A checked set declares every kind and field that its features name.
        let event = set.events().keys().position(|kind| *kind == window.event).unwrap_or(usize::MAX);
        let field = |name: &str| {
            let kind = set.events().get(&window.event);
            kind.and_then(|kind| event::position(kind, name)).unwrap_or(usize::MAX)
        };
        let conditions = window.conditions.iter().map(|(name, values)| (field(name), values.clone()));
        Slot {
            event,
            conditions: conditions.collect(),
            of: (!window.of.is_empty()).then(|| field(&window.of)),
            form,
            length_us: tile * SECOND,
            keep: (window.window + window.delay) / tile.max(1),
            columns: columns(window.aggregate).iter().fold(0, |all, column| all | 1 << *column as u8),
        }
    }

    fn shares(&self, other: &Slot) -> bool {
        (self.form, self.length_us, self.event, self.of, &self.conditions)
            == (other.form, other.length_us, other.event, other.of, &other.conditions)
    }

    /// Whether the slot stores events of a kind.
    pub(crate) fn reads(&self, kind: usize) -> bool {
        self.event == kind
    }

    /// The part of an event that the slot stores; `None` if the event does not count for it.
    pub(crate) fn part(&self, event: &Fields<'_>) -> Option<Part> {
        if self.event != event.kind {
            return None;
        }
        let holds = |(field, values): &(usize, Vec<String>)| {
            event.text(*field).is_some_and(|text| values.iter().any(|value| value == text))
        };
        if !self.conditions.iter().all(holds) {
            return None;
        }
        let mut part = Part { at_us: event.occurred_at_us, number: 1.0, place: (0, 0) };
        match (self.form, self.of) {
            (_, None) => {}
            (Form::Sketches, Some(of)) => part.place = event.place(of)?,
            (_, Some(of)) => part.number = event.number(of)?,
        }
        Some(part)
    }

    /// Index of the tile of a time. Times before 1970 are in the first tile.
    pub(crate) fn tile(&self, at_us: i64) -> u32 {
        at_us.div_euclid(self.length_us).clamp(0, i64::from(u32::MAX)) as u32
    }

    /// Index of the first tile that a read at this time or later may count.
    pub(crate) fn first(&self, now_us: i64) -> u32 {
        (now_us.div_euclid(self.length_us) - self.keep + 1).clamp(0, i64::from(u32::MAX)) as u32
    }

    /// Bytes of a row.
    pub(crate) fn stride(&self) -> usize {
        TILE + self.offset(COLUMNS)
    }

    /// Position of a column in a row; `None` if rows do not have it.
    pub(crate) fn column(&self, column: Column) -> Option<usize> {
        (self.columns & 1 << column as u8 != 0).then(|| TILE + self.offset(column as usize))
    }

    fn offset(&self, column: usize) -> usize {
        let before = WIDTHS.iter().enumerate().take(column);
        before.filter(|(at, _)| self.columns & 1 << at != 0).map(|(_, width)| width).sum()
    }
}

/// The columns that an aggregate reads.
fn columns(aggregate: Aggregate) -> &'static [Column] {
    match aggregate {
        Aggregate::Count => &[Column::Count],
        Aggregate::Sum => &[Column::Sum],
        Aggregate::Mean => &[Column::Count, Column::Sum],
        Aggregate::Min => &[Column::Least],
        Aggregate::Max => &[Column::Greatest],
        Aggregate::SecondsSinceFirst => &[Column::First],
        Aggregate::SecondsSinceLast => &[Column::Last],
        Aggregate::Distinct | Aggregate::DecayedCount | Aggregate::DecayedSum => &[],
    }
}
