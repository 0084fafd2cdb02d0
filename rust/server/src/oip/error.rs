//! The errors of requests of the Open Inference Protocol.

use scorer_engine::Rejection;

/// The reason why a request is rejected. The message names the tensor or field, the rule and the remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum InferError {
    /// A rejection that is common to all protocols.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The model does not have this version now.
    #[error("model {model:?} has no version {version:?} now, only {known}; name one of them or none")]
    Version {
        /// The model.
        model: String,
        /// The requested version, shortened.
        version: String,
        /// The versions that answer.
        known: String,
    },
    /// There is no input.
    #[error("inputs: none; send \"input__0\" of shape [rows, features], or one tensor per feature")]
    NoInputs,
    /// Only some inputs have raw contents.
    #[error("inputs: {inputs} inputs and {raw} raw_input_contents; send one for every input, or none at all")]
    RawCount {
        /// Number of inputs.
        inputs: usize,
        /// Number of raw contents.
        raw: usize,
    },
    /// An input has typed and raw contents.
    #[error("input {input:?}: both contents and raw_input_contents are set; send one of them")]
    BothContents {
        /// The input, shortened.
        input: String,
    },
    /// An input is given twice.
    #[error("input {input:?}: given twice; send it once")]
    Repeated {
        /// The input, shortened.
        input: String,
    },
    /// Rows are given by position and by name.
    #[error(
        "input {input:?}: rows are given by \"input__0\" already; send that alone, or one tensor per feature"
    )]
    PositionalAndNamed {
        /// The input by name, shortened.
        input: String,
    },
    /// The datatype cannot be used for this input.
    #[error("input {input:?}: datatype {datatype:?} is not accepted here; send {expected}")]
    Datatype {
        /// The input, shortened.
        input: String,
        /// The datatype that was sent, shortened.
        datatype: String,
        /// The datatypes that can be sent.
        expected: &'static str,
    },
    /// The shape is not valid.
    #[error("input {input:?}: shape {shape} is not valid here; send {expected}")]
    Shape {
        /// The input, shortened.
        input: String,
        /// The shape that was sent.
        shape: String,
        /// The shape that can be sent.
        expected: String,
    },
    /// The raw contents have the wrong size.
    #[error(
        "input {input:?}: {got} bytes of raw contents, its shape and datatype need {expected}; send them little-endian"
    )]
    RawLength {
        /// The input, shortened.
        input: String,
        /// Number of bytes sent.
        got: usize,
        /// Number of bytes needed.
        expected: usize,
    },
    /// The typed contents have the wrong size or are in the wrong field.
    #[error(
        "input {input:?}: {got} values in {field}, its shape needs {expected}; put the values of a {datatype} tensor there"
    )]
    Length {
        /// The input, shortened.
        input: String,
        /// The field for the datatype.
        field: &'static str,
        /// The datatype.
        datatype: &'static str,
        /// Number of values sent.
        got: usize,
        /// Number of values needed.
        expected: usize,
    },
    /// The raw BYTES are not length-prefixed.
    #[error(
        "input {input:?}: its BYTES cannot be parsed; write each as 4 bytes of length, little-endian, and the bytes"
    )]
    Bytes {
        /// The input, shortened.
        input: String,
    },
    /// An element of BYTES is not text.
    #[error("input {input:?}: element {at} is not UTF-8; send text")]
    Text {
        /// The input, shortened.
        input: String,
        /// Index of the element.
        at: usize,
    },
    /// The inputs have different numbers of rows.
    #[error("input {input:?}: {got} rows, the inputs before it have {expected}; send as many in every input")]
    Rows {
        /// The input, shortened.
        input: String,
        /// Number of its rows.
        got: usize,
        /// Number of rows of the inputs before it.
        expected: usize,
    },
    /// There is more than one row for an action.
    #[error("{rows} rows; an action is selected for one row: send one request for each")]
    ActionRows {
        /// Rows sent.
        rows: u32,
    },
    /// The checkpoint does not have the output.
    #[error("output {output:?}: model {model:?} has {known}; ask for one of them")]
    Output {
        /// The requested output, shortened.
        output: String,
        /// The model.
        model: String,
        /// The available outputs.
        known: String,
    },
    /// An output is requested twice.
    #[error("output {output:?}: asked for twice; ask once")]
    RepeatedOutput {
        /// The output.
        output: &'static str,
    },
    /// A parameter has the wrong type.
    #[error("parameter {name:?}: send {expected}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// The type and meaning of its value.
        expected: &'static str,
    },
    /// The server does not offer a feature of the protocol.
    #[error("{what} is not offered here; {remedy}")]
    NotOffered {
        /// The feature.
        what: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
}
