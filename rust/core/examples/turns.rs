//! Evaluates rows, or all actions for a context, through the Rust API in turns with other programs.
//!
//! `turns --forest model.bin --rows rows.f32 [--catalogue actions.f32 --context 35] [--isa avx2]`: files of
//! little-endian float32. Each row is one call. With a catalogue, a row is a context of `--context` features followed by
//! unused action features, and each call scores every action. Calls end with probabilities, as the peers' calls do.
//! The program prints one JSON line about the forest, then answers the commands on standard input that
//! `loadtests/engine/programs/turns.h` describes.
#![expect(clippy::print_stdout, reason = "the lines are what the program is for")]

#[allow(dead_code, reason = "it serves several programs, none of which uses all of it")]
mod cost;

use std::hint::black_box;
use std::io::BufRead as _;
use std::process::ExitCode;
use std::time::Instant;

use cost::{Arguments, Failure};
use scorer_core::budget::Unlimited;
use scorer_core::forest::actions::{ActionForest, ActionScratch, Catalogue};
use scorer_core::forest::{Forest, Isa, Scratch};
use serde_json::json;

fn main() -> ExitCode {
    cost::main("turns", run)
}

/// The calls that are timed.
trait Work {
    /// Makes one call on a row.
    fn call(&mut self, row: &[f32]);

    /// The probabilities of the last call.
    fn answer(&self) -> &[f64];
}

/// One row per call.
struct Single<'a> {
    forest: &'a Forest,
    scratch: Scratch,
    out: Vec<f64>,
}

impl Work for Single<'_> {
    fn call(&mut self, row: &[f32]) {
        self.forest.margins(black_box(row), &mut self.scratch, &mut self.out);
        self.forest.transform(&mut self.out);
        black_box(&self.out);
    }

    fn answer(&self) -> &[f64] {
        &self.out[..self.forest.num_predictions()]
    }
}

/// Every action of a catalogue per call.
struct Actions<'a> {
    forest: &'a Forest,
    factored: ActionForest,
    eligible: Vec<u64>,
    scratch: ActionScratch,
    out: Vec<f64>,
}

impl Work for Actions<'_> {
    fn call(&mut self, row: &[f32]) {
        let Self { forest, factored, eligible, scratch, out } = self;
        // An unlimited budget is never spent.
        let _ = factored.margins(forest, black_box(row), eligible, &Unlimited, scratch, out);
        out.iter_mut().for_each(|margin| forest.transform(std::slice::from_mut(margin)));
        black_box(&*out);
    }

    fn answer(&self) -> &[f64] {
        &self.out
    }
}

fn run(arguments: &Arguments) -> Result<String, Failure> {
    let isa = match arguments.text("--isa") {
        None => Isa::best(),
        Some(name) => Isa::available()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| format!("--isa {name} is not available"))?,
    };
    let forest = Forest::from_bytes(&std::fs::read(arguments.required("--forest")?)?)?.with_isa(isa)?;
    let values = cost::floats(arguments.required("--rows")?)?;
    let rows: Vec<&[f32]> = values.chunks_exact(forest.num_features()).collect();
    let about = json!({
        "isa": isa.name(), "trees": forest.num_trees(), "depth": forest.max_depth(), "heap_bytes": forest.heap_bytes(),
    });
    println!("{about}");
    let Some(path) = arguments.text("--catalogue") else {
        let out = vec![0.0; forest.num_outputs()];
        return serve(&rows, Single { forest: &forest, scratch: Scratch::new(&forest), out });
    };
    let context: usize = arguments.number("--context", None)?;
    let catalogue = cost::floats(path)?;
    let width = forest.num_features().checked_sub(context).ok_or("--context is more than the features")?;
    let count = catalogue.len() / width.max(1);
    let given = Catalogue { context, actions: count, rows: &catalogue };
    let factored = ActionForest::new(&forest, &given, isa).ok_or("the forest or catalogue does not fit")?;
    let scratch = ActionScratch::new(&forest, &factored);
    let eligible = (0..count.div_ceil(64)).map(|word| mask(count - word * 64)).collect();
    let out = vec![0.0; count * forest.num_outputs()];
    serve(&rows, Actions { forest: &forest, factored, eligible, scratch, out })
}

/// A word with a bit for each of the first `count` actions.
fn mask(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Answers commands until standard input ends.
fn serve(rows: &[&[f32]], mut work: impl Work) -> Result<String, Failure> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line == "answers" {
            let answers: Vec<f64> = rows
                .iter()
                .flat_map(|row| {
                    work.call(row);
                    work.answer().to_vec()
                })
                .collect();
            println!("{}", json!(answers));
            continue;
        }
        let warm: usize =
            line.strip_prefix("turn ").ok_or("the commands are `answers` and `turn N`")?.parse()?;
        for row in rows.iter().cycle().take(warm) {
            work.call(row);
        }
        let mut times = Vec::with_capacity(rows.len());
        for row in rows {
            let began = Instant::now();
            work.call(row);
            times.push(began.elapsed().as_nanos() as u64);
        }
        println!("{}", json!(times));
    }
    Ok(String::new())
}
