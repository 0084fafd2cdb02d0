//! Checks types and names, expands macros and computes what does not depend on the request.

use std::collections::BTreeSet;

use crate::environment::{Environment, ListId, ListKind, Slot, Type};
use crate::fault::{Problem, nearest};
use crate::functions::{Function, MAX_OPERANDS};
use crate::limits::{MAX_NODES, MAX_REGEX_BYTES, MAX_TEXT};
use crate::parser::{Expr, ExprKind, Operator};
use crate::value::{Arithmetic, ErrorKind, Relation, double, int, truncate};

/// A checked expression. Operands are in the order of the source.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Typed {
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
    /// A constant expression without value, such as `1 / 0`.
    Error(ErrorKind, Type),
    Slot(Slot, Type),
    Has(Slot),
    Not(Box<Typed>),
    Negate(Box<Typed>),
    Arithmetic(Arithmetic, Box<Typed>, Box<Typed>),
    /// Both operands have the same type.
    Relation(Relation, Box<Typed>, Box<Typed>),
    And(Vec<Typed>),
    Or(Vec<Typed>),
    If(Box<[Typed; 3]>),
    InInts(Box<Typed>, Vec<i64>),
    InDoubles(Box<Typed>, Vec<f64>),
    InTexts(Box<Typed>, BTreeSet<String>),
    InList(Box<Typed>, ListId),
    TextTest(Box<Typed>, TextTest),
    TextSize(Box<Typed>),
    ToInt(Box<Typed>),
    ToDouble(Box<Typed>),
    /// A function of doubles.
    Call(Function, Vec<Typed>),
    /// A declared function of doubles, by its position.
    CallDeclared(u16, Vec<Typed>),
}

/// A test of a string that is evaluated on all known strings when rules are compiled.
#[derive(Debug, Clone)]
pub(crate) enum TextTest {
    StartsWith(String),
    EndsWith(String),
    Contains(String),
    Matches(regex::Regex),
}

impl PartialEq for TextTest {
    fn eq(&self, other: &TextTest) -> bool {
        self.parts() == other.parts()
    }
}

impl TextTest {
    fn parts(&self) -> (u8, &str) {
        match self {
            TextTest::StartsWith(part) => (0, part),
            TextTest::EndsWith(part) => (1, part),
            TextTest::Contains(part) => (2, part),
            TextTest::Matches(pattern) => (3, pattern.as_str()),
        }
    }

    pub(crate) fn holds(&self, text: &str) -> bool {
        match self {
            TextTest::StartsWith(part) => text.starts_with(part),
            TextTest::EndsWith(part) => text.ends_with(part),
            TextTest::Contains(part) => text.contains(part),
            TextTest::Matches(pattern) => pattern.is_match(text),
        }
    }
}

impl Typed {
    pub(crate) fn kind(&self) -> Type {
        match self {
            Typed::Bool(_)
            | Typed::Has(_)
            | Typed::Not(_)
            | Typed::Relation(..)
            | Typed::And(_)
            | Typed::Or(_)
            | Typed::InInts(..)
            | Typed::InDoubles(..)
            | Typed::InTexts(..)
            | Typed::InList(..)
            | Typed::TextTest(..) => Type::Bool,
            Typed::Int(_) | Typed::TextSize(_) | Typed::ToInt(_) => Type::Int,
            Typed::Double(_) | Typed::ToDouble(_) | Typed::Call(..) | Typed::CallDeclared(..) => Type::Double,
            Typed::Text(_) => Type::Text,
            Typed::Error(_, kind) | Typed::Slot(_, kind) => *kind,
            Typed::Negate(operand) | Typed::Arithmetic(_, operand, _) => operand.kind(),
            Typed::If(parts) => parts[1].kind(),
        }
    }

    fn error(&self) -> Option<ErrorKind> {
        match self {
            Typed::Error(error, _) => Some(*error),
            _ => None,
        }
    }

    pub(crate) fn is_constant(&self) -> bool {
        matches!(self, Typed::Bool(_) | Typed::Int(_) | Typed::Double(_) | Typed::Text(_) | Typed::Error(..))
    }

    /// The operands.
    pub(crate) fn children(&self) -> Vec<&Typed> {
        match self {
            Typed::Bool(_)
            | Typed::Int(_)
            | Typed::Double(_)
            | Typed::Text(_)
            | Typed::Error(..)
            | Typed::Slot(..)
            | Typed::Has(_) => Vec::new(),
            Typed::Not(a)
            | Typed::Negate(a)
            | Typed::InInts(a, _)
            | Typed::InDoubles(a, _)
            | Typed::InTexts(a, _)
            | Typed::InList(a, _)
            | Typed::TextTest(a, _)
            | Typed::TextSize(a)
            | Typed::ToInt(a)
            | Typed::ToDouble(a) => vec![a],
            Typed::Arithmetic(_, a, b) | Typed::Relation(_, a, b) => vec![a, b],
            Typed::And(terms) | Typed::Or(terms) | Typed::Call(_, terms) | Typed::CallDeclared(_, terms) => {
                terms.iter().collect()
            }
            Typed::If(parts) => parts.iter().collect(),
        }
    }

    /// An error that evaluating the expression can reach without a value of the request being the cause.
    pub(crate) fn any_error(&self) -> Option<ErrorKind> {
        self.error().or_else(|| self.children().into_iter().find_map(Typed::any_error))
    }
}

/// Checks an expression.
pub(crate) fn check(expression: &Expr, environment: &Environment) -> Result<Typed, Problem> {
    Checker { environment, bound: Vec::new(), nodes: 0 }.check(expression)
}

struct Checker<'a> {
    environment: &'a Environment,
    /// The variables of macros and their values, the innermost last.
    bound: Vec<(&'a str, &'a Expr)>,
    nodes: usize,
}

impl<'a> Checker<'a> {
    fn check(&mut self, expression: &'a Expr) -> Result<Typed, Problem> {
        let at = expression.at;
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(Problem::new(
                at,
                format!(
                    "the expression has more than {MAX_NODES} parts after macros are expanded; split the rule"
                ),
            ));
        }
        match &expression.kind {
            ExprKind::Null => Err(Problem::new(
                at,
                "null can only be compared with a name, by == or !=; test a missing value with !has(name)",
            )),
            ExprKind::Bool(value) => Ok(Typed::Bool(*value)),
            ExprKind::Int(value) => Ok(Typed::Int(*value)),
            ExprKind::Double(value) => Ok(Typed::Double(*value)),
            ExprKind::Text(value) => Ok(Typed::Text(value.clone())),
            ExprKind::Name(name) => self.name(at, name),
            ExprKind::List(_) => Err(Problem::new(
                at,
                "a list can only be used with in, size(), exists(), all() and exists_one(); use one of them",
            )),
            ExprKind::Not(operand) => {
                let operand = self.typed(operand, Type::Bool, "!")?;
                Ok(not(operand))
            }
            ExprKind::Negate(operand) => {
                let operand = self.check(operand)?;
                match operand {
                    Typed::Int(value) => Ok(value
                        .checked_neg()
                        .map_or(Typed::Error(ErrorKind::Overflow, Type::Int), Typed::Int)),
                    Typed::Double(value) => Ok(Typed::Double(-value)),
                    Typed::Error(..) => Ok(operand),
                    _ if matches!(operand.kind(), Type::Int | Type::Double) => {
                        Ok(Typed::Negate(Box::new(operand)))
                    }
                    _ => Err(Problem::new(
                        at,
                        format!("- has no overload for {}; negate a number", operand.kind()),
                    )),
                }
            }
            ExprKind::Binary(Operator::In, left, right) => self.membership(at, left, right),
            ExprKind::Binary(operator, left, right) => self.binary(at, *operator, left, right),
            ExprKind::And(terms) => {
                let terms = self.terms(terms, "&&")?;
                Ok(join(terms, false))
            }
            ExprKind::Or(terms) => {
                let terms = self.terms(terms, "||")?;
                Ok(join(terms, true))
            }
            ExprKind::If(parts) => self.choice(at, &parts[0], &parts[1], &parts[2]),
            ExprKind::Call { target, name, arguments } => self.call(at, target.as_deref(), name, arguments),
        }
    }

    fn name(&mut self, at: usize, name: &str) -> Result<Typed, Problem> {
        if let Some(depth) = self.bound.iter().rposition(|(variable, _)| *variable == name) {
            let element = self.bound[depth].1;
            // Elements are literals, so variables of macros do not matter in them.
            return self.check(element);
        }
        let slot = self.slot(at, name)?;
        Ok(Typed::Slot(slot, self.environment.kind(slot)))
    }

    fn slot(&self, at: usize, name: &str) -> Result<Slot, Problem> {
        self.environment.slot(name).ok_or_else(|| {
            let near = nearest(name, self.environment.names().map(|(known, _)| known));
            Problem::new(at, format!("unknown name {name:?}{near}; correct or declare it"))
        })
    }

    fn typed(&mut self, expression: &'a Expr, wanted: Type, user: &str) -> Result<Typed, Problem> {
        let typed = self.check(expression)?;
        if typed.kind() == wanted {
            return Ok(typed);
        }
        let problem = format!("{user} needs {wanted} and not {}; correct the operand", typed.kind());
        Err(Problem::new(expression.at, problem))
    }

    fn terms(&mut self, terms: &'a [Expr], user: &str) -> Result<Vec<Typed>, Problem> {
        terms.iter().map(|term| self.typed(term, Type::Bool, user)).collect()
    }

    fn choice(
        &mut self,
        at: usize,
        condition: &'a Expr,
        yes: &'a Expr,
        no: &'a Expr,
    ) -> Result<Typed, Problem> {
        let condition = self.typed(condition, Type::Bool, "the condition of ?:")?;
        let (yes, no) = (self.check(yes)?, self.check(no)?);
        if yes.kind() != no.kind() {
            return Err(Problem::new(
                at,
                format!("?: has values of types {} and {}; give both the same type", yes.kind(), no.kind()),
            ));
        }
        Ok(match condition {
            Typed::Bool(true) => yes,
            Typed::Bool(false) => no,
            Typed::Error(error, _) => Typed::Error(error, yes.kind()),
            _ => Typed::If(Box::new([condition, yes, no])),
        })
    }

    fn binary(
        &mut self,
        at: usize,
        operator: Operator,
        left: &'a Expr,
        right: &'a Expr,
    ) -> Result<Typed, Problem> {
        if matches!(operator, Operator::Equal | Operator::NotEqual) {
            match (&left.kind, &right.kind) {
                (ExprKind::Null, ExprKind::Null) => return Ok(Typed::Bool(operator == Operator::Equal)),
                (ExprKind::Null, _) => return self.missing(right, operator),
                (_, ExprKind::Null) => return self.missing(left, operator),
                _ => {}
            }
        }
        let (left, right) = (self.check(left)?, self.check(right)?);
        match operator {
            Operator::Add => arithmetic(at, Arithmetic::Add, left, right),
            Operator::Subtract => arithmetic(at, Arithmetic::Subtract, left, right),
            Operator::Multiply => arithmetic(at, Arithmetic::Multiply, left, right),
            Operator::Divide => arithmetic(at, Arithmetic::Divide, left, right),
            Operator::Remainder => arithmetic(at, Arithmetic::Remainder, left, right),
            Operator::Equal => relation(at, operator, Relation::Equal, left, right),
            Operator::NotEqual => relation(at, operator, Relation::NotEqual, left, right),
            Operator::Less => relation(at, operator, Relation::Less, left, right),
            Operator::LessEqual => relation(at, operator, Relation::LessEqual, left, right),
            Operator::Greater => relation(at, operator, Relation::Less, right, left),
            Operator::GreaterEqual => relation(at, operator, Relation::LessEqual, right, left),
            Operator::In => Err(Problem::new(at, "in needs a list on its right; write one")),
        }
    }

    /// `name == null` is `!has(name)`.
    fn missing(&mut self, operand: &'a Expr, operator: Operator) -> Result<Typed, Problem> {
        let ExprKind::Name(name) = &operand.kind else {
            return Err(Problem::new(
                operand.at,
                "null can only be compared with a name; remove the comparison",
            ));
        };
        let slot = self.slot(operand.at, name)?;
        let has = Typed::Has(slot);
        Ok(if operator == Operator::Equal { not(has) } else { has })
    }

    fn membership(&mut self, at: usize, left: &'a Expr, right: &'a Expr) -> Result<Typed, Problem> {
        let value = self.check(left)?;
        let elements = match &right.kind {
            ExprKind::List(elements) => elements,
            ExprKind::Call { target: None, name, arguments } if name == "list" => {
                return self.named_list(at, value, right.at, arguments);
            }
            _ => {
                return Err(Problem::new(
                    right.at,
                    "in needs a list literal or list(\"name\") on its right; write one of them",
                ));
            }
        };
        let (mut ints, mut doubles, mut texts) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut error = None;
        for element in elements {
            let typed = self.check(element)?;
            let fits = matches!(
                (value.kind(), typed.kind()),
                (Type::Int | Type::Double, Type::Int | Type::Double) | (Type::Text | Type::Key, Type::Text)
            );
            if !fits {
                return Err(Problem::new(
                    element.at,
                    format!("in compares {} with {}; give both the same type", value.kind(), typed.kind()),
                ));
            }
            match typed {
                Typed::Int(number) => ints.push(number),
                Typed::Double(number) => doubles.push(number),
                Typed::Text(text) => drop(texts.insert(text)),
                Typed::Error(kind, _) => error = error.max(Some(kind)),
                _ => {
                    return Err(Problem::new(
                        element.at,
                        "elements of a list after in must be constant; compare the name with || between comparisons",
                    ));
                }
            }
        }
        if let Some(error) = error.max(value.error()) {
            return Ok(Typed::Error(error, Type::Bool));
        }
        Ok(match value.kind() {
            Type::Int => {
                let in_doubles = |value| in_doubles(to_double(value), doubles.clone());
                match (ints.is_empty(), doubles.is_empty()) {
                    (true, false) => in_doubles(value),
                    (false, false) => join(vec![in_ints(value.clone(), ints), in_doubles(value)], true),
                    (_, true) => in_ints(value, ints),
                }
            }
            Type::Double => {
                doubles.extend(ints.iter().map(|number| *number as f64));
                in_doubles(value, doubles)
            }
            _ => match value {
                Typed::Text(text) => Typed::Bool(texts.contains(&text)),
                value => Typed::InTexts(Box::new(value), texts),
            },
        })
    }

    fn named_list(
        &mut self,
        at: usize,
        value: Typed,
        list: usize,
        arguments: &'a [Expr],
    ) -> Result<Typed, Problem> {
        let [Expr { kind: ExprKind::Text(name), .. }] = arguments else {
            return Err(Problem::new(list, "list() needs one string literal, the list's name; correct it"));
        };
        let id = self.environment.list(name).ok_or_else(|| {
            let near = nearest(name, self.environment.list_names());
            Problem::new(list, format!("unknown list {name:?}{near}; correct or declare it"))
        })?;
        match (self.environment.list_kind(id), value.kind()) {
            (ListKind::Text, Type::Text | Type::Key) | (ListKind::Int, Type::Int) => {
                if let Typed::Error(error, _) = value {
                    return Ok(Typed::Error(error, Type::Bool));
                }
                Ok(Typed::InList(Box::new(value), id))
            }
            (ListKind::Int, Type::Double) => Err(Problem::new(
                at,
                format!("list {name:?} has integers and the value is a double; convert it with int()"),
            )),
            (kind, found) => {
                let holds = if kind == ListKind::Text { "strings" } else { "integers" };
                Err(Problem::new(
                    at,
                    format!("list {name:?} has {holds} and the value is {found}; correct it"),
                ))
            }
        }
    }

    fn call(
        &mut self,
        at: usize,
        target: Option<&'a Expr>,
        name: &str,
        arguments: &'a [Expr],
    ) -> Result<Typed, Problem> {
        match (target, name, arguments) {
            (None, "has", [argument]) => match &argument.kind {
                ExprKind::Name(name) => Ok(Typed::Has(self.slot(argument.at, name)?)),
                _ => Err(Problem::new(argument.at, "has() needs a name; write has(name)")),
            },
            (None, "size", [value]) | (Some(value), "size", []) => self.size(value),
            (None, "int", [value]) => {
                let value = self.check(value)?;
                match (value.kind(), &value) {
                    (Type::Int, _) => Ok(value),
                    (Type::Double, Typed::Double(number)) => {
                        Ok(truncate(*number).map_or_else(|error| Typed::Error(error, Type::Int), Typed::Int))
                    }
                    (Type::Double, Typed::Error(error, _)) => Ok(Typed::Error(*error, Type::Int)),
                    (Type::Double, _) => Ok(Typed::ToInt(Box::new(value))),
                    (kind, _) => {
                        Err(Problem::new(at, format!("int() has no overload for {kind}; pass a double")))
                    }
                }
            }
            (None, "double", [value]) => {
                let value = self.check(value)?;
                match value.kind() {
                    Type::Double => Ok(value),
                    Type::Int => Ok(to_double(value)),
                    kind => {
                        Err(Problem::new(at, format!("double() has no overload for {kind}; pass an int")))
                    }
                }
            }
            (Some(target), "startsWith" | "endsWith" | "contains" | "matches", [argument]) => {
                self.text_test(at, target, name, argument)
            }
            (None, "matches", [target, argument]) => self.text_test(at, target, name, argument),
            (Some(list), "exists" | "all" | "exists_one" | "existsOne", [variable, condition]) => {
                self.macro_(at, list, name, variable, condition)
            }
            (None, "list", _) => {
                Err(Problem::new(at, "list() can only be used after in; write value in list(\"name\")"))
            }
            (None, name, arguments) => match Function::named(name) {
                Some((function, operands)) => self.function(at, name, function, operands, arguments),
                None => match self.environment.declared().named(name) {
                    Some((function, spec)) => {
                        let names: Vec<&str> = spec.operands.iter().map(String::as_str).collect();
                        Ok(Typed::CallDeclared(function, self.operands(at, name, &names, arguments)?))
                    }
                    None => Err(Problem::new(at, self.unsupported(name))),
                },
            },
            _ => Err(Problem::new(at, self.unsupported(name))),
        }
    }

    /// A call of a function of doubles.
    fn function(
        &mut self,
        at: usize,
        name: &str,
        function: Function,
        operands: &[&str],
        arguments: &'a [Expr],
    ) -> Result<Typed, Problem> {
        let checked = self.operands(at, name, operands, arguments)?;
        let result = match constants(&checked) {
            Some(operands) => operands
                .and_then(|operands| function.apply(operands))
                .map_or_else(|error| Typed::Error(error, Type::Double), Typed::Double),
            None => Typed::Call(function, checked),
        };
        if function.is_test() {
            return relation(at, Operator::Equal, Relation::Equal, result, Typed::Double(1.0));
        }
        Ok(result)
    }

    /// The operands of a function of doubles.
    fn operands(
        &mut self,
        at: usize,
        name: &str,
        operands: &[&str],
        arguments: &'a [Expr],
    ) -> Result<Vec<Typed>, Problem> {
        if arguments.len() != operands.len() {
            let found = arguments.len();
            let form = operands.join(", ");
            return Err(Problem::new(
                at,
                format!("{name}() takes {} arguments and not {found}; write {name}({form})", operands.len()),
            ));
        }
        let mut checked = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let typed = self.check(argument)?;
            if typed.kind() != Type::Double {
                let remedy = match typed.kind() {
                    Type::Int => "write the literal as a double, such as 2.0, or convert with double()",
                    _ => "correct the argument",
                };
                let problem = format!("{name}() needs double and not {}; {remedy}", typed.kind());
                return Err(Problem::new(argument.at, problem));
            }
            checked.push(typed);
        }
        Ok(checked)
    }

    /// The message for a function that there is not.
    fn unsupported(&self, name: &str) -> String {
        let declared = self.environment.functions().iter().map(|spec| spec.name.as_str());
        unsupported(name, declared)
    }

    fn size(&mut self, value: &'a Expr) -> Result<Typed, Problem> {
        if let ExprKind::List(elements) = &value.kind {
            let mut error = None;
            for element in elements {
                if let Ok(Typed::Error(kind, _)) = self.check(element) {
                    error = error.max(Some(kind));
                }
            }
            let length = i64::try_from(elements.len()).unwrap_or(i64::MAX);
            return Ok(error.map_or(Typed::Int(length), |error| Typed::Error(error, Type::Int)));
        }
        Ok(match self.typed(value, Type::Text, "size()")? {
            Typed::Text(text) => Typed::Int(length(&text)),
            Typed::Error(error, _) => Typed::Error(error, Type::Int),
            text => Typed::TextSize(Box::new(text)),
        })
    }

    fn text_test(
        &mut self,
        at: usize,
        target: &'a Expr,
        name: &str,
        argument: &'a Expr,
    ) -> Result<Typed, Problem> {
        let target = self.typed(target, Type::Text, name)?;
        let part = match self.typed(argument, Type::Text, name)? {
            Typed::Text(part) => part,
            Typed::Error(error, _) => return Ok(Typed::Error(error, Type::Bool)),
            _ => {
                return Err(Problem::new(
                    argument.at,
                    format!("the argument of {name}() must be constant; write a string literal"),
                ));
            }
        };
        let test = match name {
            "startsWith" => TextTest::StartsWith(part),
            "endsWith" => TextTest::EndsWith(part),
            "contains" => TextTest::Contains(part),
            _ => TextTest::Matches(
                regex::RegexBuilder::new(&part)
                    .size_limit(MAX_REGEX_BYTES)
                    .dfa_size_limit(MAX_REGEX_BYTES)
                    .nest_limit(64)
                    .build()
                    .map_err(|error| {
                        let reason = error.to_string();
                        let reason = reason.lines().last().unwrap_or_default().trim();
                        Problem::new(
                            at,
                            format!("the pattern of matches() is refused ({reason}); correct it"),
                        )
                    })?,
            ),
        };
        Ok(match target {
            Typed::Text(text) => Typed::Bool(test.holds(&text)),
            Typed::Error(error, _) => Typed::Error(error, Type::Bool),
            target => Typed::TextTest(Box::new(target), test),
        })
    }

    /// Expands a macro over the elements of a list literal.
    fn macro_(
        &mut self,
        at: usize,
        list: &'a Expr,
        name: &str,
        variable: &'a Expr,
        condition: &'a Expr,
    ) -> Result<Typed, Problem> {
        let ExprKind::List(elements) = &list.kind else {
            return Err(Problem::new(at, format!("{name}() needs a list literal before the dot; write one")));
        };
        let ExprKind::Name(variable) = &variable.kind else {
            return Err(Problem::new(
                variable.at,
                format!("the first argument of {name}() is a name; write one"),
            ));
        };
        let mut terms = Vec::new();
        for element in elements {
            let constant = match &element.kind {
                ExprKind::Bool(_) | ExprKind::Int(_) | ExprKind::Double(_) | ExprKind::Text(_) => true,
                _ => self.check(element)?.is_constant(),
            };
            if !constant {
                return Err(Problem::new(
                    element.at,
                    format!("the elements of the list before {name}() must be constant; write literals"),
                ));
            }
            self.bound.push((variable, element));
            let term = self.typed(condition, Type::Bool, name);
            self.bound.pop();
            terms.push(term?);
        }
        if name == "exists" || name == "all" {
            return Ok(join(terms, name == "exists"));
        }
        let mut sum = Typed::Int(0);
        for term in terms {
            let one = match term {
                Typed::Bool(holds) => Typed::Int(i64::from(holds)),
                Typed::Error(error, _) => Typed::Error(error, Type::Int),
                term => Typed::If(Box::new([term, Typed::Int(1), Typed::Int(0)])),
            };
            sum = arithmetic(at, Arithmetic::Add, sum, one)?;
        }
        relation(at, Operator::Equal, Relation::Equal, sum, Typed::Int(1))
    }
}

/// The operands of a function, if all of them are constant, or the greatest error among them.
fn constants(operands: &[Typed]) -> Option<Result<[f64; MAX_OPERANDS], ErrorKind>> {
    let mut numbers = [0.0; MAX_OPERANDS];
    let mut error = None;
    for (number, operand) in numbers.iter_mut().zip(operands) {
        match operand {
            Typed::Double(value) => *number = *value,
            Typed::Error(kind, _) => error = error.max(Some(*kind)),
            _ => return None,
        }
    }
    Some(error.map_or(Ok(numbers), Err))
}

/// The functions that are no functions of doubles, and `list`.
pub(crate) const FORMS: [&str; 12] = [
    "has",
    "size",
    "int",
    "double",
    "startsWith",
    "endsWith",
    "contains",
    "matches",
    "exists",
    "all",
    "exists_one",
    "list",
];

/// The message for a function that there is not.
fn unsupported<'a>(name: &str, declared: impl Iterator<Item = &'a str>) -> String {
    if FORMS.contains(&name) {
        return format!("{name}() has other arguments; docs/rules.md describes them");
    }
    let remedy = match name {
        "map" | "filter" | "transformList" | "transformMap" => "use exists() or all() over a list literal",
        "string" | "bytes" | "type" | "dyn" | "bool" => "compare values of the same type",
        "uint" => "use int()",
        "timestamp" | "duration" | "getFullYear" | "getHours" | "getDayOfWeek" | "getDate" | "getMonth" => {
            "use hour_of_day() or day_of_week() of a number of seconds since 1970"
        }
        _ => {
            let built_in = FORMS.into_iter().chain(Function::names()).map(|name| -> &'a str { name });
            let near = nearest(name, declared.chain(built_in));
            return format!("unknown function {name}(){near}; docs/rules.md lists the functions");
        }
    };
    format!("{name}() is not supported; {remedy}")
}

pub(crate) fn length(text: &str) -> i64 {
    i64::try_from(text.chars().count()).unwrap_or(i64::MAX)
}

fn not(operand: Typed) -> Typed {
    match operand {
        Typed::Bool(value) => Typed::Bool(!value),
        Typed::Error(..) => operand,
        Typed::Not(inner) => *inner,
        operand => Typed::Not(Box::new(operand)),
    }
}

fn to_double(value: Typed) -> Typed {
    match value {
        Typed::Int(number) => Typed::Double(number as f64),
        Typed::Error(error, _) => Typed::Error(error, Type::Double),
        value => Typed::ToDouble(Box::new(value)),
    }
}

fn in_ints(value: Typed, mut ints: Vec<i64>) -> Typed {
    ints.sort_unstable();
    ints.dedup();
    match value {
        Typed::Int(number) => Typed::Bool(ints.contains(&number)),
        value => Typed::InInts(Box::new(value), ints),
    }
}

fn in_doubles(value: Typed, mut doubles: Vec<f64>) -> Typed {
    // -0.0 equals 0.0 but is sorted before it. No literal is NaN.
    for number in &mut doubles {
        *number += 0.0;
    }
    doubles.retain(|number| !number.is_nan());
    doubles.sort_unstable_by(f64::total_cmp);
    doubles.dedup();
    match value {
        Typed::Double(number) => Typed::Bool(doubles.contains(&number)),
        value => Typed::InDoubles(Box::new(value), doubles),
    }
}

/// Joins conditions by `||` if `any`, or by `&&`. A constant that decides absorbs everything else.
pub(crate) fn join(terms: Vec<Typed>, any: bool) -> Typed {
    if terms.contains(&Typed::Bool(any)) {
        return Typed::Bool(any);
    }
    let mut error = None;
    let mut kept = Vec::new();
    for term in terms {
        match term {
            Typed::Bool(_) => {}
            Typed::Error(kind, _) => error = error.max(Some(kind)),
            Typed::And(inner) if !any => kept.extend(inner),
            Typed::Or(inner) if any => kept.extend(inner),
            term => kept.push(term),
        }
    }
    if let Some(error) = error {
        kept.push(Typed::Error(error, Type::Bool));
    }
    match kept.len() {
        0 => Typed::Bool(!any),
        1 => kept.swap_remove(0),
        _ if any => Typed::Or(kept),
        _ => Typed::And(kept),
    }
}

fn arithmetic(at: usize, operation: Arithmetic, left: Typed, right: Typed) -> Result<Typed, Problem> {
    let kind = left.kind();
    let symbol = match operation {
        Arithmetic::Add => "+",
        Arithmetic::Subtract => "-",
        Arithmetic::Multiply => "*",
        Arithmetic::Divide => "/",
        Arithmetic::Remainder => "%",
    };
    let text = kind == Type::Text && operation == Arithmetic::Add;
    let number = kind == Type::Int || (kind == Type::Double && operation != Arithmetic::Remainder);
    if kind != right.kind() || !(number || text) {
        let remedy = match (kind, right.kind()) {
            (Type::Int, Type::Double) | (Type::Double, Type::Int) if operation != Arithmetic::Remainder => {
                "write the literal as a double, such as 2.0, or convert with double()"
            }
            (Type::Int | Type::Double, Type::Double | Type::Int) => "convert with int()",
            _ => "correct the operands",
        };
        let problem = format!("{symbol} has no overload for {kind} and {}; {remedy}", right.kind());
        return Err(Problem::new(at, problem));
    }
    if let Some(error) = left.error().max(right.error()).filter(|_| left.is_constant() && right.is_constant())
    {
        return Ok(Typed::Error(error, kind));
    }
    Ok(match (left, right) {
        (Typed::Int(left), Typed::Int(right)) => {
            int(operation, left, right).map_or_else(|error| Typed::Error(error, kind), Typed::Int)
        }
        (Typed::Double(left), Typed::Double(right)) => Typed::Double(double(operation, left, right)),
        (Typed::Text(left), Typed::Text(right)) => {
            let joined = left + &right;
            if joined.len() > MAX_TEXT {
                return Err(Problem::new(
                    at,
                    format!("the string is longer than {MAX_TEXT} bytes; shorten it"),
                ));
            }
            Typed::Text(joined)
        }
        _ if text => {
            return Err(Problem::new(at, "+ joins constant strings only; compare the parts separately"));
        }
        (left, right) => Typed::Arithmetic(operation, Box::new(left), Box::new(right)),
    })
}

fn relation(
    at: usize,
    operator: Operator,
    relation: Relation,
    left: Typed,
    right: Typed,
) -> Result<Typed, Problem> {
    let equality = matches!(relation, Relation::Equal | Relation::NotEqual);
    let (left, right) = match (left.kind(), right.kind()) {
        (Type::Int, Type::Double) => (to_double(left), right),
        (Type::Double, Type::Int) => (left, to_double(right)),
        (Type::Key, Type::Text) | (Type::Text, Type::Key) if equality => {
            return key_relation(at, relation, left, right);
        }
        (Type::Key, Type::Key) if equality => (left, right),
        (one, other) if one == other && one != Type::Key => (left, right),
        (one, other) => {
            // The operands of > and >= are exchanged.
            let (one, other) = if matches!(operator, Operator::Greater | Operator::GreaterEqual) {
                (other, one)
            } else {
                (one, other)
            };
            return Err(Problem::new(
                at,
                format!(
                    "{} has no overload for {one} and {other}; compare values of the same type",
                    operator.symbol()
                ),
            ));
        }
    };
    if let Some(error) = left.error().max(right.error()).filter(|_| left.is_constant() && right.is_constant())
    {
        return Ok(Typed::Error(error, Type::Bool));
    }
    Ok(match (&left, &right) {
        (Typed::Bool(left), Typed::Bool(right)) => Typed::Bool(relation.holds(left, right)),
        (Typed::Int(left), Typed::Int(right)) => Typed::Bool(relation.holds(left, right)),
        (Typed::Double(left), Typed::Double(right)) => Typed::Bool(relation.holds(left, right)),
        (Typed::Text(left), Typed::Text(right)) => Typed::Bool(relation.holds(left, right)),
        _ => Typed::Relation(relation, Box::new(left), Box::new(right)),
    })
}

/// A key and a constant string are compared as membership in a list of one.
fn key_relation(at: usize, relation: Relation, left: Typed, right: Typed) -> Result<Typed, Problem> {
    let (key, text) = if left.kind() == Type::Key { (left, right) } else { (right, left) };
    match text {
        Typed::Text(text) => {
            let test = Typed::InTexts(Box::new(key), BTreeSet::from([text]));
            Ok(if relation == Relation::Equal { test } else { not(test) })
        }
        Typed::Error(error, _) => Ok(Typed::Error(error, Type::Bool)),
        _ => Err(Problem::new(
            at,
            "a key can be compared with constant strings and keys only; declare both as keys",
        )),
    }
}
