//! Derived slots: the values that the trees test, computed once per row.
//!
//! Slot 0 is a sentinel that no key exceeds. Leaves test it, so that a walk stays at a leaf. Numeric slots follow, each
//! for a feature under one rule for missing values, and then the bit columns of categorical features.

use super::error::ForestError;
use super::key;
use super::limits;
use super::model::{CategoryRule, NanRule, ZeroRule};

/// Number of rows of a category table before those of the listed categories: one for NaN, one for all other values.
pub(super) const FIXED_ROWS: usize = 2;
const NAN_ROW: usize = 0;
const OTHER_ROW: usize = 1;

/// A feature under one rule for missing values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Numeric {
    pub(super) zero: ZeroRule,
    pub(super) nan: NanRule,
    pub(super) feature: u32,
}

impl Numeric {
    fn rule(self) -> (ZeroRule, NanRule) {
        (self.zero, self.nan)
    }
}

impl NanRule {
    /// The key of NaN.
    fn key(self) -> i32 {
        match self {
            NanRule::Left => key::LOW,
            NanRule::Right => key::HIGH,
            NanRule::Zero => 0,
        }
    }
}

/// Numeric slots of consecutive features under one rule, which are computed with vector instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    first: Numeric,
    slot: u32,
    len: u32,
}

/// The bit columns of one categorical feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CategoryTable {
    pub(super) feature: u32,
    pub(super) rule: CategoryRule,
    /// Number of columns, one slot each.
    pub(super) columns: usize,
    /// The categories that are in at least one set, ascending.
    pub(super) categories: Vec<u32>,
    /// [`FIXED_ROWS`] rows of bits, then one per category. A bit is the slot's value, 1 for "right".
    pub(super) rows: Vec<u64>,
}

impl CategoryTable {
    pub(super) fn words(columns: usize) -> usize {
        columns.div_ceil(64)
    }

    fn row_of(&self, value: f32) -> usize {
        let number = match self.rule {
            _ if value.is_nan() => return NAN_ROW,
            CategoryRule::NonNegative if value < 0.0 => return OTHER_ROW,
            CategoryRule::Truncated if value <= -1.0 => return OTHER_ROW,
            CategoryRule::Exact if value < 0.0 || value.fract() != 0.0 => return OTHER_ROW,
            _ => category(value),
        };
        // Codes are usually 0, 1, 2 .., so a category is often its own index.
        let guess = number as usize;
        if self.categories.get(guess) == Some(&number) {
            return FIXED_ROWS + guess;
        }
        self.categories.binary_search(&number).map_or(OTHER_ROW, |i| FIXED_ROWS + i)
    }

    /// The bits of the columns for a value.
    pub(super) fn bits(&self, value: f32) -> &[u64] {
        let words = Self::words(self.columns);
        let start = self.row_of(value) * words;
        &self.rows[start..start + words]
    }

    /// Writes 1 for "right" and 0 for "left" into one slot per column.
    pub(super) fn fill<T: From<bool>>(&self, value: f32, slots: &mut [T]) {
        for (chunk, word) in slots.chunks_mut(64).zip(self.bits(value)) {
            for (bit, slot) in chunk.iter_mut().enumerate() {
                *slot = T::from(word >> bit & 1 == 1);
            }
        }
    }
}
fn category(value: f32) -> u32 {
    value as u32
}

/// The computation of slots from a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SlotTable {
    /// Numeric slots, strictly ascending, so that slots of one rule are adjacent.
    pub(super) numeric: Vec<Numeric>,
    /// Category tables, strictly ascending by feature and rule.
    pub(super) tables: Vec<CategoryTable>,
}

impl SlotTable {
    /// Number of slots, including the sentinel.
    pub(super) fn len(&self) -> usize {
        1 + self.numeric.len() + self.tables.iter().map(|table| table.columns).sum::<usize>()
    }

    /// First slot of the categorical columns.
    pub(super) fn first_column(&self) -> usize {
        1 + self.numeric.len()
    }

    /// Allocates the slots of `rows` rows and sets their sentinels.
    pub(super) fn sentinels(&self, rows: usize) -> Vec<i32> {
        let mut slots = vec![0; rows * self.len()];
        slots.iter_mut().step_by(self.len()).for_each(|slot| *slot = key::HIGH);
        slots
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let tables: usize = self
            .tables
            .iter()
            .map(|t| size_of::<CategoryTable>() + 4 * t.categories.len() + 8 * t.rows.len())
            .sum();
        size_of::<Numeric>() * self.numeric.len() + tables
    }

    /// The numeric slots as stretches of consecutive features under one rule.
    pub(super) fn stretches(&self) -> Vec<Stretch> {
        let follows = |a: &Numeric, b: &Numeric| a.rule() == b.rule() && a.feature + 1 == b.feature;
        let mut slot = 1;
        self.numeric
            .chunk_by(follows)
            .map(|run| {
                slot += run.len() as u32;
                Stretch { first: run[0], slot: slot - run.len() as u32, len: run.len() as u32 }
            })
            .collect()
    }

    /// Does what [`SlotTable::fill`] does, if the stretches are those of this table.
    #[inline(always)]
    pub(super) fn fill_stretches(&self, stretches: &[Stretch], row: &[f32], slots: &mut [i32]) {
        for stretch in stretches {
            let (feature, slot, len) =
                (stretch.first.feature as usize, stretch.slot as usize, stretch.len as usize);
            let missing = stretch.first.nan.key();
            let (values, out) = (&row[feature..feature + len], &mut slots[slot..slot + len]);
            match stretch.first.zero {
                ZeroRule::Keep => fill_stretch(values, out, missing, None),
                ZeroRule::Flush => fill_stretch(values, out, missing, Some(0)),
                ZeroRule::Missing => fill_stretch(values, out, missing, Some(missing)),
            }
        }
        self.fill_tables(row, slots);
    }

    fn fill_tables(&self, row: &[f32], slots: &mut [i32]) {
        let mut next = self.first_column();
        for table in &self.tables {
            table.fill(row[table.feature as usize], &mut slots[next..next + table.columns]);
            next += table.columns;
        }
    }

    /// Computes every slot but the sentinel. The caller has checked the lengths.
    pub(super) fn fill(&self, row: &[f32], slots: &mut [i32]) {
        let mut next = 1;
        for run in self.numeric.chunk_by(|a, b| a.rule() == b.rule()) {
            let out = &mut slots[next..next + run.len()];
            next += run.len();
            let (zero, nan) = run[0].rule();
            let missing = nan.key();
            match zero {
                ZeroRule::Keep => fill_run(run, row, out, missing, None),
                ZeroRule::Flush => fill_run(run, row, out, missing, Some(0)),
                ZeroRule::Missing => fill_run(run, row, out, missing, Some(missing)),
            }
        }
        self.fill_tables(row, slots);
    }

    pub(super) fn validate(&self, num_features: usize) -> Result<(), ForestError> {
        let in_range = |feature: u32| (feature as usize) < num_features;
        for (i, slot) in self.numeric.iter().enumerate() {
            let fail = |rule: &str| Err(ForestError::invalid(format!("numeric slot {i}"), rule));
            if !in_range(slot.feature) {
                return fail("its feature is not below the number of features");
            }
            if slot.nan == NanRule::Zero && slot.zero == ZeroRule::Missing {
                return fail("zero cannot be missing where missing means zero");
            }
            if i > 0 && self.numeric[i - 1] >= *slot {
                return fail("slots must be strictly ascending");
            }
        }
        let mut bytes = 0_usize;
        for (i, table) in self.tables.iter().enumerate() {
            let fail = |rule: &str| Err(ForestError::invalid(format!("category table {i}"), rule));
            if !in_range(table.feature) {
                return fail("its feature is not below the number of features");
            }
            if i > 0 && (self.tables[i - 1].feature, self.tables[i - 1].rule) >= (table.feature, table.rule) {
                return fail("tables must be strictly ascending by feature and rule");
            }
            if table.columns == 0 || table.columns > limits::SLOTS {
                return fail("the number of columns must be between 1 and the limit of slots");
            }
            if !table.categories.is_sorted_by(|a, b| a < b) {
                return fail("categories must be strictly ascending");
            }
            if table.categories.last().is_some_and(|&last| last >= 1 << 31) {
                return fail("categories must be below 2^31");
            }
            let words = CategoryTable::words(table.columns);
            if (FIXED_ROWS + table.categories.len()).checked_mul(words) != Some(table.rows.len()) {
                return fail("it must have one row of bits per category and two more");
            }
            let used = table.columns % 64;
            if used != 0 && table.rows.chunks_exact(words).any(|row| row[words - 1] >> used != 0) {
                return fail("bits beyond the last column must be 0");
            }
            bytes = bytes.saturating_add(8 * table.rows.len());
        }
        if bytes > limits::CATEGORY_BYTES {
            return Err(ForestError::unsupported(
                "category tables",
                format!("{bytes} bytes are above the limit of {}", limits::CATEGORY_BYTES),
                "train with fewer categories or fewer categorical splits",
            ));
        }
        if self.len() > limits::SLOTS {
            return Err(ForestError::unsupported(
                "slots",
                format!("{} are above the limit of {}", self.len(), limits::SLOTS),
                "train with fewer features or fewer categorical splits",
            ));
        }
        Ok(())
    }
}

/// Uses only integer arithmetic, because float operations could flush denormal numbers.
#[inline]
fn fill_run(run: &[Numeric], row: &[f32], out: &mut [i32], nan: i32, zero: Option<i32>) {
    for (slot, out) in run.iter().zip(out) {
        let bits = row[slot.feature as usize].to_bits();
        let number = match zero {
            Some(zero) if key::is_zero(bits) => zero,
            _ => key::of_bits(bits),
        };
        *out = if key::is_nan(bits) { nan } else { number };
    }
}

/// The loop that the compiler turns into vector instructions.
#[inline(always)]
fn fill_stretch(values: &[f32], out: &mut [i32], nan: i32, zero: Option<i32>) {
    for (value, out) in values.iter().zip(out) {
        let bits = value.to_bits();
        let number = match zero {
            Some(zero) if key::is_zero(bits) => zero,
            _ => key::of_bits(bits),
        };
        *out = if key::is_nan(bits) { nan } else { number };
    }
}
