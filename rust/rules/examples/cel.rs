//! Evaluates expressions with names, for the comparison with the conformance cases of CEL (`make cel-spec`).
//!
//! Standard input is a TOML file with `[[cases]]`: `text`, and `names` with `name`, `kind` (bool, int, double or
//! string) and `value` (left out if it is missing). For each case, one line is written: the outcome (`value`,
//! `unknown`, `error` or `refused`), the type, and the value, the kind of error or the message, separated by tabs. A
//! double is written as its bits, and a string as its bytes, both in hexadecimal digits.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use scorer_rules::{Environment, ListKey, Lists, Outcome, Program, Source, Type, Value};

#[derive(serde::Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    text: String,
    #[serde(default)]
    names: Vec<Name>,
}

#[derive(serde::Deserialize)]
struct Name {
    name: String,
    kind: String,
    value: Option<String>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            let _ = writeln!(std::io::stderr(), "error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).map_err(|error| error.to_string())?;
    let file: File = toml::from_str(&input).map_err(|error| error.to_string())?;
    let mut output = String::new();
    for case in &file.cases {
        output.push_str(&answer(case)?);
        output.push('\n');
    }
    std::io::stdout().write_all(output.as_bytes()).map_err(|error| error.to_string())
}

fn answer(case: &Case) -> Result<String, String> {
    let key = ListKey::new([3; 16]);
    let mut environment = Environment::new();
    for name in &case.names {
        declare(&mut environment, name)?;
    }
    let program = match Program::compile(&environment, key, &[Source { rule: "case", text: &case.text }]) {
        Ok(program) => program,
        Err(faults) => {
            let problem = faults.first().map_or("", |fault| fault.problem.as_str());
            return Ok(format!("refused\t\t{problem}"));
        }
    };
    let mut scratch = program.scratch();
    for name in &case.names {
        let (Some(slot), Some(value)) = (environment.slot(&name.name), &name.value) else { continue };
        let wrong = || format!("{}: {value:?} is no {}", name.name, name.kind);
        match name.kind.as_str() {
            "bool" => scratch.set_bool(slot, value == "true"),
            "int" => scratch.set_int(slot, value.parse().map_err(|_| wrong())?),
            "double" => scratch.set_double(slot, value.parse().map_err(|_| wrong())?),
            _ => scratch.set_text(slot, program.text_id(value)),
        }
    }
    let kind = program.kind(0).map_or(String::new(), |kind| kind.to_string());
    Ok(match program.evaluate(0, &mut scratch, &Lists::new(key, &environment)) {
        Outcome::Known(value) => format!("value\t{kind}\t{}", written(value)),
        Outcome::Unknown => format!("unknown\t{kind}\t"),
        Outcome::Error(error) => format!("error\t{kind}\t{}", error.describe()),
    })
}

fn declare(environment: &mut Environment, name: &Name) -> Result<(), String> {
    let kind = match name.kind.as_str() {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "double" => Type::Double,
        "string" => Type::Text,
        other => return Err(format!("{}: unknown type {other:?}", name.name)),
    };
    let known = name.value.as_deref().filter(|_| kind == Type::Text);
    environment
        .declare(&name.name, kind)
        .and_then(|_| environment.known(known))
        .map_err(|error| error.to_string())
}

fn written(value: Value<'_>) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Double(value) => format!("{:016x}", value.to_bits()),
        Value::Text(Some(text)) => text.bytes().fold(String::new(), |mut hexadecimal, byte| {
            let _ = write!(hexadecimal, "{byte:02x}");
            hexadecimal
        }),
        Value::Text(None) => "outside the vocabulary".to_owned(),
        Value::Key(_) => "a key".to_owned(),
    }
}
