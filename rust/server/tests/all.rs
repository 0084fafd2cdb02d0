//! The server's tests in one program, because each program would be linked with the whole server. A file is a program of
//! its own if its tests measure the whole process: memory, threads, open files.

#![allow(unreachable_pub, reason = "modules of a test program")]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod answers;
mod checkpoints;
mod decide;
mod deliveries;
mod drain;
mod explanations;
mod faults;
mod floods;
mod functions;
mod identity;
mod lanes;
mod observe;
mod observers;
mod oip;
mod outcomes;
mod privacy;
mod refusals;
mod retries;
mod rules;
mod shadow;
mod sla;
mod stall;
mod standalone;
mod support;
mod swaps;
mod tokens;
mod tracing;
mod transport;

/// Cargo finds no tests by itself (`autotests = false`), so that a file which is not listed would never run.
#[test]
fn every_file_is_a_module_or_a_program() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let (listed, manifest) =
        (include_str!("all.rs"), std::fs::read_to_string(root.join("Cargo.toml")).unwrap());
    for entry in std::fs::read_dir(root.join("tests")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let is_program = manifest.contains(&format!("path = \"tests/{name}"));
        assert!(is_program || listed.contains(&format!("\nmod {name};\n")), "{name} is not listed");
    }
}
