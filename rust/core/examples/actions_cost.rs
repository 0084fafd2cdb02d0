//! What one context with many actions costs: a packed forest specialised to a catalogue, timed on random contexts.
//!
//! `actions_cost --forest model.bin --context 30 [--rows catalogue.f32 | --actions 256 --seed 7] [--isa avx2]
//! [--share 0.1] [--repeat 2000] [--compare]` prints one JSON line. `--rows` is a file of little-endian float32,
//! `[actions, features - context]`; without it the actions' features are drawn from small whole numbers. `--share`
//! of the actions are eligible. `--compare` also times the evaluation of one full row per eligible action and
//! checks that both give the same bits.

mod cost;

use std::process::ExitCode;
use std::time::Instant;

use cost::{Arguments, Failure, times};
use scorer_core::budget::Unlimited;
use scorer_core::forest::actions::{ActionForest, ActionScratch, Catalogue};
use scorer_core::forest::{Forest, Isa, Scratch};

fn main() -> ExitCode {
    cost::main("actions_cost", run)
}

/// xorshift64: any spread will do.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / 9_007_199_254_740_992.0
    }
}

fn run(arguments: &Arguments) -> Result<String, Failure> {
    let forest = Forest::from_bytes(&std::fs::read(arguments.required("--forest")?)?)?;
    let context: usize = arguments.number("--context", None)?;
    let width = forest.num_features().checked_sub(context).ok_or("--context is more than the features")?;
    let mut random = Random(arguments.number("--seed", Some(7_u64))? | 1);
    let rows: Vec<f32> = if let Some(path) = arguments.text("--rows") {
        cost::floats(path)?
    } else {
        let actions: usize = arguments.number("--actions", Some(256))?;
        (0..actions * width).map(|at| (random.next() % [2, 4, 8, 4, 2][at % width % 5]) as f32).collect()
    };
    let actions = rows.len() / width.max(1);
    let isa = match arguments.text("--isa") {
        None => Isa::best(),
        Some(name) => Isa::available()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| format!("--isa {name} is not available"))?,
    };
    let catalogue = Catalogue { context, actions, rows: &rows };
    let (build, factored) = fastest(5, || ActionForest::new(&forest, &catalogue, isa));
    let factored = factored.ok_or("the forest or catalogue does not fit")?;

    let share: f64 = arguments.number("--share", Some(1.0))?;
    let mut eligible = vec![0_u64; actions.div_ceil(64)];
    for action in 0..actions {
        if random.unit() < share || action == 0 {
            eligible[action / 64] |= 1 << (action % 64);
        }
    }
    let contexts: Vec<Vec<f32>> = (0..256)
        .map(|_| {
            let value = |random: &mut Random| match random.next() % 20 {
                0 => f32::NAN,
                _ => (random.unit() + random.unit() + random.unit() - 1.5) as f32 * 3.0,
            };
            let mut row: Vec<f32> = (0..context).map(|_| value(&mut random)).collect();
            row.resize(forest.num_features(), f32::NAN);
            row
        })
        .collect();
    let mut scratch = ActionScratch::new(&forest, &factored);
    let mut out = vec![0.0; actions * forest.num_outputs()];
    let repeat: usize = arguments.number("--repeat", Some(4000))?;
    let ours = times(repeat, |at| {
        let row = &contexts[at % contexts.len()];
        let _ = factored.margins(&forest, row, &eligible, &Unlimited, &mut scratch, &mut out);
    });
    let compared = if arguments.0.iter().any(|argument| argument == "--compare") {
        let (rows, equal) = by_rows(&forest, &catalogue, &factored, &contexts, &eligible);
        format!(r#","rows_min_ns":{},"rows_median_ns":{},"equal":{equal}"#, rows[0], rows[rows.len() / 2])
    } else {
        String::new()
    };
    let shape = factored.shape();
    Ok(format!(
        r#"{{"trees":{},"depth":{},"features":{},"context":{context},"actions":{actions},"eligible":{},"isa":"{isa}","min_ns":{},"median_ns":{},"build_ms":{:.2},"specialised":{},"split":{},"residuals":{},"classes":{},"tests":{},"profiles":{},"forest_bytes":{},"bytes":{}{compared}}}"#,
        forest.num_trees(),
        forest.max_depth(),
        forest.num_features(),
        eligible.iter().map(|word| word.count_ones()).sum::<u32>(),
        ours[0],
        ours[ours.len() / 2],
        build as f64 / 1e6,
        shape.specialised,
        shape.split,
        shape.residuals,
        shape.classes,
        shape.tests,
        shape.profiles,
        forest.heap_bytes(),
        factored.heap_bytes(),
    ))
}

fn fastest<R>(repeat: usize, mut work: impl FnMut() -> R) -> (u128, R) {
    let start = Instant::now();
    let mut result = work();
    let mut best = start.elapsed().as_nanos();
    for _ in 1..repeat {
        let start = Instant::now();
        result = work();
        best = best.min(start.elapsed().as_nanos());
    }
    (best, result)
}

/// Times of one full row per eligible action, and whether that gives the same bits.
fn by_rows(
    forest: &Forest,
    catalogue: &Catalogue<'_>,
    factored: &ActionForest,
    contexts: &[Vec<f32>],
    eligible: &[u64],
) -> (Vec<u64>, bool) {
    let width = forest.num_features() - catalogue.context;
    let members: Vec<usize> =
        (0..catalogue.actions).filter(|action| eligible[action / 64] >> (action % 64) & 1 == 1).collect();
    let mut scratch = Scratch::new(forest);
    let mut action_scratch = ActionScratch::new(forest, factored);
    let mut together = vec![0.0; catalogue.actions * forest.num_outputs()];
    let mut single = vec![0.0; forest.num_outputs()];
    let mut equal = true;
    let times = times(contexts.len().min(64), |at| {
        let mut row = contexts[at].clone();
        let _ = factored.margins(forest, &row, eligible, &Unlimited, &mut action_scratch, &mut together);
        for &action in &members {
            row[catalogue.context..].copy_from_slice(&catalogue.rows[action * width..(action + 1) * width]);
            forest.margins(&row, &mut scratch, &mut single);
            for (output, value) in single.iter().enumerate() {
                equal &= value.to_bits() == together[output * catalogue.actions + action].to_bits();
            }
        }
    });
    (times, equal)
}
