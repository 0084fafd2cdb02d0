//! The answers of all methods, compared with the bundle and with the records in the log.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use crate::support::*;
use scorer_core::budget::Unlimited;
use scorer_core::bundle::EvalScratch;
use scorer_core::bundle::testing::{self, assemble};
use scorer_core::policy::Mask;
use scorer_proto::v1::{DescribeRequest, NoopRequest, ScoreBatchRequest};

/// A row of the test schema: amount, country NL, night false.
fn row(amount: f32) -> [f32; 3] {
    [amount, 0.0, 0.0]
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_equal_those_of_the_bundle_and_are_recorded() {
    let setup = start();
    let mut client = setup.client().await;
    let bundle = assemble(&testing::score_files("fraud", 0.0)).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let fingerprint = bundle.schema().fingerprint();
    for (number, amount) in [0.0, 99.99, 100.0, 999.0, 1000.0, 50_000.0].into_iter().enumerate() {
        let expected = bundle.score(&row(amount as f32), &Unlimited, &mut scratch).unwrap();
        let by_name = client.score(score(&format!("n{number}"), amount)).await.unwrap().into_inner();
        let request = score_dense(&format!("d{number}"), fingerprint, &row(amount as f32));
        let dense = client.score(request).await.unwrap().into_inner();
        for response in [by_name, dense] {
            assert_eq!(response.score.to_bits(), expected.score.to_bits());
            assert_eq!(response.margin.to_bits(), expected.margin.to_bits());
            assert_eq!(response.decision, bundle.labels()[expected.band]);
            let served = response.served.unwrap();
            assert_eq!(
                (served.bundle, served.lane, served.lane_table),
                (setup.fraud.clone(), "live".into(), 1)
            );
            assert_eq!(served.fallback_reason, "");
        }
    }
    let generated = client.score(score("", 5.0)).await.unwrap().into_inner();
    assert_eq!(uuid::Uuid::parse_str(&generated.decision_id).unwrap().get_version_num(), 7);

    let decisions = setup.decisions();
    assert_eq!(decisions.len(), 13);
    let last = decisions.last().unwrap();
    assert_eq!((&last.decision_id, &*last.checkpoint, &*last.lane), (&generated.decision_id, FRAUD, "live"));
    assert_eq!((last.features.as_slice(), last.schema_fingerprint), (&row(5.0)[..], fingerprint));
    assert_eq!(
        (last.score, last.margin, &last.decision),
        (generated.score, generated.margin, &generated.decision)
    );
    assert_eq!(last.bundle, bundle.digest().0);
}

#[tokio::test(flavor = "multi_thread")]
async fn selections_equal_those_of_the_bundle_and_are_recorded_in_full() {
    let setup = start();
    let mut client = setup.client().await;
    let bundle = assemble(&testing::action_files("action", 0.0)).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let everything = Mask::all(6);
    let some = Mask::from_bytes(6, &[0b10_0110]).unwrap();
    let ids: Vec<_> = some.iter().map(|index| bundle.catalogue().get(index).unwrap().id.clone()).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    let mut answers = Vec::new();
    for number in 0..30 {
        let id = format!("a{number}");
        let (mask, given) = match number % 3 {
            0 => (&everything, None),
            1 => (&some, eligible(&[], &[0b10_0110])),
            _ => (&some, eligible(&ids, &[])),
        };
        let expected = bundle.select(&row(250.0), mask, ACTION, &id, &Unlimited, &mut scratch).unwrap();
        let mut request = select(&id, 250.0);
        request.eligible = given;
        request.include_pmf = number % 2 == 0;
        let response = client.select_action(request).await.unwrap().into_inner();
        let action = bundle.catalogue().get(expected.index).unwrap();
        assert_eq!((&response.action, response.action_index as usize), (&action.id, expected.index));
        assert_eq!(response.propensity.to_bits(), expected.propensity.to_bits());
        assert_eq!(response.expected_reward.to_bits(), expected.expected_reward.to_bits());
        assert_eq!(response.factors.get("three_ds"), action.factors.get("three_ds"));
        assert!(response.logged && !response.replayed);
        let pmf: Vec<f32> = scratch.pmf().iter().map(|&p| p as f32).collect();
        assert_eq!(response.pmf, if number % 2 == 0 { pmf } else { Vec::new() });
        answers.push((response, scratch.pmf().to_vec(), mask.clone()));
    }

    let decisions = setup.decisions();
    assert_eq!(decisions.len(), answers.len());
    for (decision, (response, pmf, mask)) in decisions.iter().zip(&answers) {
        assert_eq!(decision.decision_id, response.decision_id);
        assert_eq!((&decision.action, decision.action_index), (&response.action, response.action_index));
        assert_eq!(decision.propensity.to_bits(), response.propensity.to_bits());
        assert_eq!(&decision.pmf, pmf);
        let expected = if mask.is_full() { Vec::new() } else { mask.to_bytes() };
        assert_eq!(decision.eligible_mask, expected);
        assert_eq!((decision.features.as_slice(), &*decision.decision), (&row(250.0)[..], ""));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_gives_the_scores_of_its_rows() {
    let setup = start();
    let mut client = setup.client().await;
    let bundle = assemble(&testing::score_files("fraud", 0.0)).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let rows: Vec<[f32; 3]> = (0..200).map(|number| row(number as f32 * 10.0)).collect();
    let request = ScoreBatchRequest {
        keys: Default::default(),
        checkpoint: FRAUD.to_owned(),
        request_id: "batch".to_owned(),
        schema_fingerprint: bundle.schema().fingerprint(),
        values: rows.concat(),
        rows: 200,
        entity: "shopper".to_owned(),
        include_token: false,
    };
    let response = client.score_batch(request).await.unwrap().into_inner();
    assert_eq!(response.request_id, "batch");
    assert_eq!(response.labels, bundle.labels());
    for (number, row) in rows.iter().enumerate() {
        let expected = bundle.score(row, &Unlimited, &mut scratch).unwrap();
        assert_eq!(response.scores[number].to_bits(), expected.score.to_bits());
        assert_eq!(response.margins[number].to_bits(), expected.margin.to_bits());
        assert_eq!(response.decisions[number] as usize, expected.band);
    }
    let decisions = setup.decisions();
    assert_eq!(decisions.len(), 200);
    assert_eq!((&*decisions[199].decision_id, &*decisions[199].entity), ("batch/199", "shopper"));
    assert_eq!(decisions[199].features, rows[199]);
}

#[tokio::test(flavor = "multi_thread")]
async fn describe_returns_what_a_caller_needs() {
    let setup = start();
    let mut client = setup.client().await;
    let all = client.describe(DescribeRequest::default()).await.unwrap().into_inner().checkpoints;
    assert_eq!(
        all.iter().map(|checkpoint| checkpoint.checkpoint.as_str()).collect::<Vec<_>>(),
        [ACTION, FRAUD]
    );
    let request = DescribeRequest { checkpoint: FRAUD.to_owned() };
    let one = client.describe(request).await.unwrap().into_inner().checkpoints;
    assert_eq!(one, all[1..]);
    let (action, fraud) = (&all[0], &all[1]);
    assert_eq!((&fraud.bundle, &*fraud.bundle_name, &*fraud.kind), (&setup.fraud, "fraud", "score"));
    assert_eq!(
        fraud.features.iter().map(|feature| &*feature.r#type).collect::<Vec<_>>(),
        ["number", "category", "flag"]
    );
    assert_eq!((fraud.features[0].maximum, &*fraud.features[0].missing), (Some(50_000.0), "refuse"));
    assert_eq!((&*fraud.features[1].unknown_category, fraud.features[1].categories.len()), ("missing", 3));
    assert_eq!(
        fraud.thresholds.iter().map(|threshold| &*threshold.label).collect::<Vec<_>>(),
        ["approve", "review", "decline"]
    );
    assert_eq!((fraud.sla_p99_ms, fraud.max_batch_rows, fraud.lane_table), (10_000.0, 1000, 1));
    assert_eq!((action.actions.len(), &*action.policy), (6, "squarecb"));
    assert_eq!(action.actions[5].factors["exemption"], "low");
}

#[tokio::test(flavor = "multi_thread")]
async fn noop_returns_its_payload() {
    let setup = start();
    let payload = vec![7; 1000];
    let response = setup.client().await.noop(NoopRequest { payload: payload.clone() }).await.unwrap();
    assert_eq!(response.into_inner().payload, payload);
}
