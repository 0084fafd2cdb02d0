//! The threshold node: ordered bands of scores.

use super::node::Band;

/// Greatest number of bands.
const MAX_BANDS: usize = 64;

/// Compiled bands.
#[derive(Debug, Clone, Default)]
pub(super) struct Thresholds {
    pub(super) bands: Vec<Band>,
    pub(super) labels: Vec<String>,
}

impl Thresholds {
    pub(super) fn compile(bands: &[Band]) -> Result<Thresholds, String> {
        if bands.is_empty() || bands.len() > MAX_BANDS {
            return Err(format!("{} bands; give 1 to {MAX_BANDS}", bands.len()));
        }
        for (at, band) in bands.iter().enumerate() {
            let label = &band.label;
            if label.is_empty() || label.len() > 64 || label.chars().any(char::is_control) {
                return Err(format!(
                    "band {at} has label {label:?}; a label is 1 to 64 printable characters"
                ));
            }
            if !band.from.is_finite() {
                return Err(format!("band {label:?} starts at {}; give a finite start", band.from));
            }
            if bands[..at].iter().any(|earlier| earlier.label == *label) {
                return Err(format!("label {label:?} occurs twice; labels must be unique"));
            }
            if at > 0 && band.from <= bands[at - 1].from {
                return Err(format!(
                    "band {label:?} starts at {}, not above the one before it ({}); put the bands in ascending order",
                    band.from,
                    bands[at - 1].from
                ));
            }
        }
        if bands[0].from > 0.0 {
            return Err(format!(
                "scores from 0 to {} have no band; start the first band at 0",
                bands[0].from
            ));
        }
        Ok(Thresholds {
            bands: bands.to_vec(),
            labels: bands.iter().map(|band| band.label.clone()).collect(),
        })
    }

    /// Returns the band of a finite score. The first band also takes lower scores, because scores of a regression have
    /// no lower limit.
    pub(super) fn band(&self, score: f64) -> usize {
        self.bands.partition_point(|band| band.from <= score).saturating_sub(1)
    }
}
