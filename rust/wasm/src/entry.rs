//! Typed calls of functions with each number of arguments.

use wasmtime::{Instance, Store, TypedFunc};

use crate::error::Fault;

macro_rules! entries {
    ($($variant:ident $count:literal ($($argument:ident),+) ($($double:ty),+);)+) => {
        /// A function of a running module.
        pub(crate) enum Entry {
            $($variant(TypedFunc<($($double,)+), f64>),)+
        }

        impl Entry {
            /// Finds an export with this number of parameters.
            pub(crate) fn find(
                instance: Instance,
                store: &mut Store<impl Sized + 'static>,
                name: &str,
                arguments: usize,
            ) -> Option<Entry> {
                match arguments {
                    $($count => instance.get_typed_func(store, name).ok().map(Entry::$variant),)+
                    _ => None,
                }
            }

            /// Calls the function.
            #[inline]
            pub(crate) fn call(
                &self,
                store: &mut Store<impl Sized + 'static>,
                arguments: &[f64],
            ) -> Result<wasmtime::Result<f64>, Fault> {
                match (self, arguments) {
                    $((Entry::$variant(function), &[$($argument),+]) => {
                        Ok(function.call(store, ($(missing($argument),)+)))
                    })+
                    _ => Err(Fault::Arguments),
                }
            }
        }
    };
}

entries! {
    One 1 (a) (f64);
    Two 2 (a, b) (f64, f64);
    Three 3 (a, b, c) (f64, f64, f64);
    Four 4 (a, b, c, d) (f64, f64, f64, f64);
    Five 5 (a, b, c, d, e) (f64, f64, f64, f64, f64);
    Six 6 (a, b, c, d, e, f) (f64, f64, f64, f64, f64, f64);
    Seven 7 (a, b, c, d, e, f, g) (f64, f64, f64, f64, f64, f64, f64);
    Eight 8 (a, b, c, d, e, f, g, h) (f64, f64, f64, f64, f64, f64, f64, f64);
    Nine 9 (a, b, c, d, e, f, g, h, i) (f64, f64, f64, f64, f64, f64, f64, f64, f64);
    Ten 10 (a, b, c, d, e, f, g, h, i, j) (f64, f64, f64, f64, f64, f64, f64, f64, f64, f64);
    Eleven 11 (a, b, c, d, e, f, g, h, i, j, k) (f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64);
    Twelve 12 (a, b, c, d, e, f, g, h, i, j, k, l)
        (f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64);
    Thirteen 13 (a, b, c, d, e, f, g, h, i, j, k, l, m)
        (f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64);
    Fourteen 14 (a, b, c, d, e, f, g, h, i, j, k, l, m, n)
        (f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64);
    Fifteen 15 (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)
        (f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64);
    Sixteen 16 (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
        (f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64);
}

/// Gives every missing value the same bits, so that a function that looks at them has one result.
#[inline]
fn missing(value: f64) -> f64 {
    if value.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { value }
}
