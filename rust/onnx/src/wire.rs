//! Reads the fields of a protobuf message without copying them.

use crate::NetError;

/// The value of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Number(u64),
    Fixed32([u8; 4]),
    Fixed64,
    Bytes(&'a [u8]),
}

/// An iterator over the fields of a message, each with its number.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

pub(crate) fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

fn damaged() -> NetError {
    NetError::Format("a field is truncated or malformed".to_owned())
}

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], NetError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(damaged)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, NetError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(damaged())
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), NetError> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| damaged())?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(self.take(4)?.try_into().map_err(|_| damaged())?),
            _ => return Err(damaged()),
        };
        Ok((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), NetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Value<'a> {
    pub(crate) fn bytes(self) -> Result<&'a [u8], NetError> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(damaged()),
        }
    }

    pub(crate) fn text(self) -> Result<&'a str, NetError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| NetError::Format("a name is not UTF-8".to_owned()))
    }

    pub(crate) fn integer(self) -> Result<i64, NetError> {
        match self {
            Value::Number(number) => Ok(number.cast_signed()),
            _ => Err(damaged()),
        }
    }

    pub(crate) fn float(self) -> Result<f32, NetError> {
        match self {
            Value::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err(damaged()),
        }
    }

    /// Appends the numbers of a repeated field, which is either one number or packed into one value.
    pub(crate) fn integers(self, out: &mut Vec<i64>) -> Result<(), NetError> {
        match self {
            Value::Bytes(bytes) => {
                let mut packed = fields(bytes);
                while !packed.rest.is_empty() {
                    out.push(packed.varint()?.cast_signed());
                }
                Ok(())
            }
            other => {
                out.push(other.integer()?);
                Ok(())
            }
        }
    }

    /// Appends the numbers of a repeated field of float32.
    pub(crate) fn floats(self, out: &mut Vec<f32>) -> Result<(), NetError> {
        match self {
            Value::Bytes(bytes) => {
                let (chunks, rest) = bytes.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(damaged());
                }
                out.extend(chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)));
                Ok(())
            }
            other => {
                out.push(other.float()?);
                Ok(())
            }
        }
    }
}
