//! Who sends a request.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use scorer_identity::{Access, Identity, Unauthenticated};

/// What a connection's peer has shown.
#[derive(Clone, Default)]
pub(crate) enum Credential {
    /// Nothing.
    #[default]
    Absent,
    /// A principal.
    Known(Arc<Access>),
    /// A certificate that names none.
    Refused(Unauthenticated),
}

// === impl Credential ===

impl Credential {
    pub(super) fn of(access: Result<Arc<Access>, Unauthenticated>) -> Credential {
        match access {
            Ok(access) => Credential::Known(access),
            Err(error) => Credential::Refused(error),
        }
    }
}

/// The bearer of the request's token, or the peer of its connection if the request has none or tokens are not accepted.
pub(super) fn of_request(
    identity: &Identity,
    connection: &Credential,
    headers: &HeaderMap,
) -> Result<Arc<Access>, Unauthenticated> {
    if identity.tokens().is_some() {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        if let Some(value) = given.next() {
            if given.next().is_some() {
                return Err(Unauthenticated::Token("the request has several authorization headers"));
            }
            let token = value.to_str().ok().and_then(|text| text.split_once(' '));
            let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            let (_, token) =
                token.ok_or(Unauthenticated::Token("authorization is not \"Bearer <token>\""))?;
            return identity.of_token(token);
        }
    }
    match connection {
        Credential::Known(access) => Ok(Arc::clone(access)),
        Credential::Refused(error) => Err(error.clone()),
        Credential::Absent => Err(Unauthenticated::Nothing),
    }
}
