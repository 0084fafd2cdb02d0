//! Pressure levels: the order in which the server degrades service as load grows.

/// Pressure level of the server. Each level includes the ones before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Pressure {
    /// Full service.
    #[default]
    Normal = 0,
    /// No evaluation of observe lanes, for which no caller waits.
    NoObserve = 1,
    /// No bulk work and tier 3 while a worker has other work.
    NoBulk = 2,
    /// No explanations: answers have no reason codes.
    NoExplain = 3,
    /// Some requests of the highest tier are answered by fallbacks.
    Fallback = 4,
    /// Even fallbacks would take too much of the workers' time; the server returns RESOURCE_EXHAUSTED.
    Refuse = 5,
}

/// Number of windows below the current level before the level is lowered, one at a time.
const CALM: u32 = 5;

/// Measurements of one window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signs {
    /// Work that arrived for tiers 0 to 2, relative to the capacity of the workers.
    pub(super) demand: f64,
    /// Whether the queue of that work did not empty.
    pub(super) standing: bool,
    /// 99th percentile of its queue delay, relative to the budget.
    pub(super) delay: f64,
    /// Whether the limit was cut.
    pub(super) cut: bool,
    /// Share of the highest tier's requests that were shed or too late.
    pub(super) top_lost: f64,
    /// Work of answering all shed requests by fallbacks, relative to the capacity of the workers.
    pub(super) fallbacks: f64,
}

/// Raises the pressure level immediately and lowers it slowly.
#[derive(Debug, Default)]
pub(super) struct Ladder {
    step: Pressure,
    calm: u32,
}

// === impl Pressure ===

impl Pressure {
    /// All levels in ascending order.
    pub const ALL: [Pressure; 6] = [
        Pressure::Normal,
        Pressure::NoObserve,
        Pressure::NoBulk,
        Pressure::NoExplain,
        Pressure::Fallback,
        Pressure::Refuse,
    ];

    pub(super) fn from_byte(byte: u8) -> Pressure {
        Pressure::ALL.get(usize::from(byte)).copied().unwrap_or(Pressure::Refuse)
    }

    fn below(self) -> Pressure {
        Pressure::from_byte((self as u8).saturating_sub(1))
    }

    /// Returns the name of the level in metrics and records.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Pressure::Normal => "normal",
            Pressure::NoObserve => "no_observe",
            Pressure::NoBulk => "no_bulk",
            Pressure::NoExplain => "no_explain",
            Pressure::Fallback => "fallback",
            Pressure::Refuse => "refuse",
        }
    }
}

// === impl Ladder ===

impl Ladder {
    pub(super) fn update(&mut self, signs: &Signs) -> Pressure {
        let wanted = wanted(signs);
        if wanted >= self.step {
            self.step = wanted;
            self.calm = 0;
        } else {
            self.calm += 1;
            if self.calm >= CALM {
                self.step = self.step.below();
                self.calm = 0;
            }
        }
        self.step
    }
}

fn wanted(signs: &Signs) -> Pressure {
    if signs.fallbacks > 0.5 {
        Pressure::Refuse
    } else if signs.top_lost > 0.005 {
        Pressure::Fallback
    } else if signs.cut || signs.demand > 1.2 {
        Pressure::NoExplain
    } else if signs.standing || signs.demand > 1.0 {
        Pressure::NoBulk
    } else if signs.demand > 0.8 || signs.delay > 0.1 {
        Pressure::NoObserve
    } else {
        Pressure::Normal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_its_sign() {
        let of = |signs: Signs| Ladder::default().update(&signs);
        assert_eq!(of(Signs::default()), Pressure::Normal);
        assert_eq!(of(Signs { demand: 0.9, ..Signs::default() }), Pressure::NoObserve);
        assert_eq!(of(Signs { delay: 0.11, ..Signs::default() }), Pressure::NoObserve);
        assert_eq!(of(Signs { standing: true, ..Signs::default() }), Pressure::NoBulk);
        assert_eq!(of(Signs { cut: true, ..Signs::default() }), Pressure::NoExplain);
        assert_eq!(of(Signs { top_lost: 0.01, ..Signs::default() }), Pressure::Fallback);
        assert_eq!(of(Signs { fallbacks: 0.6, ..Signs::default() }), Pressure::Refuse);
    }

    #[test]
    fn up_at_once_down_one_step_per_five_calm_windows() {
        let mut ladder = Ladder::default();
        let calm = Signs::default();
        assert_eq!(ladder.update(&Signs { top_lost: 1.0, ..calm }), Pressure::Fallback);
        for step in [Pressure::NoExplain, Pressure::NoBulk, Pressure::NoObserve, Pressure::Normal] {
            for _ in 1..CALM {
                assert_eq!(ladder.update(&calm) as u8, step as u8 + 1);
            }
            assert_eq!(ladder.update(&calm), step);
        }
        // One bad window in between starts the count again.
        assert_eq!(ladder.update(&Signs { standing: true, ..calm }), Pressure::NoBulk);
        for _ in 0..3 {
            for _ in 1..CALM {
                assert_eq!(ladder.update(&calm), Pressure::NoBulk);
            }
            assert_eq!(ladder.update(&Signs { standing: true, ..calm }), Pressure::NoBulk);
        }
    }
}
