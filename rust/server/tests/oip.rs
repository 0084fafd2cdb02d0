//! The Open Inference Protocol: it gives the same answers as the own protocol.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use crate::support;
use crate::support::{
    ACTION, Client, FRAUD, Setup, batch, fingerprint, load, score, score_dense, select, start, table,
};
use scorer_core::bundle::testing;
use scorer_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use scorer_proto::inference::infer_parameter::ParameterChoice;
use scorer_proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use scorer_proto::inference::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse, ModelMetadataRequest,
    ModelReadyRequest, ModelStatisticsRequest, RepositoryIndexRequest, RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest,
};
use scorer_server::Fault;
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;
use tonic::{Code, Status};

type Oip = GrpcInferenceServiceClient<Channel>;

/// Rows of the test bundles: amount, country's code, night.
const ROWS: [[f32; 3]; 4] =
    [[10.0, 0.0, 0.0], [150.0, 1.0, 1.0], [5000.0, 2.0, 0.0], [999.99, f32::NAN, 1.0]];

fn raw(name: &str, datatype: &str, shape: &[i64], bytes: &[u8]) -> ModelInferRequest {
    let input = InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..InferInputTensor::default()
    };
    ModelInferRequest {
        model_name: FRAUD.to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![bytes.to_vec().into()],
        ..ModelInferRequest::default()
    }
}

fn raw_rows(rows: &[[f32; 3]]) -> ModelInferRequest {
    let bytes: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    raw("input__0", "FP32", &[rows.len() as i64, 3], &bytes)
}

fn typed(name: &str, datatype: &str, shape: &[i64], contents: InferTensorContents) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        contents: Some(contents),
        ..InferInputTensor::default()
    }
}

fn typed_rows(rows: &[[f32; 3]]) -> ModelInferRequest {
    let contents = InferTensorContents { fp32_contents: rows.concat(), ..InferTensorContents::default() };
    ModelInferRequest {
        model_name: FRAUD.to_owned(),
        inputs: vec![typed("input__0", "FP32", &[rows.len() as i64, 3], contents)],
        ..ModelInferRequest::default()
    }
}

fn asking(mut request: ModelInferRequest, outputs: &[&str]) -> ModelInferRequest {
    let ask = |name: &&str| InferRequestedOutputTensor { name: (*name).to_owned(), ..Default::default() };
    request.outputs = outputs.iter().map(ask).collect();
    request
}

fn with(mut request: ModelInferRequest, name: &str, value: ParameterChoice) -> ModelInferRequest {
    request.parameters.insert(name.to_owned(), InferParameter { parameter_choice: Some(value) });
    request
}

fn parameter<'a>(response: &'a ModelInferResponse, name: &str) -> Option<&'a ParameterChoice> {
    response.parameters.get(name)?.parameter_choice.as_ref()
}

fn text(response: &ModelInferResponse, name: &str) -> String {
    match parameter(response, name) {
        Some(ParameterChoice::StringParam(text)) => text.clone(),
        other => panic!("{name}: {other:?}"),
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks::<8>().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect()
}

fn texts(mut bytes: &[u8]) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (text, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        texts.push(String::from_utf8(text.to_vec()).unwrap());
        bytes = rest;
    }
    texts
}

async fn clients(setup: &Setup) -> (Oip, Client) {
    let channel = setup.channel().await;
    (Oip::new(channel.clone()), Client::new(channel))
}

async fn infer(client: &mut Oip, request: ModelInferRequest) -> ModelInferResponse {
    client.model_infer(request).await.unwrap().into_inner()
}

async fn refused(client: &mut Oip, request: ModelInferRequest) -> Status {
    client.model_infer(request).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_row_gets_the_bits_that_score_gives_raw_or_typed() {
    let setup = start();
    let (mut oip, mut ours) = clients(&setup).await;
    let print = fingerprint(&mut ours, FRAUD).await;
    let all = ["output__0", "score", "margin", "decision"];
    for row in ROWS {
        let expected = ours.score(score_dense("", print, &row)).await.unwrap().into_inner();
        let reply = infer(&mut oip, asking(raw_rows(&[row]), &all)).await;
        assert_eq!(reply.outputs.iter().map(|output| output.name.as_str()).collect::<Vec<_>>(), all);
        assert!(reply.outputs.iter().all(|output| output.shape == [1] && output.contents.is_none()));
        let [fil, score, margin, decision] = reply.raw_output_contents.as_slice() else { panic!() };
        assert_eq!(floats(fil)[0].to_bits(), (expected.score as f32).to_bits());
        assert_eq!(doubles(score)[0].to_bits(), expected.score.to_bits());
        assert_eq!(doubles(margin)[0].to_bits(), expected.margin.to_bits());
        assert_eq!(texts(decision), [expected.decision.as_str()]);
        assert_eq!(text(&reply, "bundle"), expected.served.unwrap().bundle);

        let typed = infer(&mut oip, asking(typed_rows(&[row]), &all)).await;
        assert!(typed.raw_output_contents.is_empty());
        let contents: Vec<_> = typed.outputs.iter().map(|output| output.contents.clone().unwrap()).collect();
        assert_eq!(contents[0].fp32_contents, floats(fil));
        assert_eq!(contents[1].fp64_contents, doubles(score));
        assert_eq!(contents[2].fp64_contents, doubles(margin));
        assert_eq!(contents[3].bytes_contents, [expected.decision.as_bytes()]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rows_are_one_batch_and_every_row_is_logged() {
    let setup = start();
    let (mut oip, mut ours) = clients(&setup).await;
    let print = fingerprint(&mut ours, FRAUD).await;
    let expected = ours.score_batch(batch("ours", print, &ROWS)).await.unwrap().into_inner();
    let request = ModelInferRequest { id: "theirs".to_owned(), ..raw_rows(&ROWS) };
    let reply = infer(&mut oip, asking(request, &["score", "decision", "output__0"])).await;
    assert_eq!(doubles(&reply.raw_output_contents[0]), expected.scores);
    let labels: Vec<_> = expected.decisions.iter().map(|&at| expected.labels[at as usize].clone()).collect();
    assert_eq!(texts(&reply.raw_output_contents[1]), labels);
    let rounded: Vec<_> = expected.scores.iter().map(|&score| score as f32).collect();
    assert_eq!(floats(&reply.raw_output_contents[2]), rounded);
    assert_eq!(reply.outputs[2].shape, [4]);
    assert_eq!((reply.id.as_str(), text(&reply, "request_id").as_str()), ("theirs", "theirs"));
    let ids: Vec<_> = setup.decisions().into_iter().map(|record| record.decision_id).collect();
    for expected in ["ours/0", "theirs/0", "theirs/3"] {
        assert!(ids.iter().any(|id| id == expected), "{expected} is not in {ids:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_loads_the_lane_table_once_in_either_protocol() {
    let setup = start();
    let (mut oip, mut ours) = clients(&setup).await;
    let print = fingerprint(&mut ours, FRAUD).await;
    let mut before = setup.server.lane_loads();
    let mut since = || {
        let now = setup.server.lane_loads();
        now - std::mem::replace(&mut before, now)
    };
    ours.score(score("", 1.0)).await.unwrap();
    assert_eq!(since(), 1, "Score");
    ours.score_batch(batch("", print, &ROWS)).await.unwrap();
    assert_eq!(since(), 1, "ScoreBatch");
    ours.select_action(select("", 1.0)).await.unwrap();
    assert_eq!(since(), 1, "SelectAction");
    infer(&mut oip, raw_rows(&ROWS[..1])).await;
    assert_eq!(since(), 1, "ModelInfer of one row");
    infer(&mut oip, raw_rows(&ROWS)).await;
    assert_eq!(since(), 1, "ModelInfer of many rows");
    infer(&mut oip, ModelInferRequest { model_name: ACTION.to_owned(), ..raw_rows(&ROWS[..1]) }).await;
    assert_eq!(since(), 1, "ModelInfer of an action");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_by_name_follow_the_schema_as_named_features_do() {
    let setup = start();
    let (mut oip, mut ours) = clients(&setup).await;
    let expected = ours.score(score("", 150.1)).await.unwrap().into_inner();
    let mut request = typed_rows(&[]);
    request.inputs = vec![
        typed(
            "night",
            "BOOL",
            &[1],
            InferTensorContents { bool_contents: vec![false], ..Default::default() },
        ),
        typed(
            "amount",
            "FP64",
            &[1, 1],
            InferTensorContents { fp64_contents: vec![150.1], ..Default::default() },
        ),
        typed(
            "country",
            "BYTES",
            &[1],
            InferTensorContents { bytes_contents: vec![b"NL".to_vec()], ..Default::default() },
        ),
    ];
    let reply = infer(&mut oip, asking(request.clone(), &["score"])).await;
    assert_eq!(reply.outputs[0].contents.as_ref().unwrap().fp64_contents, [expected.score]);

    // Raw contents of two rows. An omitted feature and an empty text both count as missing.
    let mut raw_request =
        raw("amount", "FP64", &[2], &[150.1_f64.to_le_bytes(), 7_f64.to_le_bytes()].concat());
    let country = raw("country", "BYTES", &[2], b"\x02\0\0\0NL\0\0\0\0");
    raw_request.inputs.extend(country.inputs);
    raw_request.raw_input_contents.extend(country.raw_input_contents);
    let reply = infer(&mut oip, asking(raw_request.clone(), &["score"])).await;
    let rows = [[150.1, 0.0, f32::NAN], [7.0, f32::NAN, f32::NAN]];
    let print = fingerprint(&mut ours, FRAUD).await;
    let expected = ours.score_batch(batch("", print, &rows)).await.unwrap().into_inner();
    assert_eq!(doubles(&reply.raw_output_contents[0]), expected.scores);

    request.inputs.pop();
    request.inputs[1].name = "amont".to_owned();
    let error = refused(&mut oip, request).await;
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("did you mean \"amount\""), "{error}");
    raw_request.raw_input_contents[1] = b"\x02\0\0\0XX\x09\0\0\0X".to_vec().into();
    assert!(refused(&mut oip, raw_request).await.message().contains("cannot be parsed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_of_every_datatype_are_read_as_the_nearest_float32() {
    let setup = start();
    let (mut oip, _) = clients(&setup).await;
    let expected = infer(&mut oip, asking(raw_rows(&[[101.0, 1.0, 0.0]]), &["score"])).await;
    macro_rules! check {
        ($($datatype:literal $type:ty),*) => {$(
            let bytes: Vec<u8> =
                [101.0, 1.0, 0.0].iter().flat_map(|&value: &f64| (value as $type).to_le_bytes()).collect();
            // A matrix may have any name.
            let request = raw("predict", $datatype, &[1, 3], &bytes);
            let reply = infer(&mut oip, asking(request, &["score"])).await;
            assert_eq!(reply.raw_output_contents, expected.raw_output_contents, $datatype);
        )*};
    }
    check!("FP32" f32, "FP64" f64, "INT8" i8, "INT16" i16, "INT32" i32, "INT64" i64);
    check!("UINT8" u8, "UINT16" u16, "UINT32" u32, "UINT64" u64);
    let mut typed = typed_rows(&[]);
    typed.inputs[0].datatype = "INT16".to_owned();
    typed.inputs[0].shape = vec![1, 3];
    typed.inputs[0].contents =
        Some(InferTensorContents { int_contents: vec![101, 1, 0], ..InferTensorContents::default() });
    let reply = infer(&mut oip, asking(typed, &["score"])).await;
    assert_eq!(
        reply.outputs[0].contents.as_ref().unwrap().fp64_contents,
        doubles(&expected.raw_output_contents[0])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_is_selected_logged_and_repeated_for_its_id() {
    let setup = start();
    let (mut oip, mut ours) = clients(&setup).await;
    let request = ModelInferRequest {
        model_name: ACTION.to_owned(),
        id: "order-1".to_owned(),
        ..raw_rows(&[[50.0, 0.0, 0.0]])
    };
    let reply =
        infer(&mut oip, asking(request.clone(), &["action", "propensity", "expected_reward", "pmf"])).await;
    let action = texts(&reply.raw_output_contents[0]).remove(0);
    let propensity = doubles(&reply.raw_output_contents[1])[0];
    let pmf = floats(&reply.raw_output_contents[3]);
    assert_eq!(reply.outputs[3].shape, [1, 6]);
    assert!((pmf.iter().sum::<f32>() - 1.0).abs() < 1e-5 && pmf.contains(&(propensity as f32)));
    assert_eq!(text(&reply, "propensity").parse::<f64>().unwrap(), propensity);
    assert_eq!(text(&reply, "decision_id"), "order-1");

    let print = fingerprint(&mut ours, ACTION).await;
    let mut same = select("order-1", 0.0);
    same.features =
        Some(scorer_proto::v1::select_action_request::Features::Dense(scorer_proto::v1::DenseFeatures {
            schema_fingerprint: print,
            values: vec![50.0, 0.0, 0.0],
        }));
    same.include_pmf = true;
    let again = ours.select_action(same).await.unwrap().into_inner();
    assert!(again.replayed, "both protocols give the same decision");
    assert_eq!((again.action, again.propensity), (action.clone(), propensity));

    let eligible = |datatype: &str, shape: i64, bytes: &[u8]| {
        let mut request = ModelInferRequest { id: String::new(), ..request.clone() };
        let more = raw("eligible", datatype, &[shape], bytes);
        request.inputs.extend(more.inputs);
        request.raw_input_contents.extend(more.raw_input_contents);
        request
    };
    let only = "3ds=challenge|exemption=low";
    let bytes = [&(only.len() as u32).to_le_bytes()[..], only.as_bytes()].concat();
    let by_id = infer(&mut oip, eligible("BYTES", 1, &bytes)).await;
    assert_eq!(texts(&by_id.raw_output_contents[0]), [only]);
    assert_eq!(doubles(&by_id.raw_output_contents[1]), [1.0]);
    let by_mask = infer(&mut oip, eligible("BOOL", 6, &[0, 0, 0, 0, 0, 1])).await;
    assert_eq!(texts(&by_mask.raw_output_contents[0]), [only]);
    let none = refused(&mut oip, eligible("BOOL", 6, &[0; 6])).await;
    assert_eq!(none.code(), Code::InvalidArgument);
    let two = ModelInferRequest { model_name: ACTION.to_owned(), ..raw_rows(&ROWS[..2]) };
    assert!(refused(&mut oip, two).await.message().contains("one row"));
    let logged = setup.decisions();
    assert!(logged.iter().any(|record| record.decision_id == "order-1" && record.propensity == propensity));
}

/// Fault case 22.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_are_refused_by_name() {
    let setup = start();
    let (mut oip, _) = clients(&setup).await;
    let good = || raw_rows(&ROWS[..1]);
    let change = |change: fn(&mut ModelInferRequest)| {
        let mut request = good();
        change(&mut request);
        request
    };
    let invalid = Code::InvalidArgument;
    let string = |text: &str| ParameterChoice::StringParam(text.to_owned());
    for (request, code, words) in [
        (change(|request| request.model_name = "nope".to_owned()), Code::NotFound, "fraud.checkout"),
        (change(|request| request.model_version = "7".to_owned()), Code::NotFound, "no version \"7\""),
        (change(|request| request.inputs.clear()), invalid, "1 raw_input_contents"),
        (raw("input__0", "FP16", &[1, 3], &[0; 6]), invalid, "\"FP16\""),
        (raw("input__0", "BYTES", &[1, 3], &[0; 12]), invalid, "\"BYTES\" is not accepted here"),
        (raw("input__0", "FP32", &[1, 2], &[0; 8]), invalid, "[rows, 3]"),
        (raw("input__0", "FP32", &[3], &[0; 12]), invalid, "shape [3]"),
        (raw("input__0", "FP32", &[-1, 3], &[0; 12]), invalid, "shape [-1, 3]"),
        (raw("input__0", "FP32", &[i64::MAX, i64::MAX], &[]), invalid, "is not valid here"),
        (
            raw("input__0", "FP32", &[1, 3], &[0; 11]),
            invalid,
            "11 bytes of raw contents, its shape and datatype need 12",
        ),
        (raw("input__0", "FP32", &[0, 3], &[]), invalid, "at least one row"),
        (raw("input__0", "FP32", &[1001, 3], &[0; 12012]), invalid, "at most 1000"),
        (raw("nights", "INT8", &[4000], &[0; 4000]), invalid, "at most 1000"),
        (
            change(|request| request.inputs[0].contents = Some(InferTensorContents::default())),
            invalid,
            "both contents",
        ),
        (change(|request| request.raw_input_contents.push(Default::default())), invalid, "1 inputs and 2"),
        (asking(good(), &["treeshap_output__0"]), invalid, "output__0, score, margin, decision"),
        (asking(good(), &["score", "score"]), invalid, "twice"),
        (with(good(), "timeout", string("5")), invalid, "\"timeout\""),
        (with(good(), "timeout", ParameterChoice::Int64Param(-1)), invalid, "microseconds"),
        (with(good(), "entity", ParameterChoice::BoolParam(true)), invalid, "\"entity\""),
        (with(good(), "sequence_id", ParameterChoice::Int64Param(3)), Code::Unimplemented, "sequence"),
        (raw_rows(&[[f32::INFINITY, 0.0, 0.0]]), invalid, "\"amount\""),
        (raw_rows(&[[1.0, 9.0, 0.0]]), invalid, "\"country\""),
        (raw_rows(&[[1.0, 0.0, 0.0], [f32::NAN, 0.0, 0.0]]), invalid, "row 1: feature \"amount\": missing"),
    ] {
        let error = refused(&mut oip, request.clone()).await;
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(words), "{words:?} is not in {:?}", error.message());
    }
    let mut short = typed_rows(&ROWS[..1]);
    short.inputs[0].contents.as_mut().unwrap().fp32_contents.pop();
    assert!(refused(&mut oip, short).await.message().contains("2 values in fp32_contents"));
    let mut both = typed_rows(&ROWS[..1]);
    both.inputs.push(typed_rows(&ROWS[..1]).inputs.remove(0));
    assert!(refused(&mut oip, both.clone()).await.message().contains("twice"));
    both.inputs[1].name = "amount".to_owned();
    assert!(refused(&mut oip, both).await.message().contains("\"amount\""));
    let mut shared = good();
    let region = InferParameter { parameter_choice: Some(string("region")) };
    shared.inputs[0].parameters.insert("shared_memory_region".to_owned(), region);
    assert_eq!(refused(&mut oip, shared).await.code(), Code::Unimplemented);
    // Fields without a meaning are ignored.
    let fine = with(good(), "priority", ParameterChoice::Uint64Param(3));
    infer(&mut oip, with(fine, "binary_data_output", ParameterChoice::BoolParam(true))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_a_bundle_and_is_checked() {
    let setup = start();
    let (mut oip, _) = clients(&setup).await;
    let short = setup.fraud["sha256:".len()..][..12].to_owned();
    let ask = |version: &str| ModelInferRequest { model_version: version.to_owned(), ..raw_rows(&ROWS[..1]) };
    for version in ["", &short, &setup.fraud, &setup.fraud["sha256:".len()..]] {
        assert_eq!(infer(&mut oip, ask(version)).await.model_version, short);
    }
    let other = load(&setup.server, setup.directory.path(), &testing::score_files("fraud", 0.5));
    setup.server.swap(&table(2, &other, &setup.action)).unwrap();
    let error = refused(&mut oip, ask(&short)).await;
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.message().contains(&other["sha256:".len()..][..12]), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_described_listed_and_counted() {
    let setup = start();
    let (mut oip, mut ours) = clients(&setup).await;
    let ask = |name: &str| ModelMetadataRequest { name: name.to_owned(), version: String::new() };
    let fraud = oip.model_metadata(ask(FRAUD)).await.unwrap().into_inner();
    assert_eq!(fraud.versions, [&setup.fraud["sha256:".len()..][..12]]);
    assert_eq!((fraud.inputs[0].name.as_str(), &fraud.inputs[0].shape[..]), ("input__0", &[-1, 3][..]));
    let action = oip.model_metadata(ask(ACTION)).await.unwrap().into_inner();
    assert_eq!(action.outputs.last().unwrap().shape, [1, 6]);
    assert_eq!(oip.model_metadata(ask("nope")).await.unwrap_err().code(), Code::NotFound);

    let mut ready = async |name: &str| {
        let request = ModelReadyRequest { name: name.to_owned(), version: String::new() };
        oip.model_ready(request).await.unwrap().into_inner().ready
    };
    assert!(ready(FRAUD).await && ready(ACTION).await && !ready("nope").await && !ready("liveness").await);

    let index = oip.repository_index(RepositoryIndexRequest::default()).await.unwrap().into_inner().models;
    assert_eq!(index.iter().map(|model| model.name.as_str()).collect::<Vec<_>>(), [ACTION, FRAUD]);
    assert!(index.iter().all(|model| model.state == "READY" && model.version.len() == 12));

    infer(&mut oip, raw_rows(&ROWS)).await;
    ours.score(score("", 5.0)).await.unwrap();
    refused(&mut oip, raw("input__0", "FP32", &[1, 2], &[0; 8])).await;
    let ask = ModelStatisticsRequest { name: FRAUD.to_owned(), version: String::new() };
    let found = oip.model_statistics(ask).await.unwrap().into_inner().model_stats.remove(0);
    assert_eq!((found.inference_count, found.execution_count), (5, 2));
    let stats = found.inference_stats.unwrap();
    assert_eq!((stats.success.unwrap().count, stats.fail.unwrap().count), (2, 1));
    assert!(stats.success.unwrap().ns > 0 && stats.compute_infer.unwrap().count == 2);
    let all = oip.model_statistics(ModelStatisticsRequest::default()).await.unwrap().into_inner();
    assert_eq!(all.model_stats.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn loading_reports_and_unloading_is_refused_in_both_protocol_versions() {
    let setup = start();
    let (mut oip, _) = clients(&setup).await;
    let triton = RepositoryModelLoadRequest { model_name: FRAUD.to_owned(), ..Default::default() };
    let kserve = RepositoryModelLoadRequest { repository_name: FRAUD.to_owned(), ..Default::default() };
    for request in [triton, kserve] {
        let reply = oip.repository_model_load(request).await.unwrap().into_inner();
        assert_eq!((reply.model_name.as_str(), reply.is_loaded), (FRAUD, true));
    }
    let unknown = RepositoryModelLoadRequest { model_name: "nope".to_owned(), ..Default::default() };
    assert_eq!(oip.repository_model_load(unknown).await.unwrap_err().code(), Code::NotFound);
    let unload = RepositoryModelUnloadRequest { repository_name: FRAUD.to_owned(), ..Default::default() };
    let error = oip.repository_model_unload(unload).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    infer(&mut oip, raw_rows(&ROWS[..1])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_answers_in_order_and_continues_after_a_bad_request() {
    let setup = start();
    let (mut oip, mut ours) = clients(&setup).await;
    let request = |id: &str, row: [f32; 3]| ModelInferRequest { id: id.to_owned(), ..raw_rows(&[row]) };
    let bad = ModelInferRequest { model_name: "nope".to_owned(), ..request("b", ROWS[0]) };
    setup.server.inject("panics", Fault::Panic);
    let requests = vec![request("a", ROWS[0]), bad, request("panics", ROWS[1]), request("c", ROWS[2])];
    let replies = oip.model_stream_infer(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let replies: Vec<_> = replies.map(|reply| reply.unwrap()).collect().await;
    let ids: Vec<_> =
        replies.iter().map(|reply| reply.infer_response.as_ref().unwrap().id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "panics", "c"]);
    assert!(replies[1].error_message.starts_with("[NOT_FOUND] checkpoint \"nope\""), "{replies:?}");
    assert_eq!(text(replies[2].infer_response.as_ref().unwrap(), "fallback_reason"), "panic");
    for (reply, row) in [(&replies[0], ROWS[0]), (&replies[3], ROWS[2])] {
        assert_eq!(reply.error_message, "");
        let print = fingerprint(&mut ours, FRAUD).await;
        let expected = ours.score(score_dense("", print, &row)).await.unwrap().into_inner().score as f32;
        let found = floats(&reply.infer_response.as_ref().unwrap().raw_output_contents[0]);
        assert_eq!(found, [expected]);
    }
    let text = setup.metrics().await;
    let line =
        "scorer_requests_total{method=\"ModelStreamInfer\",checkpoint=\"fraud.checkout\",code=\"OK\"} 3";
    assert!(text.contains(line), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_stream_does_not_delay_the_drain() {
    let setup = start();
    let (mut oip, _) = clients(&setup).await;
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    sender.send(raw_rows(&ROWS[..1])).await.unwrap();
    let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut replies = oip.model_stream_infer(requests).await.unwrap().into_inner();
    assert_eq!(replies.next().await.unwrap().unwrap().error_message, "");
    let server = std::sync::Arc::new(setup.server);
    let drained = tokio::task::spawn_blocking({
        let server = std::sync::Arc::clone(&server);
        move || server.drain(std::time::Duration::from_secs(60))
    });
    assert_eq!(replies.next().await.unwrap().unwrap_err().code(), Code::Unavailable);
    drained.await.unwrap();
    let stopped = server.events().into_iter().find(|line| line.contains("\"stopped\"")).unwrap();
    assert!(stopped.contains("\"complete\":true"), "{stopped}");
    drop(sender);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_timeout_parameter_is_a_deadline() {
    let setup = start();
    let (mut oip, _) = clients(&setup).await;
    // A microsecond has passed before the parameter is read.
    let request = with(raw_rows(&ROWS[..1]), "timeout", ParameterChoice::Int64Param(1));
    assert_eq!(refused(&mut oip, request).await.code(), Code::DeadlineExceeded);
    let request = with(raw_rows(&ROWS[..1]), "timeout", ParameterChoice::Int64Param(0));
    infer(&mut oip, request).await;
    let text = setup.metrics().await;
    let line = "scorer_requests_total{method=\"ModelInfer\",checkpoint=\"fraud.checkout\",code=\"DEADLINE_EXCEEDED\"} 1";
    assert!(text.contains(line), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_methods_of_triton_are_reported() {
    let setup = start();
    let address = &setup.server.addresses().grpc[0];
    let request =
        http::Request::post("http://scorer/inference.GRPCInferenceService/SystemSharedMemoryStatus")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(http_body_util::Full::from(vec![0; 5]))
            .unwrap();
    let (http, code, message) = support::raw(address, request).await;
    assert_eq!((http, code), (200, Some(12)));
    assert!(message.contains("SystemSharedMemoryStatus is not offered here"), "{message}");
}
