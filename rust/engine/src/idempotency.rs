//! The idempotency cache: answers by request id, so that a retry gets the same answer and is not decided again.
//!
//! The cache is limited in entries and bytes and evicts the oldest answers first. Of concurrent requests with the same
//! id, exactly one decides, and the duplicates wait for its answer.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::PoisonError;

use tokio::sync::oneshot;

use crate::content::Content;
use crate::sync::{Mutex, MutexGuard};

const SHARDS: usize = 64;

/// The cache. Its keys are 128-bit hashes under a random key, so no caller can construct two ids with the same hash.
pub(crate) struct IdempotencyCache<A> {
    shards: Box<[Mutex<Shard<A>>]>,
    entries_per_shard: usize,
    bytes_per_shard: usize,
    key: (u64, u64),
}

/// An answer that can be cached.
pub(crate) trait Remembered: Clone {
    /// Number of bytes in addition to the entry itself.
    fn extra_bytes(&self) -> usize;

    /// Time of the decision in its record, in microseconds since the Unix epoch; `None` if there is no record.
    fn recorded_at_us(&self) -> Option<i64>;

    /// Whether a fallback gave the answer.
    fn is_fallback(&self) -> bool;
}

/// Result of looking up an id.
pub(crate) enum Known<'a, A: Remembered> {
    /// The id is new: decide, then call [`Claim::finish`].
    New(Claim<'a, A>),
    /// The answer that was given for the id.
    Answered(A),
    /// Another request is deciding. The receiver yields its answer, or an error if it failed.
    Deciding(oneshot::Receiver<A>),
    /// The id belongs to a request of other content.
    ContentDiffers,
}

/// Result of claiming an id.
pub(crate) enum Claimed<'a, A: Remembered> {
    /// This request must decide and then call [`Claim::finish`].
    Mine(Claim<'a, A>),
    /// The answer of another request.
    Answered(A),
}

/// What is known about an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peeked {
    /// The id is new.
    New,
    /// The request was answered, or is being decided.
    Same,
    /// The id belongs to a request of other content.
    ContentDiffers,
}

/// The id belongs to a request of other content.
#[derive(Debug)]
pub(crate) struct ContentDiffers;

/// The right to decide one id. If it is dropped without an answer, the id is new again.
pub(crate) struct Claim<'a, A: Remembered> {
    replay: &'a IdempotencyCache<A>,
    key: u128,
}

struct Shard<A> {
    entries: HashMap<u128, Entry<A>>,
    /// Answered keys, oldest first.
    order: VecDeque<u128>,
    bytes: usize,
}

struct Entry<A> {
    content: u128,
    state: State<A>,
    /// Whether the caller was gone before it was given the reply.
    undelivered: bool,
}

enum State<A> {
    Deciding(Vec<oneshot::Sender<A>>),
    Answered(A),
}

// === impl IdempotencyCache ===

impl<A: Remembered> IdempotencyCache<A> {
    /// Creates a cache of about `entries` answers, with up to `bytes` beyond the entries themselves.
    pub(crate) fn new(entries: usize, bytes: usize) -> IdempotencyCache<A> {
        let random = RandomState::new();
        let shard = || Mutex::new(Shard { entries: HashMap::new(), order: VecDeque::new(), bytes: 0 });
        IdempotencyCache {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            entries_per_shard: entries.div_ceil(SHARDS).max(1),
            bytes_per_shard: bytes.div_ceil(SHARDS),
            key: (random.hash_one(0_u8), random.hash_one(1_u8)),
        }
    }

    /// Creates a hasher for keys and contents, with the key of this cache.
    pub(crate) fn hasher(&self) -> Content {
        Content::new(self.key)
    }

    /// Returns the key of a decision. Each principal has its own request ids.
    pub(crate) fn key(&self, principal: u64, checkpoint: usize, id: &str) -> u128 {
        let mut hasher = self.hasher();
        hasher.number(principal);
        hasher.number(checkpoint as u64);
        hasher.bytes(id.as_bytes());
        hasher.finish()
    }

    /// Looks up an id and claims it if it is new.
    pub(crate) fn begin(&self, key: u128, content: u128) -> Known<'_, A> {
        let mut shard = self.shard(key);
        match shard.entries.get_mut(&key) {
            Some(entry) if entry.content != content => Known::ContentDiffers,
            Some(Entry { state: State::Answered(answer), .. }) => Known::Answered(answer.clone()),
            Some(Entry { state: State::Deciding(waiting), .. }) => {
                let (sender, receiver) = oneshot::channel();
                waiting.push(sender);
                Known::Deciding(receiver)
            }
            None => {
                shard
                    .entries
                    .insert(key, Entry { content, state: State::Deciding(Vec::new()), undelivered: false });
                Known::New(Claim { replay: self, key })
            }
        }
    }

    /// Looks up an id without claiming it.
    pub(crate) fn peek(&self, key: u128, content: u128) -> Peeked {
        match self.shard(key).entries.get(&key) {
            None => Peeked::New,
            Some(entry) if entry.content == content => Peeked::Same,
            Some(_) => Peeked::ContentDiffers,
        }
    }

    /// Returns the right to decide if the id is new, otherwise the answer, for which it waits if another request is
    /// deciding. A failed attempt is not cached.
    ///
    /// # Errors
    /// [`ContentDiffers`] if the id was used with other content.
    pub(crate) async fn claim(&self, key: u128, content: u128) -> Result<Claimed<'_, A>, ContentDiffers> {
        loop {
            match self.begin(key, content) {
                Known::New(claim) => return Ok(Claimed::Mine(claim)),
                Known::Answered(answer) => return Ok(Claimed::Answered(answer)),
                Known::Deciding(receiver) => {
                    if let Ok(answer) = receiver.await {
                        return Ok(Claimed::Answered(answer));
                    }
                }
                Known::ContentDiffers => return Err(ContentDiffers),
            }
        }
    }

    /// Sets whether the reply of a cached answer is undelivered. Returns whether that is a change.
    pub(crate) fn set_undelivered(&self, key: u128, undelivered: bool) -> bool {
        let mut shard = self.shard(key);
        let Some(entry) = shard.entries.get_mut(&key) else { return false };
        std::mem::replace(&mut entry.undelivered, undelivered) != undelivered
    }

    /// Number of cached answers.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).order.len()).sum()
    }

    fn shard(&self, key: u128) -> MutexGuard<'_, Shard<A>> {
        lock(&self.shards[(key % SHARDS as u128) as usize])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Claim ===

impl<A: Remembered> Claim<'_, A> {
    /// Stores the answer and sends it to the waiting duplicates.
    pub(crate) fn finish(self, answer: &A) {
        let waiting = {
            let mut shard = self.replay.shard(self.key);
            let waiting = match shard.entries.get_mut(&self.key) {
                Some(entry) => match std::mem::replace(&mut entry.state, State::Answered(answer.clone())) {
                    State::Deciding(waiting) => waiting,
                    State::Answered(_) => Vec::new(),
                },
                None => Vec::new(),
            };
            shard.bytes += answer.extra_bytes();
            shard.order.push_back(self.key);
            shard.forget(self.replay.entries_per_shard, self.replay.bytes_per_shard);
            waiting
        };
        for sender in waiting {
            // The duplicate may have been cancelled.
            let _ = sender.send(answer.clone());
        }
    }
}

impl<A: Remembered> Drop for Claim<'_, A> {
    fn drop(&mut self) {
        let mut shard = self.replay.shard(self.key);
        if matches!(shard.entries.get(&self.key), Some(Entry { state: State::Deciding(_), .. })) {
            // Dropping the senders wakes the duplicates, one of which then decides.
            shard.entries.remove(&self.key);
        }
    }
}

// === impl Shard ===

impl<A: Remembered> Shard<A> {
    fn forget(&mut self, entries: usize, bytes: usize) {
        while self.order.len() > entries || (self.bytes > bytes && self.order.len() > 1) {
            let Some(oldest) = self.order.pop_front() else { return };
            if let Some(Entry { state: State::Answered(answer), .. }) = self.entries.remove(&oldest) {
                self.bytes = self.bytes.saturating_sub(answer.extra_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    impl Remembered for (u64, usize) {
        fn extra_bytes(&self) -> usize {
            self.1
        }

        fn recorded_at_us(&self) -> Option<i64> {
            None
        }

        fn is_fallback(&self) -> bool {
            false
        }
    }

    #[test]
    fn contents_differ_by_field_and_sets_have_no_order() {
        let replay = IdempotencyCache::<(u64, usize)>::new(1, 1);
        let hash = |parts: &[&[&str]]| {
            let mut hasher = replay.hasher();
            for part in parts {
                hasher.set(part.iter(), |hasher, item| hasher.bytes(item.as_bytes()));
            }
            hasher.finish()
        };
        assert_eq!(hash(&[&["a", "b"], &["c"]]), hash(&[&["b", "a"], &["c"]]));
        assert_ne!(hash(&[&["a", "b"], &["c"]]), hash(&[&["a"], &["b", "c"]]));
        assert_ne!(hash(&[&["ab", "c"]]), hash(&[&["a", "bc"]]));
        assert_ne!(hash(&[&["a", "a"]]), hash(&[&["b", "b"]]));
    }

    fn decide(replay: &IdempotencyCache<(u64, usize)>, id: u64, bytes: usize) {
        match replay.begin(replay.key(0, 0, &id.to_string()), 7) {
            Known::New(claim) => claim.finish(&(id, bytes)),
            _ => panic!("{id} is known"),
        }
    }

    fn remembered(replay: &IdempotencyCache<(u64, usize)>, ids: std::ops::Range<u64>) -> Vec<u64> {
        ids.filter(|id| matches!(replay.begin(replay.key(0, 0, &id.to_string()), 7), Known::Answered(_)))
            .collect()
    }

    #[test]
    fn an_answer_is_repeated_for_the_same_content_only() {
        let replay = IdempotencyCache::new(1000, 1000);
        decide(&replay, 1, 0);
        let key = replay.key(0, 0, "1");
        assert!(matches!(replay.begin(key, 7), Known::Answered((1, 0))));
        assert!(matches!(replay.begin(key, 8), Known::ContentDiffers));
        assert!(
            matches!(replay.begin(replay.key(0, 1, "1"), 7), Known::New(_)),
            "another checkpoint, another decision"
        );
    }

    #[test]
    fn a_failed_attempt_leaves_no_trace_and_wakes_the_others() {
        let replay = IdempotencyCache::<(u64, usize)>::new(1000, 1000);
        let key = replay.key(0, 0, "1");
        let Known::New(claim) = replay.begin(key, 7) else { panic!() };
        let Known::Deciding(mut receiver) = replay.begin(key, 7) else { panic!() };
        drop(claim);
        assert!(matches!(receiver.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(matches!(replay.begin(key, 8), Known::New(_)), "not even its content");
    }

    #[test]
    fn the_oldest_are_forgotten_first_by_count_and_by_bytes() {
        let replay = IdempotencyCache::new(SHARDS * 4, usize::MAX);
        (0..10_000).for_each(|id| decide(&replay, id, 0));
        assert_eq!(remembered(&replay, 0..10_000).len(), SHARDS * 4);
        assert!(remembered(&replay, 0..8000).is_empty());

        let replay = IdempotencyCache::new(usize::MAX, SHARDS * 100);
        (0..10_000).for_each(|id| decide(&replay, id, 40));
        assert_eq!(remembered(&replay, 0..10_000).len(), SHARDS * 2);
        assert!(replay.shards.iter().all(|shard| shard.lock().unwrap().bytes <= 100));
    }

    #[test]
    fn of_many_at_once_exactly_one_decides() {
        let replay = Arc::new(IdempotencyCache::<(u64, usize)>::new(1 << 16, 0));
        let decided = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (replay, decided) = (Arc::clone(&replay), Arc::clone(&decided));
                std::thread::spawn(move || {
                    for id in 0..2000_u64 {
                        let answer = match replay.begin(replay.key(0, 0, &id.to_string()), 7) {
                            Known::New(claim) => {
                                decided.fetch_add(1, SeqCst);
                                let answer = (id * 10 + thread, 0);
                                claim.finish(&answer);
                                answer
                            }
                            Known::Answered(answer) => answer,
                            Known::Deciding(receiver) => receiver.blocking_recv().unwrap(),
                            Known::ContentDiffers => panic!(),
                        };
                        assert_eq!(answer.0 / 10, id);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(decided.load(SeqCst), 2000);
    }
}
