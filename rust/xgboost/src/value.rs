//! A parsed document, which borrows from its bytes.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::number::Number;

/// A value of either format.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Number(Number<'a>),
    String(Cow<'a, str>),
    Array(Vec<Value<'a>>),
    /// An array of one number type, which only UBJ has.
    Typed(Typed<'a>),
    Object(HashMap<Cow<'a, str>, Value<'a>>),
}

/// The big-endian elements of a typed array.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Typed<'a> {
    pub(crate) kind: Kind,
    pub(crate) bytes: &'a [u8],
}

/// The number types of UBJ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    I8,
    U8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

impl Kind {
    pub(crate) fn from_marker(marker: u8) -> Option<Self> {
        Some(match marker {
            b'i' => Self::I8,
            b'U' => Self::U8,
            b'I' => Self::I16,
            b'l' => Self::I32,
            b'L' => Self::I64,
            b'd' => Self::F32,
            b'D' => Self::F64,
            _ => return None,
        })
    }

    pub(crate) fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// Reads the number at the start of the bytes.
    pub(crate) fn read(self, bytes: &[u8]) -> Option<Number<'static>> {
        Some(match self {
            Self::I8 => Number::Integer(i8::from_be_bytes(*bytes.first_chunk()?).into()),
            Self::U8 => Number::Integer(u8::from_be_bytes(*bytes.first_chunk()?).into()),
            Self::I16 => Number::Integer(i16::from_be_bytes(*bytes.first_chunk()?).into()),
            Self::I32 => Number::Integer(i32::from_be_bytes(*bytes.first_chunk()?).into()),
            Self::I64 => Number::Integer(i64::from_be_bytes(*bytes.first_chunk()?)),
            Self::F32 => Number::F32(f32::from_be_bytes(*bytes.first_chunk()?)),
            Self::F64 => Number::F64(f64::from_be_bytes(*bytes.first_chunk()?)),
        })
    }
}

impl Typed<'_> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Number<'static>> {
        self.bytes.chunks_exact(self.kind.size()).filter_map(|chunk| self.kind.read(chunk))
    }
}
