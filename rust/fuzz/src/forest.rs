//! The forest file.

use scorer_core::forest::Forest;

/// Largest number of features of a row that is evaluated. A file may declare a million, which would test nothing more.
const WIDEST: usize = 4096;
/// Largest number of outputs of all rows together.
const MOST_OUTPUTS: usize = 1 << 16;

/// Values that are special in comparisons.
const VALUES: [f32; 8] =
    [0.0, -0.0, 1.0, -1.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE];

/// Reads a forest from `data`, which does not contain the checksum, evaluates it and writes it again.
pub fn run(data: &[u8]) {
    // Without the computed checksum, which tests the verification of the checksum.
    let _ = Forest::from_bytes(data);
    if let Ok(forest) = Forest::from_bytes(&with_checksum(data)) {
        evaluate(&forest);
        let written = forest.to_bytes();
        let again = Forest::from_bytes(&written).expect("a forest that was written can be read");
        assert_eq!(again.to_bytes(), written);
    }
}

/// Appends the checksum of a forest file.
pub fn with_checksum(body: &[u8]) -> Vec<u8> {
    let mut bytes = body.to_vec();
    bytes.extend(crc32c::crc32c(body).to_le_bytes());
    bytes
}

/// Evaluates rows of special values, one by one and as a block. Checks that the results are equal bit for bit.
pub fn evaluate(forest: &Forest) {
    let width = forest.num_features();
    let rows = VALUES.len();
    if width == 0 || width > WIDEST || rows * forest.num_outputs() > MOST_OUTPUTS {
        return;
    }
    let table: Vec<f32> =
        (0..rows * width).map(|at| VALUES[(at + at / width + at / VALUES.len()) % VALUES.len()]).collect();
    let outputs = forest.num_outputs();
    let mut block = vec![0.0; rows * outputs];
    forest.predict(&table, rows, true, &mut block).expect("the shapes fit");
    for (row, expected) in table.chunks_exact(width).zip(block.chunks_exact(outputs)) {
        let mut single = vec![0.0; outputs];
        forest.predict(row, 1, true, &mut single).expect("the shapes fit");
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&single), bits(expected), "one row and a block differ");
    }
}
