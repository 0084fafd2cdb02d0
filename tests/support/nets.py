"""ONNX models for tests: from scikit-learn, and with the nodes that PyTorch and TensorFlow export."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

COLUMNS = 8
"""Columns of the models."""


def rows(count: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return rows of numbers of different sizes, ``[count, COLUMNS]``."""
    random = np.random.default_rng(seed)
    scales = np.array([1, 50, 1e3, 0.01, 1, 5, 1, 200])
    return np.asarray(random.normal(size=(count, COLUMNS)) * scales + scales, dtype=np.float32)


def labels(data: npt.NDArray[np.float32], seed: int = 0) -> npt.NDArray[np.int64]:
    """Return labels that depend on the rows and on chance."""
    random = np.random.default_rng(seed)
    signal = data[:, 0] - 1 + (data[:, 1] - 50) / 50 * data[:, 4]
    return np.asarray(signal + random.normal(size=len(data)) > 0, dtype=np.int64)


def from_sklearn(model: Any, inputs: Sequence[str] = (), **options: Any) -> bytes:
    """Convert a pipeline by skl2onnx, with one input of all columns or one for each name."""
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType

    types = [(name, FloatTensorType([None, 1])) for name in inputs] or [
        ("X", FloatTensorType([None, COLUMNS]))
    ]
    settings = {id(model): {"zipmap": False, **options}}
    converted = convert_sklearn(model, initial_types=types, options=settings, target_opset=21)
    return bytes(converted.SerializeToString())


def weights(sizes: Sequence[int], seed: int = 3) -> list[tuple[Any, Any]]:
    """Return the matrix ``[outputs, inputs]`` and the bias of every layer."""
    random = np.random.default_rng(seed)
    return [
        (
            np.asarray(random.normal(size=(outputs, inputs)) / np.sqrt(inputs), dtype=np.float32),
            np.asarray(random.normal(size=outputs) * 0.1, dtype=np.float32),
        )
        for inputs, outputs in itertools.pairwise(sizes)
    ]


def as_torch_exports(
    sizes: Sequence[int] = (COLUMNS, 64, 64, 64, 1), activation: str = "Relu", *, logits: bool = False
) -> bytes:
    """Return a net of `torch.nn.Linear` layers, batch normalisation in the first one, and activations.

    `torch.onnx.export` writes a `Gemm` with `transB`, a `BatchNormalization` and the activation for them.
    """
    nodes, initializers, current = [], [], "input"
    layers = weights(sizes)
    for number, (matrix, bias) in enumerate(layers):
        name = f"net.{2 * number}"
        initializers += [
            numpy_helper.from_array(matrix, f"{name}.weight"),
            numpy_helper.from_array(bias, f"{name}.bias"),
        ]
        nodes.append(
            helper.make_node(
                "Gemm",
                [current, f"{name}.weight", f"{name}.bias"],
                [f"/{name}/Gemm_output_0"],
                name=f"/{name}/Gemm",
                alpha=1.0,
                beta=1.0,
                transB=1,
            )
        )
        current = f"/{name}/Gemm_output_0"
        if not number:
            random = np.random.default_rng(5)
            parts = {
                "weight": random.normal(size=len(bias)),
                "bias": random.normal(size=len(bias)),
                "running_mean": random.normal(size=len(bias)),
                "running_var": random.uniform(0.5, 2, size=len(bias)),
            }
            initializers += [
                numpy_helper.from_array(part.astype(np.float32), f"norm.{key}") for key, part in parts.items()
            ]
            inputs = [current, *(f"norm.{key}" for key in parts)]
            nodes.append(
                helper.make_node(
                    "BatchNormalization", inputs, ["norm"], name="/norm", epsilon=1e-5, momentum=0.9
                )
            )
            current = "norm"
        last = number == len(layers) - 1
        if last and logits:
            break
        output = "output" if last else f"/act.{number}_output_0"
        operator = "Sigmoid" if last else activation
        nodes.append(helper.make_node(operator, [current], [output], name=f"/act.{number}"))
        current = output
    if logits:
        nodes[-1].output[0] = "output"
    return _model(nodes, initializers, "input", sizes[0], "output", sizes[-1], 17)


def as_tensorflow_exports(sizes: Sequence[int] = (COLUMNS, 64, 64, 2)) -> bytes:
    """Return a Keras model of Dense layers with a normalisation of its inputs and a softmax at the end.

    tf2onnx writes a `Sub` and a `Div` for `Normalization`, and a `MatMul` and an `Add` for `Dense`.
    """
    mean = np.asarray(rows(500).mean(axis=0, keepdims=True), dtype=np.float32)
    deviation = np.asarray(rows(500).std(axis=0, keepdims=True), dtype=np.float32)
    initializers = [numpy_helper.from_array(mean, "mean"), numpy_helper.from_array(deviation, "deviation")]
    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["centred"], name="model/normalization/sub"),
        helper.make_node("Div", ["centred", "deviation"], ["scaled"], name="model/normalization/truediv"),
    ]
    current = "scaled"
    layers = weights(sizes, 4)
    for number, (matrix, bias) in enumerate(layers):
        name = f"model/dense_{number}"
        initializers += [
            numpy_helper.from_array(np.ascontiguousarray(matrix.T), f"{name}/kernel"),
            numpy_helper.from_array(bias, f"{name}/bias"),
        ]
        last = number == len(layers) - 1
        output = "dense_out" if last else f"{name}/act"
        nodes += [
            helper.make_node(
                "MatMul", [current, f"{name}/kernel"], [f"{name}/MatMul"], name=f"{name}/MatMul"
            ),
            helper.make_node("Add", [f"{name}/MatMul", f"{name}/bias"], [f"{name}/Add"], name=f"{name}/Add"),
            helper.make_node(
                "Softmax" if last else "Tanh",
                [f"{name}/Add"],
                [output],
                name=f"{name}/{'Softmax' if last else 'Tanh'}",
                **({"axis": -1} if last else {}),
            ),
        ]
        current = output
    return _model(nodes, initializers, "x", sizes[0], "dense_out", sizes[-1], 15)


def _model(
    nodes: list[Any],
    initializers: list[Any],
    source: str,
    columns: int,
    output: str,
    values: int,
    version: int,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, ["batch", columns])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", values])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
