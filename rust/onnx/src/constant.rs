//! Constants of a model: initializers and the values of `Constant` nodes.

use std::rc::Rc;

use crate::NetError;
use crate::limits::{MAX_PARAMETERS, MAX_RANK};
use crate::wire::fields;

/// The data of a constant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Data {
    Floats(Vec<f32>),
    Integers(Vec<i64>),
}

/// A constant tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Constant {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Rc<Data>,
}

/// Name and content of a tensor, or the rule that it breaks.
pub(crate) struct Tensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) content: Result<Constant, String>,
}

impl Constant {
    pub(crate) fn floats(&self) -> Result<&[f32], String> {
        match &*self.data {
            Data::Floats(floats) => Ok(floats),
            Data::Integers(_) => {
                Err("a constant of integers where float32 is needed; export float32".to_owned())
            }
        }
    }

    pub(crate) fn integers(&self) -> Result<&[i64], String> {
        match &*self.data {
            Data::Integers(integers) => Ok(integers),
            Data::Floats(_) => {
                Err("a constant of float32 where int64 is needed; export the model again".to_owned())
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &*self.data {
            Data::Floats(floats) => floats.len(),
            Data::Integers(integers) => integers.len(),
        }
    }
}

/// The number of elements of a shape; `None` above the limit.
pub(crate) fn volume(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1usize, |all, &one| all.checked_mul(one)).filter(|&all| all <= MAX_PARAMETERS)
}

/// Parses a TensorProto. Damaged bytes are an error; a content that is not supported is returned as such, because a tensor
/// that the score does not need may have any.
pub(crate) fn parse(message: &[u8]) -> Result<Tensor<'_>, NetError> {
    let (mut name, mut kind, mut external) = ("", 0, false);
    let mut dims = Vec::new();
    let (mut floats, mut integers) = (Vec::new(), Vec::new());
    let mut raw: Option<&[u8]> = None;
    for field in fields(message) {
        let (number, value) = field?;
        match number {
            1 => value.integers(&mut dims)?,
            2 => kind = value.integer()?,
            4 => value.floats(&mut floats)?,
            5 | 7 => value.integers(&mut integers)?,
            8 => name = value.text()?,
            9 => raw = Some(value.bytes()?),
            13 => external = true,
            14 => external |= value.integer()? != 0,
            _ => {}
        }
    }
    let content = content(&dims, kind, external, floats, integers, raw);
    Ok(Tensor { name, content })
}

fn content(
    dims: &[i64],
    kind: i64,
    external: bool,
    floats: Vec<f32>,
    integers: Vec<i64>,
    raw: Option<&[u8]>,
) -> Result<Constant, String> {
    if external {
        return Err(
            "its data are in another file; save the model with all data inside (save_as_external_data=False)"
                .to_owned(),
        );
    }
    if dims.len() > MAX_RANK {
        return Err(format!("has {} dimensions, at most {MAX_RANK}; export the model again", dims.len()));
    }
    let shape = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<usize>>>();
    let Some((shape, volume)) = shape.and_then(|shape| volume(&shape).map(|volume| (shape, volume))) else {
        return Err(format!(
            "has the shape {dims:?}, at most {MAX_PARAMETERS} elements; export a smaller model"
        ));
    };
    // An empty list may be the shape of a single number. No other tensor is empty.
    if volume == 0 && shape.len() > 1 {
        return Err(format!("has the shape {dims:?} without elements; export the model again"));
    }
    let sized = |raw: &[u8], size: usize| {
        if raw.len() == size * volume { Ok(()) } else { Err(wrong_length(raw.len() / size, volume)) }
    };
    let data = match kind {
        1 => Data::Floats(match raw {
            Some(raw) => {
                sized(raw, 4)?;
                raw.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            }
            None => floats,
        }),
        6 => Data::Integers(match raw {
            Some(raw) => {
                sized(raw, 4)?;
                raw.as_chunks::<4>().0.iter().map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect()
            }
            None => integers,
        }),
        7 => Data::Integers(match raw {
            Some(raw) => {
                sized(raw, 8)?;
                raw.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
            }
            None => integers,
        }),
        _ => return Err(format!("has {}, float32 or int64 is needed; export float32", type_name(kind))),
    };
    let constant = Constant { shape, data: Rc::new(data) };
    if constant.len() != volume {
        return Err(wrong_length(constant.len(), volume));
    }
    if let Ok(floats) = constant.floats()
        && floats.iter().any(|float| !float.is_finite())
    {
        return Err("has a number that is not finite; train and export the model again".to_owned());
    }
    Ok(constant)
}

fn wrong_length(got: usize, expected: usize) -> String {
    format!("has {got} elements, its shape needs {expected}; the file is damaged, restore it")
}

/// The name of an ONNX element type.
pub(crate) fn type_name(kind: i64) -> String {
    match kind {
        1 => "float32",
        6 => "int32",
        7 => "int64",
        8 => "strings",
        9 => "booleans",
        10 => "float16",
        11 => "float64",
        16 => "bfloat16",
        _ => return format!("elements of type {kind}"),
    }
    .to_owned()
}
