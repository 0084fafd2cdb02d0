//! Replies that never reached their caller: the log marks their decisions and no others.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use crate::support::*;
use hyper::body::Bytes;
use prost::Message as _;
use scorer_proto::v1::{DecisionRecord, DeliveryRecord, log_record};
use tokio::task::JoinHandle;

/// Opens a connection whose peer may send headers, but no body.
async fn connect(setup: &Setup) -> (JoinHandle<Result<(), h2::Error>>, h2::client::SendRequest<Bytes>) {
    let stream = tokio::net::TcpStream::connect(&setup.server.addresses().grpc[0]).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    let (sender, connection) = builder.handshake(stream).await.unwrap();
    (tokio::spawn(connection), sender.ready().await.unwrap())
}

/// Requests an action and waits for the head of the reply. The body cannot be sent.
async fn request(sender: &mut h2::client::SendRequest<Bytes>, id: &str) -> h2::SendStream<Bytes> {
    call(sender, "SelectAction", select(id, 10.0).encode_to_vec()).await
}

async fn call(
    sender: &mut h2::client::SendRequest<Bytes>,
    method: &str,
    message: Vec<u8>,
) -> h2::SendStream<Bytes> {
    let mut body = vec![0];
    body.extend_from_slice(&(message.len() as u32).to_be_bytes());
    body.extend_from_slice(&message);
    let request = http::Request::post(format!("http://scorer/scorer.v1.ScoringService/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, mut stream) = sender.send_request(request, false).unwrap();
    stream.send_data(body.into(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
    stream
}

async fn request_and_disconnect(sender: &mut h2::client::SendRequest<Bytes>, id: &str) {
    request(sender, id).await.send_reset(h2::Reason::CANCEL);
}

async fn undelivered(setup: &Setup, count: u64) {
    let wait = patience("a reply that is given up is counted");
    while !setup.metrics().await.contains(&format!("scorer_undelivered_decisions_total {count}\n")) {
        wait();
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

fn records(setup: &Setup) -> (Vec<DecisionRecord>, Vec<DeliveryRecord>) {
    let (mut decisions, mut deliveries) = (Vec::new(), Vec::new());
    for record in setup.records() {
        match record {
            log_record::Record::Decision(decision) => decisions.push(decision),
            log_record::Record::Delivery(delivery) => deliveries.push(delivery),
            _ => {}
        }
    }
    (decisions, deliveries)
}

/// Fault case 6.
#[tokio::test(flavor = "multi_thread")]
async fn an_undelivered_decision_is_marked_and_a_retry_removes_the_mark() {
    let setup = start();
    let (_connection, mut sender) = connect(&setup).await;
    request_and_disconnect(&mut sender, "gone").await;
    undelivered(&setup, 1).await;
    request_and_disconnect(&mut sender, "retried").await;
    undelivered(&setup, 2).await;
    let mut client = setup.client().await;
    assert!(client.select_action(select("retried", 10.0)).await.unwrap().into_inner().replayed);
    assert!(client.select_action(select("retried", 10.0)).await.unwrap().into_inner().replayed);
    client.select_action(select("kept", 10.0)).await.unwrap();

    let (decisions, deliveries) = records(&setup);
    let ids: Vec<_> = decisions.iter().map(|decision| decision.decision_id.as_str()).collect();
    assert_eq!(ids, ["gone", "retried", "kept"]);
    let marks: Vec<_> = deliveries
        .iter()
        .map(|one| (one.decision_id.as_str(), one.delivered, one.decided_at_us, one.checkpoint.as_str()))
        .collect();
    let decided = |at: usize| decisions[at].decided_at_us;
    assert_eq!(
        marks,
        [
            ("gone", false, decided(0), ACTION),
            ("retried", false, decided(1), ACTION),
            ("retried", true, decided(1), ACTION),
        ]
    );
}

/// Fault case 6.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ends_before_the_reply_marks_the_decision() {
    let setup = start();
    let (connection, mut sender) = connect(&setup).await;
    request(&mut sender, "cut").await;
    connection.abort();
    undelivered(&setup, 1).await;
    let (decisions, deliveries) = records(&setup);
    assert_eq!((decisions.len(), deliveries.len()), (1, 1));
    assert_eq!((&*deliveries[0].decision_id, deliveries[0].delivered), ("cut", false));
}

/// Fault case 6.
#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_an_undelivered_batch_are_marked_together() {
    let setup = start();
    let print = fingerprint(&mut setup.client().await, FRAUD).await;
    let (_connection, mut sender) = connect(&setup).await;
    let message = batch("gone", print, &[[10.0, 0.0, 0.0]; 100]).encode_to_vec();
    call(&mut sender, "ScoreBatch", message).await.send_reset(h2::Reason::CANCEL);
    undelivered(&setup, 100).await;
    let mut client = setup.client().await;
    client.score_batch(batch("kept", print, &[[10.0, 0.0, 0.0]; 2])).await.unwrap();
    let (decisions, deliveries) = records(&setup);
    assert_eq!(decisions.len(), 102);
    let [mark] = &deliveries[..] else { panic!("{deliveries:?}") };
    assert_eq!(
        (&*mark.decision_id, mark.rows, mark.delivered, &*mark.checkpoint),
        ("gone", 100, false, FRAUD)
    );
    for (at, decision) in decisions[..100].iter().enumerate() {
        assert_eq!(decision.decision_id, format!("gone/{at}"));
        assert_eq!(decision.decided_at_us, mark.decided_at_us);
    }
}
