//! The lane table in JSON.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use scorer_server::LaneTable;

use crate::serving;

/// Reads a lane table and activates it on a server. The names `fraud` and `action` are replaced by the digests of the
/// loaded bundles, and a version other than 0 by the next version.
pub fn run(data: &[u8]) {
    static VERSION: AtomicU64 = AtomicU64::new(serving::FIRST_VERSION + 1);
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(mut table) = LaneTable::from_json(text) else { return };
    let serving = serving::server();
    let resolve = |bundle: &mut String| match bundle.as_str() {
        "fraud" => bundle.clone_from(&serving.fraud),
        "action" => bundle.clone_from(&serving.action),
        _ => {}
    };
    table.checkpoints.values_mut().flatten().flatten().for_each(|lane| resolve(&mut lane.bundle));
    table.previous.values_mut().for_each(resolve);
    table.observe.values_mut().flatten().for_each(|lane| resolve(&mut lane.bundle));
    if table.version != 0 {
        table.version = VERSION.fetch_add(1, Relaxed);
    }
    let _ = serving.server.swap(&table);
    drop(serving.server.events());
}
