//! TLS, client certificates, principals and roles, over real connections.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::support;
use crate::support::{
    ACTION, Client, FRAUD, Setup, explain, explain_action, outcome, patience, score, select,
};
use hyper_util::rt::TokioIo;
use scorer_identity::authority::{Authority, Request};
use scorer_identity::tls::ClientTlsConfig;
use scorer_proto::inference::ModelMetadataRequest;
use scorer_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use scorer_proto::v1::scoring_service_client::ScoringServiceClient;
use scorer_proto::v1::{OutcomeSourceKind, ReportOutcomeRequest};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::version::TLS12;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const DOMAIN: &str = "spiffe://example.org";
const HOUR: Duration = Duration::from_secs(3600);

/// A server that requires client certificates, and the authority of its fleet.
struct Fleet {
    setup: Setup,
    files: Files,
}

/// The directory of the certificates.
struct Files {
    directory: tempfile::TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Files {
        let directory = tempfile::tempdir().unwrap();
        let files = Files { directory, authority: Authority::new("test", 1).unwrap() };
        files.write("ca.pem", &files.authority.pem());
        files.write("crl.pem", &files.authority.revoke(&[], 1, SystemTime::now() + HOUR).unwrap());
        files.issue("server", &["localhost", "127.0.0.1"], |_| ());
        files.issue("checkout", &[], |_| ());
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces a file atomically.
    fn write(&self, name: &str, text: &str) {
        let next = self.path(&format!(".{name}.next"));
        fs::write(&next, text).unwrap();
        fs::rename(next, self.path(name)).unwrap();
    }

    fn issue(&self, name: &str, hosts: &[&str], change: impl FnOnce(&mut Request)) {
        let mut request = Request::of(&format!("{DOMAIN}/{name}"), hosts, 1);
        change(&mut request);
        let issued = self.authority.issue(&request).unwrap();
        self.write(&format!("{name}.key"), &issued.key);
        self.write(&format!("{name}.pem"), &issued.certificate);
    }

    fn tls(&self) -> Value {
        json!({"certificate": self.path("server.pem"), "key": self.path("server.key"),
               "client_ca": self.path("ca.pem"), "crl": [self.path("crl.pem")], "reload_ms": 10, "handshake_ms": 500})
    }

    /// Returns the TLS settings of a client of this name.
    fn client(&self, name: Option<&str>) -> ClientTlsConfig {
        ClientTlsConfig {
            ca: self.path("ca.pem"),
            certificate: name.map(|name| self.path(&format!("{name}.pem"))),
            key: name.map(|name| self.path(&format!("{name}.key"))),
            server_name: None,
        }
    }
}

fn grants() -> Value {
    json!([
        {"principal": format!("{DOMAIN}/checkout"), "roles": ["score", "select", "describe"]},
        {"principal": format!("{DOMAIN}/fraud-only"), "roles": ["score", "describe"], "checkpoints": ["fraud.*"]},
        {"principal": format!("{DOMAIN}/settlement"), "roles": ["report_outcomes"]},
        {"principal": format!("{DOMAIN}/operator"), "roles": ["operate"]},
        {"principal": format!("{DOMAIN}/platform"), "roles": ["report_reviews"], "checkpoints": ["action*"]},
        {"principal": format!("{DOMAIN}/analyst"), "roles": ["explain"], "checkpoints": ["fraud.*"]},
    ])
}

impl Fleet {
    fn start() -> Fleet {
        Fleet::start_with(|_| ())
    }

    fn start_with(change: impl FnOnce(&mut Value)) -> Fleet {
        let files = Files::new();
        let setup = support::start_with(|config| {
            config["tls"] = files.tls();
            config["identity"] = json!({"trust_domain": "example.org", "grants": grants()});
            // A client whose certificate is refused reconnects at once, hundreds of times.
            config["trusted_networks"] = json!(["127.0.0.0/8"]);
            change(config);
        });
        Fleet { setup, files }
    }

    fn address(&self) -> String {
        self.setup.server.addresses().grpc[0].clone()
    }

    async fn channel(&self, client: ClientTlsConfig) -> Result<Channel, tonic::transport::Error> {
        connect(self.address(), client).await
    }

    async fn client(&self, name: &str) -> Client {
        ScoringServiceClient::new(self.channel(self.files.client(Some(name))).await.unwrap())
    }

    /// Returns whether a client with a given certificate can score.
    async fn try_scoring(&self, name: &str, change: impl FnOnce(&mut Request)) -> Result<(), Code> {
        self.files.issue(name, &[], change);
        self.try_with(self.files.client(Some(name))).await
    }

    async fn try_with(&self, client: ClientTlsConfig) -> Result<(), Code> {
        let channel = self.channel(client).await.map_err(|_| Code::Unavailable)?;
        let answered = ScoringServiceClient::new(channel).score(score("", 10.0)).await;
        answered.map(|_| ()).map_err(|status| status.code())
    }

    async fn counted(&self, metric: &str) -> u64 {
        let metrics = self.setup.metrics().await;
        let line =
            metrics.lines().find_map(|line| line.strip_prefix(metric)).unwrap_or_else(|| panic!("{metrics}"));
        line.trim().parse().unwrap()
    }
}

async fn connect(address: String, client: ClientTlsConfig) -> Result<Channel, tonic::transport::Error> {
    let connector = tower::service_fn(move |_| {
        let (address, client) = (address.clone(), client.clone());
        async move {
            let tls = client.connect(&address).map_err(std::io::Error::other)?;
            let stream = TcpStream::connect(&address).await?;
            let stream = TlsConnector::from(tls.config).connect(tls.server_name, stream).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(Duration::from_secs(10));
    endpoint.connect_with_connector(connector).await
}

fn refused<T>(answer: Result<T, Status>) -> (Code, String) {
    let status = answer.map(|_| ()).unwrap_err();
    assert!(!status.message().contains('\n'), "{status:?}");
    (status.code(), status.message().to_owned())
}

/// Fault case 50.
#[tokio::test(flavor = "multi_thread")]
async fn a_principal_has_the_roles_of_its_grants() {
    let fleet = Fleet::start();
    for name in ["fraud-only", "settlement", "operator", "analyst", "nobody"] {
        fleet.files.issue(name, &[], |_| ());
    }
    let mut checkout = fleet.client("checkout").await;
    checkout.score(score("", 10.0)).await.unwrap();
    checkout.select_action(select("", 10.0)).await.unwrap();
    let (code, message) = refused(checkout.report_outcome(outcome("a", "authorised", 1.0, 1)).await);
    assert_eq!(code, Code::PermissionDenied);
    assert!(
        message.contains("spiffe://example.org/checkout") && message.contains("report_outcomes"),
        "{message}"
    );

    let mut fraud = fleet.client("fraud-only").await;
    fraud.score(score("", 10.0)).await.unwrap();
    assert_eq!(refused(fraud.select_action(select("", 10.0)).await).0, Code::PermissionDenied);
    // A request with two decisions needs the roles of both.
    let (code, message) = refused(fraud.decide(crate::decide::decide("", 10.0)).await);
    assert!(code == Code::PermissionDenied && message.contains("role select"), "{message}");
    let mut plain = crate::decide::decide("both", 10.0);
    plain.features.as_mut().unwrap().features.truncate(1);
    checkout.decide(plain).await.unwrap();
    let mut elsewhere = score("", 10.0);
    elsewhere.checkpoint = ACTION.to_owned();
    assert_eq!(refused(fraud.score(elsewhere).await).0, Code::PermissionDenied);
    let mut batch = support::batch("", 1, &[[0.0; 3]]);
    batch.checkpoint = ACTION.to_owned();
    assert_eq!(refused(fraud.score_batch(batch).await).0, Code::PermissionDenied);
    let described = fraud.describe(scorer_proto::v1::DescribeRequest::default()).await.unwrap().into_inner();
    let names: Vec<_> = described.checkpoints.iter().map(|known| known.checkpoint.as_str()).collect();
    assert_eq!(names, [FRAUD], "only the permitted checkpoints");

    let mut settlement = fleet.client("settlement").await;
    settlement.report_outcome(outcome("a", "authorised", 1.0, 1)).await.unwrap();
    assert_eq!(refused(settlement.score(score("", 10.0)).await).0, Code::PermissionDenied);

    // Whoever scores may not explain, and the other way round. The bundle of this server has no covers.
    let mut analyst = fleet.client("analyst").await;
    assert_eq!(refused(analyst.explain(explain(10.0)).await).0, Code::FailedPrecondition);
    assert_eq!(refused(analyst.score(score("", 10.0)).await).0, Code::PermissionDenied);
    let (code, message) = refused(analyst.explain(explain_action("a", "")).await);
    assert!(code == Code::PermissionDenied && message.contains("role explain"), "{message}");
    assert_eq!(refused(checkout.explain(explain(10.0)).await).0, Code::PermissionDenied);

    for name in ["operator", "nobody"] {
        let mut client = fleet.client(name).await;
        assert_eq!(refused(client.score(score("", 10.0)).await).0, Code::PermissionDenied, "{name}");
    }
    assert!(fleet.counted("scorer_calls_refused_total{code=\"PERMISSION_DENIED\"}").await >= 6);
    let events = fleet.setup.events();
    let event = events.iter().find(|event| event["event"] == "call_refused").unwrap();
    assert!(event["error"].as_str().unwrap().contains("spiffe://example.org/"), "{event}");
    assert!(event["principal"].as_str().unwrap().starts_with("spiffe://example.org/"), "{event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_principal_that_reports_reviews_is_a_reviewer() {
    let fleet = Fleet::start();
    for name in ["settlement", "platform"] {
        fleet.files.issue(name, &[], |_| ());
    }
    let of = |kind| support::outcome_of(kind, "case-1", outcome("a", "review", 1.0, 0));
    let review = of(OutcomeSourceKind::Reviewer);
    let mut settlement = fleet.client("settlement").await;
    let (code, message) = refused(settlement.report_outcome(review.clone()).await);
    assert!(code == Code::PermissionDenied && message.contains("role report_reviews"), "{message}");
    settlement.report_outcome(of(OutcomeSourceKind::Merchant)).await.unwrap();

    let mut platform = fleet.client("platform").await;
    platform
        .report_outcome(ReportOutcomeRequest { decision_id: "b".to_owned(), ..review.clone() })
        .await
        .unwrap();
    for other in [of(OutcomeSourceKind::Issuer), outcome("a", "authorised", 1.0, 0)] {
        let (code, message) = refused(platform.report_outcome(other).await);
        assert!(code == Code::PermissionDenied && message.contains("role report_outcomes"), "{message}");
    }
    let elsewhere = ReportOutcomeRequest { checkpoint: FRAUD.to_owned(), ..review.clone() };
    let (code, message) = refused(platform.report_outcome(elsewhere).await);
    assert!(code == Code::PermissionDenied && message.contains("at this checkpoint"), "{message}");
    // A caller with neither role is rejected before its message is read.
    let (code, message) = refused(fleet.client("checkout").await.report_outcome(review).await);
    assert!(code == Code::PermissionDenied && message.contains("role report_outcomes"), "{message}");
}

/// Fault case 50.
#[tokio::test(flavor = "multi_thread")]
async fn the_open_inference_protocol_has_the_same_roles() {
    use scorer_proto::inference::ModelInferRequest;
    let fleet = Fleet::start();
    fleet.files.issue("fraud-only", &[], |_| ());
    fleet.files.issue("settlement", &[], |_| ());
    let infer =
        |model: &str| ModelInferRequest { model_name: model.to_owned(), ..ModelInferRequest::default() };
    let metadata = |name: &str| ModelMetadataRequest { name: name.to_owned(), version: String::new() };
    let channel = fleet.channel(fleet.files.client(Some("fraud-only"))).await.unwrap();
    let mut fraud = GrpcInferenceServiceClient::new(channel);
    assert_eq!(
        refused(fraud.model_infer(infer(FRAUD)).await).0,
        Code::InvalidArgument,
        "the model has no inputs"
    );
    assert_eq!(refused(fraud.model_infer(infer(ACTION)).await).0, Code::PermissionDenied);
    fraud.model_metadata(metadata(FRAUD)).await.unwrap();
    assert_eq!(refused(fraud.model_metadata(metadata(ACTION)).await).0, Code::PermissionDenied);
    let index =
        fraud.repository_index(scorer_proto::inference::RepositoryIndexRequest::default()).await.unwrap();
    assert!(index.into_inner().models.iter().all(|model| model.name == FRAUD));
    let stream = tokio_stream::iter([infer(ACTION)]);
    let mut answers = fraud.model_stream_infer(stream).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    assert!(answer.error_message.starts_with("[PERMISSION_DENIED]"), "{}", answer.error_message);

    let channel = fleet.channel(fleet.files.client(Some("settlement"))).await.unwrap();
    let mut settlement = GrpcInferenceServiceClient::new(channel);
    assert_eq!(refused(settlement.model_infer(infer(FRAUD)).await).0, Code::PermissionDenied);
    assert_eq!(refused(settlement.model_metadata(metadata(FRAUD)).await).0, Code::PermissionDenied);
    settlement.server_live(scorer_proto::inference::ServerLiveRequest {}).await.unwrap();
}

/// Fault case 45.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_valid_certificate_is_refused() {
    let fleet = Fleet::start();
    let now = SystemTime::now();
    fleet.try_scoring("checkout", |_| ()).await.unwrap();
    assert!(fleet.try_with(fleet.files.client(None)).await.is_err(), "no certificate");
    let expired = fleet.try_scoring("checkout", |request| request.until = now - HOUR).await;
    assert!(expired.is_err(), "expired");
    assert!(
        fleet.try_scoring("checkout", |request| request.from = now + HOUR).await.is_err(),
        "not yet valid"
    );
    let wrong_purpose = |request: &mut Request| {
        request.client = false;
        request.server = true;
    };
    assert!(fleet.try_scoring("checkout", wrong_purpose).await.is_err(), "not for clients");
    let two = fleet.try_scoring("two", |request| request.uris.push(format!("{DOMAIN}/checkout"))).await;
    assert_eq!(two, Err(Code::Unauthenticated), "two URIs");
    let other = |request: &mut Request| request.uris = vec!["spiffe://example.net/checkout".to_owned()];
    assert_eq!(fleet.try_scoring("other", other).await, Err(Code::Unauthenticated), "another trust domain");

    let stranger = Authority::new("test", 1).unwrap();
    let issued = stranger.issue(&Request::of(&format!("{DOMAIN}/checkout"), &[], 1)).unwrap();
    fleet.files.write("checkout.key", &issued.key);
    fleet.files.write("checkout.pem", &issued.certificate);
    assert!(fleet.try_with(fleet.files.client(Some("checkout"))).await.is_err(), "another authority");
    // The client ends before the server counts.
    let wait = patience("the failed handshakes are counted");
    while fleet.counted("scorer_handshakes_failed_total{reason=\"certificate\"}").await < 5 {
        wait();
    }
    assert!(fleet.setup.events().iter().any(|event| event["event"] == "handshake_failed"));
}

/// Fault case 44.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_without_tls_or_h2_is_disconnected() {
    let fleet = Fleet::start();
    let closed = async |bytes: &[u8]| {
        let mut stream = TcpStream::connect(fleet.address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await;
        // A reset connection counts as closed.
        let _ = read.expect("the server does not close the connection");
        assert!(answer.len() < 64, "at most an alert");
    };
    closed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    closed(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    // The first bytes of a hello of TLS 1.1, and half a hello that is never continued.
    let mut old = vec![0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 2];
    old.extend([7; 32]);
    old.extend([0, 0, 2, 0, 0x2f, 1, 0]);
    closed(&old).await;
    closed(&old[..9]).await;
    for reason in ["not_tls", "incompatible", "timeout"] {
        let metric = format!("scorer_handshakes_failed_total{{reason=\"{reason}\"}}");
        assert!(fleet.counted(&metric).await >= 1, "{reason}");
    }

    let roots = {
        let mut roots = RootCertStore::empty();
        use tokio_rustls::rustls::pki_types::CertificateDer;
        use tokio_rustls::rustls::pki_types::pem::PemObject as _;
        roots.add(CertificateDer::from_pem_slice(fleet.files.authority.pem().as_bytes()).unwrap()).unwrap();
        roots
    };
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let client = |versions: Option<&[&'static tokio_rustls::rustls::SupportedProtocolVersion]>,
                  alpn: &[&[u8]]| {
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = match versions {
            Some(versions) => builder.with_protocol_versions(versions),
            None => builder.with_safe_default_protocol_versions(),
        };
        let mut client = builder.unwrap().with_root_certificates(roots.clone()).with_no_client_auth();
        client.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        client
    };
    for (what, client) in [
        ("TLS 1.2", client(Some(&[&TLS12]), &[b"h2"])),
        ("HTTP/1.1 alone", client(None, &[b"http/1.1"])),
        ("no protocol", client(None, &[])),
    ] {
        let stream = TcpStream::connect(fleet.address()).await.unwrap();
        let connector = TlsConnector::from(Arc::new(client));
        let Ok(mut stream) = connector.connect("localhost".try_into().unwrap(), stream).await else {
            continue;
        };
        let mut bytes = [0; 1];
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read(&mut bytes)).await;
        assert!(matches!(read.expect("the server does not close the connection"), Ok(0) | Err(_)), "{what}");
    }
    fleet.try_with(fleet.files.client(Some("checkout"))).await.unwrap();
}

/// Fault case 46.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_replaced_under_load_without_a_failed_call() {
    let fleet = Fleet::start();
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicU64::new(0));
    let mut load = Vec::new();
    for _ in 0..2 {
        let mut client = fleet.client("checkout").await;
        let (stop, calls) = (Arc::clone(&stop), Arc::clone(&calls));
        load.push(tokio::spawn(async move {
            while !stop.load(Ordering::Acquire) {
                client.score(score("", 10.0)).await.unwrap();
                calls.fetch_add(1, Ordering::AcqRel);
            }
        }));
    }
    let replaced = async |times: u64| {
        let wait = patience("the files are read again");
        while fleet.counted("scorer_identity_files_read_total{result=\"replaced\"}").await < times {
            wait();
        }
    };
    for round in 1..=3 {
        let before = calls.load(Ordering::Acquire);
        fleet.files.issue("server", &["localhost", "127.0.0.1"], |_| ());
        replaced(round).await;
        fleet.try_with(fleet.files.client(Some("checkout"))).await.unwrap();
        let wait = patience("calls go on");
        while calls.load(Ordering::Acquire) < before + 10 {
            wait();
            tokio::task::yield_now().await;
        }
    }
    let key = fs::read_to_string(fleet.files.path("server.key")).unwrap();
    fleet.files.write("server.key", &key[..key.len() / 2]);
    let wait = patience("the file is rejected");
    while fleet.counted("scorer_identity_files_read_total{result=\"rejected\"}").await == 0 {
        wait();
    }
    fleet.try_with(fleet.files.client(Some("checkout"))).await.unwrap();
    assert_eq!(fleet.counted("scorer_identity_files_outdated").await, 1);
    let events = fleet.setup.events();
    assert!(events.iter().any(|event| event["event"] == "tls_rejected"), "{events:?}");
    fleet.files.write("server.key", &key);
    let wait = patience("the whole file is used");
    while fleet.counted("scorer_identity_files_outdated").await == 1 {
        wait();
    }

    // The authority is replaced in three steps: trust both, change the clients, remove the old one.
    let next = Authority::new("next", 1).unwrap();
    let both = fleet.files.authority.pem() + &next.pem();
    let until = SystemTime::now() + HOUR;
    let lists = fleet.files.authority.revoke(&[], 2, until).unwrap() + &next.revoke(&[], 1, until).unwrap();
    fleet.files.write("crl.pem", &lists);
    fleet.files.write("ca.pem", &both);
    let issued = next.issue(&Request::of(&format!("{DOMAIN}/checkout"), &[], 1)).unwrap();
    fleet.files.write("new.key", &issued.key);
    fleet.files.write("new.pem", &issued.certificate);
    let wait = patience("the new authority is trusted");
    while fleet.try_with(fleet.files.client(Some("new"))).await.is_err() {
        wait();
    }
    stop.store(true, Ordering::Release);
    for load in load {
        load.await.expect("a call failed");
    }
}

/// Fault cases 45, 47.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_is_refused_after_the_next_read_of_the_list() {
    let fleet = Fleet::start();
    fleet.try_scoring("checkout", |request| request.serial = 42).await.unwrap();
    let mut open = fleet.client("checkout").await;
    open.score(score("", 10.0)).await.unwrap();
    let list = fleet.files.authority.revoke(&[42], 2, SystemTime::now() + HOUR).unwrap();
    fleet.files.write("crl.pem", &list);
    let wait = patience("the list is read");
    while fleet.try_with(fleet.files.client(Some("checkout"))).await.is_ok() {
        wait();
    }
    let (code, message) = refused(open.score(score("", 10.0)).await);
    assert_eq!(code, Code::Unauthenticated, "a connection that was opened before: {message}");
    fleet.files.write("crl.pem", "no list");
    let wait = patience("the broken list is noticed");
    while fleet.counted("scorer_identity_files_outdated").await == 0 {
        wait();
    }
    assert!(
        fleet.try_with(fleet.files.client(Some("checkout"))).await.is_err(),
        "the previous list must be in use"
    );
}

/// Principals behind one address, such as that of a load balancer, do not share a rate of connections.
#[tokio::test(flavor = "multi_thread")]
async fn connection_rates_are_counted_by_principal() {
    let fleet = Fleet::start_with(|config| {
        config["trusted_networks"] = json!([]);
        config["max_connections_per_peer"] = json!(20);
        config["connections_per_second_per_peer"] = json!(1);
    });
    fleet.files.issue("fraud-only", &[], |_| ());
    // Together they open more connections than their address could.
    for name in ["checkout", "fraud-only"] {
        for _ in 0..15 {
            fleet.try_with(fleet.files.client(Some(name))).await.unwrap();
        }
    }
    let wait = patience("the principal's rate is used up");
    while fleet.try_with(fleet.files.client(Some("checkout"))).await.is_ok() {
        wait();
    }
    assert!(fleet.counted("scorer_limit_hits_total{limit=\"connections_per_second\"}").await > 0);
}

/// Fault case 50.
#[tokio::test(flavor = "multi_thread")]
async fn request_ids_belong_to_their_principal() {
    let fleet = Fleet::start();
    fleet.files.issue("fraud-only", &[], |_| ());
    let mut attacker = fleet.client("fraud-only").await;
    attacker.score(score("order-1", 999.0)).await.unwrap();
    let mut checkout = fleet.client("checkout").await;
    checkout.score(score("order-1", 10.0)).await.expect("the id of another principal must not conflict");
    let differs = checkout.score(score("order-1", 11.0)).await;
    assert_eq!(refused(differs).0, Code::AlreadyExists, "ids are unique per principal");
}

/// Fault case 51.
#[tokio::test(flavor = "multi_thread")]
async fn a_unix_peer_needs_a_grant_for_its_user() {
    use std::os::unix::fs::MetadataExt as _;
    let directory = tempfile::tempdir().unwrap();
    let uid = fs::metadata(directory.path()).unwrap().uid();
    let score_at = async |granted: u32| {
        let path = directory.path().join(format!("{granted}.sock"));
        let setup = support::start_with(|config| {
            config["uds"] = json!(path);
            config["uds_mode"] = json!("0666");
            config["identity"] =
                json!({"grants": [{"principal": format!("uid:{granted}"), "roles": ["score"]}]});
        });
        let mode = fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o666, "every user may connect and has the granted roles");
        let unix = ScoringServiceClient::new(support::unix_channel(Path::new(&path)).await);
        let over_unix = unix.clone().score(score("", 10.0)).await.map(|_| ()).map_err(|status| status.code());
        let over_tcp =
            setup.client().await.score(score("", 10.0)).await.map(|_| ()).map_err(|status| status.code());
        assert_eq!(over_tcp, Err(Code::Unauthenticated), "no credential");
        over_unix
    };
    assert_eq!(score_at(uid).await, Ok(()));
    assert_eq!(score_at(uid + 1).await, Err(Code::PermissionDenied));
}

/// Fault case 48.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_a_bad_token_is_unauthenticated_with_any_certificate() {
    let files = Files::new();
    let keys = files.path("keys.json");
    fs::write(&keys, r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#)
        .unwrap();
    let fleet = Fleet::start_with(|config| {
        config["identity"]["jwt"] =
            json!({"issuer": "a", "audience": "scorer", "algorithms": ["EdDSA"], "keys": keys});
    });
    let mut checkout = fleet.client("checkout").await;
    checkout.score(score("", 10.0)).await.unwrap();
    for value in ["Bearer e30.e30.", "Bearer", "Basic YTpi", "bearer ", "Bearer eyJhbGciOiJub25lIn0.e30."] {
        let mut request = tonic::Request::new(score("", 10.0));
        request.metadata_mut().insert("authorization", value.parse().unwrap());
        assert_eq!(refused(checkout.score(request).await).0, Code::Unauthenticated, "{value}");
    }
    let mut twice = tonic::Request::new(score("", 10.0));
    for _ in 0..2 {
        twice.metadata_mut().append("authorization", "Bearer a.b.c".parse().unwrap());
    }
    assert_eq!(refused(checkout.score(twice).await).0, Code::Unauthenticated);
    let mut long = tonic::Request::new(score("", 10.0));
    long.metadata_mut().insert("authorization", format!("Bearer {}", "x".repeat(64 << 10)).parse().unwrap());
    assert!(checkout.score(long).await.is_err(), "more metadata than a request may have");
    assert!(fleet.counted("scorer_calls_refused_total{code=\"UNAUTHENTICATED\"}").await >= 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_needs_no_credential_and_reflection_does() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let setup = support::start_with(|config| {
        config["identity"] = json!({"grants": [{"principal": "uid:1", "roles": ["score"]}]});
    });
    let channel = setup.channel().await;
    HealthClient::new(channel.clone()).check(HealthCheckRequest::default()).await.unwrap();
    let mut inference = GrpcInferenceServiceClient::new(channel.clone());
    inference.server_ready(scorer_proto::inference::ServerReadyRequest {}).await.unwrap();
    let metadata = ModelMetadataRequest { name: FRAUD.to_owned(), version: String::new() };
    assert_eq!(refused(inference.model_metadata(metadata).await).0, Code::Unauthenticated);
    let request =
        http::Request::post("http://scorer/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
            .header("content-type", "application/grpc")
            .body(http_body_util::Full::default())
            .unwrap();
    let (_, code, _) = support::raw(&setup.server.addresses().grpc[0], request).await;
    assert_eq!(code, Some(Code::Unauthenticated as i32));
}

#[test]
fn invalid_settings_are_errors_at_the_start() {
    use scorer_server::{Server, ServerConfig};
    let files = Files::new();
    let directory = tempfile::tempdir().unwrap();
    let start = |change: &dyn Fn(&mut Value)| {
        let mut config = support::config(directory.path());
        config["tls"] = files.tls();
        config["identity"] = json!({"grants": grants()});
        change(&mut config);
        let started = ServerConfig::from_json(&config.to_string()).and_then(Server::start);
        started.map(|_| ()).unwrap_err().to_string()
    };
    for (words, change) in [
        (
            "\"identity\" is not",
            &(|config: &mut Value| config["identity"] = Value::Null) as &dyn Fn(&mut Value),
        ),
        ("lets other users connect", &|config| {
            config["identity"] = Value::Null;
            config["tls"] = Value::Null;
            config["uds_mode"] = json!("0660");
        }),
        ("grants is empty", &|config| config["identity"]["grants"] = json!([])),
        ("a principal begins with", &|config| {
            config["identity"]["grants"][0]["principal"] = json!("checkout")
        }),
        ("no caller can match", &|config| config["identity"]["trust_domain"] = json!("example.net")),
        ("unknown variant `admin`", &|config| config["identity"]["grants"][0]["roles"] = json!(["admin"])),
        ("unknown variant `HS256`", &|config| {
            config["identity"]["jwt"] =
                json!({"issuer": "a", "audience": "b", "algorithms": ["HS256"], "keys": "k"});
        }),
        ("leeway_s is 31", &|config| {
            config["identity"]["jwt"] =
                json!({"issuer": "a", "audience": "b", "algorithms": ["ES256"], "keys": "k", "leeway_s": 31});
        }),
        ("missing.pem", &|config| config["tls"]["certificate"] = json!("/nonexistent/missing.pem")),
        ("does not belong to the certificate", &|config| {
            config["tls"]["key"] = json!(files.path("checkout.key"))
        }),
        ("unknown variant `1.1`", &|config| config["tls"]["min_version"] = json!("1.1")),
    ] {
        let error = start(change);
        assert!(error.contains(words) && !error.contains('\n'), "{words:?} not in {error:?}");
    }
}
