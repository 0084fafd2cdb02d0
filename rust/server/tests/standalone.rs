//! The binary without Python: it serves, survives a lack of file descriptors, and ends on SIGTERM.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::support::*;
use scorer_core::bundle::testing;
use scorer_proto::v1::NoopRequest;
use serde_json::Value;
use tonic::transport::Endpoint;

const PATIENCE: Duration = Duration::from_secs(60);

/// The process, which ends with the test in any case, and its events.
struct Process {
    child: Child,
    events: Receiver<Value>,
}

impl Process {
    fn start(arguments: &[&str], descriptors: u32) -> Process {
        let script = format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"");
        let mut child = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_scorer-server")])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, events) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap_or(Value::String(line)));
            }
        });
        Process { child, events }
    }

    /// Waits for an event.
    fn event(&self, name: &str) -> Value {
        loop {
            let event = self.events.recv_timeout(PATIENCE).unwrap();
            if event["event"] == name {
                return event;
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fault case 43.
#[tokio::test(flavor = "multi_thread")]
async fn the_binary_serves_survives_a_lack_of_descriptors_and_ends_on_sigterm() {
    let directory = tempfile::tempdir().unwrap();
    let (fraud_path, fraud) = write(directory.path(), &testing::score_files("fraud", 0.0));
    let (action_path, action) = write(directory.path(), &testing::action_files("action", 0.0));
    let at = |name: &str| directory.path().join(name).display().to_string();
    fs::write(at("config.json"), config(directory.path()).to_string()).unwrap();
    fs::write(at("lanes.json"), serde_json::to_string(&table(1, &fraud, &action)).unwrap()).unwrap();
    let paths = [
        at("config.json"),
        at("lanes.json"),
        fraud_path.display().to_string(),
        action_path.display().to_string(),
    ];
    let mut process = Process::start(&paths.each_ref().map(String::as_str), 64);
    let started = process.event("started");
    let address = started["addresses"]["grpc"][0].as_str().unwrap().to_owned();
    process.event("lanes_swapped");

    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = Client::new(endpoint.connect().await.unwrap());
    client.score(score("s", 1.0)).await.unwrap();
    let crowd: Vec<_> = (0..100).map(|_| TcpStream::connect(&address).unwrap()).collect();
    process.event("accept_failed");
    client.noop(NoopRequest::default()).await.expect("open connections are no longer served");
    drop(crowd);
    let mut late = Client::new(endpoint.connect().await.unwrap());
    late.score(score("t", 1.0)).await.expect("the accept loop has ended");

    let killed = Command::new("kill").args(["-TERM", &process.child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(process.event("stopped")["complete"], true);
    assert!(process.child.wait().unwrap().success());
}

#[test]
fn an_error_is_one_line_and_an_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    fs::write(at("config.json"), "{\"listen\": \"127.0.0.1:0\"}").unwrap();
    fs::write(at("lanes.json"), "{}").unwrap();
    for (arguments, code, words) in [
        (vec![], 64, "usage: scorer-server"),
        (vec![at("missing.json"), at("lanes.json")], 1, "missing.json: No such file"),
        (vec![at("config.json"), at("lanes.json")], 1, "missing field `checkpoints`"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_scorer-server")).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert!(text.contains(words) && text.lines().count() == 1, "{text}");
    }
}
