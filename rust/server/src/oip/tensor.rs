//! One input tensor: its shape and its values, raw or typed.

use hyper::body::Bytes;
use scorer_engine::quotable;
use scorer_proto::inference::InferTensorContents;
use scorer_proto::inference::model_infer_request::InferInputTensor;

use super::error::InferError;

/// An input that has passed the checks that need no schema.
pub(crate) struct Tensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) shape: &'a [i64],
    datatype: Datatype,
    contents: Contents<'a>,
    /// Number of elements that the shape states.
    elements: usize,
}

/// The supported datatypes. FP16 and BF16 are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp32,
    Fp64,
    Bytes,
}

#[derive(Clone, Copy)]
enum Contents<'a> {
    Raw(&'a Bytes),
    Typed(&'a InferTensorContents),
}

/// One column's values, by the type of feature for which they can be used.
pub(crate) enum Column<'a> {
    Numbers(Vec<f64>),
    Flags(Vec<bool>),
    Texts(Vec<&'a str>),
}

/// The numeric datatypes, for error texts.
const NUMBERS: &str = "FP32 (or FP64, INT8 to INT64, UINT8 to UINT64)";
const ANY: &str = "a number's (FP32, FP64, INT8 to INT64, UINT8 to UINT64), BOOL or BYTES";

// === impl Tensor ===

impl<'a> Tensor<'a> {
    /// Parses the name, datatype and shape of an input. `raw` is its entry of `raw_input_contents`, if there are any.
    pub(crate) fn read(
        input: &'a InferInputTensor,
        raw: Option<&'a Bytes>,
    ) -> Result<Tensor<'a>, InferError> {
        if input.parameters.contains_key("shared_memory_region") {
            return Err(InferError::NotOffered {
                what: "shared memory",
                remedy: "send the tensor in the request; a Unix socket has the lowest latency",
            });
        }
        const EMPTY: &InferTensorContents = &InferTensorContents {
            bool_contents: Vec::new(),
            int_contents: Vec::new(),
            int64_contents: Vec::new(),
            uint_contents: Vec::new(),
            uint64_contents: Vec::new(),
            fp32_contents: Vec::new(),
            fp64_contents: Vec::new(),
            bytes_contents: Vec::new(),
        };
        let contents = match (raw, &input.contents) {
            (Some(_), Some(_)) => return Err(InferError::BothContents { input: quotable(&input.name) }),
            (Some(raw), None) => Contents::Raw(raw),
            (None, Some(typed)) => Contents::Typed(typed),
            (None, None) => Contents::Typed(EMPTY),
        };
        let datatype = Datatype::parse(&input.datatype).ok_or_else(|| InferError::Datatype {
            input: quotable(&input.name),
            datatype: quotable(&input.datatype),
            expected: ANY,
        })?;
        let elements = input
            .shape
            .iter()
            .try_fold(1_usize, |product, &size| product.checked_mul(usize::try_from(size).ok()?));
        let mut tensor = Tensor { name: &input.name, shape: &input.shape, datatype, contents, elements: 0 };
        tensor.elements = elements.ok_or_else(|| tensor.misshapen("sizes from 0 up".to_owned()))?;
        tensor.check_length()?;
        Ok(tensor)
    }

    /// Returns every value as a float32, rounded to the nearest, ties to even, as the schema rounds numbers.
    pub(crate) fn floats(&self) -> Result<Vec<f32>, InferError> {
        match (self.datatype, self.contents) {
            (Datatype::Fp32, Contents::Raw(raw)) => Ok(raw_values(raw, f32::from_le_bytes)),
            (Datatype::Fp32, Contents::Typed(typed)) => Ok(typed.fp32_contents.clone()),
            (Datatype::Bool | Datatype::Bytes, _) => Err(self.wrong_datatype(NUMBERS)),
            _ => Ok(self.numbers()?.into_iter().map(|value| value as f32).collect()),
        }
    }

    /// The values of a column.
    pub(crate) fn column(&self) -> Result<Column<'a>, InferError> {
        match (self.datatype, self.contents) {
            (Datatype::Bool, Contents::Raw(raw)) => {
                Ok(Column::Flags(raw.iter().map(|&byte| byte != 0).collect()))
            }
            (Datatype::Bool, Contents::Typed(typed)) => Ok(Column::Flags(typed.bool_contents.clone())),
            (Datatype::Bytes, _) => Ok(Column::Texts(self.texts()?)),
            _ => Ok(Column::Numbers(self.numbers()?)),
        }
    }

    fn numbers(&self) -> Result<Vec<f64>, InferError> {
        Ok(match self.contents {
            Contents::Raw(raw) => match self.datatype {
                Datatype::Uint8 => raw.iter().map(|&value| f64::from(value)).collect(),
                Datatype::Uint16 => raw_values(raw, |bytes| f64::from(u16::from_le_bytes(bytes))),
                Datatype::Uint32 => raw_values(raw, |bytes| f64::from(u32::from_le_bytes(bytes))),
                Datatype::Uint64 => raw_values(raw, |bytes| u64::from_le_bytes(bytes) as f64),
                Datatype::Int8 => raw_values(raw, |bytes| f64::from(i8::from_le_bytes(bytes))),
                Datatype::Int16 => raw_values(raw, |bytes| f64::from(i16::from_le_bytes(bytes))),
                Datatype::Int32 => raw_values(raw, |bytes| f64::from(i32::from_le_bytes(bytes))),
                Datatype::Int64 => raw_values(raw, |bytes| i64::from_le_bytes(bytes) as f64),
                Datatype::Fp32 => raw_values(raw, |bytes| f64::from(f32::from_le_bytes(bytes))),
                Datatype::Fp64 => raw_values(raw, f64::from_le_bytes),
                Datatype::Bool | Datatype::Bytes => return Err(self.wrong_datatype(NUMBERS)),
            },
            Contents::Typed(typed) => match self.datatype {
                Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => {
                    typed.uint_contents.iter().map(|&value| f64::from(value)).collect()
                }
                Datatype::Uint64 => typed.uint64_contents.iter().map(|&value| value as f64).collect(),
                Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => {
                    typed.int_contents.iter().map(|&value| f64::from(value)).collect()
                }
                Datatype::Int64 => typed.int64_contents.iter().map(|&value| value as f64).collect(),
                Datatype::Fp32 => typed.fp32_contents.iter().map(|&value| f64::from(value)).collect(),
                Datatype::Fp64 => typed.fp64_contents.clone(),
                Datatype::Bool | Datatype::Bytes => return Err(self.wrong_datatype(NUMBERS)),
            },
        })
    }

    fn texts(&self) -> Result<Vec<&'a str>, InferError> {
        let text = |(at, bytes): (usize, &'a [u8])| {
            std::str::from_utf8(bytes).map_err(|_| InferError::Text { input: quotable(self.name), at })
        };
        match self.contents {
            Contents::Typed(typed) => {
                typed.bytes_contents.iter().map(Vec::as_slice).enumerate().map(text).collect()
            }
            Contents::Raw(raw) => {
                let malformed = || InferError::Bytes { input: quotable(self.name) };
                let mut rest: &[u8] = raw;
                // Each element has at least 4 bytes, so a shape without contents reserves no memory.
                let mut texts = Vec::with_capacity(self.elements.min(rest.len() / 4));
                while let Some((length, tail)) = rest.split_first_chunk::<4>() {
                    let length = u32::from_le_bytes(*length) as usize;
                    let (bytes, tail) = tail.split_at_checked(length).ok_or_else(malformed)?;
                    texts.push(text((texts.len(), bytes))?);
                    rest = tail;
                }
                if rest.is_empty() && texts.len() == self.elements { Ok(texts) } else { Err(malformed()) }
            }
        }
    }

    /// Checks that there are as many values as the shape states. The number of raw BYTES is known only after decoding.
    fn check_length(&self) -> Result<(), InferError> {
        let input = || quotable(self.name);
        match self.contents {
            Contents::Raw(_) if self.datatype == Datatype::Bytes => Ok(()),
            Contents::Raw(raw) => {
                let expected = self.elements.saturating_mul(self.datatype.size());
                if raw.len() == expected {
                    return Ok(());
                }
                Err(InferError::RawLength { input: input(), got: raw.len(), expected })
            }
            Contents::Typed(typed) => {
                let (field, got) = self.datatype.field(typed);
                if got == self.elements {
                    return Ok(());
                }
                let datatype = self.datatype.name();
                Err(InferError::Length { input: input(), field, datatype, got, expected: self.elements })
            }
        }
    }

    pub(crate) fn misshapen(&self, expected: String) -> InferError {
        // A shape can have any number of dimensions, so only the first are shown.
        let shown: Vec<_> = self.shape.iter().take(8).map(i64::to_string).collect();
        let more = if self.shape.len() > shown.len() { ", .." } else { "" };
        let shape = format!("[{}{more}]", shown.join(", "));
        InferError::Shape { input: quotable(self.name), shape, expected }
    }

    pub(crate) fn wrong_datatype(&self, expected: &'static str) -> InferError {
        let datatype = self.datatype.name().to_owned();
        InferError::Datatype { input: quotable(self.name), datatype, expected }
    }
}

/// Converts raw bytes to values. The caller has checked that the length is a multiple of the size.
fn raw_values<T, const SIZE: usize>(raw: &[u8], value: impl Fn([u8; SIZE]) -> T) -> Vec<T> {
    raw.as_chunks::<SIZE>().0.iter().map(|&bytes| value(bytes)).collect()
}

// === impl Datatype ===

impl Datatype {
    const ALL: [Datatype; 12] = [
        Datatype::Bool,
        Datatype::Uint8,
        Datatype::Uint16,
        Datatype::Uint32,
        Datatype::Uint64,
        Datatype::Int8,
        Datatype::Int16,
        Datatype::Int32,
        Datatype::Int64,
        Datatype::Fp32,
        Datatype::Fp64,
        Datatype::Bytes,
    ];

    fn parse(name: &str) -> Option<Datatype> {
        Datatype::ALL.into_iter().find(|datatype| datatype.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Datatype::Bool => "BOOL",
            Datatype::Uint8 => "UINT8",
            Datatype::Uint16 => "UINT16",
            Datatype::Uint32 => "UINT32",
            Datatype::Uint64 => "UINT64",
            Datatype::Int8 => "INT8",
            Datatype::Int16 => "INT16",
            Datatype::Int32 => "INT32",
            Datatype::Int64 => "INT64",
            Datatype::Fp32 => "FP32",
            Datatype::Fp64 => "FP64",
            Datatype::Bytes => "BYTES",
        }
    }

    /// Number of bytes of one raw element; for BYTES the minimum.
    fn size(self) -> usize {
        match self {
            Datatype::Bool | Datatype::Uint8 | Datatype::Int8 => 1,
            Datatype::Uint16 | Datatype::Int16 => 2,
            Datatype::Uint32 | Datatype::Int32 | Datatype::Fp32 | Datatype::Bytes => 4,
            Datatype::Uint64 | Datatype::Int64 | Datatype::Fp64 => 8,
        }
    }

    /// Returns the field of typed contents for the datatype, and the number of its values.
    fn field(self, typed: &InferTensorContents) -> (&'static str, usize) {
        match self {
            Datatype::Bool => ("bool_contents", typed.bool_contents.len()),
            Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => {
                ("uint_contents", typed.uint_contents.len())
            }
            Datatype::Uint64 => ("uint64_contents", typed.uint64_contents.len()),
            Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => ("int_contents", typed.int_contents.len()),
            Datatype::Int64 => ("int64_contents", typed.int64_contents.len()),
            Datatype::Fp32 => ("fp32_contents", typed.fp32_contents.len()),
            Datatype::Fp64 => ("fp64_contents", typed.fp64_contents.len()),
            Datatype::Bytes => ("bytes_contents", typed.bytes_contents.len()),
        }
    }
}
