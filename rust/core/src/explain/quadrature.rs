//! Gauss-Legendre quadrature on the interval from 0 to 1.

/// Returns the points and weights of the rule with `N` points. It integrates polynomials of degree `2 N - 1` exactly.
pub(super) fn gauss_legendre<const N: usize>() -> ([f64; N], [f64; N]) {
    let (mut points, mut weights) = ([0.0; N], [0.0; N]);
    for (at, (point, weight)) in points.iter_mut().zip(&mut weights).enumerate() {
        // Newton's method from the asymptotic estimate of the root; it converges in a few steps.
        let mut x = (std::f64::consts::PI * (at as f64 + 0.75) / (N as f64 + 0.5)).cos();
        let mut slope = 1.0;
        for _ in 0..16 {
            let (value, derivative) = legendre(N, x);
            slope = derivative;
            x -= value / derivative;
        }
        // The rule on the interval from -1 to 1, moved.
        *point = 0.5 * (1.0 - x);
        *weight = 1.0 / ((1.0 - x * x) * slope * slope);
    }
    (points, weights)
}

/// The Legendre polynomial of this degree and its derivative.
fn legendre(degree: usize, x: f64) -> (f64, f64) {
    let (mut before, mut value) = (1.0, x);
    for k in 2..=degree {
        let k = k as f64;
        (before, value) = (value, ((2.0 * k - 1.0) * x * value - (k - 1.0) * before) / k);
    }
    (value, degree as f64 * (x * value - before) / (x * x - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact_up_to_its_degree<const N: usize>() {
        let (points, weights) = gauss_legendre::<N>();
        for degree in 0..2 * N as i32 {
            let sum: f64 = points.iter().zip(&weights).map(|(x, w)| w * x.powi(degree)).sum();
            let exact = 1.0 / f64::from(degree + 1);
            assert!((sum - exact).abs() <= 1e-14, "{N} points, degree {degree}: {sum}");
        }
    }

    #[test]
    fn rules_integrate_polynomials_exactly() {
        exact_up_to_its_degree::<4>();
        exact_up_to_its_degree::<8>();
        exact_up_to_its_degree::<16>();
        exact_up_to_its_degree::<32>();
    }
}
