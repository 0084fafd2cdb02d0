//! The functions of `examples/functions`, as they are in the repository, against the same functions here.

use std::sync::Arc;

use scorer_wasm::limits::DEFAULT_FUEL;
use scorer_wasm::{Function, Library, Module};

#[test]
fn the_module_of_the_example_is_accepted_and_computes_what_its_source_says() {
    let bytes = include_bytes!("../../../examples/functions/payment_functions.wasm");
    let module = Arc::new(Module::compile(bytes).unwrap());
    let functions = ["amount_surprise", "luhn_digit"].map(|export| Function {
        module: 0,
        export: export.to_owned(),
        fuel: DEFAULT_FUEL,
    });
    let library = Arc::new(Library::new(vec![module], &functions).unwrap());
    assert_eq!((library.arguments(0), library.arguments(1)), (Some(2), Some(1)));
    let mut instances = library.start(|_| true);
    assert_eq!(instances.call(0, &[100.0, 10.0]), Ok(0.7));
    assert_eq!(instances.call(0, &[20.0, 10.0]), Ok(0.0));
    assert!(instances.call(0, &[20.0, f64::NAN]).unwrap().is_nan());
    for number in (0..2_000_u64).chain([7_992_739_871, 999_999_999_999_999]) {
        let sum: u64 = number
            .to_string()
            .bytes()
            .rev()
            .enumerate()
            .map(|(at, digit)| {
                let digit = u64::from(digit - b'0');
                if at % 2 == 1 { digit } else { digit * 2 / 10 + digit * 2 % 10 }
            })
            .sum();
        let expected = (10 - sum % 10) % 10;
        assert_eq!(instances.call(1, &[number as f64]), Ok(expected as f64), "{number}");
    }
    for wrong in [-1.0, 0.5, 1e15, f64::NAN] {
        assert_eq!(instances.call(1, &[wrong]), Ok(-1.0), "{wrong}");
    }
}
