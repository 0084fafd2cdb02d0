//! Runs the code of an expression on several requests at a time. Decoding an instruction costs once for all of them,
//! and results of tests are one bit for each request, so that no jump depends on a single one.

use crate::code::{Cell, Goal, Join, Register};
use crate::custom::{self, Calling};
use crate::environment::Slot;
use crate::functions::MAX_OPERANDS;
use crate::machine::{Registers, When};

/// Number of requests that run together: one bit each of a word.
pub(crate) const ROWS: usize = u64::BITS as usize;

/// A bool for each row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Truths {
    /// Rows that are true.
    pub(crate) truth: u64,
    /// Rows without value; none of them is in `truth`.
    pub(crate) lacking: u64,
    /// The state of each row in `lacking`.
    pub(crate) states: [u8; ROWS],
}

impl Truths {
    pub(crate) const FALSE: Truths = Truths { truth: 0, lacking: 0, states: [0; ROWS] };

    /// `self || other` in each row.
    pub(crate) fn or(&mut self, other: &Truths) {
        self.truth |= other.truth;
        for row in rows(other.lacking & !self.truth) {
            let state = if self.lacking >> row & 1 == 1 { self.states[row] } else { 0 };
            self.states[row] = state.max(other.states[row]);
        }
        self.lacking = (self.lacking | other.lacking) & !self.truth;
    }

    /// Makes rows false.
    pub(crate) fn clear(&mut self, rows: u64) {
        self.truth &= !rows;
        self.lacking &= !rows;
    }
}

/// The values of a register.
#[derive(Debug, Clone)]
struct Column {
    /// The bits of each row that has a value; not used if the column is one of bools.
    bits: [u64; ROWS],
    truths: Truths,
    /// Whether the values are bools.
    bools: bool,
}

impl Column {
    /// Whether each row has a value in `bits`.
    fn is_known(&self) -> bool {
        self.truths.lacking == 0 && !self.bools
    }

    fn cell(&self, row: usize) -> Cell {
        if self.truths.lacking >> row & 1 == 1 {
            Cell { bits: 0, state: self.truths.states[row] }
        } else if self.bools {
            Cell::known(self.truths.truth >> row & 1)
        } else {
            Cell::known(self.bits[row])
        }
    }

    fn set(&mut self, row: usize, cell: Cell) {
        let bit = 1 << row;
        self.truths.clear(bit);
        if cell.state != 0 {
            self.truths.lacking |= bit;
            self.truths.states[row] = cell.state;
        } else if self.bools {
            self.truths.truth |= (cell.bits & 1) << row;
        } else {
            self.bits[row] = cell.bits;
        }
    }
}

/// The registers of [`ROWS`] requests.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// The names, then the intermediate results.
    columns: Vec<Column>,
    names: usize,
    /// Registers of constants follow those of names.
    constants: Vec<Cell>,
    /// Rows that run now.
    active: u64,
    /// Rows that wait at each position of the code.
    waiting: Vec<u64>,
    /// The memory of declared functions.
    pub(crate) calls: Calling,
}

/// The values that an instruction reads.
enum Operand<'a> {
    One(Cell),
    Rows(&'a Column),
}

impl Operand<'_> {
    #[inline]
    fn cell(&self, row: usize) -> Cell {
        match self {
            Operand::One(cell) => *cell,
            Operand::Rows(column) => column.cell(row),
        }
    }
}

/// The numbers of the bits that are set.
#[inline]
pub(crate) fn rows(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let row = bits.trailing_zeros() as usize;
        if row == ROWS {
            return None;
        }
        bits &= bits - 1;
        Some(row)
    })
}

/// The first rows.
pub(crate) fn first(count: usize) -> u64 {
    if count >= ROWS { u64::MAX } else { (1 << count) - 1 }
}

/// Tests all rows, whose values are known. Returns no result if one of them lacks a value.
#[inline]
fn tested(cell: impl Fn(usize) -> Cell) -> Option<u64> {
    let (mut truth, mut lacking) = (0, 0);
    for row in 0..ROWS {
        let cell = cell(row);
        truth |= (cell.bits & 1) << row;
        lacking |= cell.state;
    }
    (lacking == 0).then_some(truth)
}

impl Block {
    /// Makes the registers of a program. `names` tells which names are bools; `longest` is the length of the longest
    /// expression's code.
    pub(crate) fn new(
        names: impl Iterator<Item = bool>,
        constants: &[Cell],
        registers: usize,
        longest: usize,
        calls: Calling,
    ) -> Block {
        let column = |bools| Column {
            bits: [0; ROWS],
            truths: Truths { lacking: u64::MAX, states: [crate::code::UNKNOWN; ROWS], ..Truths::FALSE },
            bools,
        };
        let mut columns: Vec<Column> = names.map(column).collect();
        let names = columns.len();
        columns.resize(registers.saturating_sub(constants.len()).max(names), column(false));
        Block {
            columns,
            names,
            constants: constants.to_vec(),
            active: u64::MAX,
            waiting: vec![0; longest + 1],
            calls,
        }
    }

    /// Chooses the rows to run, a bit for each.
    pub(crate) fn activate(&mut self, rows: u64) {
        self.active = rows;
    }

    /// Sets the value of a name in a row.
    pub(crate) fn set(&mut self, slot: Slot, row: usize, cell: Cell) {
        self.columns[usize::from(slot.0)].set(row, cell);
    }

    /// Sets a name that is a bool.
    pub(crate) fn set_truths(&mut self, slot: Slot, truths: &Truths) {
        self.columns[usize::from(slot.0)].truths = *truths;
    }

    /// Sets a name to the values of a register.
    pub(crate) fn set_column(&mut self, slot: Slot, register: Register) {
        self.copy_to(usize::from(slot.0), register);
    }

    /// The values of a register that holds bools.
    pub(crate) fn truths(&self, register: Register) -> Truths {
        match self.operand(register) {
            Operand::Rows(column) if column.bools => column.truths,
            operand => slowly(u64::MAX, |row| operand.cell(row)),
        }
    }

    /// The column of a register that is no constant.
    fn column(&self, register: Register) -> usize {
        let register = usize::from(register);
        if register < self.names { register } else { register - self.constants.len() }
    }

    #[inline]
    fn operand(&self, register: Register) -> Operand<'_> {
        let at = usize::from(register);
        match at.checked_sub(self.names).and_then(|at| self.constants.get(at)) {
            Some(constant) => Operand::One(*constant),
            None => Operand::Rows(&self.columns[self.column(register)]),
        }
    }

    fn copy_to(&mut self, to: usize, from: Register) {
        let active = self.active;
        let (bools, cells) = {
            let operand = self.operand(from);
            let bools = match &operand {
                Operand::Rows(column) => column.bools,
                // A constant is copied as bits, which are those of a bool as well.
                Operand::One(_) => false,
            };
            let mut cells = [Cell::MISSING; ROWS];
            rows(active).for_each(|row| cells[row] = operand.cell(row));
            (bools, cells)
        };
        let column = &mut self.columns[to];
        if to >= self.names && column.bools != bools {
            // Another branch of the same expression may have written other rows in the other form.
            let before: [Cell; ROWS] = std::array::from_fn(|row| column.cell(row));
            column.bools = bools;
            rows(!active).for_each(|row| column.set(row, before[row]));
        }
        rows(active).for_each(|row| column.set(row, cells[row]));
    }

    /// Writes values that are no bools to the active rows.
    #[inline]
    fn write(&mut self, to: Register, cells: &[Cell; ROWS]) {
        let active = self.active;
        let at = self.column(to);
        let column = &mut self.columns[at];
        column.bools = false;
        if active == u64::MAX && cells.iter().all(|cell| cell.state == 0) {
            column.truths.lacking = 0;
            column.bits.iter_mut().zip(cells).for_each(|(bits, cell)| *bits = cell.bits);
            return;
        }
        rows(active).for_each(|row| column.set(row, cells[row]));
    }

    /// Joins the results of a test to what was joined before, and lets the rows that this decides wait at its end.
    #[inline]
    fn join(&mut self, goal: Goal, next: &mut usize, found: &Truths) {
        let active = self.active;
        let at = self.column(goal.to);
        let column = &mut self.columns[at];
        if !column.bools {
            // The register held other values before.
            let before: [Cell; ROWS] = std::array::from_fn(|row| column.cell(row));
            column.bools = true;
            rows(!active).for_each(|row| column.set(row, before[row]));
        }
        let to = &mut column.truths;
        let (truth, lacking) = (found.truth & active, found.lacking & active);
        let decided = match goal.join {
            Join::Set => 0,
            Join::FirstAnd | Join::And => active & !truth & !lacking,
            Join::FirstOr | Join::Or => truth,
        };
        let joins = matches!(goal.join, Join::And | Join::Or);
        // Rows that lacked a value and are not decided lack it still.
        let lacked = if joins { to.lacking & active & !decided } else { 0 };
        for row in rows(lacking) {
            let state = if lacked >> row & 1 == 1 { to.states[row] } else { 0 };
            to.states[row] = state.max(found.states[row]);
        }
        to.lacking = (to.lacking & !active) | lacking | lacked;
        to.truth = (to.truth & !active) | (truth & !to.lacking);
        self.park(decided, goal.end, next);
    }

    /// Lets rows wait at a later position. If none is left, the code goes on where the first ones wait.
    #[inline]
    fn park(&mut self, gone: u64, end: u16, next: &mut usize) {
        if gone == 0 {
            return;
        }
        self.waiting[usize::from(end)] |= gone;
        self.active &= !gone;
        if self.active == 0 {
            while self.waiting[*next] == 0 {
                *next += 1;
            }
        }
    }
}

/// The results of a test in the active rows.
#[inline]
fn slowly(active: u64, cell: impl Fn(usize) -> Cell) -> Truths {
    let mut found = Truths::FALSE;
    for row in rows(active) {
        let cell = cell(row);
        if cell.state == 0 {
            found.truth |= (cell.bits & 1) << row;
        } else {
            found.lacking |= 1 << row;
            found.states[row] = cell.state;
        }
    }
    found
}

/// With fewer rows, testing each of them is faster than testing all.
const MANY: u32 = 12;

impl Registers for Block {
    #[inline]
    fn arrive(&mut self, at: usize) {
        self.active |= std::mem::take(&mut self.waiting[at]);
    }

    #[inline]
    fn copy(&mut self, to: Register, a: Register) {
        let to = self.column(to);
        self.copy_to(to, a);
    }

    #[inline]
    fn map(&mut self, to: Register, a: Register, apply: impl Fn(Cell) -> Cell) {
        let mut cells = [Cell::MISSING; ROWS];
        let a = self.operand(a);
        rows(self.active).for_each(|row| cells[row] = apply(a.cell(row)));
        self.write(to, &cells);
    }

    #[inline]
    fn combine(&mut self, to: Register, a: Register, b: Register, apply: impl Fn(Cell, Cell) -> Cell) {
        let mut cells = [Cell::MISSING; ROWS];
        let (a, b) = (self.operand(a), self.operand(b));
        rows(self.active).for_each(|row| cells[row] = apply(a.cell(row), b.cell(row)));
        self.write(to, &cells);
    }

    #[inline]
    fn call(
        &mut self,
        to: Register,
        of: [Register; MAX_OPERANDS],
        apply: impl Fn([Cell; MAX_OPERANDS]) -> Cell,
    ) {
        let mut cells = [Cell::MISSING; ROWS];
        let of = of.map(|register| self.operand(register));
        rows(self.active).for_each(|row| cells[row] = apply(of.each_ref().map(|one| one.cell(row))));
        self.write(to, &cells);
    }

    #[inline]
    fn call_declared(
        &mut self,
        to: Register,
        of: &[Register],
        mut apply: impl FnMut(usize, &[Cell]) -> Cell,
    ) {
        let mut cells = [Cell::MISSING; ROWS];
        let mut operands = [Cell::MISSING; custom::MAX_OPERANDS];
        for row in rows(self.active) {
            for (operand, register) in operands.iter_mut().zip(of) {
                *operand = self.operand(*register).cell(row);
            }
            cells[row] = apply(row, &operands[..of.len()]);
        }
        self.write(to, &cells);
    }

    #[inline]
    fn test(&mut self, goal: Goal, next: &mut usize, a: Register, apply: impl Fn(Cell) -> Cell) {
        let a = self.operand(a);
        let truth = match &a {
            Operand::Rows(a) if self.active.count_ones() >= MANY && a.is_known() => {
                tested(|row| apply(Cell::known(a.bits[row])))
            }
            _ => None,
        };
        let found = match truth {
            Some(truth) => Truths { truth, ..Truths::FALSE },
            None => slowly(self.active, |row| apply(a.cell(row))),
        };
        self.join(goal, next, &found);
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
        let (a, b) = (self.operand(a), self.operand(b));
        let truth = if self.active.count_ones() < MANY {
            None
        } else {
            match (&a, &b) {
                (Operand::Rows(a), Operand::One(b)) if a.is_known() && b.state == 0 => {
                    let b = Cell::known(b.bits);
                    tested(|row| apply(Cell::known(a.bits[row]), b))
                }
                (Operand::One(a), Operand::Rows(b)) if b.is_known() && a.state == 0 => {
                    let a = Cell::known(a.bits);
                    tested(|row| apply(a, Cell::known(b.bits[row])))
                }
                (Operand::Rows(a), Operand::Rows(b)) if a.is_known() && b.is_known() => {
                    tested(|row| apply(Cell::known(a.bits[row]), Cell::known(b.bits[row])))
                }
                _ => None,
            }
        };
        let found = match truth {
            Some(truth) => Truths { truth, ..Truths::FALSE },
            None => slowly(self.active, |row| apply(a.cell(row), b.cell(row))),
        };
        self.join(goal, next, &found);
    }

    #[inline]
    fn jump(&mut self, when: When, end: u16, next: &mut usize, a: Register, to: Option<Register>) {
        let truths = self.truths(a);
        let gone = self.active
            & match when {
                When::True => truths.truth,
                When::False => !truths.truth & !truths.lacking,
                When::Lacking => truths.lacking,
            };
        if let (Some(to), true) = (to, gone != 0) {
            let at = self.column(to);
            let column = &mut self.columns[at];
            for row in rows(gone) {
                column.set(row, Cell { bits: 0, state: truths.states[row] });
            }
        }
        self.park(gone, end, next);
    }

    #[inline]
    fn go(&mut self, end: u16, next: &mut usize) {
        self.park(self.active, end, next);
    }
}
