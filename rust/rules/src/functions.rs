//! Functions of doubles. Their results are the same bits on every machine, and always finite.

use crate::value::ErrorKind;

/// The mean radius of the Earth in kilometres.
const EARTH_KM: f64 = 6371.0088;
/// Seconds of a day and of an hour.
const DAY: f64 = 86_400.0;
const HOUR: f64 = 3600.0;
/// Greatest offset from UTC in hours.
const MAX_OFFSET: f64 = 24.0;
/// Times beyond it have no exact second.
const MAX_SECONDS: f64 = 9_007_199_254_740_992.0;

/// A function that conditions can call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Abs,
    Min,
    Max,
    Floor,
    Ceil,
    Round,
    Sqrt,
    Pow,
    Exp,
    Log,
    Log10,
    Log1p,
    DistanceKm,
    HourOfDay,
    DayOfWeek,
    Within,
    SmoothedRatio,
}

/// Greatest number of operands.
pub(crate) const MAX_OPERANDS: usize = 4;

/// Every function with its name and its operands.
const FUNCTIONS: [(Function, &str, &[&str]); 17] = [
    (Function::Abs, "abs", &["x"]),
    (Function::Min, "min", &["x", "y"]),
    (Function::Max, "max", &["x", "y"]),
    (Function::Floor, "floor", &["x"]),
    (Function::Ceil, "ceil", &["x"]),
    (Function::Round, "round", &["x"]),
    (Function::Sqrt, "sqrt", &["x"]),
    (Function::Pow, "pow", &["base", "exponent"]),
    (Function::Exp, "exp", &["x"]),
    (Function::Log, "log", &["x"]),
    (Function::Log10, "log10", &["x"]),
    (Function::Log1p, "log1p", &["x"]),
    (Function::DistanceKm, "distance_km", &["latitude", "longitude", "latitude", "longitude"]),
    (Function::HourOfDay, "hour_of_day", &["seconds", "offset"]),
    (Function::DayOfWeek, "day_of_week", &["seconds", "offset"]),
    (Function::Within, "within", &["x", "from", "to"]),
    (Function::SmoothedRatio, "smoothed_ratio", &["count", "average", "weight"]),
];

impl Function {
    /// The function of this name, and the names of its operands.
    pub(crate) fn named(name: &str) -> Option<(Function, &'static [&'static str])> {
        FUNCTIONS
            .iter()
            .find(|(_, known, _)| *known == name)
            .map(|(function, _, operands)| (*function, *operands))
    }

    /// The names of all functions.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        FUNCTIONS.iter().map(|(_, name, _)| *name)
    }

    /// Whether the result is 0 or 1 and stands for a bool.
    pub(crate) fn is_test(self) -> bool {
        self == Function::Within
    }

    /// Computes the result. Operands that the function does not have are ignored.
    pub(crate) fn apply(self, operands: [f64; MAX_OPERANDS]) -> Result<f64, ErrorKind> {
        // 0.0 / 0.0 is a double that is no number.
        if operands.iter().any(|operand| operand.is_nan()) {
            return Err(ErrorKind::NotANumber);
        }
        let [x, y, z, w] = operands;
        let result = match self {
            Function::Abs => x.abs(),
            Function::Min => {
                if y < x {
                    y
                } else {
                    x
                }
            }
            Function::Max => {
                if y > x {
                    y
                } else {
                    x
                }
            }
            Function::Floor => x.floor(),
            Function::Ceil => x.ceil(),
            Function::Round => x.round(),
            Function::Sqrt => x.sqrt(),
            Function::Pow => libm::pow(x, y),
            Function::Exp => libm::exp(x),
            Function::Log => libm::log(x),
            Function::Log10 => libm::log10(x),
            Function::Log1p => libm::log1p(x),
            Function::DistanceKm => distance_km(x, y, z, w),
            Function::HourOfDay => local(x, y).map_or(f64::NAN, |seconds| seconds.rem_euclid(DAY) / HOUR),
            // 1970-01-01 was a Thursday, and a Monday is 0.
            Function::DayOfWeek => {
                local(x, y).map_or(f64::NAN, |seconds| ((seconds / DAY).floor() + 3.0).rem_euclid(7.0))
            }
            Function::Within if y <= z => f64::from(u8::from(y <= x && x < z)),
            Function::Within => f64::from(u8::from(x >= y || x < z)),
            Function::SmoothedRatio if x < 0.0 || y < 0.0 || z < 0.0 => f64::NAN,
            Function::SmoothedRatio => (x + z) / (y + z),
        };
        if result.is_finite() { Ok(result) } else { Err(ErrorKind::NotANumber) }
    }
}

/// The great-circle distance of two places on a sphere, by the haversine formula.
fn distance_km(from_latitude: f64, from_longitude: f64, to_latitude: f64, to_longitude: f64) -> f64 {
    let on_earth = |latitude: f64, longitude: f64| latitude.abs() <= 90.0 && longitude.abs() <= 360.0;
    if !on_earth(from_latitude, from_longitude) || !on_earth(to_latitude, to_longitude) {
        return f64::NAN;
    }
    let half = |from: f64, to: f64| libm::sin((to - from).to_radians() / 2.0);
    let (north, east) = (half(from_latitude, to_latitude), half(from_longitude, to_longitude));
    let cosines = libm::cos(from_latitude.to_radians()) * libm::cos(to_latitude.to_radians());
    let haversine = north * north + cosines * (east * east);
    // Rounding can lead beyond 1, of which there is no arc sine.
    2.0 * EARTH_KM * libm::asin(haversine.sqrt().min(1.0))
}

/// The seconds since 1970-01-01 00:00 at an offset from UTC in hours.
fn local(seconds: f64, offset: f64) -> Option<f64> {
    (seconds.abs() < MAX_SECONDS && offset.abs() <= MAX_OFFSET).then_some(seconds + offset * HOUR)
}
