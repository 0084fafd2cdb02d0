//! The state of one feature of one entity.

use crate::SECOND;
use crate::accumulate::{Cell, Part};
use crate::definition::{Aggregate, Window};
use crate::distinct::Union;

/// The state of one feature of one entity.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tiles {
    /// The tiles with events, by their index.
    Windowed(Vec<(i64, Cell)>),
    /// The sum scaled to `at_us`, the greatest time of an event.
    Decayed { value: f64, at_us: i64 },
    /// A decayed sum without events.
    Empty,
}

// === impl Tiles ===

impl Tiles {
    pub(crate) fn new(window: &Window) -> Tiles {
        if window.aggregate.is_decayed() { Tiles::Empty } else { Tiles::Windowed(Vec::new()) }
    }

    /// Adds an event that was received at `received_at_us`. Tiles that no later read counts are removed.
    pub(crate) fn add(&mut self, window: &Window, part: Part, received_at_us: i64) {
        match self {
            Tiles::Windowed(cells) => {
                let first = first_tile(window, received_at_us);
                let expired = cells.iter().take_while(|(tile, _)| *tile < first).count();
                cells.drain(..expired);
                let tile = part.at_us.div_euclid(window.tile * SECOND);
                if tile < first {
                    return;
                }
                match cells.binary_search_by_key(&tile, |(known, _)| *known) {
                    Ok(at) => {
                        if let Some((_, cell)) = cells.get_mut(at) {
                            cell.add(part);
                        }
                    }
                    Err(at) => cells.insert(at, (tile, Cell::of(window.aggregate, part))),
                }
            }
            Tiles::Empty => *self = Tiles::Decayed { value: part.number, at_us: part.at_us },
            Tiles::Decayed { value, at_us } => {
                if part.at_us > *at_us {
                    *value = *value * decay(window, part.at_us - *at_us) + part.number;
                    *at_us = part.at_us;
                } else {
                    *value += part.number * decay(window, *at_us - part.at_us);
                }
            }
        }
    }

    /// The value as of `now_us`; `None` if no event counts and the feature has its default then.
    pub(crate) fn value(&self, window: &Window, now_us: i64) -> Option<f64> {
        let cells = match self {
            Tiles::Windowed(cells) => cells,
            Tiles::Empty => return Some(0.0),
            Tiles::Decayed { value, at_us } => return Some(value * decay(window, now_us - at_us)),
        };
        let (first, last) = (first_tile(window, now_us), last_tile(window, now_us));
        let from = cells.partition_point(|(tile, _)| *tile < first);
        let counted = cells.iter().skip(from).take_while(|(tile, _)| *tile <= last).map(|(_, cell)| cell);
        aggregate(window.aggregate, counted, now_us)
    }

    /// Heap memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Tiles::Windowed(cells) => {
                cells.capacity() * size_of::<(i64, Cell)>()
                    + cells.iter().map(|(_, cell)| cell.bytes()).sum::<usize>()
            }
            Tiles::Decayed { .. } | Tiles::Empty => 0,
        }
    }
}

/// Index of the last counted tile at a time.
fn last_tile(window: &Window, now_us: i64) -> i64 {
    (now_us - window.delay * SECOND).div_euclid(window.tile * SECOND)
}

/// Index of the first counted tile at a time.
fn first_tile(window: &Window, now_us: i64) -> i64 {
    last_tile(window, now_us) - window.window / window.tile + 1
}

/// The weight of an event of this age; above 1 if it is later than the time of the read.
fn decay(window: &Window, age_us: i64) -> f64 {
    (-(age_us as f64) / (window.window as f64 * SECOND as f64)).exp2()
}

fn aggregate<'a>(of: Aggregate, cells: impl Iterator<Item = &'a Cell>, now_us: i64) -> Option<f64> {
    let seconds = |at_us: i64| ((now_us - at_us) as f64 / SECOND as f64).max(0.0);
    let (mut count, mut sum) = (0_u64, 0.0);
    let (mut least, mut greatest) = (f64::INFINITY, f64::NEG_INFINITY);
    let (mut first, mut last) = (i64::MAX, i64::MIN);
    let mut union = (of == Aggregate::Distinct).then(Union::new);
    for cell in cells {
        match cell {
            Cell::Count(number) => count += u64::from(*number),
            Cell::Sum(number) => sum += number,
            Cell::Mean { sum: number, count: events } => {
                sum += number;
                count += u64::from(*events);
            }
            Cell::Least(number) => least = least.min(*number),
            Cell::Greatest(number) => greatest = greatest.max(*number),
            Cell::First(at) => first = first.min(*at),
            Cell::Last(at) => last = last.max(*at),
            Cell::Distinct(sketch) => {
                if let Some(union) = &mut union {
                    union.add(sketch);
                }
            }
        }
    }
    match of {
        Aggregate::Count | Aggregate::DecayedCount | Aggregate::DecayedSum => Some(count as f64),
        Aggregate::Sum => Some(sum),
        Aggregate::Mean => (count > 0).then(|| sum / count as f64),
        Aggregate::Min => least.is_finite().then_some(least),
        Aggregate::Max => greatest.is_finite().then_some(greatest),
        Aggregate::Distinct => union.map(|union| union.estimate()),
        Aggregate::SecondsSinceFirst => (first != i64::MAX).then(|| seconds(first)),
        Aggregate::SecondsSinceLast => (last != i64::MIN).then(|| seconds(last)),
    }
}
