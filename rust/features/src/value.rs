//! The value of a feature, from the state of its slot.

use crate::SECOND;
use crate::bytes::{f64_at, i64_at, u16_at, u32_at};
use crate::definition::{Aggregate, Window};
use crate::distinct::Union;
use crate::slot::{Column, Form, Slot, TILE};
use crate::tiles::{HEAD, decay, sketch_row};

/// The value as of `now_us` from the state of the slot; `None` if no event counts and the feature has its default then.
pub(crate) fn of(window: &Window, slot: &Slot, state: &[u8], now_us: i64) -> Option<f64> {
    if slot.form == Form::Decayed {
        let (value, at_us) = (f64_at(state, 0), i64_at(state, 8));
        return Some(if at_us == i64::MIN { 0.0 } else { value * decay(slot, now_us - at_us) });
    }
    let last = now_us.saturating_sub(window.delay * SECOND).div_euclid(slot.length_us);
    let first = last - window.window / window.tile + 1;
    let limit = |tile: i64| tile.clamp(-1, i64::from(u32::MAX));
    let (first, last) = (limit(first), limit(last));
    if slot.form == Form::Sketches {
        return Some(distinct(state, first, last));
    }
    let stride = slot.stride();
    let rows = state.get(HEAD..).unwrap_or_default();
    let tile = |row: usize| i64::from(u32_at(rows, row * stride));
    let (mut low, mut high) = (0, usize::from(u16_at(state, 0)));
    let end = high;
    while low < high {
        let middle = low.midpoint(high);
        if tile(middle) < first {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let counted = (low..end).take_while(|row| tile(*row) <= last).map(|row| row * stride);
    aggregate(window.aggregate, slot, rows, counted, now_us)
}

fn aggregate(
    of: Aggregate,
    slot: &Slot,
    rows: &[u8],
    counted: impl Iterator<Item = usize>,
    now_us: i64,
) -> Option<f64> {
    let place = |column| slot.column(column).unwrap_or(0);
    let count = place(Column::Count);
    let seconds = |at_us: i64| (now_us.saturating_sub(at_us) as f64 / SECOND as f64).max(0.0);
    match of {
        Aggregate::Count => Some(counted.map(|row| u64::from(u32_at(rows, row + count))).sum::<u64>() as f64),
        Aggregate::Sum => {
            let at = place(Column::Sum);
            Some(counted.map(|row| f64_at(rows, row + at)).fold(0.0, |sum, number| sum + number))
        }
        Aggregate::Mean => {
            let at = place(Column::Sum);
            let (sum, events) = counted.fold((0.0, 0_u64), |(sum, events), row| {
                (sum + f64_at(rows, row + at), events + u64::from(u32_at(rows, row + count)))
            });
            (events > 0).then(|| sum / events as f64)
        }
        Aggregate::Min => counted.map(|row| f64_at(rows, row + place(Column::Least))).reduce(f64::min),
        Aggregate::Max => counted.map(|row| f64_at(rows, row + place(Column::Greatest))).reduce(f64::max),
        Aggregate::SecondsSinceFirst => {
            counted.map(|row| i64_at(rows, row + place(Column::First))).min().map(seconds)
        }
        Aggregate::SecondsSinceLast => {
            counted.map(|row| i64_at(rows, row + place(Column::Last))).max().map(seconds)
        }
        Aggregate::Distinct | Aggregate::DecayedCount | Aggregate::DecayedSum => None,
    }
}

fn distinct(state: &[u8], first: i64, last: i64) -> f64 {
    let mut union = Union::new();
    let mut at = HEAD;
    for _ in 0..u16_at(state, 0) {
        let tile = i64::from(u32_at(state, at));
        if tile > last {
            break;
        }
        if tile >= first {
            union.add(state.get(at + TILE..).unwrap_or_default());
        }
        at += sketch_row(state, at);
    }
    union.estimate()
}
