//! The switch node, which selects one of several scores by a value of the row.

use super::node::SwitchCase;
use crate::schema::{FeatureSpec, FeatureType};

/// Greatest number of cases.
pub(super) const MAX_CASES: usize = 128;

/// The compiled choice of a branch. The last branch is the default.
#[derive(Debug, Clone)]
pub(super) struct Selector {
    /// The row slot.
    pub(super) row: usize,
    /// The position of the feature in the row.
    pub(super) column: usize,
    pub(super) branches: Box<[Branch]>,
    rule: Rule,
}

/// The score of a branch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Branch {
    /// Position of the score.
    pub(super) at: usize,
    /// Position of the margin that it comes from.
    pub(super) margin: usize,
}

#[derive(Debug, Clone)]
enum Rule {
    /// The branch of each code.
    Codes(Box<[u32]>),
    /// Ascending ranges, from the first number up to the second one.
    Ranges(Box<[(f32, f32)]>),
}

impl Selector {
    /// Checks and compiles the cases. `branches` are those of the cases and of the default, in this order.
    pub(super) fn compile(
        row: usize,
        column: usize,
        feature: &FeatureSpec,
        cases: &[SwitchCase],
        branches: Vec<Branch>,
    ) -> Result<Selector, String> {
        if cases.is_empty() || cases.len() > MAX_CASES {
            return Err(format!("{} cases; give 1 to {MAX_CASES}", cases.len()));
        }
        let rule = match feature.kind {
            FeatureType::Category => Rule::Codes(codes(feature, cases)?),
            FeatureType::Number | FeatureType::Flag => Rule::Ranges(ranges(feature, cases)?),
        };
        Ok(Selector { row, column, branches: branches.into(), rule })
    }

    /// Returns the branch of a value. A missing value is NaN, for which every comparison is false.
    pub(super) fn choose(&self, value: f32) -> usize {
        let default = self.branches.len() - 1;
        match &self.rule {
            Rule::Codes(codes) => {
                let known = if value >= 0.0 { codes.get(value as usize).copied() } else { None };
                known.map_or(default, |branch| branch as usize)
            }
            Rule::Ranges(ranges) => {
                ranges.iter().position(|&(from, to)| from <= value && value < to).unwrap_or(default)
            }
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let rule = match &self.rule {
            Rule::Codes(codes) => size_of_val(&**codes),
            Rule::Ranges(ranges) => size_of_val(&**ranges),
        };
        rule + size_of_val(&*self.branches)
    }
}

fn codes(feature: &FeatureSpec, cases: &[SwitchCase]) -> Result<Box<[u32]>, String> {
    let name = &feature.name;
    let mut codes = vec![cases.len() as u32; feature.categories.len()].into_boxed_slice();
    for (at, case) in cases.iter().enumerate() {
        if case.from.is_some() || case.to.is_some() || case.categories.is_empty() {
            return Err(format!("case {at}: {name:?} is a category; list its categories, without a range"));
        }
        for category in &case.categories {
            let code = feature.categories.iter().position(|known| known == category).ok_or_else(|| {
                format!("case {at}: {category:?} is not a category of {name:?}; correct it or leave it out")
            })?;
            if codes[code] != cases.len() as u32 {
                return Err(format!("case {at}: category {category:?} is in two cases; remove it from one"));
            }
            codes[code] = at as u32;
        }
    }
    Ok(codes)
}

/// Limits are rounded to float32, as those of the schema are, so that a limit and an equal value of a request agree.
fn ranges(feature: &FeatureSpec, cases: &[SwitchCase]) -> Result<Box<[(f32, f32)]>, String> {
    let (name, kind) = (&feature.name, feature.kind.name());
    let mut ranges: Vec<(f32, f32)> = Vec::with_capacity(cases.len());
    for (at, case) in cases.iter().enumerate() {
        if !case.categories.is_empty() || (case.from.is_none() && case.to.is_none()) {
            return Err(format!("case {at}: {name:?} is a {kind}; give the range from, to or both"));
        }
        let from = case.from.map_or(f32::NEG_INFINITY, |from| from as f32);
        let to = case.to.map_or(f32::INFINITY, |to| to as f32);
        let finite = |limit: Option<f64>, rounded: f32| limit.is_none() || rounded.is_finite();
        if !finite(case.from, from) || !finite(case.to, to) || from >= to {
            return Err(format!(
                "case {at}: the range from {from} up to {to} is empty or not finite in float32; correct it"
            ));
        }
        if ranges.last().is_some_and(|last| last.1 > from) {
            return Err(format!(
                "case {at}: its range begins before the end of the previous one; put the ranges in ascending order without overlap"
            ));
        }
        ranges.push((from, to));
    }
    Ok(ranges.into())
}
