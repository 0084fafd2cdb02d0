//! The ladder: what is given up, in which order, as pressure grows.

/// What the server gives up. Each step includes those before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Pressure {
    /// Nothing.
    #[default]
    Normal = 0,
    /// Observe lanes: no caller waits for them.
    NoObserve = 1,
    /// Bulk work and tier 3, while a worker has anything else to do.
    NoBulk = 2,
    /// Explanations: answers come without reason codes.
    NoExplain = 3,
    /// Some requests of the highest tier are answered by fallbacks.
    Fallback = 4,
    /// Even fallbacks would take the workers' time: RESOURCE_EXHAUSTED.
    Refuse = 5,
}

/// Windows below the current step before it is left, and then one step at a time: what was given up comes back
/// later than it went.
const CALM: u32 = 5;

/// What one window showed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signs {
    /// Work that arrived for tiers 0 to 2, in parts of what the workers can do.
    pub(super) demand: f64,
    /// The queue of that work did not empty.
    pub(super) standing: bool,
    /// Its 99th percentile of queue delay, in parts of the budget.
    pub(super) delay: f64,
    /// The limit was cut.
    pub(super) cut: bool,
    /// Part of the highest tier's requests that were shed or too late.
    pub(super) top_lost: f64,
    /// What answering all that is shed by fallbacks takes, in parts of what the workers can do.
    pub(super) fallbacks: f64,
}

/// Climbs at once, comes down slowly.
#[derive(Debug, Default)]
pub(super) struct Ladder {
    step: Pressure,
    calm: u32,
}

// === impl Pressure ===

impl Pressure {
    /// From normal to refusing.
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

    /// As metrics and records spell it.
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
