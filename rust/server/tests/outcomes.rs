//! Outcomes: counted once, late and out of order, kept after a restart, one value per revision.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use crate::support::*;
use scorer_proto::v1::{
    OutcomeRecord, OutcomeSource, OutcomeSourceKind, ReportOutcomeRequest, ReportOutcomeResponse, log_record,
};
use scorer_server::{Server, ServerConfig};
use std::time::Duration;
use tonic::Code;

fn answer(duplicate: bool, decision_known: bool, superseded: bool) -> ReportOutcomeResponse {
    ReportOutcomeResponse { duplicate, decision_known, superseded, proven: decision_known }
}

/// Fault case 77.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_report_counts_and_an_equal_one_is_accepted() {
    let setup = start();
    let mut client = setup.client().await;
    client.select_action(select("d", 10.0)).await.unwrap();
    let mut report = async |id: &str, kind: &str, value: f64, revision: u32| {
        client.report_outcome(outcome(id, kind, value, revision)).await.map(tonic::Response::into_inner)
    };
    assert_eq!(report("d", "authorised", 1.0, 0).await.unwrap(), answer(false, true, false));
    assert_eq!(report("d", "authorised", 1.0, 0).await.unwrap(), answer(true, true, false));
    assert_eq!(report("d", "fraud", 0.0, 0).await.unwrap(), answer(false, true, false), "another kind");
    assert_eq!(report("elsewhere", "fraud", 1.0, 0).await.unwrap(), answer(false, false, false));
    let status = report("d", "authorised", 0.0, 0).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    for words in ["\"authorised\"", "revision 0", "another value", "higher revision"] {
        assert!(status.message().contains(words), "{}", status.message());
    }
    assert_eq!(report("d", "authorised", 0.0, 2).await.unwrap(), answer(false, true, false));
    assert_eq!(report("d", "authorised", 1.0, 1).await.unwrap(), answer(false, true, true), "out of order");

    let recorded: Vec<_> = setup
        .records()
        .into_iter()
        .filter_map(|record| match record {
            log_record::Record::Outcome(OutcomeRecord { decision_id, kind, value, revision, .. }) => {
                Some((decision_id, kind, value, revision))
            }
            _ => None,
        })
        .collect();
    let expected = [
        ("d", "authorised", 1.0, 0),
        ("d", "fraud", 0.0, 0),
        ("elsewhere", "fraud", 1.0, 0),
        ("d", "authorised", 0.0, 2),
        ("d", "authorised", 1.0, 1),
    ];
    assert_eq!(
        recorded,
        expected.map(|(id, kind, value, revision)| (id.into(), kind.into(), value, revision))
    );
}

/// Fault case 77.
#[tokio::test(flavor = "multi_thread")]
async fn reported_outcomes_are_known_after_a_restart() {
    let setup = start();
    let mut client = setup.client().await;
    client.select_action(select("d", 10.0)).await.unwrap();
    client.report_outcome(outcome("d", "authorised", 1.0, 0)).await.unwrap();
    setup.server.drain(Duration::from_secs(5));

    let config = ServerConfig::from_json(&config(setup.directory.path()).to_string()).unwrap();
    let server = Server::start(config).unwrap();
    let mut client = Client::new(channel(&server).await);
    let same = client.report_outcome(outcome("d", "authorised", 1.0, 0)).await.unwrap().into_inner();
    assert_eq!(same, answer(true, true, false));
    let status = client.report_outcome(outcome("d", "authorised", 0.0, 0)).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_source_of_an_outcome_is_recorded_and_counted() {
    let setup = start();
    let mut client = setup.client().await;
    client.select_action(select("d", 10.0)).await.unwrap();
    let of = |kind, source: &str, name: &str| outcome_of(kind, source, outcome("d", name, 1.0, 0));
    let unstated =
        ReportOutcomeRequest { source: Some(OutcomeSource::default()), ..outcome("d", "authorised", 1.0, 0) };
    for report in [
        unstated,
        of(OutcomeSourceKind::Reviewer, "case-17", "review"),
        // The first report of a revision is the record, whoever repeats it.
        of(OutcomeSourceKind::Merchant, "", "review"),
        of(OutcomeSourceKind::Scheme, "tc40", "fraud"),
        of(OutcomeSourceKind::Unspecified, "batch-3", "refund"),
        of(OutcomeSourceKind::Issuer, &"x".repeat(64), "chargeback"),
    ] {
        client.report_outcome(report).await.unwrap();
    }
    let mut unknown = of(OutcomeSourceKind::Reviewer, "", "other");
    unknown.source.as_mut().unwrap().kind = 9;
    for (report, words) in [
        (unknown, "source.kind 9 is not known"),
        (of(OutcomeSourceKind::Merchant, &"x".repeat(65), "other"), "source.id: has 65 bytes"),
        (of(OutcomeSourceKind::Merchant, "a\nb", "other"), "source.id: byte 1"),
        (of(OutcomeSourceKind::Merchant, "4111111111111111", "other"), "source.id"),
    ] {
        let status = client.report_outcome(report).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(words), "{}", status.message());
    }

    let metrics = setup.metrics().await;
    for (source, count) in
        [("unspecified", 2), ("reviewer", 1), ("merchant", 0), ("issuer", 1), ("scheme", 1)]
    {
        let line = format!("scorer_outcomes_recorded_by_source_total{{source=\"{source}\"}} {count}");
        assert!(metrics.lines().any(|one| one == line), "{line}: {metrics}");
    }

    let recorded: Vec<_> = setup
        .records()
        .into_iter()
        .filter_map(|record| match record {
            log_record::Record::Outcome(one) => Some((one.kind, one.source)),
            _ => None,
        })
        .collect();
    let source =
        |kind: OutcomeSourceKind, id: &str| Some(OutcomeSource { kind: kind.into(), id: id.to_owned() });
    assert_eq!(
        recorded,
        [
            ("authorised".to_owned(), None),
            ("review".to_owned(), source(OutcomeSourceKind::Reviewer, "case-17")),
            ("fraud".to_owned(), source(OutcomeSourceKind::Scheme, "tc40")),
            ("refund".to_owned(), source(OutcomeSourceKind::Unspecified, "batch-3")),
            ("chargeback".to_owned(), source(OutcomeSourceKind::Issuer, &"x".repeat(64))),
        ]
    );
}
