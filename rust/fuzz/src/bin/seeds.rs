//! Writes `seeds/`: `cargo run --release --bin seeds`. The directory also contains findings and models of real
//! libraries, which are not changed.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use scorer_core::bundle::testing;
use scorer_features::{Event, FeatureSet, Store, StoreOptions};
use scorer_fuzz::{
    bundle, certificate, connection, features, function, jwt, log, request, rules, serving, signature, token,
};
use scorer_log::sim::SimMachine;
use scorer_log::{Durability, Log, LogConfig};
use scorer_onnx::testing::{ModelWriter, Value, dense_net};
use scorer_proto::inference::model_infer_request::InferInputTensor;
use scorer_proto::inference::{InferTensorContents, ModelInferRequest, ModelMetadataRequest};
use scorer_proto::v1::{
    DescribeRequest, EligibleActions, Feature, NamedFeatures, NoopRequest, OutcomeSource,
    ReportOutcomeRequest, ScoreBatchRequest, ScoreRequest, SelectActionRequest, feature, score_request,
    select_action_request,
};
use scorer_token::{Claims, KeyRing, Kind, Scope, Tenant};
use serde_json::json;
use tokio::io::AsyncReadExt as _;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let directory = root.join(target);
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join(name), bytes).expect("a file");
    };
    let score = testing::score_files("fraud", 0.0);
    let action = testing::action_files("action", 0.0);
    let rules = "name = \"checkout\"\ndecisions = [\"decline\"]\n[[rules]]\nid = \"listed\"\nwhen = 'country in list(\"blocked\") || score > 0.9'\ndecision = \"decline\"\n";
    let ruled = testing::score_recipe("fraud", 0.0).with_rules(rules, &[("blocked", "string", "FR\n")]);
    write("bundle", "rules", &bundle::join(&ruled.build().expect("the rules compile")));
    write("bundle", "graph", &bundle::join(&graph().build().expect("the program compiles")));
    for (name, files) in [("score", &score), ("action", &action)] {
        let forest = &files["forest.bin"];
        write("forest", name, &forest[..forest.len() - 4]);
        write("bundle", name, &bundle::join(files));
    }
    write("log", "records", &segment(true));
    write("log", "unsealed", &segment(false));
    for (name, input) in feature_files() {
        write("features", &name, &input);
    }
    write("lanes", "live", lanes(json!([])).as_bytes());
    let observers = json!([
        {"name": "shadow", "bundle": "fraud", "sample": 0.5, "filter": [
            {"feature": "amount", "op": ">=", "value": 100.0},
            {"feature": "country", "op": "in", "value": ["NL", "DE"]},
            {"feature": "night", "op": "missing"},
        ]},
        {"name": "away", "bundle": "action", "sample": 1.0, "pool": true, "reads": ["amount"]},
    ]);
    write("lanes", "observe", lanes(observers).as_bytes());
    for (name, input) in requests() {
        write("request", &name, &input);
    }
    for (name, bytes) in connections() {
        write("connection", name, &bytes);
    }
    for (name, columns, file) in nets() {
        write("net", name, &[&[columns - 1], &file[..]].concat());
    }
    for (name, text) in function::SEEDS {
        write("function", name, &wat::parse_str(text).expect("the text is a module"));
    }
    for (name, text) in rules::SEEDS {
        write("rules", name, text.as_bytes());
    }
    for (target, name, bytes) in credentials() {
        write(target, name, &bytes);
    }
}

/// ONNX files that are accepted, with the number of their columns.
fn nets() -> Vec<(&'static str, u8, Vec<u8>)> {
    let scaler = [("offset", Value::Floats(vec![1.0, 2.0])), ("scale", Value::Floats(vec![2.0, 0.5]))];
    let classifier = [
        ("coefficients", Value::Floats(vec![-1.0, -1.0, 1.0, 1.0])),
        ("intercepts", Value::Floats(vec![-0.5, 0.5])),
        ("classlabels_ints", Value::Integers(vec![0, 1])),
        ("post_transform", Value::Text("LOGISTIC")),
    ];
    let pipeline = ModelWriter::new(2, 2)
        .classical("Scaler", "x", "s", &scaler)
        .classical("LinearClassifier", "s", "label,p", &classifier)
        .classical("Normalizer", "p", "y", &[("norm", Value::Text("L1"))]);
    let shapes = ModelWriter::new(4, 1)
        .integers("sizes", &[1, 3])
        .integers("target", &[0, -1])
        .integers("last", &[-1])
        .node("Split", "x,sizes", "a,b", &[("axis", Value::Integer(1))])
        .node("Concat", "b,a", "c", &[("axis", Value::Integer(1))])
        .node("Reshape", "c,target", "r", &[])
        .node("Gather", "r,last", "g", &[("axis", Value::Integer(1))])
        .node("Tanh", "g", "y", &[]);
    vec![
        ("dense", 3, dense_net(&[3, 4, 2, 1])),
        ("pipeline", 2, pipeline.finish()),
        ("shapes", 4, shapes.finish()),
    ]
}

/// A bundle with every node that combines scores, and with the functions of transforms in a branch of a switch.
fn graph() -> testing::Recipe {
    let mut recipe = testing::ensemble_recipe(
        "graph",
        json!([
            {"kind": "transform", "input": "row", "output": "more", "steps": [
                {"function": "missing", "feature": "night", "output": "dark"},
                {"function": "table", "feature": "country", "table": "risk", "output": "risk"},
                {"function": "multiply", "left": "amount", "right": "risk", "output": "loss"},
                {"function": "ratio", "left": "loss", "right": "dark", "zero": "missing", "output": "ratio"},
                {"function": "bucket", "feature": "loss", "edges": [1.0, 10.0], "output": "class"},
                {"function": "datepart", "feature": "amount", "part": "day", "output": "day"},
                {"function": "clip", "feature": "amount", "high": 500.0},
                {"function": "standardise", "feature": "risk", "mean": 0.5, "scale": 2.0, "output": "scaled"},
            ]},
            {"kind": "mean", "inputs": ["probability-0", "probability-1"], "of": "logits", "output": "mean"},
            {"kind": "stack", "inputs": ["mean", "probability-2"], "coefficients": [0.5, 0.75], "output": "stack"},
            {"kind": "switch", "row": "more", "feature": "class", "output": "segment", "default": "mean",
             "cases": [{"input": "stack", "from": 1.0}]},
            {"kind": "scoremap", "file": "score_map.json", "input": "segment", "output": "combined"},
        ]),
    );
    recipe.tables = Some(json!({"tables": {"risk": {"values": {"NL": 0.25}, "default": 0.5}}}));
    recipe.score_map = Some(json!({"x": [0.0, 0.5, 1.0], "y": [0.0, 0.75, 1.0]}));
    recipe
}

/// Tokens, signatures and certificates that are accepted, and parts of them.
fn credentials() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut seeds = vec![
        ("card", "grouped", b"paid with 4111 1111 1111 1111, order 1234567890123".to_vec()),
        ("card", "dashes", b"5555-5555-5555-4444 and 378282246310005".to_vec()),
        ("token", "keys", token::KEYS.as_bytes().to_vec()),
    ];
    let ring = KeyRing::from_json(token::KEYS.as_bytes()).expect("the key file is valid");
    let scope = Scope::new(token::CHECKPOINT, Tenant::named(b"shop"));
    for (name, kind, id, reported) in [
        ("action", Kind::Action, "d-17", "d-17"),
        ("score", Kind::Score, "d", "e"),
        ("batch", Kind::Batch, "b", "b/2"),
    ] {
        let claims = Claims {
            kind,
            fallback: false,
            decided_at_ms: 1_700_000_000_000,
            bundle: [9; 8],
            index: 3,
            propensity: 0.25,
        };
        let signed = ring.sign(&claims, &scope, id).expect("a short id");
        seeds.push(("token", name, [signed.as_bytes(), b"\0\0", reported.as_bytes()].concat()));
    }
    let claims = jwt::claims().to_string();
    seeds.push(("jwt", "sent", [b"\0", jwt::token(jwt::HEADER, claims.as_bytes()).as_bytes()].concat()));
    seeds.push(("jwt", "signed", [b"\x01", jwt::HEADER, b"\0", claims.as_bytes()].concat()));
    seeds.push(("jwt", "keys", [b"\x02", jwt::keys().to_string().as_bytes()].concat()));
    let written = signature::written();
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "fraud", "digest": {"sha256": signature::digest().hex()}}],
        "predicateType": "urn:scorer:bundle-release:v1",
        "predicate": {"release": 3, "signedAt": "2026-01-01T00:00:00Z"},
    });
    seeds.push(("signature", "envelope", [b"\0", written.as_bytes()].concat()));
    seeds.push(("signature", "statement", [b"\x01", statement.to_string().as_bytes()].concat()));
    seeds.push(("signature", "private", [b"\x02", signature::KEY.as_bytes()].concat()));
    seeds.push(("signature", "public", [b"\x02", signature::public().as_bytes()].concat()));
    let uri = certificate::tlv(0x86, &[b"spiffe://example.org/checkout"]);
    let host = certificate::tlv(0x82, &[b"checkout.example.org"]);
    let whole = certificate::with_names(&certificate::tlv(0x30, &[&uri]));
    seeds.push(("certificate", "whole", [&[0], &whole[..]].concat()));
    seeds.push(("certificate", "names", [&[1], &certificate::tlv(0x30, &[&uri, &host])[..]].concat()));
    seeds.push(("certificate", "host", [&[1], &certificate::tlv(0x30, &[&host])[..]].concat()));
    seeds.push(("certificate", "uri", b"\x02spiffe://example.org/ns/pay/sa/web".to_vec()));
    for (at, (name, content)) in certificate::FILES.iter().zip(certificate::files()).enumerate() {
        seeds.push(("certificate", name, [&[3 + at as u8], content.as_bytes()].concat()));
    }
    seeds
}

fn lanes(observe: serde_json::Value) -> String {
    let lane = |bundle: &str| json!([{"name": "live", "bundle": bundle, "share": 1.0}]);
    json!({
        "version": 2,
        "checkpoints": {serving::FRAUD: lane("fraud"), serving::ACTION: lane("action")},
        "previous": {serving::FRAUD: "fraud"},
        "observe": {serving::FRAUD: observe},
    })
    .to_string()
}

/// A segment with three records, written by the log.
fn segment(sealed: bool) -> Vec<u8> {
    let machine = SimMachine::new(7);
    let env = machine.start();
    let (log, _) = Log::open(env.clone(), LogConfig::new(log::DIR)).expect("an empty log opens");
    for _ in 0..3 {
        log.append(&log::record(), Durability::Sync).expect("the simulated disk does not fail");
    }
    if sealed {
        log.seal().expect("the simulated disk does not fail");
    }
    let (path, length) = machine
        .fs
        .files()
        .into_iter()
        .find(|(path, _)| path.extension().is_some_and(|extension| extension == "seg"))
        .expect("a segment");
    let file = env.fs.open(&path, false).expect("the segment opens");
    let mut bytes = vec![0; length as usize];
    let read = file.read_at(&mut bytes, 0).expect("the segment can be read");
    bytes.truncate(read);
    // The space that is allocated ahead contains zeros.
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(end.next_multiple_of(8).max(96));
    let mut input = vec![0];
    input.extend_from_slice(&(bytes.len() as u32).to_le_bytes()[..3]);
    input.extend(bytes);
    input
}

fn named() -> NamedFeatures {
    let feature = |name: &str, value| Feature { name: name.to_owned(), value: Some(value) };
    NamedFeatures {
        features: vec![
            feature("amount", feature::Value::Number(120.5)),
            feature("country", feature::Value::Category("NL".to_owned())),
            feature("night", feature::Value::Flag(true)),
        ],
    }
}

fn input(method: &str, timeout: &str, message: &impl Message) -> (String, Vec<u8>) {
    let index = request::METHODS.iter().position(|known| *known == method).expect("a known method");
    let mut input = vec![index as u8, timeout.len() as u8];
    input.extend_from_slice(timeout.as_bytes());
    input.extend(message.encode_to_vec());
    (method.replace('/', "-"), input)
}

fn requests() -> Vec<(String, Vec<u8>)> {
    let score = ScoreRequest {
        checkpoint: serving::FRAUD.to_owned(),
        features: Some(score_request::Features::Named(named())),
        ..ScoreRequest::default()
    };
    let batch = ScoreBatchRequest {
        checkpoint: serving::FRAUD.to_owned(),
        rows: 2,
        values: vec![1.0; 6],
        ..ScoreBatchRequest::default()
    };
    let select = SelectActionRequest {
        checkpoint: serving::ACTION.to_owned(),
        features: Some(select_action_request::Features::Named(named())),
        eligible: Some(EligibleActions::default()),
        ..SelectActionRequest::default()
    };
    let outcome = ReportOutcomeRequest {
        decision_id: "0190a5e0-0000-7000-8000-000000000000".to_owned(),
        kind: "authorised".to_owned(),
        value: 1.0,
        source: Some(OutcomeSource { kind: 1, id: "case-1".to_owned() }),
        ..ReportOutcomeRequest::default()
    };
    let infer = ModelInferRequest {
        model_name: serving::FRAUD.to_owned(),
        inputs: vec![InferInputTensor {
            name: "input__0".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![2, 3],
            contents: Some(InferTensorContents { fp32_contents: vec![1.0; 6], ..Default::default() }),
            ..InferInputTensor::default()
        }],
        ..ModelInferRequest::default()
    };
    let raw = ModelInferRequest {
        inputs: infer
            .inputs
            .iter()
            .cloned()
            .map(|input| InferInputTensor { contents: None, ..input })
            .collect(),
        raw_input_contents: vec![vec![0; 24].into()],
        ..infer.clone()
    };
    let metadata = ModelMetadataRequest { name: serving::FRAUD.to_owned(), ..Default::default() };
    let mut inputs = vec![
        input("scorer.v1.ScoringService/Score", "", &score),
        input("scorer.v1.ScoringService/ScoreBatch", "100m", &batch),
        input("scorer.v1.ScoringService/SelectAction", "1S", &select),
        input("scorer.v1.ScoringService/ReportOutcome", "", &outcome),
        input("scorer.v1.ScoringService/Describe", "99999999H", &DescribeRequest::default()),
        input("scorer.v1.ScoringService/Noop", "5u", &NoopRequest { payload: vec![7; 9] }),
        input("inference.GRPCInferenceService/ModelInfer", "", &infer),
        input("inference.GRPCInferenceService/ModelStreamInfer", "", &infer),
        input("inference.GRPCInferenceService/ModelMetadata", "", &metadata),
        input("grpc.health.v1.Health/Check", "", &DescribeRequest::default()),
    ];
    let (_, raw) = input("inference.GRPCInferenceService/ModelInfer", "", &raw);
    inputs.push(("inference.GRPCInferenceService-ModelInfer-raw".to_owned(), raw));
    inputs
}

/// Frames of a request, recorded from a client, and handwritten frames.
fn connections() -> Vec<(&'static str, Vec<u8>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let recorded = runtime.block_on(async {
        let (client, mut server) = tokio::io::duplex(1 << 16);
        let (mut sender, connection) =
            handshake(TokioExecutor::new(), TokioIo::new(client)).await.expect("a handshake");
        let connection = tokio::spawn(connection);
        let body = Full::new(Bytes::from_static(&[0, 0, 0, 0, 0]));
        let request = http::Request::post("http://fuzz/scorer.v1.ScoringService/Describe")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "1S")
            .body(body)
            .expect("a request");
        let reply = tokio::spawn(async move { sender.send_request(request).await });
        let mut bytes = vec![0; 1 << 16];
        let mut length = 0;
        // The client writes the opening, headers and data without waiting for the server.
        for _ in 0..16 {
            tokio::task::yield_now().await;
            let read =
                tokio::time::timeout(std::time::Duration::from_millis(50), server.read(&mut bytes[length..]));
            length += read.await.map_or(0, |read| read.unwrap_or(0));
        }
        reply.abort();
        connection.abort();
        bytes.truncate(length);
        bytes
    });
    let frames: &[(&[u8], u8, u8, u8)] = &[
        // Payload, type, flags, stream: PING, WINDOW_UPDATE, PRIORITY, RST_STREAM, SETTINGS, GOAWAY.
        (&[0; 8], 6, 0, 0),
        (&[0, 0, 1, 0], 8, 0, 0),
        (&[0, 0, 0, 0, 16], 2, 0, 3),
        (&[0, 0, 0, 8], 3, 0, 1),
        (&[0, 4, 0, 0, 0, 0], 4, 0, 0),
        (&[0; 8], 7, 0, 0),
    ];
    let mut by_hand = vec![0];
    for (payload, kind, flags, stream) in frames {
        by_hand.extend_from_slice(&[0, 0, payload.len() as u8, *kind, *flags, 0, 0, 0, *stream]);
        by_hand.extend_from_slice(payload);
    }
    vec![
        ("request", [&[1], &recorded[..]].concat()),
        ("frames", by_hand),
        ("opening", [&[1], connection::OPENING].concat()),
        ("http1", b"\x01GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec()),
    ]
}

/// A definition and the files of a store, each after the byte that chooses its parser.
fn feature_files() -> Vec<(String, Vec<u8>)> {
    let machine = SimMachine::new(1);
    let set = FeatureSet::parse(features::SET.as_bytes()).expect("a set");
    let options = StoreOptions {
        directory: Some("/features".into()),
        background: false,
        ..StoreOptions::in_memory(1 << 20)
    };
    let store = Store::open_in(&machine.start(), &[set], options).expect("a store");
    for number in 0..12 {
        let event = Event {
            kind: "e",
            id: &format!("event-{number}"),
            occurred_at_us: number,
            keys: &[("card", &format!("c{}", number % 3))],
            numbers: &[("amount", number as f64)],
            texts: &[("country", "NL")],
        };
        store.record(&event, number).expect("an event");
    }
    store.forget("card", "c1").expect("an erasure");
    let content = |path: &Path| {
        let file = machine.start().fs.open(path, false).expect("a file");
        let mut bytes = vec![0; file.len().expect("a length") as usize];
        file.read_at(&mut bytes, 0).expect("the bytes");
        bytes
    };
    let erasures = content(Path::new("/features/erasures"));
    store.close().expect("a snapshot");
    let mut all = vec![("definition".to_owned(), [b"\0", features::SET.as_bytes()].concat())];
    all.push(("erasures".to_owned(), [&[3], &*erasures].concat()));
    for (path, _) in machine.fs.files() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == "snapshot" {
            all.push((name, [&[2], &*content(&path)].concat()));
        } else if name.starts_with("journal") {
            all.push(("journal".to_owned(), [&[1], &*content(&path)].concat()));
        }
    }
    all
}
