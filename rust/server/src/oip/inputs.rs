//! Converts the inputs of a request to rows of float32 in schema order.
//!
//! Rows are given by position (`input__0` of shape `[rows, features]`, the name of Triton's FIL backend) or by name
//! (one tensor per feature). The schema checks the values, as for all protocols.

use scorer_core::schema::{FeatureType, Schema, Value};
use scorer_engine::{Content, Kind, Rejection, quotable};
use scorer_proto::inference::ModelInferRequest;

use super::error::InferError;
use super::tensor::{Column, Tensor};
use crate::content::{NAMED, hash_dense, hash_value};

/// Name of the input with rows by position.
pub(crate) const POSITIONAL: &str = "input__0";
/// Name of the input with the eligible actions.
pub(crate) const ELIGIBLE: &str = "eligible";

/// The inputs of one request.
pub(crate) struct Inputs<'a> {
    rows: Vec<Tensor<'a>>,
    eligible: Option<Tensor<'a>>,
}

/// The eligible actions, in one of two forms.
pub(crate) struct EligibleActions {
    pub(crate) ids: Vec<String>,
    /// One bit per action of the catalogue, least significant first.
    pub(crate) mask: Vec<u8>,
}

// === impl Inputs ===

impl<'a> Inputs<'a> {
    /// Parses the names, datatypes and shapes of all inputs.
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

    /// Returns the values of all rows, at most `max`, row by row in the order of `schema`.
    pub(crate) fn rows(&self, schema: &Schema, max: u32) -> Result<Vec<f32>, InferError> {
        match self.rows.as_slice() {
            [only] if is_positional(only, schema) => positional(only, schema, max),
            many => match many.iter().find(|tensor| tensor.name == POSITIONAL) {
                None => by_name(many, schema, max),
                Some(_) => {
                    let other = many.iter().find(|tensor| tensor.name != POSITIONAL);
                    Err(match other {
                        Some(other) => InferError::PositionalAndNamed { input: quotable(other.name) },
                        None => InferError::Repeated { input: POSITIONAL.to_owned() },
                    })
                }
            },
        }
    }

    /// Returns the number of rows that the shape of the first input states. Contradictions are found when the rows are
    /// arranged.
    pub(crate) fn count(&self) -> u32 {
        let rows = self.rows.first().and_then(|tensor| tensor.shape.first());
        rows.map_or(1, |&rows| u32::try_from(rows).unwrap_or(1))
    }

    /// Adds one row to the hash of a request's content, in the same way as `scorer.v1`, so that a retry by the other
    /// protocol is recognised.
    pub(crate) fn hash(&self, content: &mut Content) {
        match self.rows.as_slice() {
            [only] if only.name == POSITIONAL || !matches!(only.shape, [_] | [_, 1]) => match only.floats() {
                Ok(values) => hash_dense(&values, content),
                // The row is rejected later, when it is arranged.
                Err(_) => content.number(u64::MAX),
            },
            columns => {
                content.number(NAMED);
                content.set(columns.iter(), |content, tensor| {
                    content.bytes(tensor.name.as_bytes());
                    let value = tensor.column().ok().and_then(|column| first(&column));
                    hash_value(value.unwrap_or(Value::Missing), content);
                });
            }
        }
    }

    /// Returns the eligible actions: their ids as BYTES, or one BOOL per action of the catalogue.
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

/// Returns the first value of a column. An empty text is a missing value.
fn first<'a>(column: &Column<'a>) -> Option<Value<'a>> {
    match column {
        Column::Numbers(numbers) => numbers.first().map(|&number| Value::Number(number)),
        Column::Flags(flags) => flags.first().map(|&flag| Value::Flag(flag)),
        Column::Texts(texts) => {
            texts.first().filter(|text| !text.is_empty()).map(|text| Value::Category(text))
        }
    }
}

/// Whether the only input holds rows by position. Any matrix whose name is not that of a feature does, because other
/// servers use other names for it.
fn is_positional(tensor: &Tensor<'_>, schema: &Schema) -> bool {
    tensor.name == POSITIONAL || (tensor.shape.len() == 2 && schema.index_of(tensor.name).is_none())
}

fn positional(tensor: &Tensor<'_>, schema: &Schema, max: u32) -> Result<Vec<f32>, InferError> {
    let width = schema.len();
    let (rows, given) = match *tensor.shape {
        [rows, given] => (u32::try_from(rows).ok(), usize::try_from(given).ok()),
        _ => (None, None),
    };
    match rows {
        Some(0) => Err(Rejection::NoRows.into()),
        Some(rows) if rows > max => Err(Rejection::TooManyRows { rows, max }.into()),
        Some(_) if given == Some(width) => Ok(tensor.floats()?),
        _ => Err(tensor.misshapen(format!("[rows, {width}], the features in schema order"))),
    }
}

fn by_name(tensors: &[Tensor<'_>], schema: &Schema, max: u32) -> Result<Vec<f32>, InferError> {
    let mut columns = Vec::with_capacity(tensors.len());
    let mut expected = None;
    for tensor in tensors {
        let count = match *tensor.shape {
            [rows] | [rows, 1] => usize::try_from(rows).unwrap_or_default(),
            _ => return Err(tensor.misshapen("[rows] or [rows, 1]".to_owned())),
        };
        if let Some(expected) = expected.filter(|&expected| expected != count) {
            return Err(InferError::Rows { input: quotable(tensor.name), got: count, expected });
        }
        expected = Some(count);
        columns.push((tensor.name, tensor.column()?));
    }
    let count = expected.unwrap_or_default();
    if count == 0 {
        return Err(Rejection::NoRows.into());
    }
    let rows = u32::try_from(count).unwrap_or(u32::MAX);
    if rows > max {
        return Err(Rejection::TooManyRows { rows, max }.into());
    }
    let width = schema.len();
    let mut row = vec![0.0; width];
    let mut values = Vec::with_capacity(count * width);
    for at in 0..count {
        let named = columns.iter().map(|(name, column)| (*name, value(schema, name, column, at)));
        schema.encode_named(named, &mut row).map_err(|error| {
            if count == 1 { Rejection::Schema(error) } else { Rejection::Row { row: at, error } }
        })?;
        values.extend_from_slice(&row);
    }
    Ok(values)
}

fn value<'a>(schema: &Schema, name: &str, column: &Column<'a>, at: usize) -> Value<'a> {
    match column {
        Column::Numbers(numbers) => Value::Number(numbers[at]),
        Column::Flags(flags) => Value::Flag(flags[at]),
        // Tensors have no null, so an empty text is a missing value, unless the dictionary contains it.
        Column::Texts(texts) if texts[at].is_empty() && !has_empty_category(schema, name) => Value::Missing,
        Column::Texts(texts) => Value::Category(texts[at]),
    }
}

fn has_empty_category(schema: &Schema, name: &str) -> bool {
    let feature = schema.index_of(name).map(|index| &schema.features()[index]);
    // For features of other types, an empty text is a wrong type and not a missing value.
    feature.is_none_or(|feature| {
        feature.kind != FeatureType::Category || feature.categories.iter().any(String::is_empty)
    })
}
