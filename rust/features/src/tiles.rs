//! The state of one slot of one entity, as bytes: what an event changes.
//!
//! A slot of rows is their number (u16) and the rows, by tile. A slot of sketches is the same with a sketch for each tile.
//! A decayed slot is its sum (f64) and the greatest time of an event (i64), to which the sum is scaled.

use crate::bytes::{f64_at, i64_at, insert_zeros, put, u16_at, u32_at};
use crate::distinct;
use crate::slot::{Column, Form, Part, Slot, TILE};

/// Bytes of the number of rows.
pub(crate) const HEAD: usize = 2;
/// Bytes of a decayed slot.
const DECAYED: usize = 16;

/// Appends the state of a slot without events.
pub(crate) fn empty(slot: &Slot, to: &mut Vec<u8>) {
    match slot.form {
        Form::Rows | Form::Sketches => to.extend_from_slice(&0_u16.to_le_bytes()),
        Form::Decayed => {
            to.extend_from_slice(&0_f64.to_le_bytes());
            to.extend_from_slice(&i64::MIN.to_le_bytes());
        }
    }
}

/// Length of the state of a slot at the beginning of `bytes`.
pub(crate) fn length(slot: &Slot, bytes: &[u8]) -> usize {
    let rows = usize::from(u16_at(bytes, 0));
    match slot.form {
        Form::Rows => HEAD + rows * slot.stride(),
        Form::Sketches => (0..rows).fold(HEAD, |at, _| at + sketch_row(bytes, at)),
        Form::Decayed => DECAYED,
    }
}

/// Length of a row with a sketch.
pub(crate) fn sketch_row(bytes: &[u8], at: usize) -> usize {
    TILE + distinct::length(bytes.get(at + TILE..).unwrap_or_default())
}

/// Adds a part of an event to the slot whose state starts at `at`. Rows that no later read counts are removed.
pub(crate) fn add(slot: &Slot, data: &mut Vec<u8>, at: usize, part: Part, received_at_us: i64) {
    if slot.form == Form::Decayed {
        return add_decayed(slot, data, at, part);
    }
    let first = slot.first(received_at_us);
    let mut rows = u16_at(data, at);
    let start = at + HEAD;
    let row = |data: &[u8], from: usize| match slot.form {
        Form::Sketches => sketch_row(data, from),
        _ => slot.stride(),
    };
    // The first of the rows that stay.
    let mut from = start;
    while rows > 0 && (u32_at(data, from) < first || rows == u16::MAX) {
        from += row(data, from);
        rows -= 1;
    }
    if from > start {
        data.drain(start..from);
    }
    let tile = slot.tile(part.at_us);
    if tile >= first {
        let from = match slot.form {
            Form::Rows => find_row(data, start, usize::from(rows), slot.stride(), tile),
            _ => {
                let (mut from, mut left) = (start, rows);
                while left > 0 && u32_at(data, from) < tile {
                    from += sketch_row(data, from);
                    left -= 1;
                }
                if left > 0 && u32_at(data, from) == tile { Ok(from) } else { Err(from) }
            }
        };
        let from = from.unwrap_or_else(|from| {
            rows += 1;
            insert(slot, data, from, tile);
            from
        });
        match slot.form {
            Form::Sketches => distinct::add(data, from + TILE, part.place),
            _ => add_to_row(slot, data, from, part),
        }
    }
    put(data, at, rows.to_le_bytes());
}

/// The number of bytes by which [`add`] extends the state at the beginning of `bytes` at most, if no sketch becomes dense.
pub(crate) fn growth(slot: &Slot, bytes: &[u8], part: Part) -> usize {
    let (rows, tile) = (usize::from(u16_at(bytes, 0)), slot.tile(part.at_us));
    match slot.form {
        Form::Decayed => 0,
        Form::Rows => {
            let found = find_row(bytes, HEAD, rows, slot.stride(), tile);
            if found.is_ok() { 0 } else { slot.stride() }
        }
        // A row for a new tile, and a register.
        Form::Sketches => TILE + HEAD + HEAD,
    }
}

/// The place of the row of a tile, or where it belongs. Most events are of the newest tile.
fn find_row(data: &[u8], start: usize, rows: usize, stride: usize, tile: u32) -> Result<usize, usize> {
    let tile_of = |row: usize| u32_at(data, start + row * stride);
    let (mut low, mut high) = (0, rows);
    if rows > 0 && tile_of(rows - 1) <= tile {
        low = if tile_of(rows - 1) == tile { rows - 1 } else { rows };
    }
    while low < high {
        let middle = low.midpoint(high);
        if tile_of(middle) < tile {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let place = start + low * stride;
    if low < rows && tile_of(low) == tile { Ok(place) } else { Err(place) }
}

/// Inserts a row without events.
fn insert(slot: &Slot, data: &mut Vec<u8>, from: usize, tile: u32) {
    let length = match slot.form {
        Form::Sketches => TILE + HEAD,
        _ => slot.stride(),
    };
    insert_zeros(data, from, length);
    put(data, from, tile.to_le_bytes());
    for (column, start) in [
        (Column::Least, f64::INFINITY.to_le_bytes()),
        (Column::Greatest, f64::NEG_INFINITY.to_le_bytes()),
        (Column::First, i64::MAX.to_le_bytes()),
        (Column::Last, i64::MIN.to_le_bytes()),
    ] {
        if let Some(place) = slot.column(column) {
            put(data, from + place, start);
        }
    }
}

fn add_to_row(slot: &Slot, data: &mut [u8], from: usize, part: Part) {
    let place = |column| slot.column(column).map(|place| from + place);
    if let Some(at) = place(Column::Count) {
        put(data, at, u32_at(data, at).saturating_add(1).to_le_bytes());
    }
    if let Some(at) = place(Column::Sum) {
        put(data, at, (f64_at(data, at) + part.number).to_le_bytes());
    }
    if let Some(at) = place(Column::Least) {
        put(data, at, f64_at(data, at).min(part.number).to_le_bytes());
    }
    if let Some(at) = place(Column::Greatest) {
        put(data, at, f64_at(data, at).max(part.number).to_le_bytes());
    }
    if let Some(at) = place(Column::First) {
        put(data, at, i64_at(data, at).min(part.at_us).to_le_bytes());
    }
    if let Some(at) = place(Column::Last) {
        put(data, at, i64_at(data, at).max(part.at_us).to_le_bytes());
    }
}

fn add_decayed(slot: &Slot, data: &mut [u8], at: usize, part: Part) {
    let (value, known_us) = (f64_at(data, at), i64_at(data, at + 8));
    let (value, known_us) = if known_us == i64::MIN {
        (part.number, part.at_us)
    } else if part.at_us > known_us {
        (value * decay(slot, part.at_us - known_us) + part.number, part.at_us)
    } else {
        (value + part.number * decay(slot, known_us - part.at_us), known_us)
    };
    put(data, at, value.to_le_bytes());
    put(data, at + 8, known_us.to_le_bytes());
}

/// The weight of an event of this age; above 1 if it is later than the time of the read.
pub(crate) fn decay(slot: &Slot, age_us: i64) -> f64 {
    (-(age_us as f64) / slot.length_us as f64).exp2()
}
