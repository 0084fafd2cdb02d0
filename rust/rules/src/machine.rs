//! Runs instructions.

use crate::code::{Cell, Goal, Instruction, Join, OTHER, Register, UNKNOWN};
use crate::lists::{KeySet, Lists};
use crate::lower::Tables;
use crate::value::{Arithmetic, ErrorKind, double, int, truncate};

/// Runs the code of one expression. `lists` is `None` if they have another key than the program.
#[inline]
pub(crate) fn run(code: &[Instruction], cells: &mut [Cell], tables: &Tables, lists: Option<&Lists>) {
    let mut next = 0;
    while let Some(&instruction) = code.get(next) {
        next += 1;
        match instruction {
            Instruction::Copy { to, a } => put(cells, to, get(cells, a)),
            Instruction::Not { to, a } => {
                let a = get(cells, a);
                put(cells, to, Cell { bits: a.bits ^ 1, ..a });
            }
            Instruction::NegateInt { to, a } => one(cells, to, a, |bits| {
                (bits as i64).checked_neg().map_or(error(ErrorKind::Overflow), Cell::int)
            }),
            Instruction::NegateDouble { to, a } => {
                one(cells, to, a, |bits| Cell::double(-f64::from_bits(bits)));
            }
            Instruction::AddInt { to, a, b } => ints(cells, to, a, b, Arithmetic::Add),
            Instruction::SubtractInt { to, a, b } => ints(cells, to, a, b, Arithmetic::Subtract),
            Instruction::MultiplyInt { to, a, b } => ints(cells, to, a, b, Arithmetic::Multiply),
            Instruction::DivideInt { to, a, b } => ints(cells, to, a, b, Arithmetic::Divide),
            Instruction::RemainderInt { to, a, b } => ints(cells, to, a, b, Arithmetic::Remainder),
            Instruction::AddDouble { to, a, b } => doubles(cells, to, a, b, Arithmetic::Add),
            Instruction::SubtractDouble { to, a, b } => doubles(cells, to, a, b, Arithmetic::Subtract),
            Instruction::MultiplyDouble { to, a, b } => doubles(cells, to, a, b, Arithmetic::Multiply),
            Instruction::DivideDouble { to, a, b } => doubles(cells, to, a, b, Arithmetic::Divide),
            Instruction::EqualBits { goal, a, b } => {
                let cell = pair(cells, a, b, |a, b| Cell::bool(a == b));
                settle(cells, goal, cell, &mut next);
            }
            Instruction::NotEqualBits { goal, a, b } => {
                let cell = pair(cells, a, b, |a, b| Cell::bool(a != b));
                settle(cells, goal, cell, &mut next);
            }
            Instruction::LessInt { goal, a, b } => {
                let cell = pair(cells, a, b, |a, b| Cell::bool((a as i64) < (b as i64)));
                settle(cells, goal, cell, &mut next);
            }
            Instruction::LessEqualInt { goal, a, b } => {
                let cell = pair(cells, a, b, |a, b| Cell::bool(a as i64 <= b as i64));
                settle(cells, goal, cell, &mut next);
            }
            Instruction::EqualDouble { goal, a, b } => {
                let cell = floats(cells, a, b, |a, b| a == b);
                settle(cells, goal, cell, &mut next);
            }
            Instruction::NotEqualDouble { goal, a, b } => {
                let cell = floats(cells, a, b, |a, b| a != b);
                settle(cells, goal, cell, &mut next);
            }
            Instruction::LessDouble { goal, a, b } => {
                let cell = floats(cells, a, b, |a, b| a < b);
                settle(cells, goal, cell, &mut next);
            }
            Instruction::LessEqualDouble { goal, a, b } => {
                let cell = floats(cells, a, b, |a, b| a <= b);
                settle(cells, goal, cell, &mut next);
            }
            Instruction::EqualText { goal, a, b } => {
                let cell = pair(cells, a, b, equal_text);
                settle(cells, goal, cell, &mut next);
            }
            Instruction::NotEqualText { goal, a, b } => {
                let equal = pair(cells, a, b, equal_text);
                settle(cells, goal, Cell { bits: equal.bits ^ 1, ..equal }, &mut next);
            }
            Instruction::LessText { goal, a, b } => {
                let cell = texts(cells, a, b, |a, b| a < b);
                settle(cells, goal, cell, &mut next);
            }
            Instruction::LessEqualText { goal, a, b } => {
                let cell = texts(cells, a, b, |a, b| a <= b);
                settle(cells, goal, cell, &mut next);
            }
            Instruction::InInts { goal, a, set } => {
                let set = &tables.ints[usize::from(set)];
                let cell = single(cells, a, |bits| Cell::bool(set.binary_search(&(bits as i64)).is_ok()));
                settle(cells, goal, cell, &mut next);
            }
            Instruction::InDoubles { goal, a, set } => {
                let set = &tables.doubles[usize::from(set)];
                let cell = single(cells, a, |bits| {
                    // The set has 0.0 and no -0.0.
                    let value = f64::from_bits(bits) + 0.0;
                    Cell::bool(set.binary_search_by(|number| number.total_cmp(&value)).is_ok())
                });
                settle(cells, goal, cell, &mut next);
            }
            Instruction::InTexts { goal, a, set } => {
                let set = &tables.bits[usize::from(set)];
                let cell = single(cells, a, |number| Cell::bool(number != OTHER && bit(set, number)));
                settle(cells, goal, cell, &mut next);
            }
            Instruction::TestText { goal, a, set } => {
                let set = &tables.bits[usize::from(set)];
                let cell = single(cells, a, |number| vocabulary(number, || Cell::bool(bit(set, number))));
                settle(cells, goal, cell, &mut next);
            }
            Instruction::SizeText { to, a } => one(cells, to, a, |number| {
                vocabulary(number, || {
                    tables.sizes.get(number as usize).map_or(Cell::MISSING, |size| Cell::int(*size))
                })
            }),
            Instruction::ListText { to, a, list } => one(cells, to, a, |number| {
                vocabulary(number, || {
                    let hash = tables.hashes.get(number as usize).copied().unwrap_or_default();
                    look_up(lists, list, |set, _| set.contains(hash))
                })
            }),
            Instruction::ListKey { to, a, list } => {
                one(cells, to, a, |hash| look_up(lists, list, |set, _| set.contains(hash)));
            }
            Instruction::ListInt { to, a, list } => one(cells, to, a, |bits| {
                look_up(lists, list, |set, lists| set.contains(lists.key().int(bits as i64)))
            }),
            Instruction::Has { to, a } => {
                let a = get(cells, a);
                put(cells, to, Cell::bool(a.state != UNKNOWN));
            }
            Instruction::ToInt { to, a } => {
                one(cells, to, a, |bits| truncate(f64::from_bits(bits)).map_or_else(error, Cell::int))
            }
            Instruction::ToDouble { to, a } => one(cells, to, a, |bits| Cell::double(bits as i64 as f64)),
            Instruction::Call { to, of, function } => {
                let of = of.map(|register| get(cells, register));
                let state = of.iter().map(|cell| cell.state).max().unwrap_or_default();
                let cell = match state {
                    0 => function
                        .apply(of.map(|cell| f64::from_bits(cell.bits)))
                        .map_or_else(error, Cell::double),
                    state => Cell { bits: 0, state },
                };
                put(cells, to, cell);
            }
            Instruction::And { to, a, end } => {
                settle(cells, Goal { join: Join::And, to, end }, get(cells, a), &mut next);
            }
            Instruction::Or { to, a, end } => {
                settle(cells, Goal { join: Join::Or, to, end }, get(cells, a), &mut next);
            }
            Instruction::IfFalse { a, end } => {
                if get(cells, a).is_false() {
                    next = usize::from(end);
                }
            }
            Instruction::IfTrue { a, end } => {
                if get(cells, a).is_true() {
                    next = usize::from(end);
                }
            }
            Instruction::Require { to, a, end } => {
                let a = get(cells, a);
                if a.state != 0 {
                    put(cells, to, a);
                    next = usize::from(end);
                }
            }
            Instruction::Go { end } => next = usize::from(end),
        }
    }
}

#[inline]
fn get(cells: &[Cell], register: Register) -> Cell {
    cells[usize::from(register)]
}

#[inline]
fn put(cells: &mut [Cell], register: Register, cell: Cell) {
    cells[usize::from(register)] = cell;
}

fn error(kind: ErrorKind) -> Cell {
    Cell { bits: 0, state: kind as u8 }
}

/// Puts the result of a test where it belongs.
#[inline]
fn settle(cells: &mut [Cell], goal: Goal, cell: Cell, next: &mut usize) {
    let decided = match goal.join {
        Join::Set => false,
        Join::FirstAnd | Join::And => cell.is_false(),
        Join::FirstOr | Join::Or => cell.is_true(),
    };
    if decided {
        *next = usize::from(goal.end);
    }
    let result = match goal.join {
        // What was joined before does not decide, so the result is neutral or has the greater state.
        Join::And if !decided => Cell { bits: 1, state: get(cells, goal.to).state.max(cell.state) },
        Join::Or if !decided => Cell { bits: 0, state: get(cells, goal.to).state.max(cell.state) },
        _ => cell,
    };
    put(cells, goal.to, result);
}

/// Applies a function to a value that is known.
#[inline]
fn single(cells: &[Cell], a: Register, apply: impl FnOnce(u64) -> Cell) -> Cell {
    let a = get(cells, a);
    if a.state == 0 { apply(a.bits) } else { a }
}

/// Applies a function to two values that are known.
#[inline]
fn pair(cells: &[Cell], a: Register, b: Register, apply: impl FnOnce(u64, u64) -> Cell) -> Cell {
    let (a, b) = (get(cells, a), get(cells, b));
    let state = a.state.max(b.state);
    if state == 0 { apply(a.bits, b.bits) } else { Cell { bits: 0, state } }
}

#[inline]
fn one(cells: &mut [Cell], to: Register, a: Register, apply: impl FnOnce(u64) -> Cell) {
    let cell = single(cells, a, apply);
    put(cells, to, cell);
}

#[inline]
fn ints(cells: &mut [Cell], to: Register, a: Register, b: Register, operation: Arithmetic) {
    let cell = pair(cells, a, b, |a, b| int(operation, a as i64, b as i64).map_or_else(error, Cell::int));
    put(cells, to, cell);
}

#[inline]
fn doubles(cells: &mut [Cell], to: Register, a: Register, b: Register, operation: Arithmetic) {
    let cell =
        pair(cells, a, b, |a, b| Cell::double(double(operation, f64::from_bits(a), f64::from_bits(b))));
    put(cells, to, cell);
}

#[inline]
fn floats(cells: &[Cell], a: Register, b: Register, holds: impl FnOnce(f64, f64) -> bool) -> Cell {
    pair(cells, a, b, |a, b| Cell::bool(holds(f64::from_bits(a), f64::from_bits(b))))
}

#[inline]
fn texts(cells: &[Cell], a: Register, b: Register, holds: impl FnOnce(u64, u64) -> bool) -> Cell {
    pair(cells, a, b, |a, b| vocabulary(a.max(b), || Cell::bool(holds(a, b))))
}

/// Two strings outside the vocabulary may be equal or not.
#[inline]
fn equal_text(a: u64, b: u64) -> Cell {
    if a == OTHER && b == OTHER { Cell::MISSING } else { Cell::bool(a == b) }
}

/// The result of a test of a string is unknown for strings outside the vocabulary.
#[inline]
fn vocabulary(number: u64, test: impl FnOnce() -> Cell) -> Cell {
    if number == OTHER { Cell::MISSING } else { test() }
}

#[inline]
fn bit(set: &[u64], number: u64) -> bool {
    set.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
}

#[inline]
fn look_up(lists: Option<&Lists>, list: u16, contains: impl FnOnce(&KeySet, &Lists) -> bool) -> Cell {
    match lists.and_then(|lists| Some((lists, lists.set(list)?))) {
        Some((lists, set)) => Cell::bool(contains(set, lists)),
        None => error(ErrorKind::NoList),
    }
}
