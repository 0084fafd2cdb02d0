#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scorer_fuzz::features::run(data));
