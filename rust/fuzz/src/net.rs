//! The ONNX file.

use scorer_onnx::{Net, NetOptions, NetScratch};

/// Values that are special in functions.
const VALUES: [f32; 8] = [0.0, -0.0, 1.0, -1.5, f32::NAN, 1e30, -1e30, f32::MIN_POSITIVE];
/// Names of the columns. Seeds with an input for each column use them.
const COLUMNS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Compiles a file for as many columns as the first byte states, and evaluates a row twice, with other values in the buffer.
pub fn run(data: &[u8]) {
    let Some((&first, file)) = data.split_first() else { return };
    let columns = &COLUMNS[..1 + usize::from(first) % COLUMNS.len()];
    for options in [NetOptions::default(), NetOptions { index: Some(0), missing: Some(0.0) }] {
        let Ok(net) = Net::parse(file, columns, options) else { continue };
        assert_eq!(net.width(), columns.len());
        let row: Vec<f32> = (0..net.width()).map(|at| VALUES[(usize::from(first) / 8 + at) % 8]).collect();
        let mut scratch = NetScratch::new(&net);
        let score = net.run(&row, &mut scratch, || false).expect("nothing stops it");
        net.run(&vec![f32::NAN; row.len()], &mut scratch, || false).expect("nothing stops it");
        let again = net.run(&row, &mut scratch, || false).expect("nothing stops it");
        assert!(score.to_bits() == again.to_bits() || (score.is_nan() && again.is_nan()));
        if net.is_probability() && !score.is_nan() {
            assert!((0.0..=1.0).contains(&score), "{score} is no probability");
        }
        assert!(net.run(&row, &mut scratch, || true).is_err());
    }
}
