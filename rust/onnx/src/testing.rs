//! Writes ONNX files, for tests and fuzz targets.

use std::fmt::Write as _;

/// A message of protobuf that is being written.
#[derive(Debug, Clone, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn key(&mut self, field: u32, kind: u32) {
        self.varint(u64::from(field << 3 | kind));
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Adds an integer.
    #[must_use]
    pub fn number(mut self, field: u32, number: i64) -> Message {
        self.key(field, 0);
        self.varint(number.cast_unsigned());
        self
    }

    /// Adds a float32.
    #[must_use]
    pub fn float(mut self, field: u32, number: f32) -> Message {
        self.key(field, 5);
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Adds text, bytes or a message.
    #[must_use]
    pub fn bytes(mut self, field: u32, bytes: impl AsRef<[u8]>) -> Message {
        self.key(field, 2);
        self.varint(bytes.as_ref().len() as u64);
        self.0.extend(bytes.as_ref());
        self
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// An attribute of a node.
#[derive(Debug, Clone)]
pub enum Value {
    /// A float32.
    Float(f32),
    /// An integer.
    Integer(i64),
    /// A text.
    Text(&'static str),
    /// A list of float32.
    Floats(Vec<f32>),
    /// A list of integers.
    Integers(Vec<i64>),
    /// A tensor.
    Tensor(Message),
}

/// A file that is being written.
#[derive(Debug, Clone)]
pub struct ModelWriter {
    graph: Message,
    version: i64,
}

/// The element type float32.
pub const FLOAT: i64 = 1;

impl ModelWriter {
    /// A model with an input `x` of `[rows, columns]` and an output `y` of `[rows, values]`.
    #[must_use]
    pub fn new(columns: usize, values: usize) -> ModelWriter {
        ModelWriter::empty().input("x", FLOAT, &[None, Some(columns)]).output(
            "y",
            FLOAT,
            &[None, Some(values)],
        )
    }

    /// A model without inputs and outputs.
    #[must_use]
    pub fn empty() -> ModelWriter {
        ModelWriter { graph: Message::default().bytes(2, "graph"), version: 17 }
    }

    /// Sets the version of the operators.
    #[must_use]
    pub fn version(mut self, version: i64) -> ModelWriter {
        self.version = version;
        self
    }

    /// Adds an input of the graph.
    #[must_use]
    pub fn input(mut self, name: &str, element: i64, dims: &[Option<usize>]) -> ModelWriter {
        self.graph = self.graph.bytes(11, port(name, element, dims));
        self
    }

    /// Adds an output of the graph.
    #[must_use]
    pub fn output(mut self, name: &str, element: i64, dims: &[Option<usize>]) -> ModelWriter {
        self.graph = self.graph.bytes(12, port(name, element, dims));
        self
    }

    /// Adds an initializer of float32.
    #[must_use]
    pub fn floats(self, name: &str, dims: &[usize], floats: &[f32]) -> ModelWriter {
        self.tensor(tensor(name, dims, floats))
    }

    /// Adds an initializer of int64.
    #[must_use]
    pub fn integers(self, name: &str, integers: &[i64]) -> ModelWriter {
        let raw: Vec<u8> = integers.iter().flat_map(|one| one.to_le_bytes()).collect();
        self.tensor(
            Message::default().number(1, integers.len() as i64).number(2, 7).bytes(8, name).bytes(9, raw),
        )
    }

    /// Adds an initializer.
    #[must_use]
    pub fn tensor(mut self, tensor: Message) -> ModelWriter {
        self.graph = self.graph.bytes(5, tensor);
        self
    }

    /// Adds a node. Inputs and outputs are names with commas between them.
    #[must_use]
    pub fn node(
        self,
        operator: &str,
        inputs: &str,
        outputs: &str,
        attributes: &[(&str, Value)],
    ) -> ModelWriter {
        self.node_of("", operator, inputs, outputs, attributes)
    }

    /// Adds a node of the domain `ai.onnx.ml`.
    #[must_use]
    pub fn classical(
        self,
        operator: &str,
        inputs: &str,
        outputs: &str,
        attributes: &[(&str, Value)],
    ) -> ModelWriter {
        self.node_of("ai.onnx.ml", operator, inputs, outputs, attributes)
    }

    fn node_of(
        mut self,
        domain: &str,
        operator: &str,
        inputs: &str,
        outputs: &str,
        attributes: &[(&str, Value)],
    ) -> ModelWriter {
        let mut node = Message::default();
        for input in inputs.split(',') {
            node = node.bytes(1, input);
        }
        for output in outputs.split(',') {
            node = node.bytes(2, output);
        }
        let mut name = operator.to_lowercase();
        let _ = write!(name, "_{outputs}");
        node = node.bytes(3, name).bytes(4, operator).bytes(7, domain);
        for (name, value) in attributes {
            node = node.bytes(5, attribute(name, value));
        }
        self.graph = self.graph.bytes(1, node);
        self
    }

    /// Returns the file.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        let set = |domain: &str, version: i64| Message::default().bytes(1, domain).number(2, version);
        Message::default()
            .number(1, 8)
            .bytes(7, self.graph)
            .bytes(8, set("", self.version))
            .bytes(8, set("ai.onnx.ml", 3))
            .0
    }
}

/// A tensor of float32.
#[must_use]
pub fn tensor(name: &str, dims: &[usize], floats: &[f32]) -> Message {
    let raw: Vec<u8> = floats.iter().flat_map(|one| one.to_le_bytes()).collect();
    let dims = dims.iter().fold(Message::default(), |message, &dim| message.number(1, dim as i64));
    dims.number(2, FLOAT).bytes(8, name).bytes(9, raw)
}

fn port(name: &str, element: i64, dims: &[Option<usize>]) -> Message {
    let shape = dims.iter().fold(Message::default(), |shape, dim| {
        shape.bytes(
            1,
            match dim {
                Some(dim) => Message::default().number(1, *dim as i64),
                None => Message::default().bytes(2, "N"),
            },
        )
    });
    let kind = Message::default().bytes(1, Message::default().number(1, element).bytes(2, shape));
    Message::default().bytes(1, name).bytes(2, kind)
}

fn attribute(name: &str, value: &Value) -> Message {
    let message = Message::default().bytes(1, name);
    match value {
        Value::Float(float) => message.float(2, *float).number(20, 1),
        Value::Integer(integer) => message.number(3, *integer).number(20, 2),
        Value::Text(text) => message.bytes(4, text).number(20, 3),
        Value::Tensor(tensor) => message.bytes(5, tensor).number(20, 4),
        Value::Floats(floats) => {
            floats.iter().fold(message, |message, &float| message.float(7, float)).number(20, 6)
        }
        Value::Integers(all) => {
            all.iter().fold(message, |message, &one| message.number(8, one)).number(20, 7)
        }
    }
}

/// A net of dense layers with a rectifier between them and a sigmoid at the end, whose numbers follow from the sizes.
#[must_use]
pub fn dense_net(sizes: &[usize]) -> Vec<u8> {
    let last = sizes.len().saturating_sub(2);
    let mut model = ModelWriter::new(sizes.first().copied().unwrap_or(1), sizes.last().copied().unwrap_or(1));
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    for (at, pair) in sizes.windows(2).enumerate() {
        let (inputs, outputs) = (pair[0], pair[1]);
        let scale = 1.0 / (inputs as f32).sqrt();
        let weights: Vec<f32> = (0..inputs * outputs).map(|_| next() * scale).collect();
        let bias: Vec<f32> = (0..outputs).map(|_| next() * 0.1).collect();
        let from = if at == 0 { "x".to_owned() } else { format!("a{}", at - 1) };
        let to = if at == last { "y".to_owned() } else { format!("a{at}") };
        model = model
            .floats(&format!("w{at}"), &[outputs, inputs], &weights)
            .floats(&format!("b{at}"), &[outputs], &bias)
            .node("Gemm", &format!("{from},w{at},b{at}"), &format!("g{at}"), &[("transB", Value::Integer(1))])
            .node(if at == last { "Sigmoid" } else { "Relu" }, &format!("g{at}"), &to, &[]);
    }
    model.finish()
}
