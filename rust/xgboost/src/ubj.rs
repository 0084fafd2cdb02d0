//! UBJSON in the form that XGBoost writes: big-endian, lengths of any integer type, typed arrays.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::DEPTH_CAP;
use crate::error::ReadError;
use crate::value::{Kind, Typed, Value};

/// Parses a document, which must consist of all bytes.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value<'_>, ReadError> {
    let mut parser = Parser { bytes, at: 0 };
    let value = parser.value(0)?;
    if parser.at != bytes.len() {
        return parser.fail("bytes are left over behind the document");
    }
    Ok(value)
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn fail<T>(&self, rule: impl Into<String>) -> Result<T, ReadError> {
        Err(ReadError::Syntax { format: "UBJ", offset: self.at, rule: rule.into() })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], ReadError> {
        let Some(taken) = self.at.checked_add(count).and_then(|end| self.bytes.get(self.at..end)) else {
            return self.fail(format!("{count} bytes are needed, {} remain", self.bytes.len() - self.at));
        };
        self.at += count;
        Ok(taken)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn marker(&mut self) -> Result<u8, ReadError> {
        Ok(self.take(1)?[0])
    }

    /// Reads a length of any integer type. Fails if it is negative or exceeds the remaining bytes.
    fn length(&mut self) -> Result<usize, ReadError> {
        let marker = self.marker()?;
        let Some(kind) = Kind::from_marker(marker).filter(|kind| !matches!(kind, Kind::F32 | Kind::F64))
        else {
            return self.fail("a length must be an integer");
        };
        let bytes = self.take(kind.size())?;
        let length = kind.read(bytes).and_then(|number| usize::try_from(number.i64()?).ok());
        match length {
            Some(length) if length <= self.bytes.len() - self.at => Ok(length),
            _ => self.fail("a length is negative or above the bytes that remain"),
        }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, ReadError> {
        let length = self.length()?;
        let bytes = self.take(length)?;
        // Category names may be any bytes. They are not used, so invalid UTF-8 is replaced.
        Ok(String::from_utf8_lossy(bytes))
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>, ReadError> {
        if depth > DEPTH_CAP {
            return self.fail("values are nested too deeply");
        }
        Ok(match self.marker()? {
            b'{' => self.object(depth)?,
            b'[' => self.array(depth)?,
            b'Z' => Value::Null,
            b'T' => Value::Bool(true),
            b'F' => Value::Bool(false),
            b'S' => Value::String(self.string()?),
            marker => {
                let Some(kind) = Kind::from_marker(marker) else {
                    self.at -= 1;
                    return self.fail(format!("marker {:?} is not known", char::from(marker)));
                };
                let bytes = self.take(kind.size())?;
                match kind.read(bytes) {
                    Some(number) => Value::Number(number),
                    None => return self.fail("a number is cut off"),
                }
            }
        })
    }

    fn array(&mut self, depth: usize) -> Result<Value<'a>, ReadError> {
        match self.peek() {
            Some(b'$') => {
                self.at += 1;
                let marker = self.marker()?;
                let Some(kind) = Kind::from_marker(marker) else {
                    return self.fail("a typed array must hold numbers");
                };
                if self.marker()? != b'#' {
                    return self.fail("a typed array must have a length");
                }
                let length = self.length()?;
                let bytes = self.take(length.saturating_mul(kind.size()))?;
                Ok(Value::Typed(Typed { kind, bytes }))
            }
            Some(b'#') => {
                self.at += 1;
                // Every value takes at least one byte, so the remaining bytes bound the length.
                let length = self.length()?;
                (0..length).map(|_| self.value(depth + 1)).collect::<Result<_, _>>().map(Value::Array)
            }
            _ => {
                let mut values = Vec::new();
                while self.peek() != Some(b']') {
                    values.push(self.value(depth + 1)?);
                }
                self.at += 1;
                Ok(Value::Array(values))
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value<'a>, ReadError> {
        let mut members = HashMap::new();
        while self.peek() != Some(b'}') {
            let key = self.string()?;
            if members.contains_key(&key) {
                return self.fail(format!("key {key:?} appears twice in one object"));
            }
            let value = self.value(depth + 1)?;
            members.insert(key, value);
        }
        self.at += 1;
        Ok(Value::Object(members))
    }
}
