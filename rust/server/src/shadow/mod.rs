//! The shadow pool's side: servers of role `shadow` that observe on machines of their own what live servers sample.
//! The live side is the forwarder of `scorer-observe`.

mod receive;

use scorer_identity::Role;
use scorer_proto::v1::ObserveRequest;
use tonic::Status;

use crate::probe::Caller;
use crate::services::Services;
pub(crate) use receive::receive;

/// Passes a call on if its sender may have requests observed at every checkpoint that it names.
pub(crate) fn permitted(
    services: &Services,
    caller: &Caller,
    message: Result<ObserveRequest, Status>,
) -> Result<ObserveRequest, Status> {
    let message = message?;
    for decision in message.requests.iter().filter_map(|request| request.decision.as_ref()) {
        services.security.check(caller.0.as_deref(), Role::Observe, Some(&decision.checkpoint))?;
    }
    Ok(message)
}

/// Why a call between a live server and a shadow pool is rejected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ShadowError {
    /// A shadow pool is asked for an answer.
    #[error(
        "this server is a shadow pool: it observes and answers no requests; call the live server{}",
        live(.sender)
    )]
    Shadow {
        /// The live server that sent to it last; empty if none did.
        sender: String,
    },
    /// A live server is sent what a shadow pool observes.
    #[error("this server is live and observes for itself; send to one whose role is \"shadow\"")]
    NotShadow,
    /// What a live server sent breaks a rule; nothing of the call is taken.
    #[error("{what}: {rule}")]
    Observe {
        /// The field.
        what: String,
        /// The rule, and what is there instead.
        rule: String,
    },
}

/// The live server to call, if a pool has seen one.
fn live(sender: &str) -> String {
    if sender.is_empty() { String::new() } else { format!(", such as {sender:?}") }
}
