//! What the programs that measure actions share: `--name value` arguments, one line of JSON, and the clock.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "printing is these programs' purpose")]

use std::fmt::Display;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

pub(crate) type Failure = Box<dyn std::error::Error>;

/// `--name value` pairs, and flags.
pub(crate) struct Arguments(pub(crate) Vec<String>);

/// Prints the line that `run` measures, or what is wrong.
pub(crate) fn main<T: Display>(
    program: &str,
    run: impl FnOnce(&Arguments) -> Result<T, Failure>,
) -> ExitCode {
    let measured = if cfg!(debug_assertions) {
        Err("build with --release: nothing else is worth a figure".into())
    } else {
        run(&Arguments(std::env::args().skip(1).collect()))
    };
    match measured {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sorted nanoseconds of each call; the first tenth only warms up.
pub(crate) fn times(repeat: usize, mut work: impl FnMut(usize)) -> Vec<u64> {
    let mut all: Vec<u64> = (0..repeat.max(10))
        .map(|at| {
            let start = Instant::now();
            work(at);
            start.elapsed().as_nanos() as u64
        })
        .collect();
    all.drain(..repeat / 10);
    all.sort_unstable();
    all
}

/// Little-endian float32.
pub(crate) fn floats(path: &str) -> Result<Vec<f32>, Failure> {
    Ok(std::fs::read(path)?.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

// === impl Arguments ===

impl Arguments {
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|argument| argument == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    pub(crate) fn required(&self, name: &str) -> Result<&str, Failure> {
        Ok(self.text(name).ok_or_else(|| format!("{name} is missing"))?)
    }

    pub(crate) fn number<T: FromStr>(&self, name: &str, default: Option<T>) -> Result<T, Failure> {
        match (self.text(name), default) {
            (Some(text), _) => text.parse().map_err(|_| format!("{name} {text:?} is no number").into()),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(format!("{name} is missing").into()),
        }
    }
}
