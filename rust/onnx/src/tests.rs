//! Operators against naive computations, the rules for inputs and outputs, and hostile files.

use super::testing::{FLOAT, Message, ModelWriter, Value, dense_net, tensor};
use super::*;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("c{at}")).collect()
}

fn parse(file: &[u8], columns: usize) -> Result<Net, NetError> {
    let names = names(columns);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Net::parse(file, &names, NetOptions::default())
}

fn score(file: &[u8], row: &[f32]) -> f32 {
    let net = parse(file, row.len()).unwrap();
    let mut scratch = NetScratch::new(&net);
    // The buffer of an earlier evaluation has no effect.
    net.run(&vec![f32::NAN; row.len()], &mut scratch, || false).unwrap();
    net.run(row, &mut scratch, || false).unwrap()
}

/// The value at each index of the output of one node that reads the row.
fn outputs(model: &dyn Fn(usize) -> Vec<u8>, row: &[f32], count: usize) -> Vec<f32> {
    let names = names(row.len());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    (0..count)
        .map(|index| {
            let net =
                Net::parse(&model(count), &names, NetOptions { index: Some(index), missing: None }).unwrap();
            net.run(row, &mut NetScratch::new(&net), || false).unwrap()
        })
        .collect()
}

fn near(got: &[f32], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!(
            (f64::from(*got) - expected).abs() <= 1e-6 * expected.abs().max(1.0),
            "{got} against {expected}"
        );
    }
}

fn reason(file: &[u8], columns: usize) -> String {
    parse(file, columns).unwrap_err().to_string()
}

#[test]
fn a_net_of_dense_layers_equals_a_naive_one() {
    // 70 outputs need three panels of columns, of which the last is not full.
    let file = dense_net(&[5, 70, 64, 1]);
    let row = [0.5f32, -1.25, 3.0, 0.0, -0.0];
    let mut values: Vec<f64> = row.iter().map(|&one| f64::from(one)).collect();
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    for (at, (inputs, outputs)) in [(5, 70), (70, 64), (64, 1)].into_iter().enumerate() {
        let scale = 1.0 / (inputs as f32).sqrt();
        let weights: Vec<f32> = (0..inputs * outputs).map(|_| next() * scale).collect();
        let bias: Vec<f32> = (0..outputs).map(|_| next() * 0.1).collect();
        let sums = (0..outputs).map(|output| {
            let row = &weights[output * inputs..][..inputs];
            let products = row.iter().zip(&values).map(|(weight, value)| f64::from(*weight) * value);
            f64::from(bias[output]) + products.sum::<f64>()
        });
        values = sums.map(|sum| if at == 2 { 1.0 / (1.0 + (-sum).exp()) } else { sum.max(0.0) }).collect();
    }
    near(&[score(&file, &row)], &values);
    let net = parse(&file, 5).unwrap();
    assert!(net.is_probability());
    assert_eq!(net.operators(), [("Gemm".to_owned(), 3), ("Relu".to_owned(), 2), ("Sigmoid".to_owned(), 1)]);
    assert_eq!(net.constants(), (5 + 1) * 96 + (70 + 1) * 64 + (64 + 1) * 32);
}

#[test]
fn functions_of_one_value() {
    let row = [-2.5f32, -0.5, 0.0, 0.75, 3.0];
    let alpha = || vec![("alpha", Value::Float(0.3))];
    type Case<'a> = (&'a str, Vec<(&'a str, Value)>, fn(f64) -> f64);
    let cases: Vec<Case<'_>> = vec![
        ("Relu", vec![], |x| x.max(0.0)),
        ("LeakyRelu", alpha(), |x| if x < 0.0 { 0.3f32 as f64 * x } else { x }),
        ("LeakyRelu", vec![], |x| if x < 0.0 { 0.01f32 as f64 * x } else { x }),
        ("Elu", alpha(), |x| if x < 0.0 { 0.3f32 as f64 * (x.exp() - 1.0) } else { x }),
        ("Selu", vec![], |x| 1.050_701 * if x > 0.0 { x } else { 1.673_263_2 * (x.exp() - 1.0) }),
        ("ThresholdedRelu", alpha(), |x| if x > 0.3 { x } else { 0.0 }),
        ("Sigmoid", vec![], |x| 1.0 / (1.0 + (-x).exp())),
        ("HardSigmoid", vec![], |x| (0.2 * x + 0.5).clamp(0.0, 1.0)),
        ("HardSwish", vec![], |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
        ("Tanh", vec![], f64::tanh),
        ("Softplus", vec![], |x| (1.0 + x.exp()).ln()),
        ("Softsign", vec![], |x| x / (1.0 + x.abs())),
        ("Gelu", vec![], |x| 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt()))),
        ("Gelu", vec![("approximate", Value::Text("tanh"))], |x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }),
        ("Erf", vec![], libm::erf),
        ("Exp", vec![], f64::exp),
        ("Neg", vec![], |x| -x),
        ("Abs", vec![], f64::abs),
    ];
    for (operator, attributes, function) in cases {
        let model = |count| ModelWriter::new(5, count).node(operator, "x", "y", &attributes).finish();
        near(&outputs(&model, &row, 5), &row.map(|x| function(f64::from(x))));
    }
    let positive = [0.5f32, 1.0, 7.25];
    type Plain = (&'static str, fn(f64) -> f64);
    let cases: [Plain; 3] = [("Log", f64::ln), ("Sqrt", f64::sqrt), ("Reciprocal", |x| 1.0 / x)];
    for (operator, function) in cases {
        let model = |count| ModelWriter::new(3, count).node(operator, "x", "y", &[]).finish();
        near(&outputs(&model, &positive, 3), &positive.map(|x| function(f64::from(x))));
    }
    let clip = |count| {
        ModelWriter::new(5, count)
            .floats("low", &[], &[-1.0])
            .floats("high", &[], &[1.0])
            .node("Clip", "x,low,high", "y", &[])
            .finish()
    };
    near(&outputs(&clip, &row, 5), &[-1.0, -0.5, 0.0, 0.75, 1.0]);
    let older = |count| {
        ModelWriter::new(5, count).version(9).node("Clip", "x", "y", &[("min", Value::Float(-1.0))]).finish()
    };
    near(&outputs(&older, &row, 5), &[-1.0, -0.5, 0.0, 0.75, 3.0]);
}

#[test]
fn functions_of_two_values() {
    let row = [-2.0f32, 0.5, 3.0];
    let with = |operator: &'static str, numbers: &'static [f32], swapped: bool| {
        move |count: usize| {
            let dims = if numbers.len() == 1 { vec![] } else { vec![numbers.len()] };
            let inputs = if swapped { "k,x" } else { "x,k" };
            ModelWriter::new(3, count).floats("k", &dims, numbers).node(operator, inputs, "y", &[]).finish()
        }
    };
    near(&outputs(&with("Add", &[1.0, 2.0, 3.0], false), &row, 3), &[-1.0, 2.5, 6.0]);
    near(&outputs(&with("Sub", &[1.0], true), &row, 3), &[3.0, 0.5, -2.0]);
    near(&outputs(&with("Mul", &[2.0], false), &row, 3), &[-4.0, 1.0, 6.0]);
    near(&outputs(&with("Div", &[2.0, 4.0, 0.5], false), &row, 3), &[-1.0, 0.125, 6.0]);
    near(&outputs(&with("Pow", &[2.0], false), &row, 3), &[4.0, 0.25, 9.0]);
    near(&outputs(&with("Min", &[1.0], false), &row, 3), &[-2.0, 0.5, 1.0]);
    near(&outputs(&with("Max", &[1.0], true), &row, 3), &[1.0, 1.0, 3.0]);
    near(&outputs(&with("PRelu", &[0.5, 0.25, 9.0], false), &row, 3), &[-1.0, 0.5, 3.0]);
    let own = |count| ModelWriter::new(3, count).node("Mul", "x,x", "y", &[]).finish();
    near(&outputs(&own, &row, 3), &[4.0, 0.25, 9.0]);
    // A missing value stays one on both sides.
    for swapped in [false, true] {
        for operator in ["Min", "Max", "Add"] {
            assert!(outputs(&with(operator, &[1.0], swapped), &[f32::NAN, 0.0, 0.0], 3)[0].is_nan());
        }
    }
}

#[test]
fn operators_that_move_values() {
    let row = [1.0f32, 2.0, 3.0, 4.0];
    let model =
        |build: fn(ModelWriter) -> ModelWriter| move |count| build(ModelWriter::new(4, count)).finish();
    let gather = model(|model| {
        model.integers("at", &[3, -4]).node("Gather", "x,at", "y", &[("axis", Value::Integer(1))])
    });
    near(&outputs(&gather, &row, 2), &[4.0, 1.0]);
    let slice = model(|model| {
        let model = model.integers("starts", &[0]).integers("ends", &[i64::MAX]).integers("axes", &[1]);
        model.integers("steps", &[2]).node("Slice", "x,starts,ends,axes,steps", "y", &[])
    });
    near(&outputs(&slice, &row, 2), &[1.0, 3.0]);
    let concat = model(|model| {
        let model = model.integers("sizes", &[1, 3]);
        let model = model.node("Split", "x,sizes", "a,b", &[("axis", Value::Integer(1))]);
        model.node("Concat", "b,a", "y", &[("axis", Value::Integer(-1))])
    });
    near(&outputs(&concat, &row, 4), &[2.0, 3.0, 4.0, 1.0]);
    let shaped = model(|model| {
        let model = model.node("Shape", "x", "shape", &[]).integers("zero", &[0]).integers("rest", &[-1]);
        let model = model.node("Gather", "shape,zero", "rows", &[]);
        let model = model.node("Concat", "rows,rest", "target", &[("axis", Value::Integer(0))]);
        let model = model.node("Reshape", "x,target", "r", &[]).integers("one", &[1]);
        let model = model.node("Unsqueeze", "r,one", "u", &[]).node("Squeeze", "u,one", "s", &[]);
        model.node("Flatten", "s", "f", &[]).node("Identity", "f", "y", &[])
    });
    near(&outputs(&shaped, &row, 4), &[1.0, 2.0, 3.0, 4.0]);
    let matrix = model(|model| {
        let model = model.floats("w", &[2, 4], &[1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        model.node("Transpose", "w", "t", &[]).node("MatMul", "x,t", "y", &[])
    });
    near(&outputs(&matrix, &row, 2), &[1.0, 10.0]);
    let square = |count| {
        let model = ModelWriter::new(2, count).floats("w", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        model.node("Transpose", "w", "t", &[]).node("MatMul", "x,t", "y", &[]).finish()
    };
    near(&outputs(&square, &[1.0, 10.0], 2), &[21.0, 43.0]);
}

#[test]
fn operators_of_the_whole_row() {
    let row = [1.0f32, -2.0, 0.5];
    let exps: Vec<f64> = row.iter().map(|&x| f64::from(x).exp()).collect();
    let sum: f64 = exps.iter().sum();
    let one = |operator: &'static str, attributes: Vec<(&'static str, Value)>| {
        move |count| ModelWriter::new(3, count).node(operator, "x", "y", &attributes).finish()
    };
    near(&outputs(&one("Softmax", vec![]), &row, 3), &exps.iter().map(|exp| exp / sum).collect::<Vec<_>>());
    near(
        &outputs(&one("LogSoftmax", vec![]), &row, 3),
        &exps.iter().map(|exp| (exp / sum).ln()).collect::<Vec<_>>(),
    );
    let axes = || vec![("axes", Value::Integers(vec![1]))];
    near(&outputs(&one("ReduceMean", axes()), &row, 1), &[-0.5 / 3.0]);
    near(&outputs(&one("ReduceMax", axes()), &row, 1), &[1.0]);
    near(&outputs(&one("ReduceMin", axes()), &row, 1), &[-2.0]);
    let total = |count| {
        ModelWriter::new(3, count).integers("axes", &[-1]).node("ReduceSum", "x,axes", "y", &[]).finish()
    };
    near(&outputs(&total, &row, 1), &[-0.5]);
    let normal = |norm: &'static str| {
        move |count| {
            ModelWriter::new(3, count)
                .classical("Normalizer", "x", "y", &[("norm", Value::Text(norm))])
                .finish()
        }
    };
    near(&outputs(&normal("L1"), &row, 3), &[1.0 / 3.5, -2.0 / 3.5, 0.5 / 3.5]);
    near(&outputs(&normal("MAX"), &row, 3), &[1.0, -2.0, 0.5]);
    let length = 5.25f64.sqrt();
    near(&outputs(&normal("L2"), &row, 3), &[1.0 / length, -2.0 / length, 0.5 / length]);
    let (mean, variance) = (-0.5 / 3.0, 1.722_222_222_222);
    let layer = |count| {
        let model = ModelWriter::new(3, count).floats("s", &[3], &[1.0, 2.0, 1.0]).floats(
            "b",
            &[3],
            &[0.0, 0.0, 1.0],
        );
        model.node("LayerNormalization", "x,s,b", "y", &[]).finish()
    };
    let scaled = |x: f64| (x - mean) / (variance + 1e-5f64).sqrt();
    near(&outputs(&layer, &row, 3), &[scaled(1.0), 2.0 * scaled(-2.0), scaled(0.5) + 1.0]);
    let batch = |count| {
        let model = ModelWriter::new(3, count).floats("s", &[3], &[1.0, 2.0, 1.0]).floats(
            "b",
            &[3],
            &[0.0, 0.5, 1.0],
        );
        let model = model.floats("m", &[3], &[0.5, -1.0, 0.0]).floats("v", &[3], &[4.0, 1.0, 0.25]);
        model.node("BatchNormalization", "x,s,b,m,v", "y", &[("epsilon", Value::Float(0.0))]).finish()
    };
    near(&outputs(&batch, &row, 3), &[0.25, -1.5, 2.0]);
}

#[test]
fn classical_operators() {
    let row = [1.0f32, f32::NAN, 0.5];
    let pipeline = |count| {
        ModelWriter::new(3, count)
            .classical(
                "Imputer",
                "x",
                "i",
                &[
                    ("imputed_value_floats", Value::Floats(vec![9.0, 4.0, 9.0])),
                    ("replaced_value_float", Value::Float(f32::NAN)),
                ],
            )
            .classical(
                "Scaler",
                "i",
                "s",
                &[
                    ("offset", Value::Floats(vec![1.0, 2.0, 0.0])),
                    ("scale", Value::Floats(vec![2.0, 0.5, 4.0])),
                ],
            )
            .classical(
                "LinearClassifier",
                "s",
                "label,p",
                &[
                    ("coefficients", Value::Floats(vec![-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])),
                    ("intercepts", Value::Floats(vec![-0.5, 0.5])),
                    ("classlabels_ints", Value::Integers(vec![0, 1])),
                    ("post_transform", Value::Text("LOGISTIC")),
                ],
            )
            .classical("Normalizer", "p", "y", &[("norm", Value::Text("L1"))])
            .finish()
    };
    // Scaled to 0, 1 and 2: the sum is 3, with the intercept 3.5.
    let positive = 1.0 / (1.0 + (-3.5f64).exp());
    near(&outputs(&pipeline, &row, 2), &[1.0 - positive, positive]);
    // Without an index the score is the positive class, which is a probability.
    near(&[score(&pipeline(2), &row)], &[positive]);
    assert!(parse(&pipeline(2), 3).unwrap().is_probability());
    let regressor = ModelWriter::new(2, 1)
        .classical(
            "LinearRegressor",
            "x",
            "y",
            &[("coefficients", Value::Floats(vec![2.0, -1.0])), ("intercepts", Value::Floats(vec![0.25]))],
        )
        .finish();
    near(&[score(&regressor, &[3.0, 1.0])], &[5.25]);
    assert!(!parse(&regressor, 2).unwrap().is_probability());
}

#[test]
fn inputs_by_name_are_columns() {
    let model = || ModelWriter::empty().output("y", FLOAT, &[None, Some(1)]);
    let sum = |model: ModelWriter| model.node("Sub", "a,b", "y", &[]).finish();
    let both = sum(model().input("b", FLOAT, &[None, Some(1)]).input("a", FLOAT, &[Some(1), Some(1)]));
    let net = Net::parse(&both, &["a", "b"], NetOptions::default()).unwrap();
    assert_eq!(net.run(&[5.0, 3.0], &mut NetScratch::new(&net), || false), Ok(2.0));
    let refused =
        |columns: &[&str]| Net::parse(&both, columns, NetOptions::default()).unwrap_err().to_string();
    assert_eq!(refused(&["a", "c"]), "input \"b\": is no column of the row; name the inputs as the columns");
    assert!(refused(&["a", "b", "c"]).starts_with("input \"c\": the model has no input for this column"));
    let texts = sum(model().input("b", 8, &[None, Some(1)]).input("a", FLOAT, &[None, Some(1)]));
    assert!(reason(&texts, 2).starts_with("input \"b\": takes strings, a row has float32"));
}

#[test]
fn missing_values_get_the_stated_number() {
    let file =
        ModelWriter::new(2, 1).floats("w", &[2, 1], &[1.0, 10.0]).node("MatMul", "x,w", "y", &[]).finish();
    let with = |missing| Net::parse(&file, &["a", "b"], NetOptions { index: None, missing }).unwrap();
    let run = |net: &Net| net.run(&[1.0, f32::NAN], &mut NetScratch::new(net), || false).unwrap();
    assert_eq!(run(&with(Some(-2.0))), -19.0);
    assert!(run(&with(None)).is_nan());
}

#[test]
fn a_run_stops_when_it_is_told() {
    let net = parse(&dense_net(&[8, 2000, 2000, 1]), 8).unwrap();
    let mut scratch = NetScratch::new(&net);
    let mut calls = 0;
    let all = net.run(&[1.0; 8], &mut scratch, || {
        calls += 1;
        false
    });
    assert!(all.is_ok());
    assert!(calls > 50, "{calls} questions for 4 million multiplications");
    for at in [1, 2, calls / 2, calls] {
        let mut left = at;
        let stopped = net.run(&[1.0; 8], &mut scratch, || {
            left -= 1;
            left == 0
        });
        assert_eq!((stopped, left), (Err(Stopped), 0));
    }
}

#[test]
fn a_run_without_steps_stops_when_it_is_told() {
    let net = parse(&ModelWriter::new(1, 1).node("Identity", "x", "y", &[]).finish(), 1).unwrap();
    let mut scratch = NetScratch::new(&net);
    assert_eq!(net.run(&[2.5], &mut scratch, || false), Ok(2.5));
    assert_eq!(net.run(&[2.5], &mut scratch, || true), Err(Stopped));
}

#[test]
fn models_that_give_no_score_are_refused() {
    let dense =
        |model: ModelWriter| model.floats("w", &[2, 3], &[0.5; 6]).node("MatMul", "x,w", "y", &[]).finish();
    assert_eq!(
        reason(&dense(ModelWriter::new(2, 3)), 2),
        "output: \"y\" has 3 values for a row; state output_index"
    );
    assert_eq!(
        reason(&dense(ModelWriter::new(2, 3)), 4),
        "input \"x\": takes 2 columns, the row has 4; build both from the same columns"
    );
    let fixed =
        ModelWriter::empty().input("x", FLOAT, &[Some(32), Some(2)]).output("y", FLOAT, &[None, Some(3)]);
    assert!(reason(&dense(fixed), 2).starts_with("input \"x\": is fixed to 32 rows"));
    let flat = ModelWriter::empty().input("x", FLOAT, &[Some(2)]).output("y", FLOAT, &[None, Some(3)]);
    assert!(reason(&dense(flat), 2).starts_with("input \"x\": must have the shape [rows, columns]"));
    let two = ModelWriter::new(2, 3).output("x", FLOAT, &[None, Some(2)]);
    assert!(reason(&dense(two), 2).starts_with("output: y, x are tensors of float32"));
    let column =
        ModelWriter::new(2, 1).integers("shape", &[2, 1]).node("Reshape", "x,shape", "y", &[]).finish();
    assert!(reason(&column, 2).starts_with("output: \"y\" has the shape [2, 1] for one row"));
    let maps = ModelWriter::empty().input("x", FLOAT, &[None, Some(2)]).output("label", 7, &[None]);
    let maps = maps.classical("ZipMap", "p", "maps", &[]).finish();
    assert!(reason(&maps, 2).contains("zipmap"), "{}", reason(&maps, 2));
    let constant = ModelWriter::new(2, 1).floats("k", &[1], &[0.5]).node("Identity", "k", "y", &[]).finish();
    assert!(reason(&constant, 2).contains("does not depend on the row"));
    let nothing = ModelWriter::new(2, 1).finish();
    assert!(reason(&nothing, 2).contains("does not depend on the row"));
}

#[test]
fn hostile_files_are_refused_by_name() {
    let one = |model: ModelWriter, operator: &str, inputs: &str| {
        reason(&model.node(operator, inputs, "y", &[]).finish(), 2)
    };
    let model = || ModelWriter::new(2, 1);
    for operator in ["Loop", "If", "Scan", "LSTM", "Conv", "Evil\u{7}"] {
        let refused = one(model(), operator, "x");
        assert!(refused.contains("operator") && refused.contains("is not supported"), "{refused}");
        assert!(!refused.contains('\u{7}'), "{refused}");
    }
    let strange = ModelWriter::new(2, 1).classical("Relu", "x", "y", &[]).finish();
    assert!(reason(&strange, 2).contains("operator ai.onnx.ml.Relu is not supported"));
    let external = Message::default().number(1, 2).number(1, 1).number(2, FLOAT).bytes(8, "w").number(14, 1);
    let external = external.bytes(13, Message::default().bytes(1, "location").bytes(2, "/etc/passwd"));
    assert!(
        one(model().tensor(external), "MatMul", "x,w")
            .contains("initializer \"w\": its data are in another file")
    );
    let huge = Message::default().number(1, i64::MAX).number(1, 1 << 40).number(2, FLOAT).bytes(8, "w");
    assert!(one(model().tensor(huge), "MatMul", "x,w").contains("has the shape"));
    let negative = Message::default().number(1, -2).number(2, FLOAT).bytes(8, "w");
    assert!(one(model().tensor(negative), "MatMul", "x,w").contains("has the shape [-2]"));
    let short = Message::default().number(1, 2).number(1, 1).number(2, FLOAT).bytes(8, "w").bytes(9, [0; 4]);
    assert!(one(model().tensor(short), "MatMul", "x,w").contains("has 1 elements, its shape needs 2"));
    let texts = Message::default().number(1, 1).number(2, 8).bytes(8, "w").bytes(6, "text");
    assert!(one(model().tensor(texts), "Add", "x,w").contains("has strings"));
    let infinite = tensor("w", &[2], &[1.0, f32::INFINITY]);
    assert!(one(model().tensor(infinite), "Add", "x,w").contains("not finite"));
    assert!(one(model(), "Add", "x,absent").contains("reads \"absent\""));
    assert!(one(model(), "Add", "x,y").contains("reads \"y\""));
    assert!(one(model().floats("w", &[3, 1], &[0.0; 3]), "MatMul", "x,w").contains("by 3 rows of weights"));
    assert!(
        one(model().floats("w", &[2], &[0.0; 2]).floats("v", &[2], &[0.0; 2]), "Add", "w,v")
            .contains("constant folding")
    );
    // A column and a row would give a matrix.
    assert!(one(model().floats("w", &[64, 1], &[0.0; 64]), "Add", "x,w").contains("combines the shapes"));
    // Each of these names is used again, so that the order of the nodes is not that of their values.
    let again = model().node("Relu", "x", "y", &[]).node("Relu", "x", "y", &[]).finish();
    assert!(reason(&again, 2).contains("twice"));
}

#[test]
fn work_and_memory_are_bounded() {
    // Every node doubles the values.
    let mut doubling = ModelWriter::new(2, 1);
    for at in 0..40 {
        let from = if at == 0 { "x".to_owned() } else { format!("d{at}") };
        doubling = doubling.node(
            "Concat",
            &format!("{from},{from}"),
            &format!("d{}", at + 1),
            &[("axis", Value::Integer(1))],
        );
    }
    let axes = [("axes", Value::Integers(vec![1]))];
    assert!(
        reason(&doubling.clone().node("ReduceMax", "d40", "y", &axes).finish(), 2).contains("values per row")
    );
    // Reductions of one large value read it again and again.
    let mut reading = doubling.node("ReduceMax", "d17", "m0", &axes);
    for at in 0..64 {
        reading = reading.node("ReduceMax", "d17", &format!("n{at}"), &axes);
        reading = reading.node("Add", &format!("n{at},m{at}"), &format!("m{}", at + 1), &[]);
    }
    assert!(reason(&reading.node("Identity", "m64", "y", &[]).finish(), 2).contains("values per row"));
    // One constant of a million numbers in many products.
    let mut sharing = ModelWriter::new(1000, 1).floats("w", &[1000, 1000], &vec![0.001; 1_000_000]);
    for at in 0..8 {
        let from = if at == 0 { "x".to_owned() } else { format!("h{at}") };
        sharing = sharing.node("MatMul", &format!("{from},w"), &format!("h{}", at + 1), &[]);
    }
    assert!(reason(&sharing.node("ReduceMax", "h8", "y", &axes).finish(), 1000).contains("constants"));
    // Copies of a constant.
    let mut copying = ModelWriter::new(1000, 1).floats("t0", &[1000, 1000], &vec![0.001; 1_000_000]);
    for at in 0..8 {
        copying = copying.node("Transpose", &format!("t{at}"), &format!("t{}", at + 1), &[]);
    }
    let copying = copying.node("MatMul", "x,t8", "h", &[]).node("ReduceMax", "h", "y", &axes).finish();
    assert!(reason(&copying, 1000).contains("constants"));
    let many = (0..MAX_NODES).fold(ModelWriter::new(2, 1), |model, _| model.node("Relu", "x", "z", &[]));
    assert!(reason(&many.node("Relu", "x", "y", &[]).finish(), 2).contains("nodes, at most 1024"));
    assert!(reason(&vec![0; MAX_FILE_BYTES + 1], 2).contains("bytes, at most"));
}

#[test]
fn truncated_and_altered_files_are_refused_or_score() {
    let file = dense_net(&[3, 4, 1]);
    let readable: Vec<usize> = (0..file.len()).filter(|&length| parse(&file[..length], 3).is_ok()).collect();
    // The file ends with the version of an operator set that the net does not use.
    assert_eq!(readable.len(), 1, "{readable:?}");
    let mut refused = 0;
    for at in 0..file.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut altered = file.clone();
            altered[at] ^= flip;
            match parse(&altered, 3) {
                Ok(net) => drop(net.run(&[1.0; 3], &mut NetScratch::new(&net), || false)),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > file.len());
}
