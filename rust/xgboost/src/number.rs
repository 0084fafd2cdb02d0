//! Numbers in their form in the file. Text is converted only once, directly to the requested type, because a float32
//! that was converted through float64 would be rounded twice.

/// A number of either format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number<'a> {
    Integer(i64),
    F32(f32),
    F64(f64),
    /// Text from JSON, including XGBoost's additions `NaN`, `Infinity` and `-Infinity`.
    Text(&'a str),
}

impl Number<'_> {
    /// Converts to float32 with one rounding. NaN and infinities remain.
    pub(crate) fn f32(self) -> Option<f32> {
        match self {
            Self::Integer(value) => Some(value as f32),
            Self::F32(value) => Some(value),
            Self::F64(value) => Some(value as f32),
            Self::Text(text) => text.parse().ok(),
        }
    }

    /// Converts to an integer. Returns `None` for any other number.
    pub(crate) fn i64(self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(value),
            Self::F32(_) | Self::F64(_) => None,
            Self::Text(text) => text.parse().ok(),
        }
    }
}
