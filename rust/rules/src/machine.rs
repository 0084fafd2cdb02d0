//! Runs instructions.

use crate::code::{Cell, Goal, Instruction, Join, OTHER, Register, UNKNOWN};
use crate::custom::{self, Calling};
use crate::functions::MAX_OPERANDS;
use crate::lists::{KeySet, Lists};
use crate::lower::Tables;
use crate::value::{Arithmetic, ErrorKind, double, int, truncate};

/// When to jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    True,
    False,
    /// There is no value.
    Lacking,
}

/// The registers of one request, or of several requests that run the same code together.
///
/// Requests may take different jumps. Jumps only go forward, so a request that has jumped waits until the others reach
/// its target.
pub(crate) trait Registers {
    /// Admits the requests that have jumped to this position.
    fn arrive(&mut self, at: usize);
    /// Copies a register.
    fn copy(&mut self, to: Register, a: Register);
    /// Writes a function of one register, which is no bool.
    fn map(&mut self, to: Register, a: Register, apply: impl Fn(Cell) -> Cell);
    /// Writes a function of two registers, which is no bool.
    fn combine(&mut self, to: Register, a: Register, b: Register, apply: impl Fn(Cell, Cell) -> Cell);
    /// Writes a function of several registers, which is no bool.
    fn call(
        &mut self,
        to: Register,
        of: [Register; MAX_OPERANDS],
        apply: impl Fn([Cell; MAX_OPERANDS]) -> Cell,
    );
    /// Writes a function of registers, which is no bool. It is called once for each request, with its number.
    fn call_declared(&mut self, to: Register, of: &[Register], apply: impl FnMut(usize, &[Cell]) -> Cell);
    /// Puts a test of one register where its goal says, and jumps where that decides.
    fn test(&mut self, goal: Goal, next: &mut usize, a: Register, apply: impl Fn(Cell) -> Cell);
    /// Puts a test of two registers where its goal says, and jumps where that decides.
    fn compare(
        &mut self,
        goal: Goal,
        next: &mut usize,
        a: Register,
        b: Register,
        apply: impl Fn(Cell, Cell) -> Cell,
    );
    /// Jumps where a bool register is as `when` says, and copies it to `to` there if that is given.
    fn jump(&mut self, when: When, end: u16, next: &mut usize, a: Register, to: Option<Register>);
    /// Jumps.
    fn go(&mut self, end: u16, next: &mut usize);
}

/// Runs the code of one expression. `lists` is `None` if they have another key than the program. `calls` evaluates the
/// declared functions that the program uses.
#[inline]
pub(crate) fn run(
    code: &[Instruction],
    cells: &mut (impl Registers + ?Sized),
    tables: &Tables,
    lists: Option<&Lists>,
    calls: &mut Calling,
) {
    let mut next = 0;
    while let Some(&instruction) = code.get(next) {
        cells.arrive(next);
        next += 1;
        match instruction {
            Instruction::Copy { to, a } => cells.copy(to, a),
            Instruction::Not { to, a } => {
                cells.test(Goal::set(to), &mut next, a, |a| Cell { bits: a.bits ^ 1, ..a });
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
                cells.compare(goal, &mut next, a, b, |a, b| pair(a, b, |a, b| Cell::bool(a == b)));
            }
            Instruction::NotEqualBits { goal, a, b } => {
                cells.compare(goal, &mut next, a, b, |a, b| pair(a, b, |a, b| Cell::bool(a != b)));
            }
            Instruction::LessInt { goal, a, b } => {
                cells.compare(goal, &mut next, a, b, |a, b| {
                    pair(a, b, |a, b| Cell::bool((a as i64) < (b as i64)))
                });
            }
            Instruction::LessEqualInt { goal, a, b } => {
                cells.compare(goal, &mut next, a, b, |a, b| {
                    pair(a, b, |a, b| Cell::bool(a as i64 <= b as i64))
                });
            }
            Instruction::EqualDouble { goal, a, b } => {
                cells.compare(goal, &mut next, a, b, |a, b| floats(a, b, |a, b| a == b));
            }
            Instruction::NotEqualDouble { goal, a, b } => {
                cells.compare(goal, &mut next, a, b, |a, b| floats(a, b, |a, b| a != b));
            }
            Instruction::LessDouble { goal, a, b } => {
                cells.compare(goal, &mut next, a, b, |a, b| floats(a, b, |a, b| a < b));
            }
            Instruction::LessEqualDouble { goal, a, b } => {
                cells.compare(goal, &mut next, a, b, |a, b| floats(a, b, |a, b| a <= b));
            }
            Instruction::EqualText { goal, a, b } => {
                cells.compare(goal, &mut next, a, b, |a, b| pair(a, b, equal_text));
            }
            Instruction::NotEqualText { goal, a, b } => cells.compare(goal, &mut next, a, b, |a, b| {
                let equal = pair(a, b, equal_text);
                Cell { bits: equal.bits ^ 1, ..equal }
            }),
            Instruction::LessText { goal, a, b } => {
                cells.compare(goal, &mut next, a, b, |a, b| texts(a, b, |a, b| a < b));
            }
            Instruction::LessEqualText { goal, a, b } => {
                cells.compare(goal, &mut next, a, b, |a, b| texts(a, b, |a, b| a <= b));
            }
            Instruction::InInts { goal, a, set } => {
                let set = &tables.ints[usize::from(set)];
                cells.test(goal, &mut next, a, |a| {
                    single(a, |bits| Cell::bool(set.binary_search(&(bits as i64)).is_ok()))
                });
            }
            Instruction::InDoubles { goal, a, set } => {
                let set = &tables.doubles[usize::from(set)];
                cells.test(goal, &mut next, a, |a| {
                    single(a, |bits| {
                        // The set has 0.0 and no -0.0.
                        let value = f64::from_bits(bits) + 0.0;
                        Cell::bool(set.binary_search_by(|number| number.total_cmp(&value)).is_ok())
                    })
                });
            }
            Instruction::InTexts { goal, a, set } => {
                let set = &tables.bits[usize::from(set)];
                cells.test(goal, &mut next, a, |a| {
                    single(a, |number| Cell::bool(number != OTHER && bit(set, number)))
                });
            }
            Instruction::TestText { goal, a, set } => {
                let set = &tables.bits[usize::from(set)];
                cells.test(goal, &mut next, a, |a| {
                    single(a, |number| vocabulary(number, || Cell::bool(bit(set, number))))
                });
            }
            Instruction::SizeText { to, a } => one(cells, to, a, |number| {
                vocabulary(number, || {
                    tables.sizes.get(number as usize).map_or(Cell::MISSING, |size| Cell::int(*size))
                })
            }),
            Instruction::ListText { to, a, list } => cells.test(Goal::set(to), &mut next, a, |a| {
                single(a, |number| {
                    vocabulary(number, || {
                        let hash = tables.hashes.get(number as usize).copied().unwrap_or_default();
                        look_up(lists, list, |set, _| set.contains(hash))
                    })
                })
            }),
            Instruction::ListKey { to, a, list } => cells.test(Goal::set(to), &mut next, a, |a| {
                single(a, |hash| look_up(lists, list, |set, _| set.contains(hash)))
            }),
            Instruction::ListInt { to, a, list } => cells.test(Goal::set(to), &mut next, a, |a| {
                single(a, |bits| {
                    look_up(lists, list, |set, lists| set.contains(lists.key().int(bits as i64)))
                })
            }),
            Instruction::Has { to, a } => {
                cells.test(Goal::set(to), &mut next, a, |a| Cell::bool(a.state != UNKNOWN));
            }
            Instruction::ToInt { to, a } => {
                one(cells, to, a, |bits| truncate(f64::from_bits(bits)).map_or_else(error, Cell::int))
            }
            Instruction::ToDouble { to, a } => one(cells, to, a, |bits| Cell::double(bits as i64 as f64)),
            Instruction::Call { to, of, function } => {
                cells.call(to, of, |of| match of.iter().map(|cell| cell.state).max().unwrap_or_default() {
                    0 => function
                        .apply(of.map(|cell| f64::from_bits(cell.bits)))
                        .map_or_else(error, Cell::double),
                    state => Cell { bits: 0, state },
                });
            }
            Instruction::CallDeclared { to, of, function } => {
                cells.call_declared(to, &tables.operands[usize::from(of)], |request, of| {
                    declared(calls, request, function, of)
                });
            }
            Instruction::And { to, a, end } => {
                cells.test(Goal { join: Join::And, to, end }, &mut next, a, |a| a);
            }
            Instruction::Or { to, a, end } => {
                cells.test(Goal { join: Join::Or, to, end }, &mut next, a, |a| a);
            }
            Instruction::IfFalse { a, end } => cells.jump(When::False, end, &mut next, a, None),
            Instruction::IfTrue { a, end } => cells.jump(When::True, end, &mut next, a, None),
            Instruction::Require { to, a, end } => {
                cells.jump(When::Lacking, end, &mut next, a, Some(to));
            }
            Instruction::Go { end } => cells.go(end, &mut next),
        }
    }
    cells.arrive(code.len());
}

impl Registers for [Cell] {
    #[inline]
    fn arrive(&mut self, _: usize) {}

    #[inline]
    fn copy(&mut self, to: Register, a: Register) {
        self[usize::from(to)] = self[usize::from(a)];
    }

    #[inline]
    fn map(&mut self, to: Register, a: Register, apply: impl Fn(Cell) -> Cell) {
        self[usize::from(to)] = apply(self[usize::from(a)]);
    }

    #[inline]
    fn combine(&mut self, to: Register, a: Register, b: Register, apply: impl Fn(Cell, Cell) -> Cell) {
        self[usize::from(to)] = apply(self[usize::from(a)], self[usize::from(b)]);
    }

    #[inline]
    fn call(
        &mut self,
        to: Register,
        of: [Register; MAX_OPERANDS],
        apply: impl Fn([Cell; MAX_OPERANDS]) -> Cell,
    ) {
        self[usize::from(to)] = apply(of.map(|register| self[usize::from(register)]));
    }

    #[inline]
    fn call_declared(
        &mut self,
        to: Register,
        of: &[Register],
        mut apply: impl FnMut(usize, &[Cell]) -> Cell,
    ) {
        let mut operands = [Cell::MISSING; custom::MAX_OPERANDS];
        for (operand, register) in operands.iter_mut().zip(of) {
            *operand = self[usize::from(*register)];
        }
        self[usize::from(to)] = apply(0, &operands[..of.len()]);
    }

    #[inline]
    fn test(&mut self, goal: Goal, next: &mut usize, a: Register, apply: impl Fn(Cell) -> Cell) {
        let cell = apply(self[usize::from(a)]);
        if settle(goal.join, &mut self[usize::from(goal.to)], cell) {
            *next = usize::from(goal.end);
        }
    }

    #[inline]
    fn compare(
        &mut self,
        goal: Goal,
        next: &mut usize,
        a: Register,
        b: Register,
        apply: impl Fn(Cell, Cell) -> Cell,
    ) {
        let cell = apply(self[usize::from(a)], self[usize::from(b)]);
        if settle(goal.join, &mut self[usize::from(goal.to)], cell) {
            *next = usize::from(goal.end);
        }
    }

    #[inline]
    fn jump(&mut self, when: When, end: u16, next: &mut usize, a: Register, to: Option<Register>) {
        let a = self[usize::from(a)];
        let holds = match when {
            When::True => a.is_true(),
            When::False => a.is_false(),
            When::Lacking => a.state != 0,
        };
        if holds {
            if let Some(to) = to {
                self[usize::from(to)] = a;
            }
            *next = usize::from(end);
        }
    }

    #[inline]
    fn go(&mut self, end: u16, next: &mut usize) {
        *next = usize::from(end);
    }
}

/// The result of a declared function. A missing operand is NaN for it; an operand that has an error is one of the call.
fn declared(calls: &mut Calling, request: usize, function: u16, of: &[Cell]) -> Cell {
    let mut operands = [f64::NAN; custom::MAX_OPERANDS];
    let mut state = 0;
    for (operand, cell) in operands.iter_mut().zip(of) {
        match cell.state {
            0 => *operand = f64::from_bits(cell.bits),
            UNKNOWN => {}
            error => state = state.max(error),
        }
    }
    if state != 0 {
        return Cell { bits: 0, state };
    }
    match calls.call(request, function, &operands[..of.len()]) {
        None => error(ErrorKind::Failed),
        Some(result) if result.is_nan() => Cell::MISSING,
        Some(result) => Cell::double(result),
    }
}

fn error(kind: ErrorKind) -> Cell {
    Cell { bits: 0, state: kind as u8 }
}

/// Joins the result of a test to what was joined before. Returns whether that decides the whole.
#[inline]
pub(crate) fn settle(join: Join, to: &mut Cell, cell: Cell) -> bool {
    let decided = match join {
        Join::Set => false,
        Join::FirstAnd | Join::And => cell.is_false(),
        Join::FirstOr | Join::Or => cell.is_true(),
    };
    *to = match join {
        // What was joined before does not decide, so the result is neutral or has the greater state.
        Join::And if !decided => Cell { bits: 1, state: to.state.max(cell.state) },
        Join::Or if !decided => Cell { bits: 0, state: to.state.max(cell.state) },
        _ => cell,
    };
    decided
}

/// Applies a function to a value that is known.
#[inline]
fn single(a: Cell, apply: impl FnOnce(u64) -> Cell) -> Cell {
    if a.state == 0 { apply(a.bits) } else { a }
}

/// Applies a function to two values that are known.
#[inline]
fn pair(a: Cell, b: Cell, apply: impl FnOnce(u64, u64) -> Cell) -> Cell {
    let state = a.state.max(b.state);
    if state == 0 { apply(a.bits, b.bits) } else { Cell { bits: 0, state } }
}

#[inline]
fn one(cells: &mut (impl Registers + ?Sized), to: Register, a: Register, apply: impl Fn(u64) -> Cell) {
    cells.map(to, a, |a| single(a, &apply));
}

#[inline]
fn ints(
    cells: &mut (impl Registers + ?Sized),
    to: Register,
    a: Register,
    b: Register,
    operation: Arithmetic,
) {
    cells.combine(to, a, b, |a, b| {
        pair(a, b, |a, b| int(operation, a as i64, b as i64).map_or_else(error, Cell::int))
    });
}

#[inline]
fn doubles(
    cells: &mut (impl Registers + ?Sized),
    to: Register,
    a: Register,
    b: Register,
    operation: Arithmetic,
) {
    cells.combine(to, a, b, |a, b| {
        pair(a, b, |a, b| Cell::double(double(operation, f64::from_bits(a), f64::from_bits(b))))
    });
}

#[inline]
fn floats(a: Cell, b: Cell, holds: impl FnOnce(f64, f64) -> bool) -> Cell {
    pair(a, b, |a, b| Cell::bool(holds(f64::from_bits(a), f64::from_bits(b))))
}

#[inline]
fn texts(a: Cell, b: Cell, holds: impl FnOnce(u64, u64) -> bool) -> Cell {
    pair(a, b, |a, b| vocabulary(a.max(b), || Cell::bool(holds(a, b))))
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
