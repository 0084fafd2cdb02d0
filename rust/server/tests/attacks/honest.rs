//! Honest clients during an attack, and the memory of the server.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;

use crate::support::{Setup, score};

/// Allows one test at a time, because the memory of the whole process is measured.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Waits until no other test of this binary runs.
pub async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

/// Clients that call continuously, each on a separate connection.
pub struct Honest {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Honest {
    /// Starts the clients. Each of them has been answered once.
    pub async fn start(setup: &Setup) -> Honest {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for client in 0..4 {
            let (mut channel, stop) = (setup.client().await, Arc::clone(&stop));
            channel.score(score(&format!("honest-{client}"), 1.0)).await.unwrap();
            clients.push(tokio::spawn(async move {
                let mut calls = 0;
                while !stop.load(Relaxed) {
                    let id = format!("honest-{client}-{calls}");
                    if let Err(status) = channel.score(score(&id, 1.0)).await {
                        panic!("call {calls} of an honest client failed: {status}");
                    }
                    calls += 1;
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
            }));
        }
        Honest { stop, clients }
    }

    /// Stops the clients and asserts that no call failed.
    pub async fn all_succeeded(self) {
        self.stop.store(true, Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
    }
}

/// Returns the resident memory of this process in bytes.
pub fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Returns the count of a limit.
pub async fn hits(setup: &Setup, limit: &str) -> u64 {
    let metrics = setup.metrics().await;
    let line = format!("scorer_limit_hits_total{{limit=\"{limit}\"}} ");
    let found = metrics.lines().find_map(|text| text.strip_prefix(&line));
    found.unwrap_or_else(|| panic!("no {line:?} in {metrics}")).parse().unwrap()
}
