//! Observe lanes: they evaluate answered requests, are recorded in full, and change no answer.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    dead_code,
    unused_imports,
    reason = "a failure here is a failed test"
)]

use std::collections::{BTreeSet, HashMap};

use crate::support;
use crate::support::*;
use scorer_core::budget::Unlimited;
use scorer_core::bundle::EvalScratch;
use scorer_core::bundle::testing::{self, assemble};
use scorer_core::policy::Mask;
use scorer_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use scorer_proto::inference::model_infer_request::InferInputTensor;
use scorer_proto::inference::{InferTensorContents, ModelInferRequest};
use scorer_proto::v1::{feature, log_record};
use scorer_server::{LaneTable, Op, SwapError};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_score_is_observed_and_recorded_in_full() {
    let setup = start();
    let files = testing::score_files("other", 1.0);
    let other = load(&setup.server, setup.directory.path(), &files);
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![observer("shadow", &other, 1.0)])).unwrap();
    let mut client = setup.client().await;
    let mut answers = HashMap::new();
    for number in 0..20 {
        let mut request = score(&format!("d{number}"), 50.0 * f64::from(number));
        request.entity = format!("shopper-{number}");
        let answer = client.score(request.clone()).await.unwrap().into_inner();
        // A retry is answered from the idempotency cache and is not observed.
        assert_eq!(client.score(request).await.unwrap().into_inner(), answer);
        answers.insert(answer.decision_id.clone(), answer);
    }
    let counts = status(&setup, "shadow", |lane| lane.evaluated == 20).await;
    assert_eq!((counts.seen, counts.taken, counts.dropped, counts.shed, counts.unlogged), (20, 20, 0, 0, 0));
    assert!(counts.failed.values().all(|&count| count == 0) && !counts.stuck && !counts.pool);
    assert!(
        0.0 < counts.exec_p50_us && counts.exec_p50_us <= counts.exec_p999_us && counts.cpu_seconds > 0.0,
        "{counts:?}"
    );
    assert_eq!((counts.checkpoint.as_str(), counts.bundle.as_str()), (FRAUD, other.as_str()));

    let bundle = assemble(&files).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let records = setup.records();
    let decisions: HashMap<_, _> = records
        .iter()
        .filter_map(|record| match record {
            log_record::Record::Decision(decision) => Some((decision.decision_id.clone(), decision.clone())),
            _ => None,
        })
        .collect();
    let mut seen = 0;
    for record in &records {
        let log_record::Record::Observation(observation) = record else { continue };
        seen += 1;
        let own = observation.decision.as_ref().unwrap();
        let (live, answer) = (&decisions[&own.decision_id], &answers[&own.decision_id]);
        assert_eq!(own.features, live.features);
        let expected = bundle.score(&own.features, &Unlimited, &mut scratch).unwrap();
        assert_eq!((own.score, own.margin), (expected.score, expected.margin));
        assert_eq!(own.decision, bundle.labels()[expected.band]);
        assert_eq!(
            (own.lane.as_str(), &own.checkpoint, &own.entity),
            ("shadow", &live.checkpoint, &live.entity)
        );
        assert_eq!(own.bundle, bundle.digest().0);
        assert_eq!((own.schema_fingerprint, own.lane_table), (bundle.schema().fingerprint(), 2));
        assert_eq!((observation.live_lane.as_str(), &observation.live_bundle), ("live", &live.bundle));
        assert_eq!(
            (observation.live_score, observation.live_margin, &observation.live_decision),
            (answer.score, answer.margin, &answer.decision)
        );
        assert_eq!(
            (observation.live_exec_us, observation.live_data_load_us),
            (live.exec_us, live.data_load_us)
        );
        assert!(
            observation.error.is_empty()
                && observation.live_fallback_reason.is_empty()
                && observation.absent_features.is_empty()
        );
        assert!(own.fallback_reason.is_empty());
        assert!(
            live.decided_at_us <= observation.answered_at_us
                && observation.answered_at_us <= own.decided_at_us
        );
    }
    assert_eq!((seen, decisions.len()), (20, 20));
    assert!(records.iter().any(|record| {
        matches!(record, log_record::Record::LaneTable(table) if table.table.contains("\"observe\""))
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_cannot_observe_is_refused_and_the_active_table_stays() {
    let setup = start();
    let fraud = setup.fraud.clone();
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![observer("kept", &fraud, 1.0)])).unwrap();
    let with = |change: &dyn Fn(&mut LaneTable)| {
        let mut table = observed(&setup, 3, FRAUD, vec![observer("shadow", &fraud, 0.5)]);
        change(&mut table);
        setup.server.swap(&table).unwrap_err().to_string()
    };
    let lane = |change: fn(&mut scorer_server::ObserveLane)| {
        with(&|table| change(&mut table.observe.get_mut(FRAUD).unwrap()[0]))
    };
    let filter = |feature: &str, op: Op, value: Value| {
        with(&|table| {
            table.observe.get_mut(FRAUD).unwrap()[0].filter = vec![condition(feature, op, value.clone())];
        })
    };
    for (error, words) in [
        (
            with(&|table| _ = table.observe.insert("nowhere".to_owned(), vec![])),
            "\"nowhere\" is not configured",
        ),
        (lane(|lane| lane.bundle = format!("sha256:{}", "0".repeat(64))), "is not loaded; load it first"),
        (lane(|lane| lane.bundle = "fraud@live".to_owned()), "is not a digest"),
        (
            with(&|table| table.observe.get_mut(FRAUD).unwrap()[0].bundle.clone_from(&setup.action)),
            "is of kind action, the checkpoint of kind score",
        ),
        (lane(|lane| lane.sample = 0.0), "sample 0 is not above 0"),
        (lane(|lane| lane.sample = 1.5), "sample 1.5 is not above 0 and at most 1"),
        (lane(|lane| lane.sample = f64::NAN), "sample NaN"),
        (lane(|lane| lane.sample = -0.1), "sample -0.1"),
        (lane(|lane| lane.name = String::new()), "a name is 1 to 64"),
        (lane(|lane| lane.name = "live".to_owned()), "an answer lane has this name; rename the observe lane"),
        (
            with(&|table| table.observe.get_mut(FRAUD).unwrap().push(observer("shadow", &fraud, 0.1))),
            "the name occurs twice",
        ),
        (filter("amuont", Op::Above, json!(1)), "\"amuont\" is not one that the answering bundle reads"),
        (filter("amount", Op::Above, json!("1")), "\">\" takes a number"),
        (filter("amount", Op::Equal, json!("NL")), "is a number, and \"NL\" is none"),
        (filter("amount", Op::Equal, json!([1])), "\"==\" takes a number, a category's name"),
        (filter("country", Op::Below, json!(1)), "is a category and has no order"),
        (filter("country", Op::In, json!(["NL", "XX"])), "has no category \"XX\" among its 3"),
        (filter("country", Op::In, json!([])), "takes a list of 1 to 1024"),
        (filter("night", Op::Equal, json!(1)), "is a flag, and 1 is none"),
        (filter("night", Op::Missing, json!(true)), "\"missing\" takes no value"),
    ] {
        assert!(error.contains(words), "{words:?} is not in {error:?}");
    }
    for text in [
        r#"{"version":3,"checkpoints":{},"observe":{"c":[{"name":"a","bundle":"b"}]}}"#,
        r#"{"version":3,"checkpoints":{},"observe":{"c":[{"name":"a","bundle":"b","sample":1,"shar":1}]}}"#,
        r#"{"version":3,"checkpoints":{},"observe":{"c":[{"name":"a","bundle":"b","sample":1,
            "filter":[{"feature":"x","op":"~","value":1}]}]}}"#,
    ] {
        assert!(matches!(LaneTable::from_json(text), Err(SwapError::Table(_))), "{text}");
    }
    let status = setup.server.status();
    let lanes: Vec<_> = status.observers.iter().map(|lane| lane.lane.as_str()).collect();
    assert_eq!((status.lane_table, lanes), (2, vec!["kept"]));
    let error = setup.server.swap(&observed(&setup, 2, FRAUD, vec![])).unwrap_err();
    assert_eq!(
        error,
        SwapError::Version { version: 2, current: 2 },
        "a table with other observe lanes is another table"
    );
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![observer("kept", &fraud, 1.0)])).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bundles_that_answer_may_be_replaced_with_any_filter() {
    let setup = start();
    let mut lane = observer("shadow", &setup.fraud, 1.0);
    lane.filter = vec![condition("night", Op::Equal, json!(false))];
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![lane.clone()])).unwrap();
    // A bundle without the feature of the filter.
    let mut recipe = testing::score_recipe("narrow", 0.0);
    recipe.schema["features"][2]["name"] = json!("dark");
    let narrow = load(&setup.server, setup.directory.path(), &recipe.build().unwrap());
    let mut table = observed(&setup, 3, FRAUD, vec![lane.clone()]);
    table.checkpoints.insert(FRAUD.to_owned(), Some(vec![support::lane("live", &narrow, 1.0)]));
    setup.server.swap(&table).unwrap();
    let mut client = setup.client().await;
    let context = named(&[("amount", feature::Value::Number(1.0)), ("dark", feature::Value::Flag(false))]);
    let mut request = score("a", 1.0);
    request.features = Some(scorer_proto::v1::score_request::Features::Named(context));
    client.score(request).await.unwrap();
    let counts = status(&setup, "shadow", |lane| lane.seen == 1).await;
    assert_eq!(counts.left_out, 1, "an absent feature counts as missing");
    // The filter of a new lane is checked with the bundles that answer.
    lane.name = "newcomer".to_owned();
    table.version = 4;
    table.observe.get_mut(FRAUD).unwrap().push(lane);
    assert!(setup.server.swap(&table).unwrap_err().to_string().contains("correct the name"));
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_samples_are_the_same_requests_and_smaller_ones_are_subsets() {
    let setup = start();
    let other = load(&setup.server, setup.directory.path(), &testing::score_files("other", 1.0));
    let lanes = vec![
        observer("third", &other, 0.3),
        observer("again", &setup.fraud, 0.3),
        observer("tenth", &other, 0.1),
        observer("most", &other, 0.9),
    ];
    setup.server.swap(&observed(&setup, 2, FRAUD, lanes)).unwrap();
    let mut client = setup.client().await;
    for number in 0..1000 {
        client.score(score(&format!("d{number}"), 1.0)).await.unwrap();
    }
    for lane in ["third", "again", "tenth", "most"] {
        status(&setup, lane, |lane| lane.seen == 1000 && lane.evaluated == lane.taken).await;
    }
    let observations = observations(&setup);
    let of = |lane: &str| -> BTreeSet<String> {
        observations.keys().filter(|(name, _)| name == lane).map(|(_, id)| id.clone()).collect()
    };
    let (third, tenth, most) = (of("third"), of("tenth"), of("most"));
    assert_eq!(third, of("again"));
    assert!(tenth.is_subset(&third) && third.is_subset(&most));
    // 1000 draws: 5 standard deviations are 73 for a share of 0.3, and 48 for 0.1 and 0.9.
    for (lane, mean, off) in [(&third, 300, 73), (&tenth, 100, 48), (&most, 900, 48)] {
        assert!(lane.len().abs_diff(mean) < off, "{} of {mean}", lane.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_schema_gets_the_same_features_by_name() {
    let setup = start();
    // Another order, another dictionary, another limit, one feature less and another one more.
    let mut recipe = testing::score_recipe("wider", 0.5);
    recipe.schema = json!({"features": [
        {"name": "device", "type": "number"},
        {"name": "country", "type": "category", "categories": ["FR", "BE", "NL"]},
        {"name": "amount", "type": "number", "minimum": 0.0, "maximum": 900.0},
    ]});
    let wider = recipe.build().unwrap();
    let bundle = assemble(&wider).unwrap();
    let digest = load(&setup.server, setup.directory.path(), &wider);
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![observer("shadow", &digest, 1.0)])).unwrap();
    let mut client = setup.client().await;
    let number = |value: f64| feature::Value::Number(value);
    let category = |name: &str| feature::Value::Category(name.to_owned());
    for (id, values) in [
        ("mapped", vec![("amount", number(150.0)), ("country", category("NL"))]),
        ("unknown", vec![("amount", number(150.0)), ("country", category("DE"))]),
        ("missing", vec![("amount", number(150.0))]),
        ("named", vec![("amount", number(150.0)), ("device", number(120.5))]),
        ("mistyped", vec![("amount", number(150.0)), ("device", category("x"))]),
        ("beyond", vec![("amount", number(901.0))]),
    ] {
        let mut request = score(id, 0.0);
        request.features = Some(scorer_proto::v1::score_request::Features::Named(named(&values)));
        client.score(request).await.unwrap_or_else(|error| panic!("{id}: {error}"));
    }
    let mut unknown = score("nobody", 0.0);
    let values = named(&[("amount", number(1.0)), ("divice", number(1.0))]);
    unknown.features = Some(scorer_proto::v1::score_request::Features::Named(values));
    let error = client.score(unknown).await.unwrap_err();
    assert!(error.message().contains("divice"), "a feature that no bundle reads is refused: {error}");
    status(&setup, "shadow", |lane| lane.evaluated == 6).await;
    let observations = observations(&setup);
    let mut scratch = EvalScratch::new(&bundle);
    let nan = f32::NAN;
    for (id, row, absent, error) in [
        ("mapped", [nan, 2.0, 150.0], vec![0], ""),
        ("unknown", [nan, nan, 150.0], vec![0], ""),
        ("missing", [nan, nan, 150.0], vec![0], ""),
        ("named", [120.5, nan, 150.0], vec![], ""),
        ("mistyped", [nan, nan, 150.0], vec![], "features"),
        ("beyond", [nan, nan, 901.0], vec![0], "features"),
    ] {
        let observation = &observations[&("shadow".to_owned(), id.to_owned())];
        let own = observation.decision.as_ref().unwrap();
        let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&own.features), bits(&row), "{id}");
        assert_eq!((&observation.absent_features, observation.error.as_str()), (&absent, error), "{id}");
        assert_eq!(own.schema_fingerprint, bundle.schema().fingerprint());
        if error.is_empty() {
            assert_eq!(own.score, bundle.score(&row, &Unlimited, &mut scratch).unwrap().score, "{id}");
        } else {
            assert_eq!((own.score, own.margin, own.decision.as_str()), (0.0, 0.0, ""));
        }
        assert!(observation.live_score > 0.0 && !observation.live_decision.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_catalogue_gets_the_same_eligible_actions() {
    let setup = start();
    // One action is renamed, and the others are in reverse order.
    let policy = json!({"rule": "epsilon_greedy", "epsilon": 0.3});
    let mut recipe = testing::action_recipe("other", 0.25, policy);
    let actions = recipe.actions.as_mut().unwrap().as_array_mut().unwrap();
    actions.reverse();
    actions[0]["id"] = json!("brand-new");
    let files = recipe.build().unwrap();
    let bundle = assemble(&files).unwrap();
    let other = load(&setup.server, setup.directory.path(), &files);
    let lanes = vec![observer("shadow", &other, 1.0), observer("aa", &setup.action, 1.0)];
    setup.server.swap(&observed(&setup, 2, ACTION, lanes)).unwrap();
    let mut client = setup.client().await;
    let some = ["3ds=none|exemption=tra", "3ds=challenge|exemption=none", "3ds=challenge|exemption=low"];
    let mut answers = HashMap::new();
    for number in 0..40 {
        let mut request = select(&format!("d{number}"), 20.0 * f64::from(number));
        if number % 2 == 1 {
            request.eligible = eligible(&some, &[]);
        }
        let answer = client.select_action(request).await.unwrap().into_inner();
        answers.insert(answer.decision_id.clone(), answer);
    }
    for lane in ["shadow", "aa"] {
        status(&setup, lane, |lane| lane.evaluated == 40).await;
    }
    let observations = observations(&setup);
    let mut scratch = EvalScratch::new(&bundle);
    for ((lane, id), observation) in &observations {
        let (own, answer) = (observation.decision.as_ref().unwrap(), &answers[id]);
        assert_eq!(
            (&observation.live_action, observation.live_propensity),
            (&answer.action, answer.propensity)
        );
        assert_eq!(observation.live_expected_reward, answer.expected_reward);
        assert_eq!((own.pmf.len(), observation.error.as_str()), (6, ""));
        assert!((own.pmf.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        if lane == "aa" {
            let same = (&own.action, own.propensity, own.expected_reward, own.action_index);
            assert_eq!(
                same,
                (&answer.action, answer.propensity, answer.expected_reward, answer.action_index)
            );
            continue;
        }
        let odd = id.trim_start_matches('d').parse::<u32>().unwrap() % 2 == 1;
        let mut mask = Mask::all(6);
        if odd {
            mask.clear();
            // "challenge low" is the renamed action, which no request contained.
            some[..2].iter().for_each(|id| _ = mask.insert(bundle.catalogue().index_of(id).unwrap()));
        }
        let expected = bundle.select(&own.features, &mask, ACTION, id, &Unlimited, &mut scratch).unwrap();
        assert_eq!(own.action_index as usize, expected.index, "the lane uses its own keyed draw");
        assert_eq!((own.propensity, own.expected_reward), (expected.propensity, expected.expected_reward));
        assert_eq!(own.pmf, scratch.pmf());
        assert_eq!(own.action, bundle.catalogue().get(expected.index).unwrap().id);
        assert_eq!(own.eligible_mask, if odd { mask.to_bytes() } else { Vec::new() });
    }
    assert_eq!(observations.len(), 80);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_batch_and_requests_of_the_open_protocol_are_observed_too() {
    let setup = start();
    let mut filtered = observer("large", &setup.fraud, 1.0);
    filtered.filter =
        vec![condition("amount", Op::AtLeast, json!(100.0)), condition("night", Op::Present, Value::Null)];
    let lanes = vec![observer("all", &setup.fraud, 1.0), filtered];
    setup.server.swap(&observed(&setup, 2, FRAUD, lanes)).unwrap();
    let mut client = setup.client().await;
    let fingerprint = fingerprint(&mut client, FRAUD).await;
    let rows: Vec<[f32; 3]> =
        (0..100).map(|row| [row as f32 * 10.0, 1.0, if row % 3 == 0 { f32::NAN } else { 0.0 }]).collect();
    let reply = client.score_batch(batch("b", fingerprint, &rows)).await.unwrap().into_inner();
    let mut open = GrpcInferenceServiceClient::new(setup.channel().await);
    let input = InferInputTensor {
        name: "features".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1, 3],
        contents: Some(InferTensorContents { fp32_contents: vec![500.0, 1.0, 1.0], ..Default::default() }),
        ..Default::default()
    };
    let request = ModelInferRequest {
        model_name: FRAUD.to_owned(),
        id: "open".to_owned(),
        inputs: vec![input],
        ..Default::default()
    };
    open.model_infer(request).await.unwrap();
    status(&setup, "all", |lane| lane.evaluated == 101).await;
    let large = rows.iter().filter(|row| row[0] >= 100.0 && !row[2].is_nan()).count() as u64 + 1;
    status(&setup, "large", |lane| lane.evaluated == large && lane.seen == 101).await;
    let observations = observations(&setup);
    for (row, score) in reply.scores.iter().enumerate() {
        let observation = &observations[&("all".to_owned(), format!("b/{row}"))];
        assert_eq!((observation.live_score, observation.decision.as_ref().unwrap().score), (*score, *score));
    }
    assert!(observations.contains_key(&("large".to_owned(), "open".to_owned())));
}
