//! What a message costs that takes far more memory decoded than on the wire: processor time of the data thread, and
//! memory, of requests over a real connection. Prints one JSON line per message.
//!
//! `cargo run --release -p scorer-server --example decode_bombs`
//!
//! The time is that of the thread as the scheduler counts it, so other load on the machine does not add to it. Reading
//! the bytes from the socket is part of it; a message of the same length without elements shows how much that is.

use std::error::Error;
use std::fs;
use std::io::Write as _;

use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use scorer_server::{Server, ServerConfig};
use serde_json::json;

type Failure = Box<dyn Error + Send + Sync>;
type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

const CALLS: u32 = 200;
const MIB: usize = 1 << 20;
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const OBSERVE: &str = "/scorer.v1.ShadowService/Observe";

fn main() -> Result<(), Failure> {
    let (live, pool) = (start("live")?, start("shadow")?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut out = std::io::stdout().lock();
    let empties = |field: u8, bytes: usize| [field << 3 | 2, 0].repeat(bytes / 2 - 16);
    let unknown = |bytes: usize| {
        let content = vec![0; bytes - 64];
        let mut message = vec![0xfa, 0x3f];
        prost::encoding::encode_varint(content.len() as u64, &mut message);
        message.extend_from_slice(&content);
        message
    };
    for (name, (server, thread), path, message) in [
        ("ModelInfer: 1 MiB of empty inputs", &live, INFER, empties(5, MIB)),
        ("ModelInfer: 1 MiB in one unknown field", &live, INFER, unknown(MIB)),
        ("Observe: 2 MiB of empty requests", &pool, OBSERVE, empties(3, 2 * MIB)),
        ("Observe: 2 MiB in one unknown field", &pool, OBSERVE, unknown(2 * MIB)),
    ] {
        let address = server.addresses().grpc.first().ok_or("no address")?;
        let (code, micros, grown) = runtime.block_on(measure(address, thread, path, &message))?;
        writeln!(
            out,
            "{}",
            json!({"message": name, "grpc_status": code, "data_thread_us": micros, "memory_mib": grown})
        )?;
    }
    Ok(())
}

/// A server with one data thread, and that thread's directory of the process file system.
fn start(role: &str) -> Result<(Server, String), Failure> {
    let before = data_threads()?;
    let config = json!({
        "role": role, "listen": "127.0.0.1:0", "checkpoints": {"fraud": {"kind": "score"}},
    });
    let server = Server::start(ServerConfig::from_json(&config.to_string())?)?;
    let thread = data_threads()?.into_iter().find(|thread| !before.contains(thread));
    Ok((server, thread.ok_or("the data thread is not found")?))
}

fn data_threads() -> Result<Vec<String>, Failure> {
    let mut threads = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let path = entry?.path().display().to_string();
        if fs::read_to_string(format!("{path}/comm"))?.starts_with("scorer-data") {
            threads.push(path);
        }
    }
    Ok(threads)
}

/// Processor time of a thread so far, nanoseconds.
fn processor_time(thread: &str) -> Result<u64, Failure> {
    let text = fs::read_to_string(format!("{thread}/schedstat"))?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}

fn resident() -> Result<f64, Failure> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    Ok(statm.split(' ').nth(1).unwrap_or_default().parse::<f64>()? * 4096.0 / MIB as f64)
}

/// Microseconds of the data thread per call, and the memory that all calls took, MiB.
async fn measure(
    address: &str,
    thread: &str,
    path: &str,
    message: &[u8],
) -> Result<(String, u64, i64), Failure> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut body = vec![0];
    body.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
    body.extend_from_slice(message);
    let body = Bytes::from(body);
    // The first call takes the buffers.
    let mut code = call(&mut sender, path, &body).await?;
    let (before, memory) = (processor_time(thread)?, resident()?);
    for _ in 0..CALLS {
        code = call(&mut sender, path, &body).await?;
    }
    let micros = (processor_time(thread)? - before) / u64::from(CALLS) / 1000;
    connection.abort();
    Ok((code, micros, (resident()? - memory).round() as i64))
}

/// Returns the gRPC status of one call.
async fn call(sender: &mut Sender, path: &str, body: &Bytes) -> Result<String, Failure> {
    let request = Request::post(format!("http://scorer{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::from(body.clone()))?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let trailers: HeaderMap = body.collect().await?.trailers().cloned().unwrap_or_default();
    let status = head.headers.get("grpc-status").or(trailers.get("grpc-status"));
    Ok(status.map_or("none", |value| value.to_str().unwrap_or("none")).to_owned())
}
