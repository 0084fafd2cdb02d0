//! The outputs of a reply: the outputs a model has, the outputs a request asks for, and their encoding,
//! raw or typed.

use hyper::body::Bytes;
use scorer_engine::{Checkpoint, Kind, quotable};
use scorer_proto::inference::model_infer_request::InferRequestedOutputTensor;
use scorer_proto::inference::model_infer_response::InferOutputTensor;
use scorer_proto::inference::{DataType, InferTensorContents, ModelInferResponse};

use super::error::InferError;

/// An output that a request can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// The score as float32, under the name of Triton's FIL backend.
    Fil,
    Score,
    Margin,
    Decision,
    Action,
    Propensity,
    ExpectedReward,
    Pmf,
}

/// One output's values.
pub(crate) enum Values {
    Fp32(Vec<f32>),
    Fp64(Vec<f64>),
    Texts(Vec<String>),
}

// === impl Output ===

impl Output {
    /// The outputs of a checkpoint of this kind.
    pub(crate) fn of(kind: Kind) -> &'static [Output] {
        match kind {
            Kind::Score => &[Output::Fil, Output::Score, Output::Margin, Output::Decision],
            Kind::Action => &[Output::Action, Output::Propensity, Output::ExpectedReward, Output::Pmf],
        }
    }

    /// The outputs of a reply if none is requested.
    fn default_of(kind: Kind) -> &'static [Output] {
        match kind {
            Kind::Score => &[Output::Fil],
            Kind::Action => &[Output::Action, Output::Propensity, Output::ExpectedReward],
        }
    }

    /// Returns the requested outputs in the order of the request.
    pub(crate) fn asked(
        given: &[InferRequestedOutputTensor],
        checkpoint: &Checkpoint,
    ) -> Result<Vec<Output>, InferError> {
        if given.is_empty() {
            return Ok(Output::default_of(checkpoint.kind).to_vec());
        }
        let known = Output::of(checkpoint.kind);
        let mut outputs = Vec::with_capacity(known.len());
        for tensor in given {
            if tensor.parameters.contains_key("shared_memory_region") {
                return Err(InferError::NotOffered {
                    what: "shared memory",
                    remedy: "leave it out; outputs come in the reply",
                });
            }
            if tensor.parameters.contains_key("classification") {
                return Err(InferError::NotOffered {
                    what: "the classification extension",
                    remedy: "ask for the output \"decision\"",
                });
            }
            let Some(&output) = known.iter().find(|output| output.name() == tensor.name) else {
                let names: Vec<_> = known.iter().map(|output| output.name()).collect();
                return Err(InferError::Output {
                    output: quotable(&tensor.name),
                    model: checkpoint.name.clone(),
                    known: names.join(", "),
                });
            };
            if outputs.contains(&output) {
                return Err(InferError::RepeatedOutput { output: output.name() });
            }
            outputs.push(output);
        }
        Ok(outputs)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Output::Fil => "output__0",
            Output::Score => "score",
            Output::Margin => "margin",
            Output::Decision => "decision",
            Output::Action => "action",
            Output::Propensity => "propensity",
            Output::ExpectedReward => "expected_reward",
            Output::Pmf => "pmf",
        }
    }

    pub(crate) fn datatype(self) -> &'static str {
        match self {
            Output::Fil | Output::Pmf => "FP32",
            Output::Score | Output::Margin | Output::Propensity | Output::ExpectedReward => "FP64",
            Output::Decision | Output::Action => "BYTES",
        }
    }

    pub(crate) fn data_type(self) -> DataType {
        match self {
            Output::Fil | Output::Pmf => DataType::TypeFp32,
            Output::Score | Output::Margin | Output::Propensity | Output::ExpectedReward => {
                DataType::TypeFp64
            }
            Output::Decision | Output::Action => DataType::TypeString,
        }
    }

    /// Whether the output has one value per action of the catalogue.
    pub(crate) fn per_action(self) -> bool {
        self == Output::Pmf
    }
}

/// Adds an output to the reply, in the raw or typed form of the request.
pub(crate) fn add(response: &mut ModelInferResponse, output: Output, values: Values, raw: bool) {
    let count = values.len() as i64;
    let contents = if raw {
        response.raw_output_contents.push(values.raw());
        None
    } else {
        Some(values.typed())
    };
    response.outputs.push(InferOutputTensor {
        name: output.name().to_owned(),
        datatype: output.datatype().to_owned(),
        shape: if output.per_action() { vec![1, count] } else { vec![count] },
        parameters: Default::default(),
        contents,
    });
}

// === impl Values ===

impl Values {
    fn len(&self) -> usize {
        match self {
            Values::Fp32(values) => values.len(),
            Values::Fp64(values) => values.len(),
            Values::Texts(values) => values.len(),
        }
    }

    fn raw(self) -> Bytes {
        let bytes: Vec<u8> = match self {
            Values::Fp32(values) => values.into_iter().flat_map(f32::to_le_bytes).collect(),
            Values::Fp64(values) => values.into_iter().flat_map(f64::to_le_bytes).collect(),
            Values::Texts(values) => {
                let mut bytes = Vec::new();
                for text in values {
                    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
                    bytes.extend_from_slice(text.as_bytes());
                }
                bytes
            }
        };
        bytes.into()
    }

    fn typed(self) -> InferTensorContents {
        let mut contents = InferTensorContents::default();
        match self {
            Values::Fp32(values) => contents.fp32_contents = values,
            Values::Fp64(values) => contents.fp64_contents = values,
            Values::Texts(values) => {
                contents.bytes_contents = values.into_iter().map(String::into_bytes).collect();
            }
        }
        contents
    }
}
