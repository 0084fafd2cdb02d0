//! The request's inputs and their way into rows of float32 in schema order.
//!
//! Rows come by position (`input__0` of shape `[rows, features]`, as Triton's FIL backend names it) or by
//! name (one tensor per feature). What a value may be is the schema's business, as everywhere.

use scorer_core::schema::{FeatureType, Schema, Value};
use scorer_proto::inference::ModelInferRequest;
use scorer_proto::v1::EligibleActions;

use super::error::InferError;
use super::tensor::{Column, Tensor};
use crate::config::Kind;
use crate::refusal::{Refusal, shortened};

/// The rows by position.
pub(crate) const POSITIONAL: &str = "input__0";
/// The actions that may be chosen.
pub(crate) const ELIGIBLE: &str = "eligible";

/// The inputs of one request.
pub(crate) struct Inputs<'a> {
    rows: Vec<Tensor<'a>>,
    eligible: Option<Tensor<'a>>,
}

/// Rows in schema order, and how many.
pub(crate) struct Rows {
    pub(crate) values: Vec<f32>,
    pub(crate) count: u32,
}

// === impl Inputs ===

impl<'a> Inputs<'a> {
    /// Reads the heads of all inputs.
    pub(crate) fn read(request: &'a ModelInferRequest, kind: Kind) -> Result<Inputs<'a>, InferError> {
        let raw = &request.raw_input_contents;
        if !raw.is_empty() && raw.len() != request.inputs.len() {
            return Err(InferError::RawCount { inputs: request.inputs.len(), raw: raw.len() });
        }
        let mut inputs = Inputs { rows: Vec::with_capacity(request.inputs.len()), eligible: None };
        for (at, input) in request.inputs.iter().enumerate() {
            let tensor = Tensor::read(input, raw.get(at))?;
            if kind == Kind::Action && tensor.name == ELIGIBLE {
                if inputs.eligible.is_some() {
                    return Err(InferError::Repeated { input: ELIGIBLE.to_owned() });
                }
                inputs.eligible = Some(tensor);
            } else {
                inputs.rows.push(tensor);
            }
        }
        if inputs.rows.is_empty() { Err(InferError::NoInputs) } else { Ok(inputs) }
    }

    /// The rows as `schema` has them, `max` at most.
    pub(crate) fn rows(&self, schema: &Schema, max: u32) -> Result<Rows, Refusal> {
        match self.rows.as_slice() {
            [only] if is_positional(only, schema) => positional(only, schema, max),
            many => match many.iter().find(|tensor| tensor.name == POSITIONAL) {
                None => by_name(many, schema, max),
                Some(_) => {
                    let other = many.iter().find(|tensor| tensor.name != POSITIONAL);
                    Err(match other {
                        Some(other) => InferError::PositionalAndNamed { input: shortened(other.name) },
                        None => InferError::Repeated { input: POSITIONAL.to_owned() },
                    }
                    .into())
                }
            },
        }
    }

    /// The eligible actions: their ids as BYTES, or one BOOL for every action of the catalogue.
    pub(crate) fn eligible(&self) -> Result<Option<EligibleActions>, InferError> {
        let Some(tensor) = &self.eligible else { return Ok(None) };
        if !matches!(tensor.shape, [_] | [1, _]) {
            return Err(tensor.misshapen("[actions] or [1, actions]".to_owned()));
        }
        match tensor.column()? {
            Column::Texts(ids) => {
                let ids = ids.into_iter().map(str::to_owned).collect();
                Ok(Some(EligibleActions { ids, mask: Vec::new() }))
            }
            Column::Flags(flags) => {
                let byte = |bits: &[bool]| {
                    bits.iter().enumerate().fold(0, |byte, (at, &bit)| byte | u8::from(bit) << at)
                };
                Ok(Some(EligibleActions { ids: Vec::new(), mask: flags.chunks(8).map(byte).collect() }))
            }
            Column::Numbers(_) => {
                Err(tensor.wrong_datatype("BYTES (the actions' ids) or BOOL (one for each action)"))
            }
        }
    }
}

/// A single matrix whose name is no feature's holds the rows, whatever servers before this one called it.
fn is_positional(tensor: &Tensor<'_>, schema: &Schema) -> bool {
    tensor.name == POSITIONAL || (tensor.shape.len() == 2 && schema.index_of(tensor.name).is_none())
}

fn positional(tensor: &Tensor<'_>, schema: &Schema, max: u32) -> Result<Rows, Refusal> {
    let width = schema.len();
    let (rows, given) = match *tensor.shape {
        [rows, given] => (u32::try_from(rows).ok(), usize::try_from(given).ok()),
        _ => (None, None),
    };
    match rows {
        Some(0) => Err(Refusal::NoRows),
        Some(rows) if rows > max => Err(Refusal::TooManyRows { rows, max }),
        Some(count) if given == Some(width) => Ok(Rows { values: tensor.floats()?, count }),
        _ => Err(tensor.misshapen(format!("[rows, {width}], the features in schema order")).into()),
    }
}

fn by_name(tensors: &[Tensor<'_>], schema: &Schema, max: u32) -> Result<Rows, Refusal> {
    let mut columns = Vec::with_capacity(tensors.len());
    let mut expected = None;
    for tensor in tensors {
        let count = match *tensor.shape {
            [rows] | [rows, 1] => usize::try_from(rows).unwrap_or_default(),
            _ => return Err(tensor.misshapen("[rows] or [rows, 1]".to_owned()).into()),
        };
        if let Some(expected) = expected.filter(|&expected| expected != count) {
            return Err(InferError::Rows { input: shortened(tensor.name), got: count, expected }.into());
        }
        expected = Some(count);
        columns.push((tensor.name, tensor.column()?));
    }
    let count = expected.unwrap_or_default();
    if count == 0 {
        return Err(Refusal::NoRows);
    }
    let rows = u32::try_from(count).unwrap_or(u32::MAX);
    if rows > max {
        return Err(Refusal::TooManyRows { rows, max });
    }
    let width = schema.len();
    let mut row = vec![0.0; width];
    let mut values = Vec::with_capacity(count * width);
    for at in 0..count {
        let named = columns.iter().map(|(name, column)| (*name, value(schema, name, column, at)));
        schema.encode_named(named, &mut row).map_err(|error| {
            if count == 1 { Refusal::Schema(error) } else { Refusal::Row { row: at, error } }
        })?;
        values.extend_from_slice(&row);
    }
    Ok(Rows { values, count: rows })
}

fn value<'a>(schema: &Schema, name: &str, column: &Column<'a>, at: usize) -> Value<'a> {
    match column {
        Column::Numbers(numbers) => Value::Number(numbers[at]),
        Column::Flags(flags) => Value::Flag(flags[at]),
        // Tensors have no null: an empty text is a category without a value, unless the dictionary has it.
        Column::Texts(texts) if texts[at].is_empty() && !has_empty_category(schema, name) => Value::Missing,
        Column::Texts(texts) => Value::Category(texts[at]),
    }
}

fn has_empty_category(schema: &Schema, name: &str) -> bool {
    let feature = schema.index_of(name).map(|index| &schema.features()[index]);
    // For another type an empty text is a wrong type, not a missing value.
    feature.is_none_or(|feature| {
        feature.kind != FeatureType::Category || feature.categories.iter().any(String::is_empty)
    })
}
