//! Compiles `protos/` with protox (no protoc binary needed) into OUT_DIR.

use std::path::PathBuf;

use prost::Message as _;

const FILES: [&str; 6] = [
    "scorer/v1/scoring.proto",
    "scorer/v1/control.proto",
    "scorer/v1/log.proto",
    "scorer/v1/shadow.proto",
    "inference/model_config.proto",
    "inference/grpc_service.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../protos");
    // Nobody prints these on the `compile_fds` path, and the files lie outside the package.
    println!("cargo::rerun-if-changed=build.rs");
    for file in FILES {
        println!("cargo::rerun-if-changed={}", root.join(file).display());
    }
    let descriptors = protox::compile(FILES, [&root])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // Taken out of the message as it came, not copied.
        .bytes(".inference.ModelInferRequest.raw_input_contents")
        .bytes(".inference.ModelInferResponse.raw_output_contents")
        .compile_fds(descriptors)?;
    Ok(())
}
