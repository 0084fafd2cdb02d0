//! The origin of the computed features of one row.

use crate::defaulted::Defaulted;

/// The longest list of computed columns.
const MAX_COLUMNS: usize = 256;

/// Where the values of a row's computed columns came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// Why at least one column has its declared default; `None` if none has.
    pub defaulted: Option<Defaulted>,
    /// Time as of which the columns were read, in microseconds since the Unix epoch; 0 if none was read.
    pub at_us: i64,
    /// One bit for each column whose value the request stated, by its position among the computed columns.
    stated: [u64; MAX_COLUMNS / 64],
    /// One bit for each entity whose state cannot be used.
    pub(crate) unusable: u16,
}

// === impl Origins ===

impl Origins {
    /// The origin of columns that are read as of `at_us`.
    pub(crate) fn at(at_us: i64) -> Origins {
        Origins { at_us, ..Origins::default() }
    }

    /// Notes that the request stated the value of a column.
    pub fn state(&mut self, column: usize) {
        if let Some(word) = self.stated.get_mut(column / 64) {
            *word |= 1 << (column % 64);
        }
    }

    /// Whether the request stated the value of a column.
    #[must_use]
    pub fn is_stated(&self, column: usize) -> bool {
        self.stated.get(column / 64).is_some_and(|word| word & (1 << (column % 64)) != 0)
    }

    /// Number of columns whose value the request stated.
    #[must_use]
    pub fn stated(&self) -> u32 {
        self.stated.iter().map(|word| word.count_ones()).sum()
    }

    /// Notes that at least one column has its default for this reason.
    pub(crate) fn default_for(&mut self, reason: Defaulted) {
        self.defaulted = self.defaulted.max(Some(reason));
    }

    /// The name of the reason for defaults; empty if there is none.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.defaulted.map_or("", Defaulted::as_str)
    }
}
