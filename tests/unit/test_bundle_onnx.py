"""Tests of bundles with ONNX models, against ONNX Runtime and scikit-learn."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nets
import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pytest
from onnx import TensorProto, helper
from pyarrow import parquet
from skl2onnx import to_onnx
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from trained import CREATED, LINEAGE, train

from scorer.bundle import (
    Band,
    Bundle,
    Feature,
    HeldOut,
    MeanEnsemble,
    MissingFlag,
    OnnxModel,
    ReasonsFile,
    SchemaFile,
    SegmentCase,
    SigmoidMap,
    Standardise,
    SwitchEnsemble,
    build_score_bundle,
    inspect,
    revise,
    verify,
)
from scorer.bundle.models import ScoreMapFile
from scorer.cli import main
from scorer.errors import BundleError
from scorer.explain.importance import importances
from scorer.explain.thresholds import ForestThresholds

NAMES = [f"c{number}" for number in range(nets.COLUMNS)]
BANDS = [Band(start=0.0, label="approve"), Band(start=0.5, label="decline")]
TOLERANCE = 1e-5


def schema(missing: str = "refuse") -> SchemaFile:
    return SchemaFile(features=[Feature(name=name, missing=missing) for name in NAMES])


def build(path: Path, model: Any, **changes: Any) -> Bundle:
    settings: dict[str, Any] = {
        "name": "fraud",
        "model": model,
        "schema": schema(),
        "bands": BANDS,
        "training": nets.rows(400),
        "validation": nets.rows(300, 1),
        "lineage": LINEAGE,
        "created_at": CREATED,
        "golden_cases": 256,
    }
    return Bundle.load(build_score_bundle(path, **{**settings, **changes}).path)


def runtime(content: bytes, rows: np.ndarray, index: int | None = None) -> np.ndarray:
    """Return the score that ONNX Runtime computes for each row."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    feed = {names[0]: rows}
    if len(names) > 1:
        feed = {name: rows[:, [NAMES.index(name)]] for name in names}
    output = next(one.name for one in session.get_outputs() if one.type == "tensor(float)")
    values = np.asarray(session.run([output], feed)[0]).reshape(len(rows), -1)
    return values[:, values.shape[1] - 1 if index is None else index]


def differences(bundle: Bundle, content: bytes, rows: np.ndarray) -> float:
    return float(np.abs(np.asarray(bundle.score(rows).scores) - runtime(content, rows)).max())


def fitted(*steps: Any) -> Any:
    data = nets.rows(600, 2)
    return make_pipeline(*steps).fit(data, nets.labels(data))


@pytest.mark.parametrize(
    "pipeline",
    [
        (StandardScaler(), LogisticRegression()),
        (MinMaxScaler(), LogisticRegression(C=0.1)),
        (StandardScaler(), MLPClassifier((64, 64, 64), max_iter=30, random_state=1)),
        (StandardScaler(), MLPClassifier((16,), activation="tanh", max_iter=30, random_state=1)),
        (
            StandardScaler(),
            MLPClassifier((16, 8), activation="logistic", learning_rate_init=0.05, random_state=1),
        ),
    ],
    ids=["logistic", "minmax", "mlp", "tanh", "sigmoid"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_pipelines_score_as_their_runtimes_do(tmp_path: Path, pipeline: Any) -> None:
    """A pipeline that skl2onnx converts has the probabilities of ONNX Runtime and of scikit-learn."""
    model = fitted(*pipeline)
    content = nets.from_sklearn(model)
    bundle = build(tmp_path / "b", OnnxModel(content))
    rows = nets.rows(3000, 5)
    assert differences(bundle, content, rows) < TOLERANCE
    own = model.predict_proba(rows)[:, 1]
    assert np.abs(np.asarray(bundle.score(rows).scores) - own).max() < TOLERANCE
    assert np.ptp(own) > 0.5


def test_a_linear_regression(tmp_path: Path) -> None:
    """A regression gives its prediction as the score."""
    data = nets.rows(200)
    model = make_pipeline(StandardScaler(), LinearRegression()).fit(data, nets.labels(data))
    content = bytes(to_onnx(model, data[:1]).SerializeToString())
    bundle = build(tmp_path / "b", OnnxModel(content))
    assert differences(bundle, content, nets.rows(500, 3)) < TOLERANCE


def test_inputs_by_name_and_an_imputer(tmp_path: Path) -> None:
    """A model with one input for each column scores, and its own imputer fills missing values."""
    model = fitted(SimpleImputer(), StandardScaler(), LogisticRegression())
    content = nets.from_sklearn(model, NAMES)
    data = nets.rows(400)
    data[::3, 2] = np.nan
    bundle = build(tmp_path / "b", OnnxModel(content, missing="nan"), schema=schema("allow"), training=data)
    rows = nets.rows(500, 7)
    rows[::2, 5] = np.nan
    assert differences(bundle, content, rows) < TOLERANCE


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Elu", "Selu", "Tanh", "Sigmoid", "Softplus"])
def test_a_net_as_pytorch_exports_it(tmp_path: Path, activation: str) -> None:
    """Three layers of 64 with batch normalisation have the scores of ONNX Runtime."""
    content = nets.as_torch_exports(activation=activation)
    steps = [Standardise(feature=name, mean=20.0, scale=100.0) for name in NAMES]
    bundle = build(tmp_path / "b", OnnxModel(content), steps=steps)
    rows = nets.rows(3000, 5)
    scaled = ((rows.astype(np.float64) - 20) / 100).astype(np.float32)
    scores = np.asarray(bundle.score(rows).scores)
    assert np.abs(scores - runtime(content, scaled)).max() < TOLERANCE
    assert np.ptp(scores) > 0.005


def test_a_model_as_tensorflow_exports_it(tmp_path: Path) -> None:
    """A softmax over two classes gives the positive class, or the class that the node states."""
    content = nets.as_tensorflow_exports()
    rows = nets.rows(3000, 5)
    bundle = build(tmp_path / "b", OnnxModel(content))
    assert differences(bundle, content, rows) < TOLERANCE
    other = build(tmp_path / "other", OnnxModel(content, index=0))
    assert np.abs(np.asarray(other.score(rows).scores) - runtime(content, rows, 0)).max() < TOLERANCE


def test_logits_become_probabilities(tmp_path: Path) -> None:
    """The link, a given map and fitted maps turn the logits of a net into probabilities."""
    content = nets.as_torch_exports(logits=True)
    rows = nets.rows(2000, 5)
    steps = [Standardise(feature=name, mean=20.0, scale=100.0) for name in NAMES]
    scaled = ((rows.astype(np.float64) - 20) / 100).astype(np.float32)
    logits = runtime(content, scaled).astype(np.float64)
    linked = build(tmp_path / "link", OnnxModel(content, link="sigmoid"), steps=steps)
    assert np.abs(np.asarray(linked.score(rows).scores) - 1 / (1 + np.exp(-logits))).max() < TOLERANCE
    assert np.abs(np.asarray(linked.score(rows).margins) - logits).max() < 1e-4
    # The map takes the logit, also of a model with a link.
    given = SigmoidMap(slope=2.0, intercept=-0.5)
    mapped = build(tmp_path / "map", OnnxModel(content, link="sigmoid"), steps=steps, calibration=given)
    expected = 1 / (1 + np.exp(-(2 * logits - 0.5)))
    assert np.abs(np.asarray(mapped.score(rows).scores) - expected).max() < TOLERANCE
    random = np.random.default_rng(4)
    happened = (random.random(len(rows)) < 1 / (1 + np.exp(-2 * logits))).astype(int)
    for method in ("sigmoid", "isotonic"):
        held = HeldOut(rows, happened, method=method)
        fit = build(tmp_path / method, OnnxModel(content, link="sigmoid"), steps=steps, calibration=held)
        scores = np.asarray(fit.score(rows).scores)
        assert 0 <= scores.min() <= scores.max() <= 1
        assert abs(scores.mean() - happened.mean()) < 1e-3
        assert np.ptp(scores) > 0.2


def test_an_ensemble_of_a_net_and_forests(tmp_path: Path) -> None:
    """Means of scores and of logits, and a switch, combine nets with forests."""
    data = nets.rows(600, 2)
    forest = train(data, nets.labels(data), NAMES, max_depth=3)
    content = nets.from_sklearn(fitted(StandardScaler(), LogisticRegression()))
    rows = nets.rows(2000, 5)
    import xgboost

    of_forest = forest.predict(xgboost.DMatrix(rows, feature_names=NAMES))
    of_net = runtime(content, rows)
    for order in (0, 1):
        models = [forest, OnnxModel(content)][:: -1 if order else 1]
        mean = build(tmp_path / f"mean{order}", models[0], members=models[1:], ensemble=MeanEnsemble())
        assert np.abs(np.asarray(mean.score(rows).scores) - (of_forest + of_net) / 2).max() < TOLERANCE
        assert [len(mean.forests), len(mean.nets)] == [1, 1]
    logits = MeanEnsemble(of="logits")
    build(tmp_path / "logits", forest, members=[OnnxModel(content)], ensemble=logits)
    case = SegmentCase(model=1, start=1.0)
    switch = SwitchEnsemble(feature="c0", cases=[case])
    bundle = build(tmp_path / "switch", forest, members=[OnnxModel(content)], ensemble=switch)
    expected = np.where(rows[:, 0] >= 1, of_net, of_forest)
    assert np.abs(np.asarray(bundle.score(rows).scores) - expected).max() < TOLERANCE
    assert not bundle.explains


def test_missing_values_need_a_rule(tmp_path: Path) -> None:
    """Columns that may be missing are refused by name, unless the model states what takes their place."""
    content = nets.from_sklearn(fitted(StandardScaler(), LogisticRegression()))
    with pytest.raises(BundleError, match=r'"c0" may be missing.*state `missing`'):
        build(tmp_path / "none", OnnxModel(content), schema=schema("allow"))
    bundle = build(tmp_path / "b", OnnxModel(content, missing=3.5), schema=schema("allow"))
    rows = nets.rows(500, 7)
    filled = rows.copy()
    rows[::2, 5] = np.nan
    filled[::2, 5] = 3.5
    assert np.abs(np.asarray(bundle.score(rows).scores) - runtime(content, filled)).max() < TOLERANCE
    # Only the features of a request may be missing, not the flags that tell it.
    flags = [MissingFlag(feature=name, output=f"{name} missing") for name in NAMES]
    with pytest.raises(BundleError, match='"c0" may be missing'):
        build(tmp_path / "flags", OnnxModel(content), schema=schema("allow"), steps=flags)
    # A model that computes NaN gives no score.
    with pytest.raises(BundleError, match=r"golden case 0: the score is NaN"):
        build(tmp_path / "nan", OnnxModel(content, missing="nan"), schema=schema("allow"))


def test_golden_cases_prove_the_parity(tmp_path: Path) -> None:
    """Outputs other than those of the model's runtime are refused, at the build and at a load."""
    content = nets.from_sklearn(fitted(StandardScaler(), LogisticRegression()))

    def shifted(by: float) -> Any:
        return lambda rows: runtime(content, rows) + by

    with pytest.raises(BundleError, match=r"golden case 0: model\.onnx gives .* its own runtime gave"):
        build(tmp_path / "far", OnnxModel(content), margins=shifted(2e-5))
    # Within the tolerance the scores of golden cases come from the stored outputs.
    near = build(tmp_path / "near", OnnxModel(content), margins=shifted(5e-6))
    assert verify(tmp_path / "near").digest == near.digest
    with (
        pytest.raises(BundleError, match="onnxruntime is not installed"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setitem(sys.modules, "onnxruntime", None)
        build(tmp_path / "absent", OnnxModel(content))


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A specification builds a bundle with a net, and the commands show it."""
    content = nets.as_torch_exports(logits=True)
    (tmp_path / "net.onnx").write_bytes(content)
    for name, seed in (("training", 0), ("validation", 1)):
        table = pa.table(dict(zip(NAMES, (nets.rows(400, seed) / 100).T, strict=True)))
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    features = "".join(f'[[features]]\nname = "{name}"\n' for name in NAMES)
    spec = tmp_path / "fraud.toml"
    spec.write_text(
        '[bundle]\nname = "fraud"\nkind = "score"\nmodel = "net.onnx"\nsensitive = ["*"]\n'
        '[onnx]\nmissing = 0.0\nlink = "sigmoid"\n'
        '[data]\ntraining = "training.parquet"\nvalidation = "validation.parquet"\n'
        f'{features}[[thresholds]]\nfrom = 0.0\nlabel = "approve"\n'
    )

    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["scorer", "bundle", *arguments])
        try:
            code = main()
        except SystemExit as stopped:
            code = stopped.code
        assert not code
        output = capsys.readouterr()
        return str(output.out + output.err)

    bundle = str(tmp_path / "b")
    assert "no forest explains the score of an ONNX model" in run("build", str(spec), "--output", bundle)
    shown = run("inspect", bundle)
    assert "model.onnx" in shown and "4 Gemm" in shown and "no forest" not in shown
    assert "1 BatchNormalization" in run("graph", bundle)
    nodes = json.loads(run("graph", bundle, "--format", "json"))
    assert nodes[1]["kind"] == "onnx" and nodes[1]["type"] == "score"
    assert json.loads(run("inspect", bundle, "--json"))["nets"][0]["columns"] == nets.COLUMNS
    rows = nets.rows(300, 9) / 100
    expected = 1 / (1 + np.exp(-runtime(content, rows).astype(np.float64)))
    assert np.abs(np.asarray(Bundle.load(bundle).score(rows).scores) - expected).max() < TOLERANCE
    spec.write_text(spec.read_text().replace("net.onnx", "net.ubj"))
    with pytest.raises(AssertionError):
        run("build", str(spec), "--output", str(tmp_path / "other"))


def test_a_net_has_no_reasons_and_no_thresholds(tmp_path: Path) -> None:
    """Explanations that need trees are refused; importances and revisions work."""
    content = nets.from_sklearn(fitted(StandardScaler(), LogisticRegression()))
    bundle = build(tmp_path / "b", OnnxModel(content))
    assert not bundle.explains and not (tmp_path / "b" / "covers.bin").exists()
    with pytest.raises(BundleError, match="no forest explains the score of an ONNX model"):
        build(tmp_path / "r", OnnxModel(content), reasons=ReasonsFile(features={}))
    with pytest.raises(BundleError, match="has no thresholds"):
        ForestThresholds(tmp_path / "b")
    assert [one.splits for one in importances(tmp_path / "b", NAMES, {}, None, 10, 0)] == [0] * nets.COLUMNS
    revised = revise(tmp_path / "b", tmp_path / "next", score_map=ScoreMapFile(x=[0.0, 1.0], y=[0.0, 0.5]))
    rows = nets.rows(100, 3)
    halved = np.asarray(Bundle.load(revised.path).score(rows).scores)
    assert np.abs(halved - np.asarray(bundle.score(rows).scores) / 2).max() < 1e-12
    assert inspect(revised.path).nets == inspect(tmp_path / "b").nets


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("zipmap", r"zipmap"),
        ("operator", r'node "strange": operator Cos is not supported; docs/onnx\.md'),
        ("external", r"its data are in another file"),
        ("loop", r"export the model without control flow"),
        ("text", r'input "X": takes strings, a row has float32'),
        ("width", r'input "X": takes 8 columns, the row has 7'),
        ("truncated", r"model\.onnx: is not a readable ONNX model"),
        ("huge", r"has the shape"),
        ("shape", r"has 8 values for a row; state output_index"),
    ],
)
def test_models_that_are_refused(tmp_path: Path, change: str, message: str) -> None:
    """A file that the engine does not evaluate is refused with the name of its part."""
    content = nets.from_sklearn(fitted(StandardScaler(), LogisticRegression()))
    changes: dict[str, Any] = {}
    model = onnx.load_from_string(content)
    if change == "zipmap":
        content = nets.from_sklearn(fitted(StandardScaler(), LogisticRegression()), zipmap=True)
    elif change == "operator":
        model.graph.node.insert(0, helper.make_node("Cos", ["X"], ["cos"], name="strange"))
        model.graph.node[1].input[0] = "cos"
        content = model.SerializeToString()
    elif change == "external":
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="/etc/passwd")
        model.graph.initializer.append(tensor)
        model.graph.node.insert(0, helper.make_node("Add", ["X", "w"], ["sum"]))
        model.graph.node[1].input[0] = "sum"
        content = model.SerializeToString()
    elif change == "loop":
        model.graph.node.insert(0, helper.make_node("Loop", ["", "", "X"], ["looped"], body=model.graph))
        model.graph.node[1].input[0] = "looped"
        content = model.SerializeToString()
    elif change == "text":
        model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
        content = model.SerializeToString()
    elif change == "width":
        changes["schema"] = SchemaFile(features=schema().features[1:])
        changes |= {"training": nets.rows(400)[:, 1:], "validation": nets.rows(300)[:, 1:]}
    elif change == "truncated":
        content = content[: len(content) // 2]
    elif change == "huge":
        model.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[2**40, 2**40]))
        model.graph.node.insert(0, helper.make_node("Add", ["X", "w"], ["sum"]))
        model.graph.node[1].input[0] = "sum"
        content = model.SerializeToString()
    elif change == "shape":
        content = nets.as_torch_exports((nets.COLUMNS, 8))
    with pytest.raises(BundleError, match=message):
        build(tmp_path / "b", OnnxModel(content), **changes)
    assert not (tmp_path / "b").exists()
