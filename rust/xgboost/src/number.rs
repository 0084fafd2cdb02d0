//! Numbers as the file gives them. Text is converted once, to the type that is asked for: a float32 that
//! went through float64 would be rounded twice.

/// A number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number<'a> {
    Integer(i64),
    F32(f32),
    F64(f64),
    /// JSON's text; `NaN`, `Infinity` and `-Infinity` are XGBoost's additions.
    Text(&'a str),
}

impl Number<'_> {
    /// As a float32, rounded once; NaN and infinities are returned as they are.
    pub(crate) fn f32(self) -> Option<f32> {
        match self {
            Self::Integer(value) => Some(value as f32),
            Self::F32(value) => Some(value),
            Self::F64(value) => Some(value as f32),
            Self::Text(text) => text.parse().ok(),
        }
    }

    /// As an integer, where it is one.
    pub(crate) fn i64(self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(value),
            Self::F32(_) | Self::F64(_) => None,
            Self::Text(text) => text.parse().ok(),
        }
    }
}
