//! The parameters of a request. Unknown parameters are ignored, because clients send parameters of their own, such as
//! `priority` and `binary_data_output`.

use std::collections::HashMap;
use std::time::Duration;

use scorer_proto::inference::InferParameter;
use scorer_proto::inference::infer_parameter::ParameterChoice;

use super::error::InferError;

type Map = HashMap<String, InferParameter>;

/// Returns the entity by which the lane is drawn; empty if it is not given.
pub(crate) fn entity(given: &Map) -> Result<&str, InferError> {
    match choice(given, "entity") {
        None => Ok(""),
        Some(ParameterChoice::StringParam(entity)) => Ok(entity),
        Some(_) => Err(InferError::Parameter { name: "entity", expected: "a string" }),
    }
}

/// Whether the reply to a score must contain its decision token. Replies with actions always contain it.
pub(crate) fn include_token(given: &Map) -> Result<bool, InferError> {
    match choice(given, "include_token") {
        None => Ok(false),
        Some(&ParameterChoice::BoolParam(include)) => Ok(include),
        Some(_) => Err(InferError::Parameter { name: "include_token", expected: "a bool" }),
    }
}

/// Returns the caller's timeout; `None` for 0, which means no limit, as in Triton.
pub(crate) fn timeout(given: &Map) -> Result<Option<Duration>, InferError> {
    let micros = match choice(given, "timeout") {
        None => 0,
        Some(&ParameterChoice::Int64Param(micros)) => u64::try_from(micros).ok().ok_or_else(bad_timeout)?,
        Some(&ParameterChoice::Uint64Param(micros)) => micros,
        Some(_) => return Err(bad_timeout()),
    };
    Ok((micros > 0).then(|| Duration::from_micros(micros)))
}

/// Rejects sequences, because models have no state between requests.
pub(crate) fn check_sequence(given: &Map) -> Result<(), InferError> {
    match choice(given, "sequence_id") {
        None | Some(ParameterChoice::Int64Param(0) | ParameterChoice::Uint64Param(0)) => Ok(()),
        Some(ParameterChoice::StringParam(id)) if id.is_empty() => Ok(()),
        Some(_) => Err(InferError::NotOffered {
            what: "the sequence extension",
            remedy: "leave sequence_id out: every request stands for itself",
        }),
    }
}

pub(crate) fn text(value: impl Into<String>) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::StringParam(value.into())) }
}

pub(crate) fn number(value: u64) -> InferParameter {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(value)) }
}

pub(crate) fn flag(value: bool) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(value)) }
}

fn choice<'a>(given: &'a Map, name: &str) -> Option<&'a ParameterChoice> {
    given.get(name)?.parameter_choice.as_ref()
}

fn bad_timeout() -> InferError {
    InferError::Parameter { name: "timeout", expected: "an int64, microseconds, 0 for no limit" }
}
