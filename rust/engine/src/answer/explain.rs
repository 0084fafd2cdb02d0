//! The number of reasons that an answer gets.

use scorer_admission::Pressure;
use scorer_core::explain::MAX_REASONS;

use super::RequestContext;
use crate::bundles::Loaded;
use crate::counters::Unexplained;
use crate::rejection::Rejection;

/// Checks the number of reasons that a request asks for.
pub(crate) fn check(asked: u32) -> Result<(), Rejection> {
    if asked as usize <= MAX_REASONS {
        return Ok(());
    }
    Err(Rejection::TooManyReasons { asked, max: MAX_REASONS })
}

/// Returns the number of reasons to compute for an answer: those that the request asks for or the checkpoint always
/// records. Reasons that are left out are counted.
pub(crate) fn wanted(context: RequestContext<'_>, loaded: &Loaded, asked: u32) -> usize {
    let RequestContext { engine, checkpoint, .. } = context;
    let wanted = asked.max(checkpoint.config.reasons);
    if wanted == 0 {
        return 0;
    }
    match possible(loaded.bundle.explains(), engine.admission.pressure()) {
        Ok(()) => wanted as usize,
        Err(cause) => {
            engine.counters.checkpoint(checkpoint.index).unexplained(cause);
            0
        }
    }
}

/// Whether an answer of a bundle can have reasons. They are left out before any answer is.
fn possible(explains: bool, pressure: Pressure) -> Result<(), Unexplained> {
    if !explains {
        return Err(Unexplained::NoCovers);
    }
    if pressure >= Pressure::NoExplain {
        return Err(Unexplained::Pressure);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_left_out_before_answers_are() {
        for pressure in Pressure::ALL {
            let expected = match pressure {
                Pressure::Normal | Pressure::NoObserve | Pressure::NoBulk => Ok(()),
                Pressure::NoExplain | Pressure::Fallback | Pressure::Refuse => Err(Unexplained::Pressure),
            };
            assert_eq!(possible(true, pressure), expected, "{pressure:?}");
            assert_eq!(possible(false, pressure), Err(Unexplained::NoCovers));
        }
    }
}
