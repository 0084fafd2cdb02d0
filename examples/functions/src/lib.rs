//! Functions of payments for bundles. Each takes doubles and returns one; NaN is a missing value.
#![no_std]

/// How unusual an amount is for a customer, from 0 to 1: the share of the amount above three times the mean. A customer
/// without a mean has no value.
#[unsafe(no_mangle)]
pub extern "C" fn amount_surprise(amount: f64, mean_amount: f64) -> f64 {
    if mean_amount.is_nan() || mean_amount <= 0.0 {
        return f64::NAN;
    }
    let expected = 3.0 * mean_amount;
    if amount > expected { (amount - expected) / amount } else { 0.0 }
}

/// The value of the Luhn check digit that belongs to a number of up to 15 digits; -1 if it is none.
#[unsafe(no_mangle)]
pub extern "C" fn luhn_digit(number: f64) -> f64 {
    if !(0.0..1e15).contains(&number) {
        return -1.0;
    }
    let mut rest = number as u64;
    if rest as f64 != number {
        return -1.0;
    }
    let (mut sum, mut doubled) = (0, true);
    while rest > 0 {
        let digit = rest % 10;
        let value = if doubled { digit * 2 } else { digit };
        sum += value / 10 + value % 10;
        doubled = !doubled;
        rest /= 10;
    }
    ((10 - sum % 10) % 10) as f64
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
