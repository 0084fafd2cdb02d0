//! Typed access to a document. Every error contains the path of the value.

use std::fmt;

use crate::error::ReadError;
use crate::number::Number;
use crate::value::Value;

/// A value and its path.
#[derive(Clone, Copy)]
pub(crate) struct At<'v, 'a> {
    value: &'v Value<'a>,
    path: &'v Path<'v>,
}

/// A path from the root. Its parts are on the stack.
pub(crate) enum Path<'v> {
    Root,
    Key(&'v Path<'v>, &'v str),
    Index(&'v Path<'v>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(Self::Root, key) => write!(f, "{key}"),
            Self::Key(parent, key) => write!(f, "{parent}.{key}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl<'v, 'a> At<'v, 'a> {
    pub(crate) fn new(value: &'v Value<'a>, path: &'v Path<'v>) -> Self {
        Self { value, path }
    }

    pub(crate) fn path(&self) -> &'v Path<'v> {
        self.path
    }

    pub(crate) fn fail<T>(&self, rule: impl Into<String>) -> Result<T, ReadError> {
        Err(ReadError::field(self.path.to_string(), rule))
    }

    /// Returns the value of a member of an object, if there is one.
    pub(crate) fn find(&self, key: &str) -> Option<&'v Value<'a>> {
        match self.value {
            Value::Object(members) => members.get(key),
            _ => None,
        }
    }

    /// Returns the value of a member. Fails if there is none.
    pub(crate) fn get(&self, key: &str) -> Result<&'v Value<'a>, ReadError> {
        self.find(key).ok_or_else(|| ReadError::field(Path::Key(self.path, key).to_string(), "it is missing"))
    }

    pub(crate) fn string(&self) -> Result<&'v str, ReadError> {
        match self.value {
            Value::String(text) => Ok(text),
            _ => self.fail("it must be a string"),
        }
    }

    /// Returns a count. XGBoost writes parameters as strings.
    pub(crate) fn count(&self) -> Result<usize, ReadError> {
        let count = match self.value {
            Value::String(text) => text.parse().ok(),
            Value::Number(number) => number.i64().and_then(|value| usize::try_from(value).ok()),
            _ => None,
        };
        count.ok_or_else(|| ReadError::field(self.path.to_string(), "it must be a count"))
    }

    pub(crate) fn array(&self) -> Result<&'v [Value<'a>], ReadError> {
        match self.value {
            Value::Array(values) => Ok(values),
            _ => self.fail("it must be an array"),
        }
    }

    /// Converts all numbers of a typed or untyped array.
    fn numbers<T>(
        &self,
        what: &str,
        convert: impl for<'n> Fn(Number<'n>) -> Option<T>,
    ) -> Result<Vec<T>, ReadError> {
        let all: Option<Vec<T>> = match self.value {
            Value::Typed(typed) => typed.iter().map(convert).collect(),
            Value::Array(values) => values
                .iter()
                .map(|value| match value {
                    Value::Number(number) => convert(*number),
                    // Old versions of XGBoost wrote flags as booleans.
                    Value::Bool(flag) => convert(Number::Integer(i64::from(*flag))),
                    _ => None,
                })
                .collect(),
            _ => None,
        };
        all.ok_or_else(|| ReadError::field(self.path.to_string(), format!("it must be an array of {what}")))
    }

    pub(crate) fn f32s(&self) -> Result<Vec<f32>, ReadError> {
        self.numbers("numbers", |number| number.f32())
    }

    pub(crate) fn i64s(&self) -> Result<Vec<i64>, ReadError> {
        self.numbers("integers", |number| number.i64())
    }
}
