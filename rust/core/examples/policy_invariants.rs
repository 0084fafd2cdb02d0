//! Checks the invariants of every rule over many random decisions and prints one JSON line.
//!
//! `cargo run --release -p scorer-core --example policy_invariants -- 10000000`
//!
//! Exits with 1 if any decision breaks one. Everything is drawn from a fixed seed.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use scorer_core::policy::{
    Action, ActionCatalogue, Mask, Policy, PolicyScratch, PolicySpec, Rule, choose, draw,
};

/// Decisions per policy, before another catalogue and other settings are drawn.
const BATCH: u64 = 1000;

/// SplitMix64 (Vigna): small, seeded, good enough to draw test cases with.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Mostly probabilities; ties, ends of the range and tiny values now and then.
    fn score(&mut self) -> f64 {
        match self.below(8) {
            0 => [0.0, 1.0, 0.5, 0.5, 5e-324][self.below(5)],
            1 => (self.unit() * 8.0).floor() / 8.0,
            2 => 1.0 - self.unit() * 1e-12,
            _ => self.unit(),
        }
    }

    fn rule(&mut self) -> Rule {
        let strength = 10_f64.powf(self.unit() * 6.0 - 1.0);
        match self.below(7) {
            0 => Rule::Uniform,
            1 => Rule::EpsilonGreedy { epsilon: self.unit() },
            2 => Rule::Softmax { inverse_temperature: strength },
            3 => Rule::SquareCb { gamma: strength },
            4 => Rule::FastCb { gamma: strength },
            5 => Rule::LossRatio { exponent: strength },
            _ => Rule::Bagging { voters: 2 + self.below(15) },
        }
    }

    fn policy(&mut self) -> Result<Policy, Box<dyn Error>> {
        let actions = 1 + self.below(128);
        let action = |index: usize| Action {
            id: format!("a{index}"),
            factors: BTreeMap::new(),
            features: Vec::new(),
            attributes: BTreeMap::new(),
        };
        let catalogue = ActionCatalogue::new((0..actions).map(action).collect())?;
        let floor = if self.below(3) == 0 { 0.0 } else { self.unit() * 0.5 };
        let mut action_floors = BTreeMap::new();
        if self.below(3) == 0 {
            action_floors.insert(format!("a{}", self.below(actions)), self.unit() * 0.5);
        }
        let salt = format!("{:016x}{:016x}", self.next(), self.next());
        let spec = PolicySpec { rule: self.rule(), floor, action_floors, caps: Vec::new(), salt };
        Ok(Policy::compile(&spec, &catalogue)?)
    }
}

/// Decisions that violated each invariant.
#[derive(Default)]
struct Broken {
    refused: u64,
    not_a_number: u64,
    sum: u64,
    floor: u64,
    outside: u64,
    impossible_choice: u64,
    replay: u64,
}

fn check(policy: &Policy, eligible: &Mask, pmf: &[f64], decision: &str, broken: &mut Broken) {
    let count = eligible.count();
    let mut sum = 0.0;
    let (mut nan, mut low, mut outside) = (false, false, false);
    for (action, &p) in pmf.iter().enumerate() {
        sum += p;
        nan |= !p.is_finite();
        if eligible.contains(action) {
            low |= p < policy.floor(action, count) || p < 0.0;
        } else {
            outside |= p.to_bits() != 0;
        }
    }
    broken.not_a_number += u64::from(nan);
    broken.floor += u64::from(low);
    broken.outside += u64::from(outside);
    broken.sum += u64::from((sum - 1.0).abs() > 1e-6);
    let chosen = || choose(pmf, draw(&policy.salt().0, "action.authorise", decision));
    let first = chosen();
    broken.impossible_choice +=
        u64::from(first.is_none_or(|index| pmf[index] <= 0.0 || !eligible.contains(index)));
    broken.replay += u64::from(first != chosen());
}

fn run(decisions: u64) -> Result<ExitCode, Box<dyn Error>> {
    let mut random = Random(2026);
    let mut broken = Broken::default();
    let mut per_rule: BTreeMap<&str, u64> = BTreeMap::new();
    let mut evaluated = 0_u64;
    let start = Instant::now();
    let mut done = 0;
    while done < decisions {
        let policy = random.policy()?;
        let actions = policy.actions();
        let mut scratch = PolicyScratch::new(&policy);
        let mut scores = vec![0.0; actions * (1 + policy.voters())];
        let mut pmf = vec![0.0; actions];
        let mut eligible = Mask::none(actions);
        let batch = BATCH.min(decisions - done);
        for number in done..done + batch {
            scores.iter_mut().for_each(|score| *score = random.score());
            eligible.clear();
            let share = random.unit();
            for action in 0..actions {
                if random.unit() < share {
                    eligible.insert(action);
                }
            }
            eligible.insert(random.below(actions));
            evaluated += eligible.count() as u64;
            match policy.pmf(&scores, &eligible, &mut pmf, &mut scratch) {
                Ok(()) => check(&policy, &eligible, &pmf, &format!("decision-{number}"), &mut broken),
                Err(_) => broken.refused += 1,
            }
        }
        done += batch;
        *per_rule.entry(policy.spec().rule.name()).or_default() += batch;
    }
    let broken_total = broken.refused
        + broken.not_a_number
        + broken.sum
        + broken.floor
        + broken.outside
        + broken.impossible_choice
        + broken.replay;
    let line = serde_json::json!({
        "benchmark": "policy_invariants",
        "decisions": done,
        "seconds": (start.elapsed().as_secs_f64() * 100.0).round() / 100.0,
        "mean_eligible": evaluated as f64 / done.max(1) as f64,
        "decisions_per_rule": per_rule,
        "broken": broken_total,
        "broken_by_invariant": {
            "refused": broken.refused,
            "finite": broken.not_a_number,
            "sum": broken.sum,
            "floor": broken.floor,
            "zero_outside": broken.outside,
            "possible_choice": broken.impossible_choice,
            "replay": broken.replay,
        },
    });
    writeln!(std::io::stdout(), "{line}")?;
    Ok(if broken_total == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let decisions = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    run(decisions)
}
