//! Instructions. Each takes constant time, except searches of sorted literal lists, which take logarithmic time.

use crate::functions::{Function, MAX_OPERANDS};

/// Number of a register.
pub(crate) type Register = u16;

/// A value with its state, 0 if it is known. Bools are 0 or 1, doubles their bits, strings their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) bits: u64,
    pub(crate) state: u8,
}

/// The state of a value that is missing. Errors have smaller numbers, so the greater state of two operands is that
/// of the result: a missing value outranks an error.
pub(crate) const UNKNOWN: u8 = u8::MAX;

/// The number of a string outside the vocabulary.
pub(crate) const OTHER: u64 = u64::MAX;

impl Cell {
    pub(crate) const MISSING: Cell = Cell { bits: 0, state: UNKNOWN };

    #[inline]
    pub(crate) fn known(bits: u64) -> Cell {
        Cell { bits, state: 0 }
    }

    #[inline]
    pub(crate) fn bool(value: bool) -> Cell {
        Cell::known(u64::from(value))
    }

    #[inline]
    pub(crate) fn double(value: f64) -> Cell {
        Cell::known(value.to_bits())
    }

    #[inline]
    pub(crate) fn int(value: i64) -> Cell {
        Cell::known(value as u64)
    }

    #[inline]
    pub(crate) fn is_true(self) -> bool {
        self.state == 0 && self.bits == 1
    }

    #[inline]
    pub(crate) fn is_false(self) -> bool {
        self.state == 0 && self.bits == 0
    }
}

/// What becomes of the result of a test. Most tests are terms of `&&`, so joining needs no instruction of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// `to` is the result.
    Set,
    /// `to` is the result; goes to `end` if it is false.
    FirstAnd,
    /// `to = to && result`; goes to `end` if that is false.
    And,
    /// `to` is the result; goes to `end` if it is true.
    FirstOr,
    /// `to = to || result`; goes to `end` if that is true.
    Or,
}

/// Where the result of a test goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Goal {
    pub(crate) join: Join,
    pub(crate) to: Register,
    pub(crate) end: u16,
}

impl Goal {
    pub(crate) fn set(to: Register) -> Goal {
        Goal { join: Join::Set, to, end: 0 }
    }
}

/// One instruction. Jumps give the position in the expression's code and only go forward, so an expression takes at
/// most as many steps as it has instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instruction {
    Copy {
        to: Register,
        a: Register,
    },
    Not {
        to: Register,
        a: Register,
    },
    NegateInt {
        to: Register,
        a: Register,
    },
    NegateDouble {
        to: Register,
        a: Register,
    },
    AddInt {
        to: Register,
        a: Register,
        b: Register,
    },
    SubtractInt {
        to: Register,
        a: Register,
        b: Register,
    },
    MultiplyInt {
        to: Register,
        a: Register,
        b: Register,
    },
    DivideInt {
        to: Register,
        a: Register,
        b: Register,
    },
    RemainderInt {
        to: Register,
        a: Register,
        b: Register,
    },
    AddDouble {
        to: Register,
        a: Register,
        b: Register,
    },
    SubtractDouble {
        to: Register,
        a: Register,
        b: Register,
    },
    MultiplyDouble {
        to: Register,
        a: Register,
        b: Register,
    },
    DivideDouble {
        to: Register,
        a: Register,
        b: Register,
    },
    /// Equality of bools, ints and keys.
    EqualBits {
        goal: Goal,
        a: Register,
        b: Register,
    },
    NotEqualBits {
        goal: Goal,
        a: Register,
        b: Register,
    },
    /// Order of ints, and of bools.
    LessInt {
        goal: Goal,
        a: Register,
        b: Register,
    },
    LessEqualInt {
        goal: Goal,
        a: Register,
        b: Register,
    },
    EqualDouble {
        goal: Goal,
        a: Register,
        b: Register,
    },
    NotEqualDouble {
        goal: Goal,
        a: Register,
        b: Register,
    },
    LessDouble {
        goal: Goal,
        a: Register,
        b: Register,
    },
    LessEqualDouble {
        goal: Goal,
        a: Register,
        b: Register,
    },
    EqualText {
        goal: Goal,
        a: Register,
        b: Register,
    },
    NotEqualText {
        goal: Goal,
        a: Register,
        b: Register,
    },
    /// Strings are numbered in their order.
    LessText {
        goal: Goal,
        a: Register,
        b: Register,
    },
    LessEqualText {
        goal: Goal,
        a: Register,
        b: Register,
    },
    InInts {
        goal: Goal,
        a: Register,
        set: u16,
    },
    InDoubles {
        goal: Goal,
        a: Register,
        set: u16,
    },
    /// Membership of a string in a literal list: a bit for each string.
    InTexts {
        goal: Goal,
        a: Register,
        set: u16,
    },
    /// A test of a string: a bit for each string. It is unknown for strings outside the vocabulary.
    TestText {
        goal: Goal,
        a: Register,
        set: u16,
    },
    SizeText {
        to: Register,
        a: Register,
    },
    /// Membership in a named list of a string, by the hash of each string.
    ListText {
        to: Register,
        a: Register,
        list: u16,
    },
    /// Membership in a named list of a key.
    ListKey {
        to: Register,
        a: Register,
        list: u16,
    },
    /// Membership in a named list of an integer.
    ListInt {
        to: Register,
        a: Register,
        list: u16,
    },
    Has {
        to: Register,
        a: Register,
    },
    ToInt {
        to: Register,
        a: Register,
    },
    ToDouble {
        to: Register,
        a: Register,
    },
    /// A function of doubles. Registers that it does not need repeat the first.
    Call {
        to: Register,
        of: [Register; MAX_OPERANDS],
        function: Function,
    },
    /// A declared function. Its operands are those of the table `of`.
    CallDeclared {
        to: Register,
        of: u16,
        function: u16,
    },
    /// `to = to && a`; goes to `end` if the result is false.
    And {
        to: Register,
        a: Register,
        end: u16,
    },
    /// `to = to || a`; goes to `end` if the result is true.
    Or {
        to: Register,
        a: Register,
        end: u16,
    },
    /// Goes to `end` if `a` is false.
    IfFalse {
        a: Register,
        end: u16,
    },
    /// Goes to `end` if `a` is true.
    IfTrue {
        a: Register,
        end: u16,
    },
    /// If `a` has no value, neither has `to`: goes to `end`.
    Require {
        to: Register,
        a: Register,
        end: u16,
    },
    Go {
        end: u16,
    },
}

impl Instruction {
    /// The goal of a test.
    pub(crate) fn goal(&mut self) -> Option<&mut Goal> {
        match self {
            Instruction::EqualBits { goal, .. }
            | Instruction::NotEqualBits { goal, .. }
            | Instruction::LessInt { goal, .. }
            | Instruction::LessEqualInt { goal, .. }
            | Instruction::EqualDouble { goal, .. }
            | Instruction::NotEqualDouble { goal, .. }
            | Instruction::LessDouble { goal, .. }
            | Instruction::LessEqualDouble { goal, .. }
            | Instruction::EqualText { goal, .. }
            | Instruction::NotEqualText { goal, .. }
            | Instruction::LessText { goal, .. }
            | Instruction::LessEqualText { goal, .. }
            | Instruction::InInts { goal, .. }
            | Instruction::InDoubles { goal, .. }
            | Instruction::InTexts { goal, .. }
            | Instruction::TestText { goal, .. } => Some(goal),
            _ => None,
        }
    }
}
