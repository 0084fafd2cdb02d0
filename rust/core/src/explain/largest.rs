//! The features with the largest contributions.

/// Greatest number of reasons of one answer.
pub const MAX_REASONS: usize = 32;

/// The contribution of one feature to a margin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Contribution {
    /// Column of the forest's row.
    pub feature: u32,
    /// The amount by which the feature moves the margin from the expectation.
    pub amount: f64,
}

/// The contributions of up to [`MAX_REASONS`] features, in descending order of their magnitude. Of two equal ones the
/// feature with the lower column is first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Largest {
    count: usize,
    items: [Contribution; MAX_REASONS],
}

impl Default for Largest {
    fn default() -> Largest {
        Largest { count: 0, items: [Contribution { feature: 0, amount: 0.0 }; MAX_REASONS] }
    }
}

impl Largest {
    /// Selects up to `count` of the contributions, which are in the order of the columns. A feature without a
    /// contribution is no reason. It allocates nothing.
    #[must_use]
    pub fn of(contributions: &[f64], count: usize) -> Largest {
        let limit = count.min(MAX_REASONS);
        let mut largest = Largest::default();
        if limit == 0 {
            return largest;
        }
        for (feature, &amount) in contributions.iter().enumerate() {
            if amount == 0.0
                || (largest.count == limit && amount.abs() <= largest.items[limit - 1].amount.abs())
            {
                continue;
            }
            let mut at = largest.count.min(limit - 1);
            largest.count = at + 1;
            while at > 0 && largest.items[at - 1].amount.abs() < amount.abs() {
                largest.items[at] = largest.items[at - 1];
                at -= 1;
            }
            largest.items[at] = Contribution { feature: feature as u32, amount };
        }
        largest
    }

    /// The contributions.
    #[must_use]
    pub fn as_slice(&self) -> &[Contribution] {
        &self.items[..self.count]
    }
}
