//! Compiled expressions and the memory in which they run.

use crate::block::{Block, ROWS};
use crate::check::{Typed, check};
use crate::code::{Cell, Instruction, OTHER, Register, UNKNOWN};
use crate::custom::Calling;
use crate::environment::{Environment, Slot, Type};
use crate::fault::{Fault, Problem};
use crate::limits::{MAX_CALL_WORK, MAX_EXPRESSIONS};
use crate::lists::{ListKey, Lists};
use crate::lower::{Code, Lowering, Tables};
use crate::machine::run;
use crate::parser::parse;
use crate::value::{ErrorKind, Outcome, Value};

/// The source of one expression.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The name that messages give it, such as the rule's id.
    pub rule: &'a str,
    /// The expression.
    pub text: &'a str,
}

/// Compiled expressions over one environment.
#[derive(Debug)]
pub struct Program {
    environment: Environment,
    key: ListKey,
    tables: Tables,
    instructions: Vec<Instruction>,
    codes: Vec<Code>,
    registers: usize,
    /// For each declared function whether an expression calls it.
    calls: Box<[bool]>,
}

/// The values of one request, and memory for intermediate results. It is made once and used for many requests.
#[derive(Debug, Clone)]
pub struct Scratch {
    pub(crate) cells: Vec<Cell>,
    slots: usize,
    pub(crate) calls: Calling,
}

impl Program {
    /// Compiles expressions.
    ///
    /// # Errors
    /// Fails with the faults of all expressions.
    pub fn compile(
        environment: &Environment,
        key: ListKey,
        sources: &[Source<'_>],
    ) -> Result<Program, Vec<Fault>> {
        if sources.len() > MAX_EXPRESSIONS {
            let text = format!("there are more than {MAX_EXPRESSIONS} expressions; split the rule set");
            return Err(vec![Problem::new(0, text).locate("", "")]);
        }
        let mut expressions = Vec::with_capacity(sources.len());
        let mut faults = Vec::new();
        for source in sources {
            match parse(source.text).and_then(|parsed| check(&parsed, environment)) {
                Ok(expression) => expressions.push(expression),
                Err(problem) => faults.push(problem.locate(source.rule, source.text)),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let names: Vec<&str> = sources.iter().map(|source| source.rule).collect();
        Program::lower(environment, key, &names, &expressions).map_err(|fault| vec![fault])
    }

    /// Lowers checked expressions.
    pub(crate) fn lower(
        environment: &Environment,
        key: ListKey,
        rules: &[&str],
        expressions: &[Typed],
    ) -> Result<Program, Fault> {
        let whole = |text: String| Problem::new(0, text).locate("", "");
        let mut lowering = Lowering::new(environment, key, expressions).map_err(whole)?;
        let mut codes = Vec::with_capacity(expressions.len());
        for (rule, expression) in rules.iter().zip(expressions) {
            let code = lowering.lower(expression).map_err(|text| Problem::new(0, text).locate(rule, ""))?;
            codes.push(code);
        }
        let specs = environment.functions();
        let mut calls = vec![false; specs.len()].into_boxed_slice();
        let mut work = 0_u64;
        for instruction in &lowering.instructions {
            if let Instruction::CallDeclared { function, .. } = instruction {
                calls[usize::from(*function)] = true;
                work = work.saturating_add(specs[usize::from(*function)].work);
            }
        }
        if work > MAX_CALL_WORK {
            return Err(whole(format!(
                "the calls of functions of the bundle may take {work} instructions together, more than {MAX_CALL_WORK}; lower their fuel, or compute a call that several rules need as one of [[values]]"
            )));
        }
        Ok(Program {
            calls,
            environment: environment.clone(),
            key,
            registers: lowering.registers,
            instructions: lowering.instructions,
            tables: lowering.tables,
            codes,
        })
    }

    /// The environment that the program was compiled with.
    #[must_use]
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Number of expressions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.codes.len()
    }

    /// Whether there are no expressions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    /// The greatest number of instructions that evaluating an expression can take.
    #[must_use]
    pub fn steps(&self, expression: usize) -> usize {
        self.codes.get(expression).map_or(0, |code| code.length)
    }

    /// The type of an expression's value.
    #[must_use]
    pub fn kind(&self, expression: usize) -> Option<Type> {
        self.codes.get(expression).map(|code| code.kind)
    }

    /// Makes the memory for evaluations; all values are missing.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        let slots = self.environment.count();
        let mut cells = vec![Cell::MISSING; self.registers.max(1)];
        cells[slots..slots + self.tables.constants.len()].copy_from_slice(&self.tables.constants);
        Scratch { cells, slots, calls: self.calling(1) }
    }

    /// The memory of the declared functions that expressions call, for a number of requests.
    fn calling(&self, requests: usize) -> Calling {
        let functions = self.environment.declared().functions.as_ref();
        let used = functions.filter(|_| self.calls.contains(&true));
        Calling::new(used.map(|functions| functions.start(&self.calls)), requests)
    }

    /// The number of a string for [`Scratch::set_text`]; `None` for one outside the vocabulary.
    #[must_use]
    pub fn text_id(&self, text: &str) -> Option<TextId> {
        let number = self.tables.texts.binary_search_by(|known| known.as_str().cmp(text)).ok()?;
        u32::try_from(number).ok().map(TextId)
    }

    /// Evaluates an expression on the values of `scratch`. It allocates nothing.
    ///
    /// `scratch` must be of this program; otherwise the result is unknown.
    pub fn evaluate(&self, expression: usize, scratch: &mut Scratch, lists: &Lists) -> Outcome<Value<'_>> {
        let Some(code) = self.codes.get(expression) else { return Outcome::Unknown };
        if !self.fits(scratch) {
            return Outcome::Unknown;
        }
        let cell = self.cell(*code, scratch, self.checked(lists));
        match cell.state {
            0 => Outcome::Known(match code.kind {
                Type::Bool => Value::Bool(cell.bits == 1),
                Type::Int => Value::Int(cell.bits as i64),
                Type::Double => Value::Double(f64::from_bits(cell.bits)),
                Type::Text => Value::Text(self.tables.texts.get(cell.bits as usize).map(String::as_str)),
                Type::Key => Value::Key(cell.bits),
            }),
            UNKNOWN => Outcome::Unknown,
            error => Outcome::Error(ErrorKind::from_state(error)),
        }
    }

    /// Whether the memory has a place for every register.
    pub(crate) fn fits(&self, scratch: &Scratch) -> bool {
        scratch.cells.len() >= self.registers
    }

    /// The lists, if their hashes have the program's key.
    #[inline]
    pub(crate) fn checked<'a>(&self, lists: &'a Lists) -> Option<&'a Lists> {
        (lists.key() == self.key).then_some(lists)
    }

    /// Evaluates the expression number `expression`, which exists, in a scratch of this program.
    #[inline]
    pub(crate) fn run(&self, expression: usize, scratch: &mut Scratch, lists: Option<&Lists>) -> Cell {
        self.cell(self.codes[expression], scratch, lists)
    }

    #[inline]
    fn cell(&self, code: Code, scratch: &mut Scratch, lists: Option<&Lists>) -> Cell {
        let instructions = &self.instructions[code.start..code.start + code.length];
        run(instructions, &mut scratch.cells[..], &self.tables, lists, &mut scratch.calls);
        scratch.cells[usize::from(code.result)]
    }

    /// Makes the memory for evaluations of several requests at a time.
    pub(crate) fn block(&self) -> Block {
        let longest = self.codes.iter().map(|code| code.length).max().unwrap_or(0);
        let bools = self.environment.names().map(|(_, kind)| kind == Type::Bool);
        Block::new(bools, &self.tables.constants, self.registers, longest, self.calling(ROWS))
    }

    /// Evaluates the expression number `expression`, which exists, on the active rows of a block of this program. Returns
    /// the register of the results.
    pub(crate) fn run_block(&self, expression: usize, block: &mut Block, lists: Option<&Lists>) -> Register {
        let code = self.codes[expression];
        let instructions = &self.instructions[code.start..code.start + code.length];
        let mut calls = std::mem::take(&mut block.calls);
        run(instructions, block, &self.tables, lists, &mut calls);
        block.calls = calls;
        code.result
    }
}

/// The number of a string of a program's vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextId(u32);

impl Scratch {
    /// Makes all values missing.
    pub fn clear(&mut self) {
        self.cells[..self.slots].fill(Cell::MISSING);
    }

    /// Makes one value missing.
    pub fn set_missing(&mut self, slot: Slot) {
        self.set(slot, Cell::MISSING);
    }

    /// Passes the number of failed calls of each declared function since the last time, if there were some.
    pub fn take_faults(&mut self, mut each: impl FnMut(usize, u64)) {
        self.calls.take_faults(&mut each);
    }

    /// Sets a bool.
    pub fn set_bool(&mut self, slot: Slot, value: bool) {
        self.set(slot, Cell::bool(value));
    }

    /// Sets an int.
    pub fn set_int(&mut self, slot: Slot, value: i64) {
        self.set(slot, Cell::int(value));
    }

    /// Sets a double; NaN means that it is missing.
    pub fn set_double(&mut self, slot: Slot, value: f64) {
        self.set(slot, if value.is_nan() { Cell::MISSING } else { Cell::double(value) });
    }

    /// Sets a string by its number in the program; `None` is a string outside the vocabulary.
    pub fn set_text(&mut self, slot: Slot, text: Option<TextId>) {
        self.set(slot, Cell::known(text.map_or(OTHER, |text| u64::from(text.0))));
    }

    /// Sets a key to the hash that [`ListKey::text`] gives.
    pub fn set_key(&mut self, slot: Slot, hash: u64) {
        self.set(slot, Cell::known(hash));
    }

    /// The values of the names, in the order of their slots.
    pub(crate) fn names(&self) -> &[Cell] {
        &self.cells[..self.slots]
    }

    pub(crate) fn set(&mut self, slot: Slot, cell: Cell) {
        let slot = usize::from(slot.0);
        if slot < self.slots {
            self.cells[slot] = cell;
        }
    }
}
