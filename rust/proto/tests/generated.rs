//! The committed code equals the code that is generated from `protos/`.

#[path = "../examples/generate.rs"]
mod generator;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::Path;

#[test]
fn the_committed_code_matches_the_protos() -> Result<(), Box<dyn Error>> {
    let fresh = tempfile::tempdir()?;
    generator::generate(fresh.path())?;
    let generated = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    let (fresh, committed) = (contents(fresh.path())?, contents(&generated)?);
    let names: BTreeSet<&String> = fresh.keys().chain(committed.keys()).collect();
    let stale: Vec<&str> = names
        .into_iter()
        .filter(|name| fresh.get(*name) != committed.get(*name))
        .map(String::as_str)
        .collect();
    assert!(stale.is_empty(), "generated code is stale: {}; run `make proto`", stale.join(", "));
    Ok(())
}

/// Returns the files of a directory by name.
fn contents(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>, Box<dyn Error>> {
    fs::read_dir(directory)?
        .map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?))
        })
        .collect()
}
