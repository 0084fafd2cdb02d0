"""Measure an ONNX model of three layers of 64 for one row on one thread, beside ONNX Runtime.

``python -m loadtests.onnx`` builds the net, measures this engine by a Rust program and ONNX Runtime from
Python, and prints the ratios. Both take turns in rounds; the figures are medians over the rounds. ONNX
Runtime is called with bound inputs and outputs on one thread, so its call neither converts nor copies. The
time of the same call for a model that only copies its input is printed and subtracted, which gives the least
time that its own work can take.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt

COLUMNS: Final = 30
HIDDEN: Final = (64, 64, 64)
ROUNDS: Final = 7
CALLS: Final = 5000
"""Calls of ONNX Runtime per round."""
MOST_RATIO: Final = 2.0
"""By what factor this engine may be slower than ONNX Runtime."""
TOLERANCE: Final = 1e-5
LIMIT: Final = 120.0
"""Seconds after which the Rust program is ended."""
ROOT: Final = Path(__file__).resolve().parents[1]


def dense_net(activation: str) -> bytes:
    """Return a net with the nodes that PyTorch exports: `Gemm`, activations and a sigmoid at the end."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, constants, current = [], [], "x"
    sizes = (COLUMNS, *HIDDEN, 1)
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        matrix = random.normal(size=(outputs, inputs)) / np.sqrt(inputs)
        bias = random.normal(size=outputs) * 0.1
        constants += [
            numpy_helper.from_array(matrix.astype(np.float32), f"w{number}"),
            numpy_helper.from_array(bias.astype(np.float32), f"b{number}"),
        ]
        last = number == len(HIDDEN)
        output = "y" if last else f"a{number}"
        names = [current, f"w{number}", f"b{number}"]
        nodes += [
            helper.make_node("Gemm", names, [f"g{number}"], transB=1),
            helper.make_node("Sigmoid" if last else activation, [f"g{number}"], [output]),
        ]
        current = output
    return _content(nodes, constants, 1, TensorProto.FLOAT)


def copying_net() -> bytes:
    """Return a model that copies its input, whose time is that of a call."""
    from onnx import TensorProto, helper

    return _content([helper.make_node("Identity", ["x"], ["y"])], [], COLUMNS, TensorProto.FLOAT)


def _content(nodes: list[Any], constants: list[Any], values: int, element: int) -> bytes:
    from onnx import helper

    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", element, ["rows", COLUMNS])],
        [helper.make_tensor_value_info("y", element, ["rows", values])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


def row() -> npt.NDArray[np.float32]:
    """Return the row that the Rust program measures, ``[1, COLUMNS]``."""
    return np.sin(np.arange(COLUMNS, dtype=np.float32) * np.float32(0.37))[None]


class BoundRuntime:
    """A session of ONNX Runtime on one thread, with its input and output bound.

    Args:
        content: The ONNX model.
    """

    def __init__(self, content: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        self._binding.bind_cpu_input("x", row())
        self._binding.bind_output("y")

    def score(self) -> float:
        """Return the first value of the output."""
        self._session.run_with_iobinding(self._binding)
        return float(self._binding.copy_outputs_to_cpu()[0][0, 0])

    def microseconds(self) -> float:
        """Return the mean time of a call in microseconds."""
        session, binding = self._session, self._binding
        began = time.perf_counter()
        for _ in range(CALLS):
            session.run_with_iobinding(binding)
        return (time.perf_counter() - began) / CALLS * 1e6


def own(program: Path, file: Path) -> dict[str, float]:
    """Return what the Rust program prints: the score and times in microseconds."""
    command = [str(program), str(file), str(COLUMNS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def measure(program: Path, activation: str) -> bool:
    """Measure a net, print its figures, and return whether they meet the limits.

    Args:
        program: The compiled example `speed` of `rust/onnx`.
        activation: The operator between the layers.
    """
    content = dense_net(activation)
    net, copying = BoundRuntime(content), BoundRuntime(copying_net())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.onnx"
        file.write_bytes(content)
        found = own(program, file)
        difference = abs(found["score"] - net.score())
        ours, loads, theirs, calls = [], [], [], []
        for _ in range(ROUNDS):
            found = own(program, file)
            ours.append(found["median_us"])
            loads.append(found["load_us"])
            theirs.append(net.microseconds())
            calls.append(copying.microseconds())
    mine, runtime, call = median(ours), median(theirs), median(calls)
    least = max(runtime - call, 0.0)
    ratios = mine / runtime, mine / least if least else float("inf")
    sys.stdout.write(
        f"{activation}: scorer {mine:.2f} us (load {median(loads):.0f} us), ONNX Runtime {runtime:.2f} us "
        f"with the call from Python, {least:.2f} us without (an empty call takes {call:.2f} us); "
        f"ratio {ratios[0]:.2f} to {ratios[1]:.2f}, difference of the scores {difference:.1e}\n"
    )
    return ratios[1] <= MOST_RATIO and difference <= TOLERANCE


def main() -> int:
    """Measure nets with two activations; return 1 if a limit is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="Exit with 1 if a limit is not met.")
    arguments = parser.parse_args()
    build = ["cargo", "build", "--release", "--quiet", "--package", "scorer-onnx", "--example", "speed"]
    subprocess.run(build, cwd=ROOT, check=True)
    program = ROOT / "target" / "release" / "examples" / "speed"
    met = [measure(program, activation) for activation in ("Relu", "Sigmoid", "Tanh")]
    return int(arguments.check and not all(met))


if __name__ == "__main__":
    sys.exit(main())
