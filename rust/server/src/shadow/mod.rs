//! The shadow pool's side: servers of role `shadow` that observe on machines of their own what live servers sample.
//! The live side is the forwarder of `scorer-observe`.

mod receive;

pub(crate) use receive::receive;

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
