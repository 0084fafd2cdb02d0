//! Request ids: a retry gets the same decision, other content is refused, and concurrent duplicates get one
//! decision.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::sync::{Arc, Barrier};

use crate::support::*;
use scorer_core::bundle::testing;
use scorer_proto::v1::{SelectActionRequest, SelectActionResponse, Served};
use scorer_server::Fault;
use tonic::Code;

/// Returns the parts of an answer that must be equal in its repetition: all except the flag.
fn essence(response: SelectActionResponse) -> SelectActionResponse {
    SelectActionResponse { replayed: false, ..response }
}

/// Fault case 16.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_repeats_the_decision_even_after_a_swap() {
    let setup = start();
    let mut client = setup.client().await;
    let request = SelectActionRequest { include_pmf: true, ..select("r", 250.0) };
    let first = client.select_action(request.clone()).await.unwrap().into_inner();
    assert!(!first.replayed);
    let other = load(&setup.server, setup.directory.path(), &testing::action_files("other", 1.0));
    setup.server.swap(&table(2, &setup.fraud, &other)).unwrap();
    let again = client.select_action(request).await.unwrap().into_inner();
    assert!(again.replayed);
    assert_eq!(essence(again), first);
    assert_eq!(first.served.unwrap().lane_table, 1);
    assert_eq!(setup.decisions().len(), 1, "a retry must not add a second row");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_content_in_another_order_is_the_same_request() {
    let setup = start();
    let mut client = setup.client().await;
    let ids = ["3ds=none|exemption=none", "3ds=none|exemption=tra"];
    let mut request = SelectActionRequest { eligible: eligible(&ids, &[]), ..select("r", 250.0) };
    let first = client.select_action(request.clone()).await.unwrap().into_inner();
    request.eligible = eligible(&[ids[1], ids[0]], &[]);
    if let Some(scorer_proto::v1::select_action_request::Features::Named(named)) = &mut request.features {
        named.features.reverse();
    }
    let again = client.select_action(request).await.unwrap().into_inner();
    assert!(again.replayed);
    assert_eq!(essence(again), first);
}

/// Fault case 16.
#[tokio::test(flavor = "multi_thread")]
async fn other_content_under_a_used_id_is_refused() {
    let setup = start();
    let mut client = setup.client().await;
    client.select_action(select("r", 250.0)).await.unwrap();
    let changed = [
        select("r", 250.01),
        SelectActionRequest { entity: "shopper".to_owned(), ..select("r", 250.0) },
        SelectActionRequest { eligible: eligible(&[], &[0b11_1111]), ..select("r", 250.0) },
        SelectActionRequest { include_pmf: true, ..select("r", 250.0) },
    ];
    for request in changed {
        let status = client.select_action(request).await.unwrap_err();
        assert_eq!(status.code(), Code::AlreadyExists);
        assert!(status.message().contains("request_id was used before"), "{}", status.message());
    }
    client.score(score("r", 250.0)).await.expect("an id is one checkpoint's");
    client.score(score("r", 250.0)).await.expect("a repetition");
    assert_eq!(client.score(score("r", 1.0)).await.unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(setup.decisions().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_score_with_an_id_is_recorded_once_and_without_one_each_time() {
    let setup = start();
    let mut client = setup.client().await;
    let first = client.score(score("s", 250.0)).await.unwrap().into_inner();
    let again = client.score(score("s", 250.0)).await.unwrap().into_inner();
    assert_eq!(first, again);
    let ids: Vec<_> = [client.score(score("", 250.0)).await, client.score(score("", 250.0)).await]
        .map(|response| response.unwrap().into_inner().decision_id)
        .into();
    assert_ne!(ids[0], ids[1]);
    let logged: Vec<_> = setup.decisions().into_iter().map(|decision| decision.decision_id).collect();
    assert_eq!(logged, ["s".to_owned(), ids[0].clone(), ids[1].clone()]);
}

/// Fault case 16.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_several_concurrent_duplicates_exactly_one_is_decided() {
    let setup = start();
    let mut client = setup.client().await;
    let barrier = Arc::new(Barrier::new(2));
    setup.server.inject("once", Fault::Meet(Arc::clone(&barrier)));
    let send = |client: &Client| {
        let mut client = client.clone();
        tokio::spawn(async move { client.select_action(select("once", 250.0)).await })
    };
    let first = send(&client);
    let meet = |barrier: &Arc<Barrier>| {
        let barrier = Arc::clone(barrier);
        tokio::task::spawn_blocking(move || barrier.wait())
    };
    // The first one is being decided now, on one of the server's two threads ...
    meet(&barrier).await.unwrap();
    let others: Vec<_> = (0..8).map(|_| send(&client)).collect();
    // ... the others have arrived at the other thread when that thread answers a later request ...
    client.score(score("after", 1.0)).await.unwrap();
    // ... and none of them has been answered or has reached the barrier.
    assert!(others.iter().all(|other| !other.is_finished()));
    meet(&barrier).await.unwrap();
    let first = first.await.unwrap().unwrap().into_inner();
    assert!(!first.replayed);
    for other in others {
        let other = other.await.unwrap().unwrap().into_inner();
        assert!(other.replayed);
        assert_eq!(essence(other), first);
    }
    let decisions = setup.decisions();
    assert_eq!(decisions.iter().filter(|decision| decision.decision_id == "once").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_attempt_does_not_use_the_id() {
    let setup = start();
    let mut client = setup.client().await;
    let status = client.select_action(select("r", -1.0)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let response = client.select_action(select("r", 1.0)).await.unwrap().into_inner();
    assert!(!response.replayed);
    assert!(matches!(response.served, Some(Served { lane_table: 1, .. })));
}
