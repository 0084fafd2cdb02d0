//! Faults of the network between client and server, which a proxy simulates.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;
use tonic::transport::Endpoint;

use crate::honest::{Honest, alone};
use crate::support::{Client, eventually, score, start_with};

const FAITHFUL: u8 = 0;
const SLOW: u8 = 1;
const RESETS: u8 = 2;
const SILENT: u8 = 3;

/// Ends the other direction together with this one, so that the socket is closed.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Forwards connections to `to` and applies `fault` to the replies. Returns the address of the proxy.
async fn proxy(to: String, fault: Arc<AtomicU8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&to).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let fault = Arc::clone(&fault);
            let requests = tokio::spawn(async move {
                let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
            });
            tokio::spawn(async move {
                let _requests = AbortOnDrop(requests);
                let mut buffer = vec![0; 4096];
                loop {
                    let Ok(read) = from_server.read(&mut buffer).await else { return };
                    if read == 0 {
                        return;
                    }
                    let sent = match fault.load(Relaxed) {
                        RESETS => {
                            // Half of the reply, then a reset.
                            let _ = to_client.write_all(&buffer[..read / 2]).await;
                            let _ =
                                socket2::SockRef::from(to_client.as_ref()).set_linger(Some(Duration::ZERO));
                            return;
                        }
                        SILENT => std::future::pending().await,
                        SLOW => {
                            tokio::time::sleep(Duration::from_millis(50)).await;
                            to_client.write_all(&buffer[..read]).await
                        }
                        _ => to_client.write_all(&buffer[..read]).await,
                    };
                    if sent.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// With latency, a reset in the middle of a reply, or a half-open connection, the client gets an error, and
/// the server keeps no state of it.
///
/// Fault case 52.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_network_are_reported_and_leave_no_state() {
    let _alone = alone().await;
    let setup = start_with(|config| config["write_timeout_ms"] = json!(1000));
    let honest = Honest::start(&setup).await;
    let fault = Arc::new(AtomicU8::new(FAITHFUL));
    let address = proxy(setup.server.addresses().grpc[0].clone(), Arc::clone(&fault)).await;
    let connect = || Client::new(Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy());
    let mut client = connect();
    client.score(score("faithful", 1.0)).await.unwrap();
    fault.store(SLOW, Relaxed);
    client.score(score("slow", 1.0)).await.unwrap();
    fault.store(RESETS, Relaxed);
    let status = client.score(score("reset", 1.0)).await.unwrap_err();
    assert!(matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled), "{status}");
    fault.store(SILENT, Relaxed);
    let mut silent = connect();
    let mut request = tonic::Request::new(score("silent", 1.0));
    request.set_timeout(Duration::from_millis(300));
    let status = silent.score(request).await.unwrap_err();
    assert!(
        matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled | Code::Unavailable),
        "{status}"
    );
    // The proxy works again. Both decisions can be requested by their ids.
    fault.store(FAITHFUL, Relaxed);
    let mut client = connect();
    client.score(score("reset", 1.0)).await.unwrap();
    client.score(score("silent", 1.0)).await.unwrap();
    honest.all_succeeded().await;
    eventually("no request is in flight", || setup.server.status().inflight == 0).await;
}
