//! Decides for simple conditions whether one implies, contradicts or excludes another.
//!
//! A condition is read as a conjunction. Its comparisons of names with constants become one domain per name. What
//! else it contains is compared by structure. The answers are one-sided: `true` is proven, `false` is not.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::Typed;
use crate::environment::{Slot, Type};
use crate::value::Relation;

/// Ints beyond it are not exact as doubles.
const EXACT: i64 = 1 << 53;

#[derive(Debug, Clone, PartialEq)]
enum Domain {
    Numbers {
        low: f64,
        low_open: bool,
        high: f64,
        high_open: bool,
    },
    Texts {
        allowed: Option<BTreeSet<String>>,
        excluded: BTreeSet<String>,
    },
    Bool(bool),
    Present,
    Missing,
    /// No value is in it.
    Nothing,
}

/// What is known of a condition that is true.
#[derive(Debug)]
pub(crate) struct Conjunction<'a> {
    domains: BTreeMap<Slot, Domain>,
    others: Vec<&'a Typed>,
}

impl<'a> Conjunction<'a> {
    pub(crate) fn of(condition: &'a Typed) -> Conjunction<'a> {
        let mut conjunction = Conjunction { domains: BTreeMap::new(), others: Vec::new() };
        match condition {
            Typed::And(terms) => terms.iter().for_each(|term| conjunction.add(term)),
            Typed::Bool(true) => {}
            term => conjunction.add(term),
        }
        conjunction
    }

    fn add(&mut self, term: &'a Typed) {
        match atom(term) {
            Some((slot, domain)) => {
                let domain = match self.domains.get(&slot) {
                    Some(known) => intersect(known, &domain),
                    None => domain,
                };
                self.domains.insert(slot, domain);
            }
            None => self.others.push(term),
        }
    }

    /// Whether the condition is never true.
    pub(crate) fn is_impossible(&self) -> bool {
        self.domains.values().any(|domain| *domain == Domain::Nothing)
    }

    /// Whether the other condition is true whenever this one is.
    pub(crate) fn implies(&self, other: &Conjunction<'_>) -> bool {
        other.others.iter().all(|term| self.others.contains(term))
            && other.domains.iter().all(|(slot, domain)| {
                self.domains.get(slot).is_some_and(|known| intersect(known, domain) == *known)
            })
    }

    /// Whether both conditions can be true together. Only conditions of comparisons with constants are decided.
    pub(crate) fn overlaps(&self, other: &Conjunction<'_>) -> bool {
        self.others.is_empty()
            && other.others.is_empty()
            && !self.domains.iter().any(|(slot, domain)| {
                other.domains.get(slot).is_some_and(|other| intersect(domain, other) == Domain::Nothing)
            })
    }
}

/// The domain that a term gives to a name, if the term says nothing else.
fn atom(term: &Typed) -> Option<(Slot, Domain)> {
    match term {
        Typed::Slot(slot, Type::Bool) => Some((*slot, Domain::Bool(true))),
        Typed::Has(slot) => Some((*slot, Domain::Present)),
        Typed::Relation(relation, left, right) => compared(*relation, left, right),
        Typed::InTexts(value, texts) => match &**value {
            Typed::Slot(slot, Type::Text) => {
                Some((*slot, Domain::Texts { allowed: Some(texts.clone()), excluded: BTreeSet::new() }))
            }
            _ => None,
        },
        Typed::Not(inner) => match &**inner {
            Typed::Slot(slot, Type::Bool) => Some((*slot, Domain::Bool(false))),
            Typed::Has(slot) => Some((*slot, Domain::Missing)),
            // The name has a value, which is not NaN, so the opposite comparison is true.
            Typed::Relation(Relation::Less, left, right) => compared(Relation::LessEqual, right, left),
            Typed::Relation(Relation::LessEqual, left, right) => compared(Relation::Less, right, left),
            Typed::Relation(Relation::Equal, left, right) => compared(Relation::NotEqual, left, right),
            Typed::Relation(Relation::NotEqual, left, right) => compared(Relation::Equal, left, right),
            Typed::InTexts(value, texts) => match &**value {
                Typed::Slot(slot, Type::Text) => {
                    Some((*slot, Domain::Texts { allowed: None, excluded: texts.clone() }))
                }
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

fn compared(relation: Relation, left: &Typed, right: &Typed) -> Option<(Slot, Domain)> {
    let number = |typed: &Typed| match typed {
        // -0.0 becomes 0.0.
        Typed::Double(value) if !value.is_nan() => Some(*value + 0.0),
        Typed::Int(value) if (-EXACT..=EXACT).contains(value) => Some(*value as f64),
        _ => None,
    };
    let name = |typed: &Typed| match typed {
        Typed::Slot(slot, kind) => Some((*slot, *kind)),
        Typed::ToDouble(inner) => match &**inner {
            Typed::Slot(slot, kind) => Some((*slot, *kind)),
            _ => None,
        },
        _ => None,
    };
    let text = if name(left).is_some() { (name(left), right) } else { (name(right), left) };
    if let (Some((slot, _)), Typed::Text(text)) = text {
        let texts = BTreeSet::from([text.clone()]);
        return match relation {
            Relation::Equal => {
                Some((slot, Domain::Texts { allowed: Some(texts), excluded: BTreeSet::new() }))
            }
            Relation::NotEqual => Some((slot, Domain::Texts { allowed: None, excluded: texts })),
            Relation::Less | Relation::LessEqual => None,
        };
    }
    let ((slot, kind), value, below) = match (name(left), number(right)) {
        (Some(name), Some(value)) => (name, value, true),
        _ => (name(right)?, number(left)?, false),
    };
    let open = relation == Relation::Less;
    let (low, low_open, high, high_open) = match relation {
        Relation::Equal => (value, false, value, false),
        Relation::NotEqual => return None,
        _ if below => (f64::NEG_INFINITY, false, value, open),
        _ => (value, open, f64::INFINITY, false),
    };
    if kind != Type::Int {
        return Some((slot, Domain::Numbers { low, low_open, high, high_open }));
    }
    // An int above 1 is at least 2.
    let low = if low_open { low.floor() + 1.0 } else { low.ceil() };
    let high = if high_open { high.ceil() - 1.0 } else { high.floor() };
    if low > high {
        return Some((slot, Domain::Nothing));
    }
    Some((slot, Domain::Numbers { low, low_open: false, high, high_open: false }))
}

fn intersect(left: &Domain, right: &Domain) -> Domain {
    match (left, right) {
        (Domain::Nothing, _) | (_, Domain::Nothing) => Domain::Nothing,
        (Domain::Missing, Domain::Missing) => Domain::Missing,
        (Domain::Missing, _) | (_, Domain::Missing) => Domain::Nothing,
        (Domain::Present, other) | (other, Domain::Present) => other.clone(),
        (Domain::Bool(one), Domain::Bool(other)) if one == other => Domain::Bool(*one),
        (
            Domain::Numbers { low, low_open, high, high_open },
            Domain::Numbers { low: low2, low_open: low_open2, high: high2, high_open: high_open2 },
        ) => {
            let (low, low_open) = match low.total_cmp(low2) {
                std::cmp::Ordering::Less => (*low2, *low_open2),
                std::cmp::Ordering::Greater => (*low, *low_open),
                std::cmp::Ordering::Equal => (*low, *low_open || *low_open2),
            };
            let (high, high_open) = match high.total_cmp(high2) {
                std::cmp::Ordering::Less => (*high, *high_open),
                std::cmp::Ordering::Greater => (*high2, *high_open2),
                std::cmp::Ordering::Equal => (*high, *high_open || *high_open2),
            };
            if low > high || (low == high && (low_open || high_open)) {
                Domain::Nothing
            } else {
                Domain::Numbers { low, low_open, high, high_open }
            }
        }
        (Domain::Texts { allowed, excluded }, Domain::Texts { allowed: allowed2, excluded: excluded2 }) => {
            let excluded: BTreeSet<String> = excluded.union(excluded2).cloned().collect();
            let allowed = match (allowed, allowed2) {
                (None, None) => return Domain::Texts { allowed: None, excluded },
                (Some(one), None) | (None, Some(one)) => one.clone(),
                (Some(one), Some(other)) => one.intersection(other).cloned().collect(),
            };
            let allowed: BTreeSet<String> = allowed.difference(&excluded).cloned().collect();
            if allowed.is_empty() {
                Domain::Nothing
            } else {
                Domain::Texts { allowed: Some(allowed), excluded: BTreeSet::new() }
            }
        }
        _ => Domain::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::environment::Environment;
    use crate::lists::{ListKey, Lists};
    use crate::parser::parse;
    use crate::program::Program;
    use crate::random::Random;

    const TERMS: [&str; 26] = [
        "x > 1.0",
        "x >= 1.0",
        "x < 1.0",
        "x <= 2.0",
        "x == 2.0",
        "x != 1.0",
        "!(x > 2.0)",
        "!(x == 1.0)",
        "x > 2",
        "n > 1",
        "n <= 2",
        "n == 1",
        "n < 1.5",
        "!(n != 2)",
        "t == 'a'",
        "t != 'a'",
        "t in ['a', 'b']",
        "!(t in ['b', 'c'])",
        "t.startsWith('a')",
        "b",
        "!b",
        "has(x)",
        "!has(x)",
        "x * 2.0 > 3.0",
        "0.0 < x",
        "-0.0 >= x",
    ];

    fn environment() -> Environment {
        let mut environment = Environment::new();
        for (name, kind) in [("x", Type::Double), ("n", Type::Int), ("t", Type::Text), ("b", Type::Bool)] {
            environment.declare(name, kind).unwrap();
        }
        environment.known(["a", "b", "c"]).unwrap();
        environment
    }

    fn checked(text: &str) -> Typed {
        check(&parse(text).unwrap(), &environment()).unwrap()
    }

    /// What is said to be proven holds for all values of a grid.
    #[test]
    fn conclusions_are_true() {
        let environment = environment();
        let key = ListKey::new([0; 16]);
        let slot = |name| environment.slot(name).unwrap();
        let (mut implied, mut overlapping) = (0, 0);
        for seed in 0..3_000 {
            let mut random = Random(seed);
            let conditions = [0, 1].map(|_| {
                let terms: Vec<&str> = (0..1 + random.below(3)).map(|_| random.pick(&TERMS)).collect();
                checked(&terms.join(" && "))
            });
            let [left, right] = conditions.each_ref().map(Conjunction::of);
            let program = Program::lower(&environment, key, &["", ""], &conditions).unwrap();
            let (mut scratch, lists) = (program.scratch(), Lists::new(key, &environment));
            let mut together = false;
            for x in [f64::NAN, -1.0, -0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0] {
                scratch.set_double(slot("x"), x);
                for n in 0..4 {
                    scratch.set_int(slot("n"), n);
                    for t in ["a", "b", "c", "other"] {
                        scratch.set_text(slot("t"), program.text_id(t));
                        for b in [false, true] {
                            scratch.set_bool(slot("b"), b);
                            let [one, other] =
                                [0, 1].map(|at| program.run(at, &mut scratch, Some(&lists)).is_true());
                            assert!(!(one && left.is_impossible()), "seed {seed}: {conditions:?}");
                            assert!(!one || other || !left.implies(&right), "seed {seed}: {conditions:?}");
                            together |= one && other;
                        }
                    }
                }
            }
            // The grid has a value in every domain that the terms can make.
            let possible = !left.is_impossible() && !right.is_impossible();
            assert!(together || !possible || !left.overlaps(&right), "seed {seed}: {conditions:?}");
            implied += usize::from(possible && left.implies(&right));
            overlapping += usize::from(possible && left.overlaps(&right));
        }
        assert!(implied > 50 && overlapping > 200, "{implied} {overlapping}");
    }

    #[test]
    fn what_is_decided() {
        for (narrow, wide) in [
            ("x > 2.0", "x > 1.0"),
            ("x > 1.0", "x >= 1.0"),
            ("x > 1.0 && x < 2.0 && b", "x < 2.5"),
            ("n == 2", "n > 1"),
            ("n > 2", "n > 1.5"),
            ("t == 'a'", "t in ['a', 'b']"),
            ("t == 'a'", "t != 'b'"),
            ("x > 1.0", "has(x)"),
            ("b && x * 2.0 > 3.0", "x * 2.0 > 3.0"),
            ("b", "true"),
        ] {
            let (narrow, wide) = (checked(narrow), checked(wide));
            assert!(Conjunction::of(&narrow).implies(&Conjunction::of(&wide)), "{narrow:?} {wide:?}");
            assert!(
                !Conjunction::of(&wide).implies(&Conjunction::of(&narrow)) || narrow == wide,
                "{wide:?} {narrow:?}"
            );
        }
        let (one, other) = (checked("!(x > 1.0)"), checked("x <= 1.0"));
        assert!(Conjunction::of(&one).implies(&Conjunction::of(&other)));
        assert!(Conjunction::of(&other).implies(&Conjunction::of(&one)));
        let impossible = [
            "x > 1.0 && x < 1.0",
            "x > 1.0 && 1.0 > x",
            "t == 'a' && t == 'b'",
            "b && !b",
            "!has(x) && x > 0.0",
        ];
        for condition in impossible {
            assert!(Conjunction::of(&checked(condition)).is_impossible(), "{condition}");
        }
    }
}
