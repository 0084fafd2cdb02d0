//! A simulated server in virtual time with the real admission control: a front end, queues, workers, timers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use scorer_admission::{
    Admission, Ask, CapHit, ExposureCaps, Instead, Mode, Nanos, Outcome, Permit, Queue, Reply, ReplyCell,
    Served, ShedReason, Start, Verdict, WINDOW,
};

use super::random::Random;
use super::scenario::{Fate, Scenario};

/// The server's clock at the start. It is not zero, as a monotonic clock is not.
const EPOCH: Nanos = Nanos::from_secs(1_000);
/// The interval at which a long evaluation reads the clock.
const CHECKS: u64 = 16;

/// The source of an answer, and the reason if it is not the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum By {
    Model,
    /// The fallback, for which exposure was reserved.
    Fallback(Why),
    Refused(Why),
    Cap(CapHit),
    /// The caller has cancelled.
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Why {
    Shed(ShedReason),
    TooLate,
    /// The evaluation was stopped.
    Stopped,
}

/// The result of one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) stream: usize,
    pub(crate) tier: u8,
    pub(crate) caller: u64,
    pub(crate) arrived: Nanos,
    pub(crate) replied: Nanos,
    pub(crate) queue: Option<Queue>,
    pub(crate) by: By,
    /// Work for the request, and the time at which it was complete.
    pub(crate) work: Nanos,
}

/// All results of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) records: Vec<Record>,
    /// Fallbacks that were returned: their times by the server's clock, and their amounts.
    pub(crate) granted: Vec<(Nanos, u64)>,
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) would_shed: u64,
    pub(crate) late_results: u64,
}

struct Request<'a> {
    stream: usize,
    caller: u64,
    amount: u64,
    arrived: Nanos,
    /// By the server's clock.
    stamped: Nanos,
    cohort: u64,
    work: Nanos,
    done_rows: u32,
    chunk: u32,
    spent: Nanos,
    began: Nanos,
    queue: Option<Queue>,
    cell: ReplyCell,
    permit: Option<Permit<&'a Admission>>,
    entered: bool,
    replied: bool,
    stop: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Fate(usize),
    Tick,
    Done { worker: usize },
    Read { worker: usize },
    Timer { request: usize },
    Cancel { request: usize },
    Arrive { stream: usize, intended: Nanos },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Reading(usize),
    Evaluating(usize),
}

struct World<'a> {
    scenario: &'a Scenario,
    admission: &'a Admission,
    caps: Option<ExposureCaps>,
    now: Nanos,
    offset: Nanos,
    resume: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    requests: Vec<Request<'a>>,
    queues: [VecDeque<usize>; 3],
    upstream: VecDeque<usize>,
    /// The current work of each worker.
    workers: Vec<Option<Work>>,
    randoms: Vec<Random>,
    slower: f64,
    bundle: u64,
    bundle_cost: f64,
    /// Alternates between two kinds of work that share a worker.
    turn: bool,
    open: usize,
    out: Outcomes,
    tracing: bool,
}

/// Runs a scenario until its end and until the server has no requests left.
pub(crate) fn run(scenario: &Scenario, tracing: bool) -> Outcomes {
    let admission = match Admission::new(scenario.settings.clone()) {
        Ok(admission) => admission,
        Err(error) => {
            return Outcomes { violations: vec![format!("settings: {error}")], ..Outcomes::default() };
        }
    };
    let mut world = World {
        scenario,
        admission: &admission,
        caps: scenario.caps.map(ExposureCaps::new),
        now: Nanos::ZERO,
        offset: EPOCH,
        resume: Nanos::ZERO,
        events: BinaryHeap::new(),
        sequence: 0,
        requests: Vec::new(),
        queues: Default::default(),
        upstream: VecDeque::new(),
        workers: vec![None; scenario.settings.workers],
        randoms: (0..scenario.streams.len())
            .map(|stream| Random::new(scenario.seed, stream as u64 + 1))
            .collect(),
        slower: 1.0,
        bundle: 1,
        bundle_cost: 1.0,
        turn: false,
        open: 0,
        out: Outcomes::default(),
        tracing,
    };
    world.run();
    world.out
}

macro_rules! trace {
    ($world:expr, $($what:tt)*) => {
        if $world.tracing {
            let line = format!("{:>12.6} {}", $world.now.0 as f64 / 1e9, format_args!($($what)*));
            $world.out.trace.push(line);
        }
    };
}

// === impl World ===

impl<'a> World<'a> {
    fn run(&mut self) {
        let admission = self.admission;
        for point in 0..self.scenario.settings.checkpoints.len() {
            admission.expect(point, self.bundle, self.scenario.settings.checkpoints[point].row_cost);
        }
        for (index, &(at, _)) in self.scenario.fates.iter().enumerate() {
            self.schedule(at, Event::Fate(index));
        }
        self.schedule(WINDOW, Event::Tick);
        for stream in 0..self.scenario.streams.len() {
            self.next_arrival(stream, Nanos::ZERO);
        }
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            self.handle(event);
        }
        let left = admission.snapshot();
        if left.queued != [0; 3]
            || left.queued_work != [Nanos::ZERO; 3]
            || left.running != 0
            || left.waiting != 0
        {
            self.violation(&format!("not everything was given back: {left:?}"));
        }
        if self.open != 0 {
            self.violation(&format!("{} requests got no reply", self.open));
        }
        for point in 0..self.scenario.settings.checkpoints.len() {
            self.out.would_shed += admission.counted(point).would_shed.iter().sum::<u64>();
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Fate(index) => self.befall(self.scenario.fates[index].1),
            Event::Tick => {
                self.admission.tick(self.clock());
                if self.tracing {
                    let snapshot = self.admission.snapshot();
                    let waits = snapshot.queued_work.map(|work| work.0 / 1_000);
                    trace!(
                        self,
                        "tick {} queued {:?} = {waits:?} us, running {}, limit {} x {} us, cut-off {:?}, share {:?}",
                        snapshot.pressure.as_str(),
                        snapshot.queued,
                        snapshot.running,
                        snapshot.limit.0.checked_div(snapshot.unit.0).unwrap_or(0),
                        snapshot.unit.0 / 1_000,
                        snapshot.cutoff,
                        snapshot.even_share
                    );
                }
                if self.now < self.scenario.end || self.open > 0 {
                    self.schedule(self.now.plus(WINDOW), Event::Tick);
                }
            }
            Event::Done { worker } => self.done(worker),
            Event::Read { worker } => self.read(worker),
            Event::Timer { request } => {
                if !self.requests[request].replied {
                    self.expire(request);
                }
            }
            Event::Cancel { request } => {
                if self.requests[request].cell.claim(Reply::Cancelled).is_ok() {
                    // The front end drops all requests. A worker keeps its request until it reads the clock.
                    if !self.on_worker(request) {
                        self.drop_request(request);
                    }
                    self.reply(request, By::Cancelled);
                }
            }
            Event::Arrive { stream, intended } => self.arrive(stream, intended),
        }
    }

    fn befall(&mut self, fate: Fate) {
        trace!(self, "{fate:?}");
        match fate {
            Fate::Slower(times) => self.slower = times,
            Fate::Jump(far) => self.offset = self.offset.plus(far),
            Fate::Swap(cost, factor) => {
                self.bundle += 1;
                self.bundle_cost = cost;
                for (point, settings) in self.scenario.settings.checkpoints.iter().enumerate() {
                    let row = Nanos((settings.row_cost.0 as f64 * cost * factor) as u64);
                    self.admission.expect(point, self.bundle, row);
                    if self.bundle > 2 {
                        self.admission.forget(point, self.bundle - 2);
                    }
                }
            }
            Fate::Pause(length) => {
                self.resume = self.now.plus(length);
                let events = std::mem::take(&mut self.events);
                for Reverse((at, sequence, event)) in events {
                    let at = match event {
                        Event::Done { .. } | Event::Read { .. } => at.plus(length),
                        _ => at.max(self.resume),
                    };
                    self.events.push(Reverse((at, sequence, event)));
                }
            }
        }
    }

    // --- arrival ---

    fn next_arrival(&mut self, stream: usize, from: Nanos) {
        let source = &self.scenario.streams[stream];
        let mut from = from;
        loop {
            let current = source.rates.iter().rev().find(|rate| rate.0 <= from).map_or(0.0, |rate| rate.1);
            let changes = source.rates.iter().map(|rate| rate.0).find(|&at| at > from).unwrap_or(Nanos::MAX);
            let at = from.plus(self.randoms[stream].gap(current / source.burst));
            // The process is memoryless, so it restarts at a change of the rate.
            if at < changes {
                if at < self.scenario.end {
                    self.schedule(at.max(self.resume), Event::Arrive { stream, intended: at });
                }
                return;
            }
            from = changes;
            if from >= self.scenario.end {
                return;
            }
        }
    }

    fn arrive(&mut self, stream: usize, intended: Nanos) {
        let source = &self.scenario.streams[stream];
        let mut count = 1;
        while source.burst > 1.0 && self.randoms[stream].chance(1.0 - 1.0 / source.burst) {
            count += 1;
        }
        for _ in 0..count {
            self.request(stream);
        }
        self.next_arrival(stream, intended);
        self.dispatch();
    }

    fn request(&mut self, stream: usize) {
        let source = &self.scenario.streams[stream];
        let clock = self.clock();
        let random = &mut self.randoms[stream];
        let id = self.requests.len();
        let work = source.row.0 as f64 * f64::from(source.rows) * random.jitter();
        let cancel = random.chance(source.cancels).then(|| random.unit());
        let caller = source.callers.0 + random.whole(0, source.callers.1.max(1) - 1);
        let budget = self.scenario.settings.checkpoints[source.checkpoint].p99.0;
        let mut request = Request {
            stream,
            caller: caller.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            amount: random.whole(0, 1_500),
            arrived: self.now,
            stamped: clock,
            cohort: random.next(),
            work: Nanos(work as u64),
            done_rows: 0,
            chunk: 0,
            spent: Nanos::ZERO,
            began: Nanos::ZERO,
            queue: None,
            cell: ReplyCell::new(),
            permit: None,
            entered: false,
            replied: false,
            stop: false,
        };
        self.open += 1;
        if let Some(part) = cancel {
            self.schedule(self.now.plus(Nanos((budget as f64 * part) as u64)), Event::Cancel { request: id });
        }
        let entered = self.admission.enter();
        request.entered = entered.is_ok();
        self.requests.push(request);
        match entered {
            Err(shed) => {
                if self.requests[id].cell.claim(Reply::Fallback).is_ok() {
                    self.reply(id, By::Refused(Why::Shed(shed.reason)));
                }
            }
            Ok(()) if self.scenario.upstream => self.upstream.push_back(id),
            Ok(()) => self.ask(id),
        }
    }

    fn ask(&mut self, id: usize) {
        self.leave(id);
        let source = &self.scenario.streams[self.requests[id].stream];
        let request = &self.requests[id];
        let ask = Ask {
            checkpoint: source.checkpoint,
            bundle: self.bundle,
            rows: source.rows,
            arrived: request.stamped,
            timeout: source.timeout,
            caller: request.caller,
            cohort: request.cohort,
            then: None,
        };
        match self.admission.ask(self.clock(), &ask) {
            Verdict::Admit(ticket) => {
                let queue = ticket.queue();
                let finish_by = ticket.finish_by();
                trace!(self, "#{id} admitted to {queue:?} until {:?}", finish_by.since(self.clock()));
                let request = &mut self.requests[id];
                request.queue = Some(queue);
                request.permit = Some(Permit::new(self.admission, ticket));
                self.queues[queue as usize].push_back(id);
                if (self.scenario.timers || queue != Queue::First) && finish_by != Nanos::MAX {
                    let wait = finish_by.since(self.clock());
                    self.schedule(self.now.plus(wait), Event::Timer { request: id });
                }
            }
            Verdict::Shed(shed) => {
                trace!(self, "#{id} shed: {}", shed.reason.as_str());
                if self.requests[id].cell.claim(Reply::Fallback).is_ok() {
                    let why = Why::Shed(shed.reason);
                    match shed.instead {
                        Instead::Fallback => self.fallback(id, why),
                        Instead::Refuse => self.reply(id, By::Refused(why)),
                    }
                }
            }
        }
    }

    fn leave(&mut self, id: usize) {
        if std::mem::take(&mut self.requests[id].entered) {
            self.admission.left();
        }
    }

    // --- work ---

    fn dispatch(&mut self) {
        while let Some(worker) = self.workers.iter().position(Option::is_none) {
            // Requests behind the first queue share the worker with the reading of new requests.
            let behind = self.queues[1..].iter().any(|queue| !queue.is_empty());
            self.turn = !self.turn;
            if self.queues[0].is_empty()
                && (self.turn || !behind)
                && let Some(id) = self.upstream.pop_front()
            {
                self.workers[worker] = Some(Work::Reading(id));
                self.schedule(self.now.plus(self.scenario.reading), Event::Read { worker });
                continue;
            }
            match self.next_request() {
                Some(id) => self.begin(worker, id),
                None if self.upstream.is_empty() => return,
                // No request is left behind the first queue.
                None => {}
            }
        }
    }

    fn read(&mut self, worker: usize) {
        let Some(Work::Reading(id)) = self.workers[worker].take() else { return };
        if self.requests[id].replied {
            self.leave(id);
        } else {
            self.ask(id);
        }
        self.dispatch();
    }

    fn next_request(&mut self) -> Option<usize> {
        loop {
            let id = self.queues.iter_mut().find_map(VecDeque::pop_front)?;
            // The caller has cancelled, or a timer has answered. Both returned the permit.
            if self.requests[id].permit.is_some() {
                return Some(id);
            }
        }
    }

    fn begin(&mut self, worker: usize, id: usize) {
        let clock = self.clock();
        let source = &self.scenario.streams[self.requests[id].stream];
        let request = &mut self.requests[id];
        let Some(permit) = &mut request.permit else { return };
        match permit.start(clock) {
            Start::TooLate => {
                trace!(self, "#{id} too late");
                self.expire(id);
            }
            Start::Run => {
                let (chunk, finish_by, deadline) =
                    (permit.chunk_rows(), permit.finish_by(), permit.deadline());
                if clock >= deadline {
                    self.violation(&format!(
                        "#{id} was started {:?} after its deadline",
                        clock.since(deadline)
                    ));
                }
                let request = &mut self.requests[id];
                let rows = chunk.min(source.rows - request.done_rows);
                let work = request.work.0 as f64 * f64::from(rows) / f64::from(source.rows);
                let mut takes = (work * self.slower * self.bundle_cost) as u64 + 1;
                let allowed = finish_by.since(clock).0;
                if takes > allowed {
                    // The evaluation reads the clock between chunks of trees, and stops.
                    let step = takes / CHECKS + 1;
                    takes = allowed.div_ceil(step).max(1).saturating_mul(step).min(takes);
                    request.stop = true;
                } else {
                    request.done_rows += rows;
                    request.chunk = rows;
                }
                request.began = self.now;
                self.workers[worker] = Some(Work::Evaluating(id));
                self.schedule(self.now.plus(Nanos(takes)), Event::Done { worker });
            }
        }
    }

    fn done(&mut self, worker: usize) {
        let Some(Work::Evaluating(id)) = self.workers[worker].take() else { return };
        let source = &self.scenario.streams[self.requests[id].stream];
        let clock = self.clock();
        let request = &mut self.requests[id];
        request.spent = request.spent.plus(self.now.since(request.began));
        let gone = request.replied;
        let finish_by = request.permit.as_ref().map_or(Nanos::MAX, |permit| permit.finish_by());
        if source.rows > 1
            && let Some(permit) = &mut request.permit
            && !request.stop
        {
            permit.progress(request.chunk);
        }
        if !gone && !request.stop && request.done_rows < source.rows && clock < finish_by {
            // Other requests run between chunks.
            let queue = request.queue.unwrap_or(Queue::Last);
            self.queues[queue as usize].push_front(id);
            self.dispatch();
            return;
        }
        let complete = !request.stop && request.done_rows == source.rows;
        let spent = request.spent;
        let permit = request.permit.take();
        let who = if complete { Reply::Model } else { Reply::Fallback };
        let outcome = match request.cell.claim(who) {
            Ok(()) => {
                if complete {
                    self.reply(id, By::Model);
                    Some(Outcome::Model)
                } else {
                    self.fallback(id, Why::Stopped);
                    Some(Outcome::Fallback)
                }
            }
            Err(winner) => {
                self.out.late_results += 1;
                (winner == Reply::Fallback).then_some(Outcome::Fallback)
            }
        };
        match (permit, outcome) {
            (Some(permit), Some(outcome)) => permit.finish(clock, Served { exec: spent, outcome }),
            // The caller has cancelled, so the evaluation is dropped.
            (permit, _) => drop(permit),
        }
        self.dispatch();
    }

    // --- replies ---

    /// Answers without the model, which will not answer in time.
    fn expire(&mut self, id: usize) {
        if self.requests[id].cell.claim(Reply::Fallback).is_ok() {
            if !self.on_worker(id) {
                self.drop_request(id);
            }
            self.fallback(id, Why::TooLate);
        } else if !self.on_worker(id) {
            self.drop_request(id);
        }
    }

    fn drop_request(&mut self, id: usize) {
        self.leave(id);
        self.requests[id].permit = None;
    }

    fn on_worker(&self, id: usize) -> bool {
        self.workers.contains(&Some(Work::Evaluating(id)))
    }

    /// Answers with the fallback. The cell must have been claimed.
    fn fallback(&mut self, id: usize, why: Why) {
        let clock = self.clock();
        let request = &self.requests[id];
        let checkpoint =
            &self.scenario.settings.checkpoints[self.scenario.streams[request.stream].checkpoint];
        let amount = request.amount;
        let by = match &self.caps {
            _ if !checkpoint.fallback => By::Refused(why),
            None => By::Fallback(why),
            Some(caps) => match caps.reserve(clock, Some(amount)) {
                Ok(()) => {
                    self.out.granted.push((clock, amount));
                    By::Fallback(why)
                }
                Err(hit) => By::Cap(hit),
            },
        };
        self.reply(id, by);
    }

    fn reply(&mut self, id: usize, by: By) {
        trace!(self, "#{id} {by:?}");
        let request = &mut self.requests[id];
        let twice = std::mem::replace(&mut request.replied, true);
        let source = &self.scenario.streams[request.stream];
        let record = Record {
            stream: request.stream,
            tier: self.scenario.settings.checkpoints[source.checkpoint].tier,
            caller: request.caller,
            arrived: request.arrived,
            replied: self.now,
            queue: request.queue,
            by,
            work: request.work,
        };
        self.out.records.push(record);
        if twice {
            self.violation(&format!("#{id} got two replies"));
        } else {
            self.open -= 1;
        }
    }

    // --- time ---

    /// Returns the time of the server's clock.
    fn clock(&self) -> Nanos {
        self.now.plus(self.offset)
    }

    fn schedule(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn violation(&mut self, what: &str) {
        let now = self.now.0 as f64 / 1e9;
        self.out.violations.push(format!("at {now:.6} s: {what}"));
    }
}

/// Returns whether the SLA of a checkpoint is enforced.
pub(crate) fn enforced(scenario: &Scenario) -> bool {
    scenario.settings.checkpoints.iter().all(|checkpoint| checkpoint.mode == Mode::Enforce)
}
