//! Generates `src/generated` from `protos/`: `cargo run --package scorer-proto --example generate`.
//!
//! The output is committed, so that a build needs neither a protobuf compiler nor a code generator.
//! `tests/generated.rs` compares it with what this program would write.

use std::error::Error;
use std::fs;
use std::path::Path;

use prost::Message as _;

const FILES: [&str; 6] = [
    "scorer/v1/scoring.proto",
    "scorer/v1/control.proto",
    "scorer/v1/log.proto",
    "scorer/v1/shadow.proto",
    "inference/model_config.proto",
    "inference/grpc_service.proto",
];

/// Files of other services that this server calls. Reflection does not describe them.
const CALLED: [&str; 1] = ["opentelemetry/trace.proto"];

/// Writes the generated sources and the encoded descriptors into the directory `out`.
pub(crate) fn generate(out: &Path) -> Result<(), Box<dyn Error>> {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protos");
    let descriptors = protox::compile(FILES, [&protos])?;
    fs::create_dir_all(out)?;
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .out_dir(out)
        .emit_rerun_if_changed(false)
        // Taken out of the message without a copy.
        .bytes(".inference.ModelInferRequest.raw_input_contents")
        .bytes(".inference.ModelInferResponse.raw_output_contents")
        .compile_fds(descriptors)?;
    tonic_prost_build::configure()
        .out_dir(out)
        .emit_rerun_if_changed(false)
        .compile_fds(protox::compile(CALLED, [&protos])?)?;
    Ok(())
}

/// Writes into `src/generated`.
#[allow(dead_code, reason = "the test that includes this file has no use for it")]
fn main() -> Result<(), Box<dyn Error>> {
    generate(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated"))
}
