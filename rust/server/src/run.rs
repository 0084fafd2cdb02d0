//! Start and stop of the listeners and of the threads.

use std::net::TcpListener;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use scorer_admission::WINDOW;
use scorer_http::bind::{self, SocketFile, UnixSocket};
use scorer_http::{Acceptor, Rate, Settings};
use scorer_os::sched::{lower_priority, set_short_slice};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::ServerConfig;
use crate::dispatch::Dispatch;
use crate::error::ServerError;
use crate::files;
use crate::metrics;
use crate::security;
use crate::services::Services;
use crate::token_keys;

/// The time the runtime has to stop its threads after the time of the drain is over.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// Number of tasks that a data thread runs before it polls its sockets again. With the default of 61, requests would
/// wait unread behind as many polls of other connections.
const EVENT_INTERVAL: u32 = 8;

/// Greatest number of pauses that a peer which breaks rules accumulates.
const MISUSES: u64 = 6;

/// The addresses on which the server listens, with the assigned port for port 0.
#[derive(Clone, Debug, Serialize)]
pub struct Addresses {
    /// The addresses of gRPC, `host:port` and `unix:/path`.
    pub grpc: Vec<String>,
    /// The address of the metrics listener, `host:port`.
    pub metrics: Option<String>,
}

/// The running threads of a server.
pub(crate) struct Running {
    draining: watch::Sender<bool>,
    /// Signals that every connection has ended.
    ended: mpsc::Receiver<()>,
    runtime: JoinHandle<()>,
    stop: watch::Sender<bool>,
    /// Dropping it ends the thread that follows files.
    files: Option<mpsc::Sender<()>>,
    metrics: Option<JoinHandle<()>>,
    services: Arc<Services>,
    /// The threads of the pool, of explanations, the watchdog and the supervisor of observe lanes.
    workers: Vec<JoinHandle<()>>,
    socket: Option<SocketFile>,
}

/// Listeners that are bound and not yet served.
pub(crate) struct Listeners {
    tcp: Option<TcpListener>,
    unix: Option<UnixSocket>,
    metrics: Option<TcpListener>,
}

// === impl Listeners ===

impl Listeners {
    pub(crate) fn bind(config: &ServerConfig) -> Result<Listeners, ServerError> {
        let settings = settings(config);
        let tcp = |what, address: &str| bind::tcp(what, address, &settings);
        Ok(Listeners {
            tcp: config.listen.as_deref().map(|address| tcp("listen", address)).transpose()?,
            unix: config.uds.as_deref().map(|path| bind::unix(path, &settings)).transpose()?,
            metrics: config
                .metrics_listen
                .as_deref()
                .map(|address| tcp("metrics_listen", address))
                .transpose()?,
        })
    }

    pub(crate) fn addresses(&self) -> Result<Addresses, ServerError> {
        let of = |listener: &TcpListener| {
            listener
                .local_addr()
                .map(|address| address.to_string())
                .map_err(|source| ServerError::Start { what: "a listener", source })
        };
        let mut grpc = Vec::new();
        if let Some(tcp) = &self.tcp {
            grpc.push(of(tcp)?);
        }
        if let Some(unix) = &self.unix {
            grpc.push(format!("unix:{}", unix.file.0.display()));
        }
        Ok(Addresses { grpc, metrics: self.metrics.as_ref().map(of).transpose()? })
    }
}

// === impl Addresses ===

impl Addresses {
    /// The name of the server in the counters of other servers.
    pub(crate) fn name(&self) -> String {
        self.grpc.first().cloned().unwrap_or_default()
    }
}

// === impl Running ===

impl Running {
    /// Starts the serving threads.
    pub(crate) fn start(services: &Arc<Services>, listeners: Listeners) -> Result<Running, ServerError> {
        let start = |what: &'static str| move |source: std::io::Error| ServerError::Start { what, source };
        let dispatch = Dispatch::new(services).map_err(|error| ServerError::Config(error.to_string()))?;
        let number = AtomicU64::new(0);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(services.config.threads)
            .thread_name_fn(move || format!("scorer-data-{}", number.fetch_add(1, AcqRel)))
            .on_thread_start(set_short_slice)
            .event_interval(EVENT_INTERVAL)
            .enable_all()
            .build()
            .map_err(start("the runtime"))?;

        let (draining, drained) = watch::channel(false);
        let (stop, stopped) = watch::channel(false);
        let mut loops = JoinSet::new();
        let acceptor = Acceptor::new(dispatch, Arc::clone(services), settings(&services.config), drained);
        let mut socket = None;
        {
            let _guard = runtime.enter();
            if let Some(redis) = &services.redis {
                redis.start(runtime.handle());
            }
            if let Some(tcp) = listeners.tcp {
                let listener =
                    scorer_os::tcp::TcpListener::from_std(tcp).map_err(start("the TCP listener"))?;
                let acceptor = acceptor.clone().with_tls(services.security.listener());
                loops.spawn_on(acceptor.run(listener), runtime.handle());
            }
            if let Some(UnixSocket { listener, file }) = listeners.unix {
                let listener =
                    tokio::net::UnixListener::from_std(listener).map_err(start("the Unix listener"))?;
                loops.spawn_on(acceptor.run(listener), runtime.handle());
                socket = Some(file);
            }
        }
        let metrics = listeners
            .metrics
            .map(|listener| metrics::http::start(listener, Arc::clone(services), stopped.clone()))
            .transpose()
            .map_err(start("the metrics listener"))?;
        let (tell, ended) = mpsc::channel();
        let runtime = thread::Builder::new()
            .name("scorer-runtime".to_owned())
            .spawn(move || keep(runtime, loops, &tell, stopped))
            .map_err(start("the runtime's thread"))?;
        let mut running = Running {
            draining,
            ended,
            runtime,
            stop,
            files: None,
            metrics,
            services: Arc::clone(services),
            workers: Vec::new(),
            socket,
        };
        let started = workers(services, &running.stop, &mut running.workers)
            .and_then(|()| running.follow_files(services));
        match started {
            Ok(()) => Ok(running),
            Err(source) => {
                running.stop(Duration::ZERO);
                Err(ServerError::Start { what: "a thread beside the runtime", source })
            }
        }
    }

    /// Starts the thread that follows the files of certificates and keys.
    fn follow_files(&mut self, services: &Arc<Services>) -> std::io::Result<()> {
        let (alive, stopped) = mpsc::channel();
        let mut followed = security::followed(&services.security);
        followed.extend(token_keys::followed(services));
        self.workers.extend(files::follow(followed, stopped)?);
        self.files = Some(alive);
        Ok(())
    }

    /// Stops all threads. Returns whether all requests in flight ended within the time limit.
    pub(crate) fn stop(self, within: Duration) -> bool {
        // The receivers are in the tasks to stop. If the send fails, these tasks have ended already.
        let _ = self.draining.send(true);
        let complete = self.ended.recv_timeout(within).is_ok();
        // Running evaluations end at their deadlines; waiting ones are rejected.
        self.services.engine.close();
        self.services.observers.finish(within);
        let _ = self.stop.send(true);
        drop(self.files);
        let _ = self.runtime.join();
        for worker in self.workers {
            let _ = worker.join();
        }
        if let Some(metrics) = self.metrics {
            let _ = metrics.join();
        }
        drop(self.socket);
        complete
    }
}

/// Returns the configured limits of connections.
fn settings(config: &ServerConfig) -> Settings {
    Settings {
        max_connections: config.max_connections,
        max_connections_per_peer: config.max_connections_per_peer,
        connection_rate: Rate {
            burst: u32::try_from(config.max_connections_per_peer).unwrap_or(u32::MAX),
            per_second: config.connections_per_second_per_peer,
        },
        misuse_pause: Duration::from_secs(config.misuse_pause_seconds),
        misuse_pause_longest: Duration::from_secs(config.misuse_pause_seconds * MISUSES),
        trusted_networks: config.trusted_networks(),
        reply_timeout: config.reply_timeout(),
        write_timeout: Duration::from_millis(config.write_timeout_ms),
        idle_timeout: Duration::from_secs(config.idle_timeout_seconds),
        socket_mode: config.uds_mode.bits(),
        ..Settings::default()
    }
}

/// Starts the threads that do not belong to the runtime.
fn workers(
    services: &Arc<Services>,
    stop: &watch::Sender<bool>,
    workers: &mut Vec<JoinHandle<()>>,
) -> std::io::Result<()> {
    workers.extend(services.observers.forward(stop.subscribe())?);
    if let Some(tracer) = &services.tracer {
        workers.extend(tracer.start(&services.engine, stop.subscribe())?);
    }
    for number in 0..services.config.threads {
        let engine = Arc::clone(&services.engine);
        let name = format!("scorer-eval-{number}");
        workers.push(thread::Builder::new().name(name).spawn(move || engine.serve_pool())?);
    }
    for number in 0..services.config.explain_threads {
        let engine = Arc::clone(&services.engine);
        let name = format!("scorer-explain-{number}");
        let explain = move || {
            lower_priority();
            engine.serve_explanations();
        };
        workers.push(thread::Builder::new().name(name).spawn(explain)?);
    }
    let supervised = Arc::clone(services);
    let supervise = move || supervised.observers.supervise();
    workers.push(thread::Builder::new().name("scorer-observe".to_owned()).spawn(supervise)?);
    let services = Arc::clone(services);
    let watch = move || {
        set_short_slice();
        #[cfg(feature = "fault-injection")]
        let faults = crate::fault::FaultFile::from_env();
        services.engine.watch_deadlines(WINDOW.duration(), || {
            services.tick();
            #[cfg(feature = "fault-injection")]
            faults.apply(&services);
        });
    };
    workers.push(thread::Builder::new().name("scorer-watchdog".to_owned()).spawn(watch)?);
    Ok(())
}

/// Owns the runtime, so that the server can be stopped from a runtime's thread.
fn keep(runtime: Runtime, mut loops: JoinSet<()>, tell: &mpsc::Sender<()>, mut stop: watch::Receiver<bool>) {
    runtime.block_on(async {
        tokio::select! {
            () = async { while loops.join_next().await.is_some() {} } => {
                // The receiver was dropped only if the start failed.
                let _ = tell.send(());
            }
            _ = stop.wait_for(|stop| *stop) => {}
        }
        let _ = stop.wait_for(|stop| *stop).await;
    });
    runtime.shutdown_timeout(STOP_WITHIN);
}
