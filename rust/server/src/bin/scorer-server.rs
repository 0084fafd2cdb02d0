//! The data plane without Python. It serves bundles from directories by a lane table from a file.
//!
//! Usage: `scorer-server CONFIG.json LANES.json BUNDLE_DIR...`. The lane table names bundles by digest. Events are
//! written to standard error as JSON lines. SIGHUP reads the lane table again; SIGTERM and SIGINT drain the server.

use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use scorer_server::{LaneTable, Server, ServerConfig};
use tokio::signal::unix::{SignalKind, signal};

const DRAIN_WITHIN: Duration = Duration::from_secs(5);
const EVENTS_EVERY: Duration = Duration::from_millis(100);
const USAGE: &str = "usage: scorer-server CONFIG.json LANES.json BUNDLE_DIR...";
/// The exit status of sysexits for a wrong command or configuration.
const EX_USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [config, lanes, bundles @ ..] = arguments.as_slice() else {
        say(USAGE);
        return ExitCode::from(EX_USAGE);
    };
    match run(config, lanes, bundles) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(config: &str, lanes: &str, bundles: &[String]) -> Result<(), Box<dyn Error>> {
    let config = ServerConfig::from_json(&read(config)?)?;
    let table = LaneTable::from_json(&read(lanes)?)?;
    let server = Server::start(config)?;
    for bundle in bundles {
        let path = Path::new(bundle);
        let digest = scorer_server::bundle_dir::digest(path)?;
        server.load(path, &digest.to_string())?;
    }
    server.swap(&table)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(wait(&server, lanes))?;
    server.drain(DRAIN_WITHIN);
    print_events(&server);
    Ok(())
}

/// Waits for a signal that ends the process.
async fn wait(server: &Server, lanes: &str) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut events = tokio::time::interval(EVENTS_EVERY);
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => swap(server, lanes),
            _ = events.tick() => print_events(server),
        }
    }
}

/// Reads and activates the lane table. A rejected table is reported as an event, and the active table is not changed.
fn swap(server: &Server, lanes: &str) {
    let table = read(lanes).and_then(|text| LaneTable::from_json(&text).map_err(|error| error.to_string()));
    match table {
        Ok(table) => _ = server.swap(&table),
        Err(error) => say(&format!("error: {error}")),
    }
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

fn print_events(server: &Server) {
    server.events().iter().for_each(|line| say(line));
}

/// Writes a line to standard error. Failures are ignored, because there is no other place to report them.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
