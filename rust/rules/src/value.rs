//! Values, and the arithmetic that compiling and running share.

/// The reason why an expression has no value although all values that it needs are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ErrorKind {
    /// An integer was divided by zero, or the remainder of such a division was taken.
    DivisionByZero = 1,
    /// The result of an integer operation does not fit into 64 bits.
    Overflow = 2,
    /// A double has no corresponding integer.
    Range = 3,
    /// A list is not loaded.
    NoList = 4,
    /// A function of doubles has no finite result for its operands.
    NotANumber = 5,
    /// A declared function failed.
    Failed = 6,
}

impl ErrorKind {
    pub(crate) fn from_state(state: u8) -> ErrorKind {
        match state {
            1 => ErrorKind::DivisionByZero,
            2 => ErrorKind::Overflow,
            3 => ErrorKind::Range,
            4 => ErrorKind::NoList,
            6 => ErrorKind::Failed,
            _ => ErrorKind::NotANumber,
        }
    }

    /// Describes the error in a few words.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            ErrorKind::DivisionByZero => "division by zero",
            ErrorKind::Overflow => "integer overflow",
            ErrorKind::Range => "a double outside the range of int",
            ErrorKind::NoList => "a list that is not loaded",
            ErrorKind::NotANumber => "a function without finite result",
            ErrorKind::Failed => "a function of the bundle that failed",
        }
    }
}

/// The result of an expression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome<T> {
    /// The expression has this value.
    Known(T),
    /// A value that the expression needs is missing.
    Unknown,
    /// The expression has no value.
    Error(ErrorKind),
}

/// A value of an expression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A double.
    Double(f64),
    /// A string; `None` if it is outside the vocabulary.
    Text(Option<&'a str>),
    /// The hash of a string.
    Key(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    Equal,
    NotEqual,
    Less,
    LessEqual,
}

impl Relation {
    pub(crate) fn holds<T: PartialOrd + ?Sized>(self, left: &T, right: &T) -> bool {
        match self {
            Relation::Equal => left == right,
            Relation::NotEqual => left != right,
            Relation::Less => left < right,
            Relation::LessEqual => left <= right,
        }
    }
}

#[inline]
pub(crate) fn int(operation: Arithmetic, left: i64, right: i64) -> Result<i64, ErrorKind> {
    match operation {
        Arithmetic::Add => left.checked_add(right),
        Arithmetic::Subtract => left.checked_sub(right),
        Arithmetic::Multiply => left.checked_mul(right),
        Arithmetic::Divide if right == 0 => return Err(ErrorKind::DivisionByZero),
        Arithmetic::Divide => left.checked_div(right),
        Arithmetic::Remainder if right == 0 => return Err(ErrorKind::DivisionByZero),
        Arithmetic::Remainder => left.checked_rem(right),
    }
    .ok_or(ErrorKind::Overflow)
}

/// The checker refuses remainders of doubles.
#[inline]
pub(crate) fn double(operation: Arithmetic, left: f64, right: f64) -> f64 {
    match operation {
        Arithmetic::Add => left + right,
        Arithmetic::Subtract => left - right,
        Arithmetic::Multiply => left * right,
        Arithmetic::Divide => left / right,
        Arithmetic::Remainder => f64::NAN,
    }
}

/// Cuts the fraction off. Both ends of the range are excluded, as in CEL, because they are not exact.
#[inline]
pub(crate) fn truncate(value: f64) -> Result<i64, ErrorKind> {
    // 2^63; NaN is in no range.
    const END: f64 = 9_223_372_036_854_775_808.0;
    if value > -END && value < END { Ok(value as i64) } else { Err(ErrorKind::Range) }
}
