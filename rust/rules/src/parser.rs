//! Parses an expression of the supported subset of CEL. What the subset lacks is refused by name.

use crate::fault::Problem;
use crate::lexer::{Kind, Token, tokens};
use crate::limits::{MAX_DEPTH, MAX_ELEMENTS, MAX_NODES};

/// A parsed expression with the byte at which it, or its operator, starts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expr {
    pub(crate) at: usize,
    pub(crate) kind: ExprKind,
    depth: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ExprKind {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
    /// A name, with dots if it has several parts.
    Name(String),
    List(Vec<Expr>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    /// At least two conditions with `&&` between them.
    And(Vec<Expr>),
    /// At least two conditions with `||` between them.
    Or(Vec<Expr>),
    /// Condition, and the values if it is true and if it is false.
    If(Box<[Expr; 3]>),
    Call {
        target: Option<Box<Expr>>,
        name: String,
        arguments: Vec<Expr>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
}

impl Operator {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Operator::Add => "+",
            Operator::Subtract => "-",
            Operator::Multiply => "*",
            Operator::Divide => "/",
            Operator::Remainder => "%",
            Operator::Equal => "==",
            Operator::NotEqual => "!=",
            Operator::Less => "<",
            Operator::LessEqual => "<=",
            Operator::Greater => ">",
            Operator::GreaterEqual => ">=",
            Operator::In => "in",
        }
    }
}

impl Expr {
    /// Calls `visit` with every name.
    pub(crate) fn names<'a>(&'a self, visit: &mut impl FnMut(&'a str)) {
        if let ExprKind::Name(name) = &self.kind {
            visit(name);
        }
        for child in self.children() {
            child.names(visit);
        }
    }

    fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            ExprKind::Null
            | ExprKind::Bool(_)
            | ExprKind::Int(_)
            | ExprKind::Double(_)
            | ExprKind::Text(_)
            | ExprKind::Name(_) => Vec::new(),
            ExprKind::List(nodes) | ExprKind::And(nodes) | ExprKind::Or(nodes) => nodes.iter().collect(),
            ExprKind::Not(a) | ExprKind::Negate(a) => vec![a],
            ExprKind::Binary(_, a, b) => vec![a, b],
            ExprKind::If(parts) => parts.iter().collect(),
            ExprKind::Call { target, arguments, .. } => {
                target.as_deref().into_iter().chain(arguments).collect()
            }
        }
    }

    /// Returns the expression with some names replaced.
    pub(crate) fn replace(&self, by: &impl Fn(&str) -> Option<ExprKind>) -> Expr {
        let boxed = |node: &Expr| Box::new(node.replace(by));
        let all = |nodes: &[Expr]| nodes.iter().map(|node| node.replace(by)).collect();
        let kind = match &self.kind {
            ExprKind::Name(name) => by(name).unwrap_or_else(|| self.kind.clone()),
            ExprKind::List(nodes) => ExprKind::List(all(nodes)),
            ExprKind::And(nodes) => ExprKind::And(all(nodes)),
            ExprKind::Or(nodes) => ExprKind::Or(all(nodes)),
            ExprKind::Not(a) => ExprKind::Not(boxed(a)),
            ExprKind::Negate(a) => ExprKind::Negate(boxed(a)),
            ExprKind::Binary(operator, a, b) => ExprKind::Binary(*operator, boxed(a), boxed(b)),
            ExprKind::If(parts) => {
                let [condition, yes, no] = &**parts;
                ExprKind::If(Box::new([condition.replace(by), yes.replace(by), no.replace(by)]))
            }
            ExprKind::Call { target, name, arguments } => ExprKind::Call {
                target: target.as_deref().map(boxed),
                name: name.clone(),
                arguments: all(arguments),
            },
            other => other.clone(),
        };
        Expr { at: self.at, kind, depth: self.depth }
    }
}

const RELATIONS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<", Operator::Less),
    ("<=", Operator::LessEqual),
    (">", Operator::Greater),
    (">=", Operator::GreaterEqual),
];
const SUMS: [(&str, Operator); 2] = [("+", Operator::Add), ("-", Operator::Subtract)];
const PRODUCTS: [(&str, Operator); 3] =
    [("*", Operator::Multiply), ("/", Operator::Divide), ("%", Operator::Remainder)];

pub(crate) fn parse(source: &str) -> Result<Expr, Problem> {
    let mut parser = Parser { tokens: tokens(source)?, next: 0, nodes: 0, depth: 0 };
    let expression = parser.expression()?;
    match parser.peek() {
        Kind::End => Ok(expression),
        _ => Err(parser.unexpected("an operator or the end")),
    }
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    nodes: usize,
    /// Calls of the parser that are under way: it bounds the stack before nodes exist.
    depth: usize,
}

impl Parser {
    fn token(&self) -> &Token {
        // The last token is the end, which is never consumed.
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn peek(&self) -> &Kind {
        &self.token().kind
    }

    fn at(&self) -> usize {
        self.token().at
    }

    fn takes(&mut self, symbol: &str) -> bool {
        let found = matches!(self.peek(), Kind::Symbol(next) if *next == symbol);
        self.next += usize::from(found);
        found
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Kind::Name(next) if next == word);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: &'static str) -> Result<(), Problem> {
        if self.takes(symbol) { Ok(()) } else { Err(self.unexpected(&format!("{symbol:?}"))) }
    }

    fn unexpected(&self, wanted: &str) -> Problem {
        let found = match self.peek() {
            Kind::Int(value) => value.to_string(),
            Kind::Double(value) => value.to_string(),
            Kind::Text(_) => "a string".to_owned(),
            Kind::Name(name) => format!("{name:?}"),
            Kind::Symbol(symbol) => format!("{symbol:?}"),
            Kind::End => "the end".to_owned(),
        };
        Problem::new(self.at(), format!("found {found} where {wanted} is expected; correct the expression"))
    }

    /// Counts a node, and computes its depth.
    fn node(&mut self, at: usize, kind: ExprKind) -> Result<Expr, Problem> {
        let below = match &kind {
            ExprKind::List(nodes) | ExprKind::And(nodes) | ExprKind::Or(nodes) => deepest(nodes),
            ExprKind::Not(node) | ExprKind::Negate(node) => node.depth,
            ExprKind::Binary(_, left, right) => left.depth.max(right.depth),
            ExprKind::If(parts) => deepest(&parts[..]),
            ExprKind::Call { target, arguments, .. } => {
                deepest(arguments).max(target.as_ref().map_or(0, |target| target.depth))
            }
            _ => 0,
        };
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(Problem::new(
                at,
                format!("the expression has more than {MAX_NODES} parts; split the rule"),
            ));
        }
        if below >= MAX_DEPTH {
            return Err(too_deep(at));
        }
        Ok(Expr { at, kind, depth: below + 1 })
    }

    fn expression(&mut self) -> Result<Expr, Problem> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(too_deep(self.at()));
        }
        let condition = self.any()?;
        let at = self.at();
        let expression = if self.takes("?") {
            let yes = self.any()?;
            self.expect(":")?;
            let no = self.expression()?;
            self.node(at, ExprKind::If(Box::new([condition, yes, no])))?
        } else {
            condition
        };
        self.depth -= 1;
        Ok(expression)
    }

    fn any(&mut self) -> Result<Expr, Problem> {
        let first = self.all()?;
        let at = self.at();
        if !matches!(self.peek(), Kind::Symbol("||")) {
            return Ok(first);
        }
        let mut terms = vec![first];
        while self.takes("||") {
            terms.push(self.all()?);
        }
        self.node(at, ExprKind::Or(terms))
    }

    fn all(&mut self) -> Result<Expr, Problem> {
        let first = self.relation()?;
        let at = self.at();
        if !matches!(self.peek(), Kind::Symbol("&&")) {
            return Ok(first);
        }
        let mut terms = vec![first];
        while self.takes("&&") {
            terms.push(self.relation()?);
        }
        self.node(at, ExprKind::And(terms))
    }

    fn relation(&mut self) -> Result<Expr, Problem> {
        let mut left = self.sum()?;
        loop {
            let at = self.at();
            let operator = if self.takes_word("in") {
                Operator::In
            } else if let Some(operator) = self.operator(&RELATIONS) {
                operator
            } else {
                return Ok(left);
            };
            let right = self.sum()?;
            left = self.node(at, ExprKind::Binary(operator, Box::new(left), Box::new(right)))?;
        }
    }

    fn sum(&mut self) -> Result<Expr, Problem> {
        let mut left = self.product()?;
        loop {
            let at = self.at();
            let Some(operator) = self.operator(&SUMS) else { return Ok(left) };
            let right = self.product()?;
            left = self.node(at, ExprKind::Binary(operator, Box::new(left), Box::new(right)))?;
        }
    }

    fn product(&mut self) -> Result<Expr, Problem> {
        let mut left = self.unary()?;
        loop {
            let at = self.at();
            let Some(operator) = self.operator(&PRODUCTS) else { return Ok(left) };
            let right = self.unary()?;
            left = self.node(at, ExprKind::Binary(operator, Box::new(left), Box::new(right)))?;
        }
    }

    fn operator(&mut self, known: &[(&str, Operator)]) -> Option<Operator> {
        known.iter().find(|(symbol, _)| self.takes(symbol)).map(|(_, operator)| *operator)
    }

    /// Signs are counted in a loop: a thousand of them do not take a thousand calls.
    fn unary(&mut self) -> Result<Expr, Problem> {
        let mut signs = Vec::new();
        loop {
            let at = self.at();
            if self.takes("!") {
                signs.push((at, true));
            } else if self.takes("-") {
                signs.push((at, false));
            } else {
                break;
            }
        }
        // The sign next to an integer belongs to it, so that the smallest int can be written.
        let literal = match (self.peek(), signs.last()) {
            (Kind::Int(magnitude), Some(&(at, false))) => Some((at, *magnitude)),
            _ => None,
        };
        let mut expression = if let Some((at, magnitude)) = literal {
            self.next += 1;
            signs.pop();
            let value = 0_i64.wrapping_sub_unsigned(magnitude);
            let literal = self.node(at, ExprKind::Int(value))?;
            self.members(literal)?
        } else {
            self.member()?
        };
        for (at, not) in signs.into_iter().rev() {
            let operand = Box::new(expression);
            let kind = if not { ExprKind::Not(operand) } else { ExprKind::Negate(operand) };
            expression = self.node(at, kind)?;
        }
        Ok(expression)
    }

    fn member(&mut self) -> Result<Expr, Problem> {
        let primary = self.primary()?;
        self.members(primary)
    }

    /// Fields and methods after a value.
    fn members(&mut self, mut value: Expr) -> Result<Expr, Problem> {
        loop {
            let at = self.at();
            if self.takes("[") {
                return Err(Problem::new(
                    at,
                    "indexing is not supported; declare a name for the element and use it",
                ));
            }
            if matches!(self.peek(), Kind::Symbol("{")) {
                return Err(Problem::new(
                    at,
                    "messages and maps are not supported; use names of the environment",
                ));
            }
            if !self.takes(".") {
                return Ok(value);
            }
            let at = self.at();
            if matches!(self.peek(), Kind::Symbol("?")) {
                return Err(Problem::new(at, "optional fields are not supported; test the name with has()"));
            }
            let Kind::Name(field) = self.peek().clone() else { return Err(self.unexpected("a name")) };
            self.next += 1;
            if self.takes("(") {
                let arguments = self.list(")")?;
                let kind = ExprKind::Call { target: Some(Box::new(value)), name: field, arguments };
                value = self.node(at, kind)?;
            } else if let ExprKind::Name(name) = &mut value.kind {
                name.push('.');
                name.push_str(&field);
            } else {
                return Err(Problem::new(
                    at,
                    "fields of values are not supported; use a name of the environment",
                ));
            }
        }
    }

    fn primary(&mut self) -> Result<Expr, Problem> {
        let at = self.at();
        let token = self.peek().clone();
        let kind = match token {
            Kind::Int(magnitude) => {
                self.next += 1;
                ExprKind::Int(i64::try_from(magnitude).map_err(|_| {
                    Problem::new(
                        at,
                        "the integer does not fit into 64 bits; write it as a double, such as 1e20",
                    )
                })?)
            }
            Kind::Double(value) => {
                self.next += 1;
                ExprKind::Double(value)
            }
            Kind::Text(text) => {
                self.next += 1;
                ExprKind::Text(text)
            }
            Kind::Name(name) => {
                if name == "in" {
                    return Err(self.unexpected("a value"));
                }
                self.next += 1;
                match name.as_str() {
                    "true" => ExprKind::Bool(true),
                    "false" => ExprKind::Bool(false),
                    "null" => ExprKind::Null,
                    _ if self.takes("(") => {
                        let arguments = self.list(")")?;
                        ExprKind::Call { target: None, name, arguments }
                    }
                    _ => ExprKind::Name(name),
                }
            }
            Kind::Symbol("(") => {
                self.next += 1;
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Kind::Symbol("[") => {
                self.next += 1;
                ExprKind::List(self.list("]")?)
            }
            Kind::Symbol("{") => {
                return Err(Problem::new(
                    at,
                    "maps are not supported; use a decision table or several rules",
                ));
            }
            Kind::Symbol(".") => {
                return Err(Problem::new(
                    at,
                    "names that start with a dot are not supported; remove the dot",
                ));
            }
            _ => return Err(self.unexpected("a value")),
        };
        self.node(at, kind)
    }

    fn list(&mut self, close: &'static str) -> Result<Vec<Expr>, Problem> {
        let mut elements = Vec::new();
        while !self.takes(close) {
            if !elements.is_empty() {
                self.expect(",")?;
                // CEL allows a comma after the last element of a list, but not after the last argument.
                if close == "]" && self.takes(close) {
                    break;
                }
            }
            if elements.len() == MAX_ELEMENTS {
                return Err(Problem::new(
                    self.at(),
                    format!(
                        "the list has more than {MAX_ELEMENTS} elements; use a named list, list(\"name\")"
                    ),
                ));
            }
            elements.push(self.expression()?);
        }
        Ok(elements)
    }
}

fn deepest(nodes: &[Expr]) -> usize {
    nodes.iter().map(|node| node.depth).max().unwrap_or(0)
}

fn too_deep(at: usize) -> Problem {
    Problem::new(at, format!("the expression is nested more than {MAX_DEPTH} deep; split the rule"))
}
