//! The pool, the watchdog and the idempotency cache in every interleaving: `make loom`. A wake-up that is lost is a
//! deadlock, which loom reports. No time passes in a model: a deadline is over from the start or never, so a thread
//! that sleeps is woken by a notification alone.

use std::any::Any;
use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use loom::thread;
use scorer_admission::Queue;

use crate::budgets::Spent;
use crate::idempotency::{Claimed, IdempotencyCache};
use crate::pool::{Expire, Pool, Progress, Watchdog, Work};
use crate::sync::{Condvar, Mutex};

/// Beyond the end of every model.
const NEVER: Duration = Duration::from_secs(3600);

/// Every interleaving with at most so many preemptions.
fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Counts what has happened, and lets a thread wait for it.
#[derive(Default)]
struct Count {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Count {
    fn add(&self) {
        *self.count.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    fn wait_for(&self, count: usize) {
        let mut counted = self.count.lock().unwrap();
        while *counted < count {
            counted = self.changed.wait(counted).unwrap();
        }
        assert_eq!(*counted, count);
    }
}

/// Work in so many parts.
struct Parts {
    left: usize,
    ran: Arc<Count>,
}

impl Parts {
    fn new(left: usize, ran: &Arc<Count>) -> Box<Parts> {
        Box::new(Parts { left, ran: Arc::clone(ran) })
    }
}

impl Work for Parts {
    fn queue(&self) -> Queue {
        Queue::First
    }

    fn run(&mut self) -> Progress {
        self.left -= 1;
        self.ran.add();
        if self.left == 0 { Progress::Done } else { Progress::More }
    }

    fn panicked(&mut self, _: &(dyn Any + Send)) {}
}

fn serving(pool: &Arc<Pool>) -> thread::JoinHandle<()> {
    let pool = Arc::clone(pool);
    thread::spawn(move || pool.serve())
}

/// Two threads serve while another pushes: all of the work runs, each part once, and closing ends both threads.
#[test]
fn no_work_waits_while_the_threads_of_the_pool_sleep() {
    bounded(2, || {
        let (pool, ran) = (Arc::new(Pool::default()), Arc::new(Count::default()));
        let serving = [serving(&pool), serving(&pool)];
        pool.push(Parts::new(2, &ran));
        pool.push(Parts::new(1, &ran));
        ran.wait_for(3);
        pool.close();
        serving.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Work that is pushed, or has another part to run, while the pool is closed: it runs or is dropped, and none is left
/// that would keep its caller waiting.
#[test]
fn a_closed_pool_holds_no_work() {
    bounded(3, || {
        let (pool, ran) = (Arc::new(Pool::default()), Arc::new(Count::default()));
        let serving = serving(&pool);
        let pushing = {
            let (pool, ran) = (Arc::clone(&pool), Arc::clone(&ran));
            thread::spawn(move || pool.push(Parts::new(2, &ran)))
        };
        pool.close();
        pushing.join().unwrap();
        serving.join().unwrap();
        assert_eq!(Arc::strong_count(&ran), 1, "work is left in the pool");
    });
}

struct Watched(Arc<Count>);

impl Expire for Watched {
    fn expire(&self) {
        self.0.add();
    }
}

/// Two threads add deadlines that are over while the watchdog sleeps until one that is not: it expires both, once each,
/// and ends when it is closed.
#[test]
fn the_watchdog_sleeps_through_no_deadline() {
    bounded(3, || {
        let (watchdog, expired) = (Arc::new(Watchdog::default()), Arc::new(Count::default()));
        let now = Instant::now();
        let watched: [Arc<dyn Expire>; 3] =
            std::array::from_fn(|_| Arc::new(Watched(Arc::clone(&expired))) as _);
        let running = {
            let watchdog = Arc::clone(&watchdog);
            thread::spawn(move || watchdog.run(NEVER, || unreachable!("no period ends")))
        };
        let other = {
            let (watchdog, over) = (Arc::clone(&watchdog), Arc::downgrade(&watched[0]));
            thread::spawn(move || watchdog.watch(now, over))
        };
        watchdog.watch(now + NEVER / 2, Arc::downgrade(&watched[1]));
        watchdog.watch(now, Arc::downgrade(&watched[2]));
        expired.wait_for(2);
        watchdog.close();
        other.join().unwrap();
        running.join().unwrap();
        expired.wait_for(2);
    });
}

/// The answer to a request id: its number, and no bytes beyond the entry.
type Answer = (u64, usize);

const CONTENT: u128 = 7;

/// Answers request 1 as the stage `replay` does; `None` if this attempt had to decide and failed.
fn answer(cache: &IdempotencyCache<Answer>, decisions: &AtomicU64, fails: bool) -> Option<Answer> {
    match block_on(cache.claim(1, CONTENT)).unwrap() {
        Claimed::Mine(_) if fails => None,
        Claimed::Mine(claim) => {
            let answer = (decisions.fetch_add(1, Relaxed), 0);
            claim.finish(&answer);
            Some(answer)
        }
        Claimed::Answered(answer) => Some(answer),
    }
}

/// Three requests with one id, of which one fails if it has to decide: exactly one decision is made, and all that are
/// answered get it.
#[test]
fn requests_with_one_id_share_one_decision() {
    bounded(3, || {
        let (cache, decisions) = (Arc::new(IdempotencyCache::new(64, 64)), Arc::new(AtomicU64::new(0)));
        let others = [false, true].map(|fails| {
            let (cache, decisions) = (Arc::clone(&cache), Arc::clone(&decisions));
            thread::spawn(move || answer(&cache, &decisions, fails))
        });
        let mut answers = vec![answer(&cache, &decisions, false)];
        answers.extend(others.map(|thread| thread.join().unwrap()));
        assert_eq!(decisions.load(Relaxed), 1, "decided more than once");
        assert!(answers[0].is_some() && answers[1].is_some(), "a request without an answer");
        assert_eq!(answers.into_iter().flatten().collect::<HashSet<_>>(), HashSet::from([(0, 0)]));
        assert_eq!(answer(&cache, &decisions, true), Some((0, 0)), "the answer is remembered");
    });
}

/// Runs a future on the calling thread, which sleeps while it is pending.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// Three requests of two units each want five units of a budget. One of them gives its units back.
#[test]
fn a_budget_is_never_exceeded() {
    bounded(3, || {
        let limit = scorer_rules::AmountLimit { of: String::new(), most: 0.005 };
        let budget = Arc::new(scorer_rules::Budget { decisions: Some(2), amount: Some(limit) });
        let spent = Arc::new(Spent::default());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (spent, budget) = (Arc::clone(&spent), Arc::clone(&budget));
                thread::spawn(move || u64::from(spent.take(20_000, &budget, 2)))
            })
            .collect();
        if spent.take(20_000, &budget, 2) {
            spent.give_back(20_000, &budget, 2);
        }
        let taken: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!(taken <= 2);
        assert_eq!(spent.used(20_000), (taken, 2 * taken));
    });
}
