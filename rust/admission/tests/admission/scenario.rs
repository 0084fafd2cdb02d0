//! The scenario of a seed: a server, its traffic, and its disturbances.

use scorer_admission::{Caps, CheckpointSettings, Mode, Nanos, Settings};

use super::random::Random;

/// The cases. Each has separate invariants besides those of all scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// 1.2 to 10 times the capacity during the whole run, with one tier or several.
    Overload,
    /// Half the capacity, then five times the capacity, then half the capacity.
    Step,
    /// Batches of 1,000 rows and single rows.
    Batches,
    /// One caller at twenty times its usual rate.
    Noisy,
    /// The model becomes ten times slower for a while.
    Slowed,
    /// Other processes take half of the CPU, then all of it for 500 ms.
    Stolen,
    /// The clock jumps forward.
    Jump,
    /// Bundles with other costs are activated.
    Swaps,
    /// The mode `observe` must change nothing.
    Observe,
    /// All disturbances together with mixed modes and tiers. Only the common invariants are checked.
    Chaos,
}

pub(crate) const CASES: [Case; 10] = [
    Case::Overload,
    Case::Step,
    Case::Batches,
    Case::Noisy,
    Case::Slowed,
    Case::Stolen,
    Case::Jump,
    Case::Swaps,
    Case::Observe,
    Case::Chaos,
];

/// Requests of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) checkpoint: usize,
    pub(crate) rows: u32,
    /// Average service time of a request.
    pub(crate) row: Nanos,
    /// Names of the callers: `first .. first + count`.
    pub(crate) callers: (u64, u64),
    /// Start times, and the requests per second from then on.
    pub(crate) rates: Vec<(Nanos, f64)>,
    /// Average number of requests that arrive together.
    pub(crate) burst: f64,
    pub(crate) timeout: Option<Nanos>,
    /// Share of the requests that are cancelled at a random time.
    pub(crate) cancels: f64,
}

/// A disturbance of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// From now on, all work takes this many times as long.
    Slower(f64),
    /// No work runs for this time.
    Pause(Nanos),
    /// The clock jumps forward by this time.
    Jump(Nanos),
    /// A bundle with this many times the cost is activated. Its warm-up measured the true cost times the
    /// second number.
    Swap(f64, f64),
}

/// The scenario of one seed.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) case: Case,
    pub(crate) settings: Settings,
    /// Average service time of a single row.
    pub(crate) row: Nanos,
    pub(crate) streams: Vec<Stream>,
    pub(crate) fates: Vec<(Nanos, Fate)>,
    pub(crate) end: Nanos,
    pub(crate) caps: Option<Caps>,
    /// Whether requests wait for a worker before admission decides instead of afterwards.
    pub(crate) upstream: bool,
    /// Time that a worker needs to read a request.
    pub(crate) reading: Nanos,
    /// Whether a timer answers late requests. Otherwise the worker answers them when it takes them from the
    /// first queue. Requests behind that queue may be overtaken without end, so they need a timer.
    pub(crate) timers: bool,
}

fn at(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

// === impl Scenario ===

impl Scenario {
    pub(crate) fn new(seed: u64) -> Scenario {
        let case = CASES[(seed % CASES.len() as u64) as usize];
        let mut random = Random::new(seed, 0);
        let random = &mut random;
        let workers = random.one_of(&[1, 1, 2, 2, 4]);
        // Slow models with long SLAs: only their ratio is relevant, and each virtual second costs less.
        let row = Nanos::from_micros(random.whole(1_500, 2_500) * workers);
        let sla = Nanos(row.0 * random.whole(20, 40));
        let checkpoint = CheckpointSettings {
            mode: Mode::Enforce,
            fallback: true,
            row_cost: row,
            ..CheckpointSettings::new(sla)
        };
        let mut settings = Settings::new(workers as usize, vec![checkpoint]);
        settings.callers = 64;
        settings.seed = random.next();
        let mut scenario = Scenario {
            seed,
            case,
            settings,
            row,
            streams: Vec::new(),
            fates: Vec::new(),
            end: at(4.0),
            caps: None,
            upstream: false,
            reading: Nanos::ZERO,
            timers: random.chance(0.5),
        };
        match case {
            Case::Overload => scenario.overload(random),
            Case::Step => scenario.step(random),
            Case::Batches => scenario.batches(random),
            Case::Noisy => scenario.noisy(random),
            Case::Slowed => scenario.slowed(random),
            Case::Stolen => scenario.stolen(random),
            Case::Jump => scenario.jump(random),
            Case::Swaps => scenario.swaps(random),
            Case::Observe => scenario.observe(random),
            Case::Chaos => scenario.chaos(random),
        }
        scenario
    }

    /// Returns the capacity of the workers in single rows per second.
    pub(crate) fn capacity(&self) -> f64 {
        self.settings.workers as f64 * 1e9 / (self.row.0 + self.reading.0) as f64
    }

    fn single(&self, random: &mut Random, checkpoint: usize, load: f64) -> Stream {
        Stream {
            checkpoint,
            rows: 1,
            row: self.row,
            callers: (0, random.whole(1, 12)),
            rates: vec![(Nanos::ZERO, load * self.capacity())],
            burst: random.one_of(&[1.0, 1.0, 1.0, 3.0]),
            timeout: None,
            cancels: random.one_of(&[0.0, 0.0, 0.05, 0.3]),
        }
    }

    fn tiers(&mut self, random: &mut Random, most: u64) {
        let template = self.settings.checkpoints[0].clone();
        let tiers = random.whole(1, most) as u8;
        let lowest = random.whole(0, 3 - u64::from(tiers).min(3)) as u8;
        self.settings.checkpoints = (0..tiers)
            .map(|tier| CheckpointSettings { tier: (lowest + tier).min(3), ..template.clone() })
            .collect();
    }

    fn overload(&mut self, random: &mut Random) {
        self.tiers(random, 3);
        self.end = at(3.0);
        self.upstream = random.chance(0.3);
        if self.upstream {
            // This part of the total time is not spent in the model.
            let times = random.one_of(&[0, 1, 4]);
            self.reading = Nanos(self.row.0 * times / (1 + times));
            self.row = Nanos(self.row.0 / (1 + times));
            for point in &mut self.settings.checkpoints {
                point.row_cost = self.row;
            }
        }
        let load = random.one_of(&[1.2, 1.5, 2.0, 3.0, 5.0, 10.0]);
        let points = self.settings.checkpoints.len();
        // Tiers order the requests of the same callers. Between callers, fair shares have precedence.
        let callers = (0, random.whole(1, 12));
        // Bursts at a load near the capacity leave the workers idle in between, with any admission control.
        let burst = if load < 1.5 { 1.0 } else { random.one_of(&[1.0, 1.0, 3.0]) };
        for checkpoint in 0..points {
            let mut stream = self.single(random, checkpoint, load / points as f64);
            stream.callers = callers;
            stream.burst = burst;
            stream.cancels = stream.cancels.min(0.05);
            self.streams.push(stream);
        }
        if random.chance(0.5) {
            self.caps = Some(self.some_caps(random));
        }
    }

    fn some_caps(&self, random: &mut Random) -> Caps {
        Caps {
            window: Nanos::from_millis(random.whole(200, 2_000)),
            max_count: random.whole(1, 200),
            max_total: random.whole(1_000, 100_000),
            max_single: random.whole(100, 2_000),
        }
    }

    fn step(&mut self, random: &mut Random) {
        let capacity = self.capacity();
        let mut stream = self.single(random, 0, 0.5);
        let high = random.between(4.0, 6.0);
        stream.rates =
            vec![(Nanos::ZERO, 0.5 * capacity), (at(1.5), high * capacity), (at(2.5), 0.5 * capacity)];
        stream.burst = 1.0;
        self.end = at(6.0);
        self.streams.push(stream);
    }

    fn batches(&mut self, random: &mut Random) {
        let load = random.between(0.3, 0.6);
        let mut single = self.single(random, 0, load);
        single.burst = 1.0;
        self.streams.push(single);
        // Rows are much cheaper in batches: 1,000 of them take the time of 10 to 40 single rows.
        let batch = Nanos(self.row.0 * random.whole(10, 40));
        let template = self.settings.checkpoints[0].clone();
        self.settings.checkpoints.push(CheckpointSettings {
            tier: random.one_of(&[0, 3]),
            row_cost: Nanos(batch.0 / 1_000),
            batch_p99: Some(Nanos(batch.0 * 20)),
            ..template
        });
        let per_second = random.between(0.3, 1.5) * self.settings.workers as f64 * 1e9 / batch.0 as f64;
        self.streams.push(Stream {
            checkpoint: 1,
            rows: 1_000,
            row: Nanos(batch.0 / 1_000),
            callers: (100, 2),
            rates: vec![(at(0.5), per_second)],
            burst: 1.0,
            timeout: None,
            cancels: random.one_of(&[0.0, 0.2]),
        });
        self.end = at(5.0);
    }

    fn noisy(&mut self, random: &mut Random) {
        let callers = random.whole(5, 12);
        let load = random.between(0.3, 0.6);
        self.settings.callers = 512;
        let mut others = self.single(random, 0, load);
        others.callers = (1, callers);
        others.burst = 1.0;
        others.cancels = 0.0;
        let each = others.rates[0].1 / callers as f64;
        let noisy = Stream {
            callers: (0, 1),
            rates: vec![(at(0.5), each), (at(1.0), each * 20.0)],
            ..others.clone()
        };
        self.streams = vec![others, noisy];
        self.end = at(5.0);
    }

    fn slowed(&mut self, random: &mut Random) {
        self.timers = true;
        let load = random.between(0.3, 0.6);
        let mut stream = self.single(random, 0, load);
        stream.burst = 1.0;
        self.streams.push(stream);
        self.fates = vec![(at(1.5), Fate::Slower(10.0)), (at(2.5), Fate::Slower(1.0))];
        self.end = at(6.0);
    }

    fn stolen(&mut self, random: &mut Random) {
        let load = random.between(0.3, 0.7);
        let mut stream = self.single(random, 0, load);
        stream.burst = 1.0;
        self.streams.push(stream);
        self.fates = vec![
            (at(1.0), Fate::Slower(2.0)),
            (at(2.0), Fate::Slower(1.0)),
            (at(2.5), Fate::Pause(Nanos::from_millis(500))),
        ];
        self.end = at(6.0);
    }

    fn jump(&mut self, random: &mut Random) {
        let load = random.between(0.3, 2.0);
        let stream = self.single(random, 0, load);
        self.streams.push(stream);
        for _ in 0..random.whole(1, 3) {
            let far = random.one_of(&[0.01, 0.25, 3.0, 3_600.0, 86_400.0 * 365.0]);
            self.fates.push((at(random.between(0.5, 2.0)), Fate::Jump(at(far))));
        }
        self.fates.sort_by_key(|fate| fate.0);
    }

    fn swaps(&mut self, random: &mut Random) {
        let load = random.between(0.3, 0.8);
        let stream = self.single(random, 0, load);
        self.streams.push(stream);
        let mut time = 0.5;
        while time < 3.0 {
            let cost = random.between(0.5, 3.0);
            self.fates.push((at(time), Fate::Swap(cost, random.between(0.7, 2.0))));
            time += random.between(0.2, 1.0);
        }
    }

    fn observe(&mut self, random: &mut Random) {
        self.tiers(random, 2);
        for point in &mut self.settings.checkpoints {
            point.mode = Mode::Observe;
        }
        for checkpoint in 0..self.settings.checkpoints.len() {
            let load = random.between(0.1, 1.5);
            let mut stream = self.single(random, checkpoint, load);
            stream.timeout = random.chance(0.5).then(|| at(random.between(0.02, 0.5)));
            self.streams.push(stream);
        }
        self.end = at(2.0);
    }

    fn chaos(&mut self, random: &mut Random) {
        self.tiers(random, 4);
        let row = self.row;
        for point in &mut self.settings.checkpoints {
            point.mode = random.one_of(&[Mode::Enforce, Mode::Enforce, Mode::Observe, Mode::Off]);
            point.p99 = Nanos(row.0 * random.whole(5, 60));
            point.fallback = random.chance(0.7);
            point.row_cost = Nanos(random.whole(1, row.0 * 10));
        }
        for _ in 0..random.whole(1, 4) {
            let checkpoint = random.whole(0, self.settings.checkpoints.len() as u64 - 1) as usize;
            let load = random.between(0.1, 3.0);
            let mut stream = self.single(random, checkpoint, load);
            stream.rows = random.one_of(&[1, 1, 3, 30, 1_000]);
            stream.rates[0].1 /= f64::from(stream.rows);
            stream.timeout = random.chance(0.5).then(|| Nanos(row.0 * random.whole(0, 80)));
            if random.chance(0.3) {
                stream.rates.push((at(random.between(0.5, 2.0)), 0.01));
            }
            self.streams.push(stream);
        }
        for _ in 0..random.whole(0, 5) {
            let fate = match random.whole(0, 3) {
                0 => Fate::Slower(random.one_of(&[0.5, 1.0, 3.0, 10.0])),
                1 => Fate::Pause(Nanos::from_millis(random.whole(1, 800))),
                2 => Fate::Jump(Nanos::from_millis(random.whole(1, 100_000))),
                _ => Fate::Swap(random.between(0.3, 4.0), random.between(0.01, 20.0)),
            };
            self.fates.push((at(random.between(0.1, 2.5)), fate));
        }
        self.fates.sort_by_key(|fate| fate.0);
        self.caps = random.chance(0.7).then(|| self.some_caps(random));
        self.upstream = random.chance(0.2);
        self.end = at(3.0);
    }
}
