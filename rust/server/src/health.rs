//! `grpc.health.v1`: the health of the server as a whole (""), the scoring service, each checkpoint by name, and
//! `liveness`.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::watch;
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::config::Role;
use crate::service_names::{INFERENCE_SERVICE, LIVENESS, SCORING_SERVICE, SHADOW_SERVICE};

/// Returns the services of a role.
pub(crate) fn services(role: Role) -> &'static [&'static str] {
    match role {
        Role::Live => &[SCORING_SERVICE, INFERENCE_SERVICE],
        Role::Shadow => &[SHADOW_SERVICE],
    }
}

/// The health of all names. Unlike the reporter of `tonic-health`, it can be set from any thread without a runtime, for
/// all names at once.
#[derive(Clone)]
pub(crate) struct Health {
    state: Arc<watch::Sender<State>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    role: Role,
    /// The configured checkpoints. The server as a whole serves if each of them does.
    checkpoints: BTreeMap<String, bool>,
    /// Checkpoints that were added to the running server. They do not affect whether the server as a whole serves.
    added: BTreeMap<String, bool>,
    draining: bool,
}

// === impl Health ===

impl Health {
    /// Creates the state in which no checkpoint serves.
    pub(crate) fn new<'a>(role: Role, checkpoints: impl Iterator<Item = &'a String>) -> Health {
        let checkpoints = checkpoints.map(|name| (name.clone(), false)).collect();
        Health { state: Arc::new(watch::Sender::new(State { role, checkpoints, ..State::default() })) }
    }

    /// Adds a checkpoint. It serves when a table with lanes for it is activated.
    pub(crate) fn add(&self, checkpoint: &str) {
        self.state.send_modify(|state| _ = state.added.insert(checkpoint.to_owned(), false));
    }

    /// Sets which checkpoints have lanes.
    pub(crate) fn set<'a>(&self, serving: impl Iterator<Item = (&'a str, bool)>) {
        self.state.send_if_modified(|state| {
            let mut changed = false;
            for (name, serves) in serving {
                let State { checkpoints, added, .. } = state;
                if let Some(old) = checkpoints.get_mut(name).or_else(|| added.get_mut(name)) {
                    changed |= std::mem::replace(old, serves) != serves;
                }
            }
            changed
        });
    }

    /// Starts the drain, after which no name but `liveness` serves.
    pub(crate) fn drain(&self) {
        self.state.send_if_modified(|state| !std::mem::replace(&mut state.draining, true));
    }

    /// Resolves when the drain starts.
    pub(crate) fn draining(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut states = self.state.subscribe();
        async move {
            // An error means that the server was dropped without a drain, which ends the wait too.
            let _ = states.wait_for(|state| state.draining).await;
        }
    }

    /// Whether the checkpoint has lanes and the server is not draining.
    pub(crate) fn serves(&self, checkpoint: &str) -> bool {
        self.state.borrow().of(checkpoint) == Some(ServingStatus::Serving)
    }

    /// Whether every configured checkpoint has lanes and the server is not draining.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.borrow().of("") == Some(ServingStatus::Serving)
    }
}

// === impl State ===

impl State {
    fn checkpoint(&self, name: &str) -> Option<bool> {
        self.checkpoints.get(name).or_else(|| self.added.get(name)).copied()
    }

    fn of(&self, service: &str) -> Option<ServingStatus> {
        if service == LIVENESS {
            return Some(ServingStatus::Serving);
        }
        let serves = if let Some(serves) = self.checkpoint(service) {
            serves
        } else if service.is_empty() || services(self.role).contains(&service) {
            self.checkpoints.values().all(|&serves| serves)
        } else {
            return None;
        };
        Some(if serves && !self.draining { ServingStatus::Serving } else { ServingStatus::NotServing })
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        match self.state.borrow().of(&service) {
            Some(status) => Ok(Response::new(response(status))),
            None => Err(Status::not_found(
                "unknown service; ask for \"\", the scoring service, a checkpoint or \"liveness\"",
            )),
        }
    }

    type WatchStream = Changes;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Changes>, Status> {
        Ok(Response::new(Changes {
            service: request.into_inner().service,
            states: WatchStream::new(self.state.subscribe()),
            last: None,
            ended: false,
        }))
    }
}

/// The changes of one service's health. The stream ends with the drain's NOT_SERVING, so that an open watch does not
/// delay the drain.
pub(crate) struct Changes {
    service: String,
    states: WatchStream<State>,
    last: Option<ServingStatus>,
    ended: bool,
}

impl Stream for Changes {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while !self.ended {
            let Some(state) = ready!(Pin::new(&mut self.states).poll_next(context)) else { break };
            self.ended = state.draining;
            let status = state.of(&self.service).unwrap_or(ServingStatus::ServiceUnknown);
            if self.last.replace(status) != Some(status) {
                return Poll::Ready(Some(Ok(response(status))));
            }
        }
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_serves_when_every_checkpoint_does() {
        let names = ["a".to_owned(), "b".to_owned()];
        let health = Health::new(Role::Live, names.iter());
        let of = |service: &str| health.state.borrow().of(service);
        assert_eq!(of(""), Some(ServingStatus::NotServing));
        assert_eq!(of(LIVENESS), Some(ServingStatus::Serving));
        health.set([("a", true)].into_iter());
        assert_eq!(of("a"), Some(ServingStatus::Serving));
        assert_eq!(of(SCORING_SERVICE), Some(ServingStatus::NotServing));
        assert_eq!(of(INFERENCE_SERVICE), Some(ServingStatus::NotServing));
        health.set([("b", true)].into_iter());
        assert!(health.is_ready());
        assert_eq!(of("c"), None);
        assert_eq!(of(SHADOW_SERVICE), None, "another role's");
        health.drain();
        assert_eq!(of("a"), Some(ServingStatus::NotServing));
        health.set([("a", true)].into_iter());
        assert!(!health.is_ready(), "a drain is not undone");
        assert_eq!(of(LIVENESS), Some(ServingStatus::Serving));
    }

    #[test]
    fn a_shadow_pool_serves_its_own_service_alone() {
        let health = Health::new(Role::Shadow, ["a".to_owned()].iter());
        health.set([("a", true)].into_iter());
        let of = |service: &str| health.state.borrow().of(service);
        assert_eq!([of(""), of("a"), of(SHADOW_SERVICE)], [Some(ServingStatus::Serving); 3]);
        assert_eq!([of(SCORING_SERVICE), of(INFERENCE_SERVICE)], [None; 2]);
    }
}
