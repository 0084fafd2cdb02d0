//! Opens a connection: TCP, TLS, user and password, database.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use scorer_privacy::read_secret;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::config::RedisConfig;
use crate::connection::Connection;
use crate::resp;

/// Greatest length of a password in bytes.
const MAX_PASSWORD: u64 = 4096;

/// The work of a connection; it returns why the connection ended.
pub(crate) type Work = Pin<Box<dyn Future<Output = String> + Send>>;

/// Opens a connection. `work` must be polled for the connection to be used.
///
/// # Errors
/// Returns the reason why there is no connection.
pub(crate) async fn dial(config: &RedisConfig) -> Result<(Connection, Work), String> {
    let within = config.timeout().max(std::time::Duration::from_millis(1000));
    match timeout(within, open(config)).await {
        Ok(result) => result,
        Err(_) => Err(format!("no connection within {} ms", within.as_millis())),
    }
}

async fn open(config: &RedisConfig) -> Result<(Connection, Work), String> {
    let text = |error: std::io::Error| error.to_string();
    let hello = hello(config)?;
    let stream = TcpStream::connect(&config.address).await.map_err(text)?;
    stream.set_nodelay(true).map_err(text)?;
    let (connection, mut work): (Connection, Work) = match &config.tls {
        None => {
            let (connection, work) = Connection::new(stream, config.timeout());
            (connection, Box::pin(work))
        }
        Some(tls) => {
            // The files are read for each connection, so that the next connection uses replaced certificates.
            let mut tls = tls.connect(&config.address).map_err(|error| error.to_string())?;
            Arc::make_mut(&mut tls.config).alpn_protocols.clear();
            let stream =
                TlsConnector::from(tls.config).connect(tls.server_name, stream).await.map_err(text)?;
            let (connection, work) = Connection::new(stream, config.timeout());
            (connection, Box::pin(work))
        }
    };
    let (frame, names) = hello;
    let lost = || "the connection ended".to_owned();
    let replies = connection.send(Bytes::from(frame), names.len(), None).ok_or_else(lost)?;
    let replies = tokio::select! {
        why = &mut work => return Err(why),
        replies = replies => replies.map_err(|_| lost())?,
    };
    for (name, reply) in names.iter().zip(&replies) {
        if let Some(error) = reply.error() {
            return Err(format!("{name}: {error}"));
        }
    }
    Ok((connection, work))
}

/// The first commands of a connection, and their names.
fn hello(config: &RedisConfig) -> Result<(Vec<u8>, Vec<&'static str>), String> {
    let (mut frame, mut names) = (Vec::new(), Vec::new());
    if let Some(path) = &config.password_file {
        let file = read_secret(path, MAX_PASSWORD).map_err(|error| error.to_string())?;
        let password = file.bytes.trim_ascii_end();
        if config.user.is_empty() {
            resp::write(&mut frame, [&b"AUTH"[..], password]);
        } else {
            resp::write(&mut frame, [&b"AUTH"[..], config.user.as_bytes(), password]);
        }
        names.push("AUTH");
    }
    if config.database > 0 {
        resp::write(&mut frame, [&b"SELECT"[..], config.database.to_string().as_bytes()]);
        names.push("SELECT");
    }
    // A server that needs a password refuses this, so that its absence is found at the start.
    resp::write(&mut frame, [&b"PING"[..]]);
    names.push("PING");
    Ok((frame, names))
}
