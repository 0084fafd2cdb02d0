//! Stage `identify`: determines the checkpoint, the entity and the id of a request.

use uuid::Uuid;

use crate::arrival::Arrival;
use crate::checkpoint::Checkpoint;
use crate::config::Kind;
use crate::engine::Engine;
use crate::privacy::Privacy;
use crate::rejection::Rejection;

/// Limit on the length of a request id, in bytes.
const MAX_REQUEST_ID: usize = 64;
/// Limit on the length of a decision id, in bytes. A batch adds "/" and the row's number to the request id.
const MAX_DECISION_ID: usize = 80;
/// Limit on the length of an entity, in bytes.
const MAX_ENTITY: usize = 256;
/// Limit on the length of an outcome's kind, in bytes.
const MAX_OUTCOME_KIND: usize = 64;
/// Limit on the length of the id of an outcome's source, in bytes.
const MAX_SOURCE_ID: usize = 64;

/// Returns the configured checkpoint of this name, which must be of `kind`, and stores it in the arrival for counters.
pub(crate) fn checkpoint<'a>(
    engine: &'a Engine,
    arrival: &Arrival,
    name: &str,
    kind: Kind,
) -> Result<&'a Checkpoint, Rejection> {
    of_kind(engine.checkpoint_of(arrival, name)?, name, kind)
}

/// Returns the checkpoint of the second decision of a request, as [`checkpoint`] does for the first.
pub(crate) fn second_checkpoint<'a>(
    engine: &'a Engine,
    arrival: &Arrival,
    name: &str,
    kind: Kind,
) -> Result<&'a Checkpoint, Rejection> {
    let checkpoint = engine.checkpoints.get(name)?;
    arrival.set_second_checkpoint(checkpoint.index);
    of_kind(checkpoint, name, kind)
}

fn of_kind<'a>(checkpoint: &'a Checkpoint, name: &str, kind: Kind) -> Result<&'a Checkpoint, Rejection> {
    if checkpoint.kind == kind {
        return Ok(checkpoint);
    }
    Err(Rejection::WrongKind {
        name: name.to_owned(),
        kind: checkpoint.kind.as_str(),
        method: match checkpoint.kind {
            Kind::Score => "Score or ScoreBatch",
            Kind::Action => "SelectAction",
        },
    })
}

/// Returns the caller's request id, or a new UUID (version 7) without one.
pub(crate) fn request_id(privacy: &Privacy, given: String) -> Result<Id, Rejection> {
    if given.is_empty() {
        return Ok(Id { text: Uuid::now_v7().to_string(), given: false });
    }
    check_printable(&given, MAX_REQUEST_ID).map_err(|got| Rejection::Id {
        field: "request_id",
        got,
        max: MAX_REQUEST_ID,
    })?;
    Ok(Id { text: privacy.id("request_id", given)?, given: true })
}

/// A decision's id.
pub(crate) struct Id {
    pub(crate) text: String,
    /// Whether the caller chose the id and can therefore retry with it.
    pub(crate) given: bool,
}

/// Checks the id of a decision.
///
/// # Errors
/// It is not 1 to 80 printable ASCII characters.
pub fn check_decision_id(given: &str) -> Result<(), Rejection> {
    check_printable(given, MAX_DECISION_ID).map_err(|got| Rejection::Id {
        field: "decision_id",
        got,
        max: MAX_DECISION_ID,
    })
}

pub(crate) fn check_outcome_kind(given: &str) -> Result<(), Rejection> {
    check_printable(given, MAX_OUTCOME_KIND)
        .map_err(|got| Rejection::OutcomeKind { got, max: MAX_OUTCOME_KIND })
}

/// Checks the id of an outcome's source, which may be empty.
pub(crate) fn check_source_id(given: &str) -> Result<(), Rejection> {
    if given.is_empty() {
        return Ok(());
    }
    check_printable(given, MAX_SOURCE_ID)
        .map_err(|got| Rejection::OutcomeSourceId { got, max: MAX_SOURCE_ID })
}

/// Checks an entity.
///
/// # Errors
/// It is longer than 256 bytes.
pub fn check_entity(given: &str) -> Result<(), Rejection> {
    if given.len() <= MAX_ENTITY {
        return Ok(());
    }
    Err(Rejection::TooLong { field: "entity", bytes: given.len(), max: MAX_ENTITY })
}

/// Describes the error without repeating the text, which may contain control characters.
fn check_printable(text: &str, max: usize) -> Result<(), String> {
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    if text.len() > max {
        return Err(format!("has {} bytes", text.len()));
    }
    match text.bytes().position(|byte| !(0x20..=0x7e).contains(&byte)) {
        Some(at) => Err(format!("byte {at} is not printable ASCII")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault case 36.
    #[test]
    fn ids_are_printable_and_short() {
        let privacy = Privacy::default();
        for good in ["a", " ", "~", &"x".repeat(64), "order-1/attempt 2"] {
            assert_eq!(
                request_id(&privacy, good.to_owned()).ok().map(|id| (id.text, id.given)),
                Some((good.to_owned(), true))
            );
        }
        for (bad, says) in [
            (&"x".repeat(65) as &str, "has 65 bytes"),
            ("a\nb", "byte 1 is not printable"),
            ("\u{1b}[31m", "byte 0"),
            ("caf\u{e9}", "byte 3"),
            ("\u{7f}", "byte 0"),
        ] {
            let error = request_id(&privacy, bad.to_owned()).err().map(|error| error.to_string()).unwrap();
            assert!(error.contains(says) && !error.contains(bad), "{error}");
        }
    }

    #[test]
    fn an_empty_request_id_becomes_a_new_uuid_of_version_7() {
        let ids: Vec<_> =
            (0..2).map(|_| request_id(&Privacy::default(), String::new()).ok().unwrap()).collect();
        assert_ne!(ids[0].text, ids[1].text);
        for id in ids {
            assert!(!id.given);
            assert_eq!(Uuid::parse_str(&id.text).unwrap().get_version_num(), 7);
        }
    }
}
