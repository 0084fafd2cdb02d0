//! What can be wrong with a request in the terms of the Open Inference Protocol.

use scorer_engine::Rejection;

/// Names the tensor or field, the rule and the remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum InferError {
    /// As for a request of any protocol.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The model has no such version now.
    #[error("model {model:?} has no version {version:?} now, only {known}; name one of them or none")]
    Version {
        /// The model.
        model: String,
        /// What was asked for, shortened.
        version: String,
        /// Those that answer.
        known: String,
    },
    /// No input.
    #[error("inputs: none; send \"input__0\" of shape [rows, features], or one tensor per feature")]
    NoInputs,
    /// Some inputs raw, some not.
    #[error("inputs: {inputs} inputs and {raw} raw_input_contents; send one for every input, or none at all")]
    RawCount {
        /// Inputs.
        inputs: usize,
        /// Raw contents.
        raw: usize,
    },
    /// Contents in both places.
    #[error("input {input:?}: both contents and raw_input_contents are set; send one of them")]
    BothContents {
        /// The input, shortened.
        input: String,
    },
    /// The same input again.
    #[error("input {input:?}: given twice; send it once")]
    Repeated {
        /// The input, shortened.
        input: String,
    },
    /// Rows by position and by name.
    #[error(
        "input {input:?}: rows are given by \"input__0\" already; send that alone, or one tensor per feature"
    )]
    PositionalAndNamed {
        /// The input by name, shortened.
        input: String,
    },
    /// A datatype that cannot be used here.
    #[error("input {input:?}: datatype {datatype:?} is not taken here; send {expected}")]
    Datatype {
        /// The input, shortened.
        input: String,
        /// What was sent, shortened.
        datatype: String,
        /// What can be sent.
        expected: &'static str,
    },
    /// A shape that does not fit.
    #[error("input {input:?}: shape {shape} does not fit; send {expected}")]
    Shape {
        /// The input, shortened.
        input: String,
        /// What was sent.
        shape: String,
        /// What can be sent.
        expected: String,
    },
    /// Raw contents of the wrong size.
    #[error(
        "input {input:?}: {got} bytes of raw contents, its shape and datatype need {expected}; send them little-endian"
    )]
    RawLength {
        /// The input, shortened.
        input: String,
        /// Bytes sent.
        got: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// Typed contents of the wrong size, or in the wrong field.
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
        /// Values sent.
        got: usize,
        /// Values needed.
        expected: usize,
    },
    /// Raw BYTES that are not length-prefixed.
    #[error(
        "input {input:?}: its BYTES cannot be taken apart; write each as 4 bytes of length, little-endian, and the bytes"
    )]
    Bytes {
        /// The input, shortened.
        input: String,
    },
    /// BYTES that are no text.
    #[error("input {input:?}: element {at} is not UTF-8; send text")]
    Text {
        /// The input, shortened.
        input: String,
        /// Which.
        at: usize,
    },
    /// Columns of different lengths.
    #[error("input {input:?}: {got} rows, the inputs before it have {expected}; send as many in every input")]
    Rows {
        /// The input, shortened.
        input: String,
        /// Its rows.
        got: usize,
        /// Theirs.
        expected: usize,
    },
    /// More than one row for an action.
    #[error("{rows} rows; an action is selected for one row: send one request for each")]
    ActionRows {
        /// Rows sent.
        rows: u32,
    },
    /// An output that the checkpoint does not have.
    #[error("output {output:?}: model {model:?} has {known}; ask for one of them")]
    Output {
        /// What was asked for, shortened.
        output: String,
        /// The model.
        model: String,
        /// What there is.
        known: String,
    },
    /// The same output again.
    #[error("output {output:?}: asked for twice; ask once")]
    RepeatedOutput {
        /// The output.
        output: &'static str,
    },
    /// A parameter of the wrong type.
    #[error("parameter {name:?}: send {expected}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// What it takes.
        expected: &'static str,
    },
    /// Something that the protocol offers and this server does not.
    #[error("{what} is not offered here; {remedy}")]
    NotOffered {
        /// What was asked for.
        what: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
}
