//! Rules: conditions in a subset of CEL, compiled to instructions that run in bounded time without allocation.
//!
//! An [`Environment`] declares the names that expressions may use. [`Program::compile`] parses, checks and lowers
//! expressions; [`Program::evaluate`] runs one on the values of a [`Scratch`]. A value may be missing: `&&` and `||`
//! are decided by the operands that are known, and everything else that needs a missing value is unknown.
//!
//! A [`RuleSet`] is a TOML file of rules and decision tables over an environment: each has a condition and what it
//! writes. [`RuleSet::evaluate`] applies those that fire. docs/rules.md describes the language and the file.

#![forbid(unsafe_code)]

mod actions;
mod block;
mod budget;
mod check;
mod code;
mod conflicts;
mod cost;
mod custom;
mod decide;
mod environment;
mod fault;
mod functions;
mod implied;
mod lexer;
pub mod limits;
mod lists;
mod lower;
mod machine;
mod order;
mod parser;
mod program;
#[cfg(test)]
mod random;
mod rows;
mod ruleset;
mod source;
mod table;
mod value;

pub use actions::{Actions, ActionsError};
pub use budget::{AmountLimit, Budget, Exhausted, PER_UNIT, day_of};
pub use cost::{CostSettings, Costly, Costs, PartCost, Spread};
pub use custom::{Calls, FunctionSpec, Functions};
pub use decide::{Decision, Request, RuleState};
pub use environment::{DeclareError, Environment, ListId, ListKind, Slot, Type};
pub use fault::Fault;
pub use lists::{KeySet, KeySetBuilder, ListKey, Lists, TooManyKeys};
pub use program::{Program, Scratch, Source, TextId};
pub use rows::Rows;
pub use ruleset::{Rule, RuleSet};
pub use source::HitPolicy;
pub use value::{ErrorKind, Outcome, Value};
