//! Lowers checked expressions to instructions.

use std::collections::{BTreeSet, HashMap};

use crate::check::{TextTest, Typed};
use crate::code::{Cell, Goal, Instruction, Join, Register};
use crate::environment::{Environment, ListKind, Type};
use crate::functions::MAX_OPERANDS;
use crate::limits::{MAX_REGISTERS, MAX_TEXTS};
use crate::lists::ListKey;
use crate::value::{Arithmetic, Relation};

/// The parts of a program that instructions refer to.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// The strings in their order; a string's number is its position.
    pub(crate) texts: Vec<String>,
    /// The hash of each string, for named lists.
    pub(crate) hashes: Vec<u64>,
    /// The number of characters of each string.
    pub(crate) sizes: Vec<i64>,
    pub(crate) ints: Vec<Box<[i64]>>,
    pub(crate) doubles: Vec<Box<[f64]>>,
    /// A bit for each string.
    pub(crate) bits: Vec<Box<[u64]>>,
    pub(crate) constants: Vec<Cell>,
    /// The operands of each call of a declared function.
    pub(crate) operands: Vec<Box<[Register]>>,
}

/// The code of one expression.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Code {
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) result: Register,
    pub(crate) kind: Type,
}

pub(crate) struct Lowering<'a> {
    environment: &'a Environment,
    key: ListKey,
    pub(crate) tables: Tables,
    constants: HashMap<(u64, u8), Register>,
    int_sets: HashMap<Vec<i64>, u16>,
    double_sets: HashMap<Vec<u64>, u16>,
    bit_sets: HashMap<Box<[u64]>, u16>,
    pub(crate) instructions: Vec<Instruction>,
    /// First register of intermediate results, which follow names and constants.
    first: usize,
    /// Registers that are in use now, and at most.
    used: usize,
    pub(crate) registers: usize,
}

/// A program is too large in the way that the text names.
pub(crate) type TooLarge = String;

impl<'a> Lowering<'a> {
    /// Numbers the strings of all expressions, and collects their constants.
    pub(crate) fn new(
        environment: &'a Environment,
        key: ListKey,
        expressions: &[Typed],
    ) -> Result<Lowering<'a>, TooLarge> {
        let mut texts: BTreeSet<&str> = environment.vocabulary().iter().map(String::as_str).collect();
        for expression in expressions {
            collect_texts(expression, &mut texts);
        }
        if texts.len() > MAX_TEXTS {
            return Err(format!(
                "the rules have more than {MAX_TEXTS} different strings; use keys and named lists"
            ));
        }
        let tables = Tables {
            hashes: texts.iter().map(|text| key.text(text)).collect(),
            sizes: texts.iter().map(|text| crate::check::length(text)).collect(),
            texts: texts.into_iter().map(str::to_owned).collect(),
            ..Tables::default()
        };
        let mut lowering = Lowering {
            environment,
            key,
            tables,
            constants: HashMap::new(),
            int_sets: HashMap::new(),
            double_sets: HashMap::new(),
            bit_sets: HashMap::new(),
            instructions: Vec::new(),
            first: 0,
            used: 0,
            registers: 0,
        };
        for expression in expressions {
            lowering.collect_constants(expression);
        }
        lowering.first = environment.count() + lowering.tables.constants.len();
        lowering.registers = lowering.first;
        if lowering.first >= MAX_REGISTERS {
            return Err(format!(
                "the rules have more than {MAX_REGISTERS} names and constants; split the rule set"
            ));
        }
        Ok(lowering)
    }

    fn constant(&self, expression: &Typed) -> Option<Cell> {
        Some(match expression {
            Typed::Bool(value) => Cell::bool(*value),
            Typed::Int(value) => Cell::int(*value),
            Typed::Double(value) => Cell::double(*value),
            Typed::Text(text) => {
                let number = self.tables.texts.binary_search(text).unwrap_or(usize::MAX);
                Cell::known(number as u64)
            }
            Typed::Error(error, _) => Cell { bits: 0, state: *error as u8 },
            _ => return None,
        })
    }

    fn collect_constants(&mut self, expression: &Typed) {
        if let Some(cell) = self.constant(expression) {
            let next = self.environment.count() + self.tables.constants.len();
            let constants = &mut self.tables.constants;
            self.constants.entry((cell.bits, cell.state)).or_insert_with(|| {
                constants.push(cell);
                // Programs with more registers than a register number has values are refused afterwards.
                next as Register
            });
        }
        for child in expression.children() {
            self.collect_constants(child);
        }
    }

    /// Lowers one expression.
    pub(crate) fn lower(&mut self, expression: &Typed) -> Result<Code, TooLarge> {
        let start = self.instructions.len();
        self.used = self.first;
        let result = self.operand(expression, start)?;
        let length = self.instructions.len() - start;
        if length > usize::from(u16::MAX) {
            return Err("the expression has too many operations; split the rule".to_owned());
        }
        Ok(Code { start, length, result, kind: expression.kind() })
    }

    /// The register of a name or constant, or a new one with the result of an operation.
    fn operand(&mut self, expression: &Typed, start: usize) -> Result<Register, TooLarge> {
        if let Typed::Slot(slot, _) = expression {
            return Ok(slot.0);
        }
        if let Some(cell) = self.constant(expression) {
            return Ok(self.constants.get(&(cell.bits, cell.state)).copied().unwrap_or_default());
        }
        let to = self.temporary()?;
        self.into(expression, to, start)?;
        Ok(to)
    }

    fn temporary(&mut self) -> Result<Register, TooLarge> {
        let register = u16::try_from(self.used)
            .map_err(|_| "the rules need too many registers; split the rule set".to_owned())?;
        self.used += 1;
        self.registers = self.registers.max(self.used);
        Ok(register)
    }

    fn next(&self, start: usize) -> u16 {
        u16::try_from(self.instructions.len() - start).unwrap_or(u16::MAX)
    }

    /// Emits the instructions that write an expression's value into `to`. Registers of operands are free afterwards.
    fn into(&mut self, expression: &Typed, to: Register, start: usize) -> Result<(), TooLarge> {
        let free = self.used;
        let instruction = match expression {
            Typed::Bool(_)
            | Typed::Int(_)
            | Typed::Double(_)
            | Typed::Text(_)
            | Typed::Error(..)
            | Typed::Slot(..) => Instruction::Copy { to, a: self.operand(expression, start)? },
            Typed::Has(slot) => Instruction::Has { to, a: slot.0 },
            Typed::Not(a) => Instruction::Not { to, a: self.operand(a, start)? },
            Typed::Negate(operand) => {
                let a = self.operand(operand, start)?;
                match operand.kind() {
                    Type::Int => Instruction::NegateInt { to, a },
                    _ => Instruction::NegateDouble { to, a },
                }
            }
            Typed::Arithmetic(operation, left, right) => {
                let (a, b) = (self.operand(left, start)?, self.operand(right, start)?);
                arithmetic(*operation, left.kind(), to, a, b)
            }
            Typed::Relation(relation, left, right) => {
                let (a, b) = (self.operand(left, start)?, self.operand(right, start)?);
                compare(*relation, left.kind(), Goal::set(to), a, b)
            }
            Typed::And(terms) => return self.join(terms, to, start, false),
            Typed::Or(terms) => return self.join(terms, to, start, true),
            Typed::If(parts) => return self.choose(parts, to, start),
            Typed::InInts(value, ints) => {
                let a = self.operand(value, start)?;
                Instruction::InInts { goal: Goal::set(to), a, set: self.int_set(ints)? }
            }
            Typed::InDoubles(value, doubles) => {
                let a = self.operand(value, start)?;
                let bits = doubles.iter().map(|number| number.to_bits()).collect();
                let set = intern(&mut self.double_sets, bits, &mut self.tables.doubles, || {
                    doubles.clone().into_boxed_slice()
                })?;
                Instruction::InDoubles { goal: Goal::set(to), a, set }
            }
            Typed::InTexts(value, texts) if value.kind() == Type::Key => {
                let a = self.operand(value, start)?;
                let mut hashes: Vec<i64> = texts.iter().map(|text| self.key.text(text) as i64).collect();
                hashes.sort_unstable();
                Instruction::InInts { goal: Goal::set(to), a, set: self.int_set(&hashes)? }
            }
            Typed::InTexts(value, texts) => {
                let a = self.operand(value, start)?;
                Instruction::InTexts {
                    goal: Goal::set(to),
                    a,
                    set: self.bit_set(|text| texts.contains(text))?,
                }
            }
            Typed::TextTest(value, test) => {
                let a = self.operand(value, start)?;
                Instruction::TestText { goal: Goal::set(to), a, set: self.test_set(test)? }
            }
            Typed::TextSize(value) => Instruction::SizeText { to, a: self.operand(value, start)? },
            Typed::InList(value, list) => {
                let a = self.operand(value, start)?;
                match (self.environment.list_kind(*list), value.kind()) {
                    (ListKind::Int, _) => Instruction::ListInt { to, a, list: list.0 },
                    (ListKind::Text, Type::Key) => Instruction::ListKey { to, a, list: list.0 },
                    (ListKind::Text, _) => Instruction::ListText { to, a, list: list.0 },
                }
            }
            Typed::Call(function, operands) => {
                let mut of = [0; MAX_OPERANDS];
                for (register, operand) in of.iter_mut().zip(operands) {
                    *register = self.operand(operand, start)?;
                }
                let first = of[0];
                of.iter_mut().skip(operands.len()).for_each(|register| *register = first);
                Instruction::Call { to, of, function: *function }
            }
            Typed::CallDeclared(function, operands) => {
                let of = operands
                    .iter()
                    .map(|operand| self.operand(operand, start))
                    .collect::<Result<Box<[Register]>, _>>()?;
                let number = u16::try_from(self.tables.operands.len()).map_err(|_| {
                    format!(
                        "the rules call functions of the bundle more than {} times; split the set",
                        u16::MAX
                    )
                })?;
                self.tables.operands.push(of);
                Instruction::CallDeclared { to, of: number, function: *function }
            }
            Typed::ToInt(value) => Instruction::ToInt { to, a: self.operand(value, start)? },
            Typed::ToDouble(value) => Instruction::ToDouble { to, a: self.operand(value, start)? },
        };
        self.instructions.push(instruction);
        self.used = free;
        Ok(())
    }

    /// Conditions with `&&` or `||` between them: what is decided skips the rest.
    fn join(&mut self, terms: &[Typed], to: Register, start: usize, any: bool) -> Result<(), TooLarge> {
        let free = self.used;
        let mut jumps = Vec::new();
        for (at, term) in terms.iter().enumerate() {
            // Other terms may end at a place to which they jump, so only the last instruction of a test may join.
            if is_test(term) {
                self.into(term, to, start)?;
                let join = match (at, any) {
                    (0, false) => Join::FirstAnd,
                    (_, false) => Join::And,
                    (0, true) => Join::FirstOr,
                    (_, true) => Join::Or,
                };
                if let Some(goal) = self.instructions.last_mut().and_then(Instruction::goal) {
                    goal.join = join;
                }
                jumps.push(self.instructions.len() - 1);
                continue;
            }
            let instruction = if at == 0 {
                self.into(term, to, start)?;
                if any {
                    Instruction::IfTrue { a: to, end: 0 }
                } else {
                    Instruction::IfFalse { a: to, end: 0 }
                }
            } else {
                let a = self.operand(term, start)?;
                self.used = free;
                if any { Instruction::Or { to, a, end: 0 } } else { Instruction::And { to, a, end: 0 } }
            };
            jumps.push(self.instructions.len());
            self.instructions.push(instruction);
        }
        let target = self.next(start);
        for jump in jumps {
            self.set_target(jump, target);
        }
        Ok(())
    }

    fn choose(&mut self, parts: &[Typed; 3], to: Register, start: usize) -> Result<(), TooLarge> {
        let free = self.used;
        let a = self.operand(&parts[0], start)?;
        self.used = free;
        let require = self.instructions.len();
        self.instructions.push(Instruction::Require { to, a, end: 0 });
        let choice = self.instructions.len();
        self.instructions.push(Instruction::IfFalse { a, end: 0 });
        self.into(&parts[1], to, start)?;
        let skip = self.instructions.len();
        self.instructions.push(Instruction::Go { end: 0 });
        self.set_target(choice, self.next(start));
        self.into(&parts[2], to, start)?;
        let end = self.next(start);
        self.set_target(require, end);
        self.set_target(skip, end);
        Ok(())
    }

    fn set_target(&mut self, at: usize, target: u16) {
        match &mut self.instructions[at] {
            Instruction::And { end, .. }
            | Instruction::Or { end, .. }
            | Instruction::IfFalse { end, .. }
            | Instruction::IfTrue { end, .. }
            | Instruction::Require { end, .. }
            | Instruction::Go { end } => *end = target,
            test => {
                if let Some(goal) = test.goal() {
                    goal.end = target;
                }
            }
        }
    }

    fn int_set(&mut self, ints: &[i64]) -> Result<u16, TooLarge> {
        intern(&mut self.int_sets, ints.to_vec(), &mut self.tables.ints, || ints.into())
    }

    fn bit_set(&mut self, holds: impl Fn(&str) -> bool) -> Result<u16, TooLarge> {
        let mut bits = vec![0_u64; self.tables.texts.len().div_ceil(64)].into_boxed_slice();
        for (number, text) in self.tables.texts.iter().enumerate() {
            if holds(text) {
                bits[number / 64] |= 1 << (number % 64);
            }
        }
        intern(&mut self.bit_sets, bits.clone(), &mut self.tables.bits, || bits)
    }

    fn test_set(&mut self, test: &TextTest) -> Result<u16, TooLarge> {
        self.bit_set(|text| test.holds(text))
    }
}

/// Whether the last instruction of a term is a test, which can be joined to the terms before it.
fn is_test(term: &Typed) -> bool {
    matches!(
        term,
        Typed::Relation(..)
            | Typed::InInts(..)
            | Typed::InDoubles(..)
            | Typed::InTexts(..)
            | Typed::TextTest(..)
    )
}

/// Returns the number of an equal set, or adds one.
fn intern<K: std::hash::Hash + Eq, V>(
    known: &mut HashMap<K, u16>,
    key: K,
    sets: &mut Vec<V>,
    make: impl FnOnce() -> V,
) -> Result<u16, TooLarge> {
    if let Some(set) = known.get(&key) {
        return Ok(*set);
    }
    let number = u16::try_from(sets.len())
        .map_err(|_| format!("the rules have more than {} literal lists; use named lists", u16::MAX))?;
    sets.push(make());
    known.insert(key, number);
    Ok(number)
}

fn collect_texts<'a>(expression: &'a Typed, texts: &mut BTreeSet<&'a str>) {
    match expression {
        Typed::Text(text) => drop(texts.insert(text)),
        // A key is compared by hash.
        Typed::InTexts(value, elements) if value.kind() == Type::Text => {
            texts.extend(elements.iter().map(String::as_str));
        }
        _ => {}
    }
    for child in expression.children() {
        collect_texts(child, texts);
    }
}

fn arithmetic(operation: Arithmetic, kind: Type, to: Register, a: Register, b: Register) -> Instruction {
    match (kind, operation) {
        (Type::Int, Arithmetic::Add) => Instruction::AddInt { to, a, b },
        (Type::Int, Arithmetic::Subtract) => Instruction::SubtractInt { to, a, b },
        (Type::Int, Arithmetic::Multiply) => Instruction::MultiplyInt { to, a, b },
        (Type::Int, Arithmetic::Divide) => Instruction::DivideInt { to, a, b },
        (_, Arithmetic::Remainder) => Instruction::RemainderInt { to, a, b },
        (_, Arithmetic::Add) => Instruction::AddDouble { to, a, b },
        (_, Arithmetic::Subtract) => Instruction::SubtractDouble { to, a, b },
        (_, Arithmetic::Multiply) => Instruction::MultiplyDouble { to, a, b },
        (_, Arithmetic::Divide) => Instruction::DivideDouble { to, a, b },
    }
}

fn compare(relation: Relation, kind: Type, goal: Goal, a: Register, b: Register) -> Instruction {
    match (kind, relation) {
        (Type::Double, Relation::Equal) => Instruction::EqualDouble { goal, a, b },
        (Type::Double, Relation::NotEqual) => Instruction::NotEqualDouble { goal, a, b },
        (Type::Double, Relation::Less) => Instruction::LessDouble { goal, a, b },
        (Type::Double, Relation::LessEqual) => Instruction::LessEqualDouble { goal, a, b },
        (Type::Text, Relation::Equal) => Instruction::EqualText { goal, a, b },
        (Type::Text, Relation::NotEqual) => Instruction::NotEqualText { goal, a, b },
        (Type::Text, Relation::Less) => Instruction::LessText { goal, a, b },
        (Type::Text, Relation::LessEqual) => Instruction::LessEqualText { goal, a, b },
        (_, Relation::Equal) => Instruction::EqualBits { goal, a, b },
        (_, Relation::NotEqual) => Instruction::NotEqualBits { goal, a, b },
        (_, Relation::Less) => Instruction::LessInt { goal, a, b },
        (_, Relation::LessEqual) => Instruction::LessEqualInt { goal, a, b },
    }
}
