//! Conversion of a parsed document (learner, booster, trees) to a model.

use scorer_core::forest::{BaseOrder, ForestError, Model, Precision, Tree, limits};

use crate::error::ReadError;
use crate::objective::{Objective, base_scores};
use crate::reader::{At, Path};
use crate::tree;
use crate::value::Value;

/// Converts a parsed document to a model.
pub(crate) fn model(root: &Value<'_>) -> Result<Model, ReadError> {
    let root_path = Path::Root;
    let root = At::new(root, &root_path);
    let version = version(root)?;
    let learner_path = Path::Key(&root_path, "learner");
    let learner = At::new(root.get("learner")?, &learner_path);
    let params = Params::read(learner)?;
    let booster_path = Path::Key(&learner_path, "gradient_booster");
    let booster = Booster::read(At::new(learner.get("gradient_booster")?, &booster_path))?;
    let objective = objective(learner)?;
    let trees = trees(booster, params.outputs)?;
    if trees.is_empty() && params.base_is_placeholder {
        return Err(ForestError::unsupported(
            "XGBoost model without trees",
            "its base score is a placeholder that training would have replaced",
            "train at least one round, or give base_score",
        )
        .into());
    }
    let mut base = params.base_scores.clone();
    if base.len() == 1 {
        base.resize(params.outputs, params.base_scores[0]);
    }
    if base.len() != params.outputs {
        let rule = format!("{} scores are given for {} outputs", base.len(), params.outputs);
        return Err(ReadError::field("learner.learner_model_param.base_score", rule));
    }
    let base = base.into_iter().map(|score| objective.base_margin(score, version).map(f64::from));
    Ok(Model {
        num_features: params.features,
        num_outputs: params.outputs,
        precision: Precision::F32,
        base: base.collect::<Result<_, _>>()?,
        base_order: BaseOrder::First,
        divisor: Vec::new(),
        link: objective.link,
        trees,
    })
}

fn version(root: At<'_, '_>) -> Result<(i64, i64), ReadError> {
    let path = Path::Key(root.path(), "version");
    match At::new(root.get("version")?, &path).i64s()?[..] {
        [major, minor, _] if major >= 1 => Ok((major, minor)),
        _ => Err(ReadError::field("version", "it must be three integers, from 1.0.0 on")),
    }
}

struct Params {
    features: usize,
    outputs: usize,
    base_scores: Vec<f32>,
    /// Whether the base score is to be estimated from the data; it is then a placeholder until the first tree exists.
    base_is_placeholder: bool,
}

impl Params {
    fn read(learner: At<'_, '_>) -> Result<Self, ReadError> {
        let path = Path::Key(learner.path(), "learner_model_param");
        let param = At::new(learner.get("learner_model_param")?, &path);
        let count = |key: &str, limit: usize, default: Option<usize>| {
            let path = Path::Key(&path, key);
            let value = match (param.find(key), default) {
                (None, Some(default)) => default,
                _ => At::new(param.get(key)?, &path).count()?,
            };
            if value > limit {
                return Err(ReadError::field(
                    path.to_string(),
                    format!("{value} is above the limit of {limit}"),
                ));
            }
            Ok(value)
        };
        let classes = count("num_class", limits::OUTPUTS, None)?;
        let targets = count("num_target", limits::OUTPUTS, Some(1))?;
        if classes > 1 && targets > 1 {
            return Err(ForestError::unsupported(
                "XGBoost model with several targets and several classes",
                "XGBoost does not define it",
                "train one model per target",
            )
            .into());
        }
        let score_path = Path::Key(&path, "base_score");
        let score = At::new(param.get("base_score")?, &score_path);
        let Some(base_scores) = base_scores(score.string()?) else {
            return score.fail("it must be a finite number or a list of such");
        };
        Ok(Self {
            features: count("num_feature", limits::FEATURES, None)?,
            outputs: classes.max(targets).max(1),
            base_scores,
            base_is_placeholder: count("boost_from_average", 1, Some(0))? == 1,
        })
    }
}

fn objective(learner: At<'_, '_>) -> Result<Objective, ReadError> {
    let path = Path::Key(learner.path(), "objective");
    let name_path = Path::Key(&path, "name");
    Objective::named(At::new(At::new(learner.get("objective")?, &path).get("name")?, &name_path).string()?)
}

/// The part of the document that contains the trees, and DART's weights.
struct Booster<'v, 'a> {
    model: &'v Value<'a>,
    weights: Option<Vec<f32>>,
}

impl<'v, 'a> Booster<'v, 'a> {
    fn read(at: At<'v, 'a>) -> Result<Self, ReadError> {
        let name_path = Path::Key(at.path(), "name");
        let weights = |from: At<'v, 'a>, path: &Path<'_>| match from.find("weight_drop") {
            Some(weights) => At::new(weights, &Path::Key(path, "weight_drop")).f32s().map(Some),
            None => Ok(None),
        };
        match At::new(at.get("name")?, &name_path).string()? {
            "gbtree" => {
                let model_path = Path::Key(at.path(), "model");
                let model = at.get("model")?;
                // From XGBoost 3.3 on, DART is stored as a gbtree whose model has weights.
                let weights = weights(At::new(model, at.path()), &model_path)?;
                Ok(Self { model, weights })
            }
            "dart" => {
                let (inner, outer) = match at.find("gbtree") {
                    Some(gbtree) => (At::new(gbtree, at.path()).get("model")?, weights(at, at.path())?),
                    None => (at.get("model")?, weights(at, at.path())?),
                };
                let weights = match outer {
                    Some(found) => Some(found),
                    None => weights(At::new(inner, at.path()), at.path())?,
                };
                match weights {
                    None => at.fail("a dart booster must have weight_drop"),
                    weights => Ok(Self { model: inner, weights }),
                }
            }
            "gblinear" => Err(ForestError::unsupported(
                "XGBoost booster \"gblinear\"",
                "it is a linear model, not a forest",
                "train with booster=\"gbtree\" or \"dart\"",
            )
            .into()),
            name => Err(ForestError::unsupported(
                format!("XGBoost booster {name:?}"),
                "it is not known here",
                "train with booster=\"gbtree\" or \"dart\"",
            )
            .into()),
        }
    }
}

fn trees(booster: Booster<'_, '_>, outputs: usize) -> Result<Vec<Tree>, ReadError> {
    let path = Path::Key(&Path::Root, "model");
    let model = At::new(booster.model, &path);
    let trees_path = Path::Key(&path, "trees");
    let trees = At::new(model.get("trees")?, &trees_path).array()?;
    let info_path = Path::Key(&path, "tree_info");
    let info = At::new(model.get("tree_info")?, &info_path).i64s()?;
    if info.len() != trees.len() {
        return Err(ReadError::field(info_path.to_string(), "it must have one element per tree"));
    }
    if let Some(weights) = &booster.weights
        && weights.len() != trees.len()
    {
        return Err(ReadError::field("weight_drop", "it must have one element per tree"));
    }
    let mut placed: Vec<Option<Tree>> = vec![None; trees.len()];
    for (i, value) in trees.iter().enumerate() {
        let path = Path::Index(&trees_path, i);
        let at = At::new(value, &path);
        // The position of a tree in the model is its id, not its position in the file.
        let id_path = Path::Key(&path, "id");
        let id = At::new(at.get("id")?, &id_path).count()?;
        let Some(slot @ None) = placed.get_mut(id) else {
            return at.fail(format!("its id {id} is out of range or taken"));
        };
        let output = u32::try_from(info[id]).unwrap_or(u32::MAX);
        let weight = booster.weights.as_ref().map(|weights| weights[id]);
        *slot = Some(tree::read(at, output, outputs, weight)?);
    }
    // There are as many trees as positions and no position was taken twice, so every position is filled.
    Ok(placed.into_iter().flatten().collect())
}
