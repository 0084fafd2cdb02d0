//! The overlay node: logit offsets per segment and action that were learned after the oracle was trained.
//!
//! Adding an offset to a logit multiplies the odds by the offset's exponential, so the table holds these factors. A
//! request looks up one table row, that of its segment. Each action then needs four arithmetic operations, whose bits
//! are the same on every machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::BundleError;
use crate::policy::ActionCatalogue;
use crate::schema::{FeatureType, Schema};

/// Name of the overlay's file.
pub(super) const OVERLAY: &str = "overlay.json";
/// Greatest limit of an offset. It multiplies the odds by 22,026.
const MAX_LIMIT: f64 = 10.0;
/// Size of the largest file in bytes.
const MAX_BYTES: usize = 16 << 20;
/// Greatest number of table entries, segments × actions; they take 32 MiB.
const MAX_ENTRIES: usize = 1 << 22;
/// A score is clamped to at least this distance from 0 and from 1 before its odds are multiplied.
pub(super) const LEAST: f64 = 1e-9;

/// Logit offsets by factor and level.
pub type Offsets = BTreeMap<String, BTreeMap<String, f64>>;

/// The contents of `overlay.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlayFile {
    /// Name of the category feature of the request that selects the segment.
    pub segment: String,
    /// The sum of an action's offsets is clipped to `[-limit, limit]`.
    pub limit: f64,
    /// Offsets for every request, including those without a segment.
    #[serde(default)]
    pub everywhere: Offsets,
    /// Additional offsets for the requests of a segment.
    #[serde(default)]
    pub segments: BTreeMap<String, Offsets>,
}

/// A compiled overlay.
#[derive(Debug)]
pub(super) struct Overlay {
    /// Position of the segment's feature in a request's row.
    feature: usize,
    /// The table row of each category of the segment's feature; 0 for categories without offsets of their own.
    rows: Box<[u32]>,
    actions: usize,
    /// Factors of the odds, `[1 + listed segments, actions]`. Row 0 holds those of `everywhere` alone.
    odds: Box<[f64]>,
}

impl Overlay {
    pub(super) fn parse(
        bytes: &[u8],
        schema: &Schema,
        catalogue: &ActionCatalogue,
    ) -> Result<Overlay, BundleError> {
        if bytes.len() > MAX_BYTES {
            return Err(BundleError::Overlay(format!(
                "{} bytes, at most {MAX_BYTES} are allowed",
                bytes.len()
            )));
        }
        let file: OverlayFile = serde_json::from_slice(bytes)
            .map_err(|error| BundleError::Json { file: OVERLAY, reason: error.to_string() })?;
        Overlay::compile(&file, schema, catalogue).map_err(BundleError::Overlay)
    }

    fn compile(file: &OverlayFile, schema: &Schema, catalogue: &ActionCatalogue) -> Result<Overlay, String> {
        let OverlayFile { segment, limit, everywhere, segments } = file;
        if !(*limit > 0.0 && *limit <= MAX_LIMIT) {
            return Err(format!("limit {limit} must be above 0 and at most {MAX_LIMIT}"));
        }
        let feature = schema.index_of(segment).ok_or_else(|| {
            format!("segment {segment:?} is not a feature of the request; name one of its categories")
        })?;
        let spec = &schema.features()[feature];
        if spec.kind != FeatureType::Category {
            let kind = spec.kind.name();
            return Err(format!("segment {segment:?} is a {kind}; name a category of the request"));
        }
        let actions = catalogue.len();
        let entries = (1 + segments.len()).saturating_mul(actions);
        if entries > MAX_ENTRIES {
            return Err(format!(
                "{} segments for {actions} actions, at most {} fit; list those that differ most",
                segments.len(),
                MAX_ENTRIES / actions - 1
            ));
        }
        let by_level = by_level(catalogue);
        check_offsets("everywhere", everywhere, &by_level)?;
        let mut rows = vec![0; spec.categories.len()].into_boxed_slice();
        let mut odds = Vec::with_capacity(entries);
        let mut sums = vec![0.0; actions];
        let mut add_row = |own: Option<&Offsets>| {
            sums.fill(0.0);
            for (factor, levels) in &by_level {
                for (level, actions) in levels {
                    let of = |offsets: &Offsets| {
                        offsets.get(*factor).and_then(|levels| levels.get(*level)).copied()
                    };
                    let offset = of(everywhere).unwrap_or(0.0) + own.and_then(of).unwrap_or(0.0);
                    actions.iter().for_each(|&action| sums[action] += offset);
                }
            }
            // `libm::exp` gives the same bits on every machine, and exactly 1 for an offset of 0.
            odds.extend(sums.iter().map(|sum| libm::exp(sum.clamp(-limit, *limit))));
        };
        add_row(None);
        for (number, (name, own)) in (1..).zip(segments) {
            let code = schema.code_of(feature, name).ok_or_else(|| {
                format!("segments: {name:?} is not a category of {segment:?}; correct it or leave it out")
            })?;
            check_offsets(&format!("segments.{name}"), own, &by_level)?;
            rows[code as usize] = number;
            add_row(Some(own));
        }
        Ok(Overlay { feature, rows, actions, odds: odds.into() })
    }

    /// Returns the factor of each action's odds for a request. `row` is the request's row before any transform.
    pub(super) fn odds(&self, row: &[f32]) -> &[f64] {
        let code = row[self.feature];
        // A missing segment is NaN, for which the comparison is false.
        let known = if code >= 0.0 { self.rows.get(code as usize).copied() } else { None };
        let at = known.unwrap_or(0) as usize * self.actions;
        &self.odds[at..at + self.actions]
    }

    /// Heap memory in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.rows) + size_of_val(&*self.odds)
    }
}

/// Returns `1 / (1 + exp(-(logit(score) + offset)))` for `odds = exp(offset)`. An offset of 0 leaves every bit of the
/// score unchanged. NaN stays NaN.
pub(super) fn moved(score: f64, odds: f64) -> f64 {
    if odds == 1.0 {
        return score;
    }
    let score = score.clamp(LEAST, 1.0 - LEAST);
    let raised = score * odds;
    raised / (raised + (1.0 - score))
}

/// The actions of each level of each factor.
type ByLevel<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Vec<usize>>>;

fn by_level(catalogue: &ActionCatalogue) -> ByLevel<'_> {
    let mut by_level = ByLevel::new();
    for (number, action) in catalogue.iter().enumerate() {
        for (factor, level) in &action.factors {
            by_level.entry(factor).or_default().entry(level).or_default().push(number);
        }
    }
    by_level
}

/// Checks that the catalogue has every factor and level, and that every offset is finite.
fn check_offsets(place: &str, offsets: &Offsets, by_level: &ByLevel<'_>) -> Result<(), String> {
    for (factor, levels) in offsets {
        let Some(known) = by_level.get(factor.as_str()) else {
            return Err(format!(
                "{place}: {factor:?} is not a factor of the actions; correct it or leave it out"
            ));
        };
        for (level, offset) in levels {
            if !known.contains_key(level.as_str()) {
                return Err(format!(
                    "{place}.{factor}: no action has the level {level:?}; correct it or leave it out"
                ));
            }
            if !offset.is_finite() {
                return Err(format!("{place}.{factor}.{level} is {offset}; offsets must be finite"));
            }
        }
    }
    Ok(())
}
