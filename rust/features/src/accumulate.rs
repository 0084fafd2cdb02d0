//! What a tile holds of its events, by aggregate.

use crate::definition::Aggregate;
use crate::distinct::Sketch;

/// The part of an event that one feature aggregates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Time of the event.
    pub(crate) at_us: i64,
    /// The number; 1 for counts.
    pub(crate) number: f64,
    /// Register and rank of the text, for distinct values.
    pub(crate) place: (u16, u8),
}

/// The events of one tile.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    Count(u32),
    Sum(f64),
    Mean { sum: f64, count: u32 },
    Least(f64),
    Greatest(f64),
    Distinct(Sketch),
    First(i64),
    Last(i64),
}

impl Cell {
    /// A cell with one event.
    pub(crate) fn of(aggregate: Aggregate, part: Part) -> Cell {
        match aggregate {
            Aggregate::Count | Aggregate::DecayedCount | Aggregate::DecayedSum => Cell::Count(1),
            Aggregate::Sum => Cell::Sum(part.number),
            Aggregate::Mean => Cell::Mean { sum: part.number, count: 1 },
            Aggregate::Min => Cell::Least(part.number),
            Aggregate::Max => Cell::Greatest(part.number),
            Aggregate::Distinct => {
                let mut sketch = Sketch::default();
                sketch.add(part.place);
                Cell::Distinct(sketch)
            }
            Aggregate::SecondsSinceFirst => Cell::First(part.at_us),
            Aggregate::SecondsSinceLast => Cell::Last(part.at_us),
        }
    }

    pub(crate) fn add(&mut self, part: Part) {
        match self {
            Cell::Count(count) => *count = count.saturating_add(1),
            Cell::Sum(sum) => *sum += part.number,
            Cell::Mean { sum, count } => {
                *sum += part.number;
                *count = count.saturating_add(1);
            }
            Cell::Least(least) => *least = least.min(part.number),
            Cell::Greatest(greatest) => *greatest = greatest.max(part.number),
            Cell::Distinct(sketch) => sketch.add(part.place),
            Cell::First(at) => *at = part.at_us.min(*at),
            Cell::Last(at) => *at = part.at_us.max(*at),
        }
    }

    /// Heap memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        if let Cell::Distinct(sketch) = self { sketch.bytes() } else { 0 }
    }
}
