//! The writer of a feed: applies the events of one partition to the states of their entities.
//!
//! Each write is one transaction: the states, the ids of the events and the position after them. The keys are watched
//! while the states are changed, so that a write by another process repeats the work, and a position that another
//! process has moved ends it. A write whose reply is lost is therefore neither lost nor counted twice: the position
//! states whether it happened.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use scorer_features::{BlobError, Blobs, Changes, Event, EventError, FeatureSet, Plan};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::config::RedisConfig;
use crate::connection::Connection;
use crate::dial::dial;
use crate::keys::Keys;
use crate::resp::{self, Reply};

/// Number of attempts of a write that other processes interrupt.
const ATTEMPTS: u32 = 20;
/// Time for which ids and states are kept longer than needed, because a feed can be behind its topic.
const SPARE_US: i64 = 86_400_000_000;
/// Longest time for which a key is kept: one hundred years, in milliseconds.
const LONGEST_MS: i64 = 100 * 365 * 86_400_000;

/// Applies events to the state of one feature set. Calls wait for the server.
#[derive(Debug)]
pub struct Writer {
    runtime: Runtime,
    config: RedisConfig,
    keys: Keys,
    digest: [u8; 32],
    blobs: Arc<Blobs>,
    changes: Changes,
    connection: Option<(Connection, JoinHandle<String>)>,
}

/// A position in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Offset of the next message.
    pub next: i64,
    /// Whether the feed has once reached the end that the partition had when the feed began at its beginning.
    pub caught_up: bool,
}

/// An event with the time of its receipt.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// The event.
    pub event: Event<'a>,
    /// Time of its receipt in microseconds since the Unix epoch.
    pub received_at_us: i64,
}

/// The result of a write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// `new`, `duplicate` or the reason of the refusal, for each event.
    pub results: Vec<&'static str>,
    /// The message of the first refusal.
    pub refusal: Option<String>,
    /// Number of states that could not be used and were begun again.
    pub replaced: u64,
}

/// A write failed. Nothing of it has been applied, except after [`WriteError::Unavailable`]: read the position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The server cannot be reached, or refused a command.
    #[error("redis {address}: {why}")]
    Unavailable {
        /// Address of the server.
        address: String,
        /// The reason.
        why: String,
    },
    /// Another process has moved the position, or the server has lost it.
    #[error("redis: the position of the partition was moved by another process or lost; read it again")]
    Moved,
    /// The state was written with another definition.
    #[error(
        "redis: the state of {label} was written with another definition; raise the version of the set, or use another prefix"
    )]
    Definition {
        /// Name and version of the set.
        label: String,
    },
}

// === impl Position ===

impl Position {
    fn encode(self) -> Vec<u8> {
        format!("{} {}", self.next, u8::from(self.caught_up)).into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Position> {
        let (next, caught_up) = str::from_utf8(bytes).ok()?.split_once(' ')?;
        Some(Position { next: next.parse().ok()?, caught_up: caught_up == "1" })
    }
}

// === impl Writer ===

impl Writer {
    /// A writer for a set. It connects at the first call.
    ///
    /// # Errors
    /// The runtime of its connection cannot be created.
    pub fn new(config: RedisConfig, set: FeatureSet) -> std::io::Result<Writer> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let blobs = Arc::new(Blobs::new(vec![set.clone()]));
        Ok(Writer {
            runtime,
            keys: Keys::new(&config.prefix, &set),
            digest: set.digest(),
            changes: Changes::new(Arc::clone(&blobs)),
            blobs,
            config,
            connection: None,
        })
    }

    /// Ends the connection. The next call opens another one.
    pub fn disconnect(&mut self) {
        if let Some((_, work)) = self.connection.take() {
            work.abort();
        }
    }

    /// The rule by which the server evicts keys (`maxmemory-policy`); empty if it does not state it.
    ///
    /// # Errors
    /// The server cannot be reached, or its state is of another definition.
    pub fn eviction_policy(&mut self) -> Result<String, WriteError> {
        self.connect()?;
        let replies = self.call(resp::command([&b"INFO"[..], b"memory"]), 1)?;
        let text =
            replies.first().and_then(Reply::value).map(|text| String::from_utf8_lossy(text).into_owned());
        let text = text.unwrap_or_default();
        let policy = text.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"));
        Ok(policy.unwrap_or_default().trim().to_owned())
    }

    /// The position after the last write of a partition; `None` if there is none.
    ///
    /// # Errors
    /// The server cannot be reached, or its state is of another definition.
    pub fn position(&mut self, topic: &str, partition: i32) -> Result<Option<Position>, WriteError> {
        self.connect()?;
        let key = self.keys.position(topic, partition);
        let replies = self.checked(resp::command([&b"GET"[..], &key]), 1)?;
        Ok(replies.first().and_then(Reply::value).and_then(|value| Position::decode(value)))
    }

    /// Applies the events of a partition and moves its position from `from` to `to`.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn write(
        &mut self,
        topic: &str,
        partition: i32,
        from: Option<Position>,
        to: Position,
        changes: &[Change<'_>],
    ) -> Result<Applied, WriteError> {
        self.connect()?;
        for _ in 0..ATTEMPTS {
            if let Some(applied) = self.attempt(topic, partition, from, to, changes)? {
                return Ok(applied);
            }
        }
        Err(self
            .unavailable(format!("other processes changed the same entities {ATTEMPTS} times; try again")))
    }

    /// The feature set.
    #[must_use]
    pub fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Reads features as of `now_us`, whether or not the state is complete. `keys` are in the order of
    /// [`Plan::entities`]; `out` has one place per feature.
    ///
    /// # Errors
    /// See [`WriteError`]; a state that cannot be used is [`WriteError::Unavailable`].
    pub fn read(
        &mut self,
        plan: &Plan,
        keys: &[Option<&str>],
        now_us: i64,
        out: &mut [f32],
    ) -> Result<(), WriteError> {
        self.connect()?;
        let mut names = vec![b"MGET".to_vec(), self.keys.definition()];
        let mut places = Vec::new();
        for part in self.blobs.parts(plan) {
            places.push(keys.get(part.entity).copied().flatten().map(|key| {
                names.push(self.keys.blob(part.name, key));
                names.len() - 2
            }));
        }
        let replies = self.checked(resp::command(names.iter().map(Vec::as_slice)), 1)?;
        let Some(Reply::Array(values)) = replies.first() else {
            return Err(self.unavailable("the reply to MGET is no array".to_owned()));
        };
        let value =
            |place: &Option<usize>| values.get((*place)?).and_then(Reply::value).map(|value| &**value);
        let blobs: Vec<Option<&[u8]>> = places.iter().map(value).collect();
        let mut errors = Vec::new();
        self.blobs.read(plan, keys, &blobs, now_us, out, &mut errors);
        match errors.first() {
            None => Ok(()),
            Some((_, error)) => Err(self.unavailable(format!("a state cannot be used: {error:?}"))),
        }
    }

    /// Marks the state as complete if every partition has caught up. Returns whether it is.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn complete(&mut self, topic: &str, partitions: i32) -> Result<bool, WriteError> {
        self.connect()?;
        let keys: Vec<Vec<u8>> = (0..partitions).map(|one| self.keys.position(topic, one)).collect();
        let values = self.watch(&keys)?;
        let caught_up = values.iter().all(|value| {
            value.value().and_then(|value| Position::decode(value)).is_some_and(|position| position.caught_up)
        });
        if !caught_up {
            self.checked(resp::command([&b"UNWATCH"[..]]), 1)?;
            return Ok(false);
        }
        let mut frame = resp::command([&b"MULTI"[..]]);
        resp::write(&mut frame, [&b"SET"[..], &self.keys.complete(), b"1"]);
        resp::write(&mut frame, [&b"EXEC"[..]]);
        let replies = self.checked(frame, 3)?;
        Ok(matches!(replies.last(), Some(Reply::Array(_))))
    }

    /// One attempt of a write; `None` if another process has changed a key in between.
    fn attempt(
        &mut self,
        topic: &str,
        partition: i32,
        from: Option<Position>,
        to: Position,
        changes: &[Change<'_>],
    ) -> Result<Option<Applied>, WriteError> {
        let position = self.keys.position(topic, partition);
        let mut applied = Applied::default();
        // The valid events, and the keys whose values they need.
        let mut valid: Vec<(usize, &Change<'_>)> = Vec::with_capacity(changes.len());
        let mut ids: BTreeMap<[u8; 16], usize> = BTreeMap::new();
        let mut entities: BTreeMap<(usize, &str), usize> = BTreeMap::new();
        let mut keys = vec![position.clone()];
        for (at, change) in changes.iter().enumerate() {
            match self.changes.check(&change.event, change.received_at_us) {
                Ok(()) => {
                    applied.results.push("new");
                    valid.push((at, change));
                    let id = Changes::id_of(change.event.kind, change.event.id);
                    ids.entry(id).or_insert_with(|| push(&mut keys, self.keys.id(id)));
                    for (entity, name, key) in self.changes.entities(&change.event) {
                        entities
                            .entry((entity, key))
                            .or_insert_with(|| push(&mut keys, self.keys.blob(name, key)));
                    }
                }
                Err(EventError::Refused { refusal, message }) => {
                    applied.results.push(refusal.as_str());
                    applied.refusal.get_or_insert(message);
                }
                Err(EventError::Busy | EventError::Journal(_)) => applied.results.push("journal"),
            }
        }
        let values = self.watch(&keys)?;
        let value = |at: usize| values.get(at).and_then(Reply::value).map(|value| &**value);
        if value(0).and_then(Position::decode) != from {
            self.checked(resp::command([&b"UNWATCH"[..]]), 1)?;
            return Err(WriteError::Moved);
        }
        self.changes.clear();
        for ((entity, key), at) in &entities {
            if let Err(BlobError::Version | BlobError::Corrupt) = self.changes.load(*entity, key, value(*at))
            {
                applied.replaced += 1;
            }
        }
        let mut known: HashMap<[u8; 16], i64> = HashMap::new();
        for (id, at) in &ids {
            if let Some(received) = value(*at).and_then(|value| value.try_into().ok()) {
                known.insert(*id, i64::from_le_bytes(received));
            }
        }
        let mut new_ids: BTreeMap<[u8; 16], (i64, i64)> = BTreeMap::new();
        for (at, Change { event, received_at_us }) in valid {
            let id = Changes::id_of(event.kind, event.id);
            let remember = self.changes.remember_us(event.kind);
            if known.get(&id).is_some_and(|before| received_at_us.saturating_sub(*before) <= remember) {
                if let Some(result) = applied.results.get_mut(at) {
                    *result = "duplicate";
                }
                continue;
            }
            known.insert(id, *received_at_us);
            new_ids.insert(id, (*received_at_us, remember));
            self.changes.apply(event, *received_at_us);
        }
        let (frame, count) = self.transaction(&position, from, to, &new_ids);
        let replies = self.checked(frame, count)?;
        match replies.last() {
            Some(Reply::Array(_)) => Ok(Some(applied)),
            Some(Reply::Nil) => Ok(None),
            other => Err(self.unavailable(format!("unexpected reply {other:?} to EXEC"))),
        }
    }

    /// The commands that write everything, and the number of their replies.
    fn transaction(
        &mut self,
        position: &[u8],
        from: Option<Position>,
        to: Position,
        ids: &BTreeMap<[u8; 16], (i64, i64)>,
    ) -> (Vec<u8>, usize) {
        let mut frame = resp::command([&b"MULTI"[..]]);
        let mut count = 2;
        let mut put = |parts: &[&[u8]]| {
            resp::write(&mut frame, parts.iter().copied());
            count += 1;
        };
        let ms = |us: i64| (us.saturating_add(SPARE_US) / 1000).clamp(1, LONGEST_MS).to_string();
        let keep = ms(self.changes.keep_us());
        let names: Vec<String> = self.changes.names().map(str::to_owned).collect();
        for (entity, key, blob) in self.changes.take() {
            let name = names.get(entity).map_or("", String::as_str);
            put(&[b"SET", &self.keys.blob(name, &key), &blob, b"PX", keep.as_bytes()]);
        }
        for (id, (received_at_us, remember)) in ids {
            let value = received_at_us.to_le_bytes();
            put(&[b"SET", &self.keys.id(*id), &value, b"PX", ms(*remember).as_bytes()]);
        }
        if from.is_none() {
            // The state is built from the beginning of the partition, and not complete before its end.
            put(&[b"DEL", &self.keys.complete()]);
        }
        put(&[b"SET", position, &to.encode()]);
        resp::write(&mut frame, [&b"EXEC"[..]]);
        (frame, count)
    }

    /// Watches keys, and returns their values.
    fn watch(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Reply>, WriteError> {
        let parts = |name: &'static [u8]| -> Vec<&[u8]> {
            std::iter::once(name).chain(keys.iter().map(Vec::as_slice)).collect()
        };
        let mut frame = resp::command(parts(b"WATCH"));
        resp::write(&mut frame, parts(b"MGET"));
        let mut replies = self.checked(frame, 2)?;
        match replies.pop() {
            Some(Reply::Array(values)) if values.len() == keys.len() => Ok(values),
            _ => Err(self.unavailable("the reply to MGET has another length".to_owned())),
        }
    }

    /// Opens the connection if there is none, and checks the definition of the state.
    fn connect(&mut self) -> Result<(), WriteError> {
        if self.connection.as_ref().is_some_and(|(_, work)| !work.is_finished()) {
            return Ok(());
        }
        let dialed = self.runtime.block_on(dial(&self.config));
        let (connection, work) = dialed.map_err(|why| self.unavailable(why))?;
        self.connection = Some((connection, self.runtime.spawn(work)));
        let key = self.keys.definition();
        let mut frame = resp::command([&b"SET"[..], &key, &self.digest, b"NX"]);
        resp::write(&mut frame, [&b"GET"[..], &key]);
        let replies = self.checked(frame, 2)?;
        if replies.last().and_then(Reply::value).is_none_or(|digest| **digest != self.digest) {
            self.disconnect();
            let label = self.changes.label();
            return Err(WriteError::Definition { label });
        }
        Ok(())
    }

    /// Sends commands and returns their replies. A reply that is an error ends the connection, and with it a transaction.
    fn checked(&mut self, frame: Vec<u8>, count: usize) -> Result<Vec<Reply>, WriteError> {
        let replies = self.call(frame, count)?;
        if let Some(error) = replies.iter().find_map(Reply::error) {
            let error = error.to_owned();
            self.disconnect();
            return Err(self.unavailable(error));
        }
        Ok(replies)
    }

    fn call(&mut self, frame: Vec<u8>, count: usize) -> Result<Vec<Reply>, WriteError> {
        let sent = self.connection.as_ref().and_then(|(it, _)| it.send(Bytes::from(frame), count, None));
        let replies = sent.and_then(|replies| self.runtime.block_on(replies).ok());
        replies.ok_or_else(|| {
            let why = self.connection.take().map(|(_, work)| {
                let ended = async { tokio::time::timeout(Duration::from_secs(1), work).await };
                self.runtime.block_on(ended)
            });
            let why = match why {
                Some(Ok(Ok(why))) => why,
                _ => "the connection ended".to_owned(),
            };
            self.unavailable(why)
        })
    }

    fn unavailable(&self, why: String) -> WriteError {
        WriteError::Unavailable { address: self.config.address.clone(), why }
    }
}

/// Appends a key and returns its position.
fn push(keys: &mut Vec<Vec<u8>>, key: Vec<u8>) -> usize {
    keys.push(key);
    keys.len() - 1
}
