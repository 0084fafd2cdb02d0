//! `ModelInfer`: a request of the open protocol as one of ours, through the same answer path.

use scorer_proto::inference::{ModelInferRequest, ModelInferResponse};
use scorer_proto::v1::{
    DenseFeatures, ScoreBatchRequest, ScoreBatchResponse, ScoreRequest, ScoreResponse, SelectActionRequest,
    SelectActionResponse, Served, score_request, select_action_request,
};
use uuid::Uuid;

use super::error::InferError;
use super::inputs::{Inputs, Rows};
use super::outputs::{Output, Values, add};
use super::parameters::{self, number, text};
use super::{Map, model};
use crate::answer::arrive::Arrival;
use crate::answer::{batch, decode, route, score, select};
use crate::config::Kind;
use crate::refusal::Refusal;
use crate::state::{Checkpoint, Shared};

/// How often the rows are laid out again because a bundle of another schema came into force in between.
const ATTEMPTS: usize = 3;

/// Answers one request.
pub(crate) async fn answer(
    shared: &Shared,
    arrival: &Arrival,
    request: ModelInferRequest,
) -> Result<ModelInferResponse, Refusal> {
    let checkpoint = decode::any_checkpoint(shared, arrival, &request.model_name)?;
    if let Some(timeout) = parameters::timeout(&request.parameters)? {
        arrival.tighten(timeout);
    }
    arrival.check_deadline()?;
    parameters::check_sequence(&request.parameters)?;
    let mut call = Call {
        shared,
        arrival,
        checkpoint,
        version: &request.model_version,
        id: request.id.clone(),
        entity: parameters::entity(&request.parameters)?,
        inputs: Inputs::read(&request, checkpoint.kind)?,
        outputs: Output::asked(&request.outputs, checkpoint)?,
        raw: !request.raw_input_contents.is_empty(),
    };
    let mut attempt = 1;
    let mut response = loop {
        match call.once().await {
            // Nothing was decided: the rows were laid out for another schema.
            Err(Refusal::Fingerprint { .. }) if attempt < ATTEMPTS => attempt += 1,
            answered => break answered?,
        }
    };
    response.model_name = request.model_name;
    response.id = request.id;
    Ok(response)
}

/// One request, read.
struct Call<'a> {
    shared: &'a Shared,
    arrival: &'a Arrival,
    checkpoint: &'a Checkpoint,
    version: &'a str,
    id: String,
    entity: &'a str,
    inputs: Inputs<'a>,
    outputs: Vec<Output>,
    raw: bool,
}

// === impl Call ===

impl Call<'_> {
    async fn once(&mut self) -> Result<ModelInferResponse, Refusal> {
        let (fingerprint, rows) = self.lay_out()?;
        let response = match (self.checkpoint.kind, rows.count) {
            (Kind::Score, 1) => self.score(fingerprint, rows).await?,
            (Kind::Score, _) => self.batch(fingerprint, rows).await?,
            (Kind::Action, 1) => self.select(fingerprint, rows).await?,
            (Kind::Action, rows) => return Err(InferError::ActionRows { rows }.into()),
        };
        // The lanes were looked at twice; a caller who names a version gets that or nothing.
        if self.version.is_empty() || response.model_version == model::version(self.version) {
            return Ok(response);
        }
        let table = self.shared.lanes.load();
        Err(model::no_version(&self.checkpoint.name, self.version, model::answering(&table, self.checkpoint)))
    }

    /// The rows for the schema of the lane that this request will be answered by.
    fn lay_out(&mut self) -> Result<(u64, Rows), Refusal> {
        let table = self.shared.lanes.load();
        if self.id.is_empty() && self.entity.is_empty() && table.of(self.checkpoint.index).len() > 1 {
            // The lane is drawn by the decision's id, so that has to be known now.
            self.id = Uuid::now_v7().to_string();
        }
        let lane = route::lane(&table, self.checkpoint, self.entity, &self.id)?;
        let loaded = &*lane.loaded;
        if !self.version.is_empty() && !model::names(self.version, &loaded.digest_text) {
            return Err(model::no_version(&self.checkpoint.name, self.version, std::iter::once(lane)));
        }
        let schema = loaded.bundle.schema();
        Ok((schema.fingerprint(), self.inputs.rows(schema, self.checkpoint.max_batch_rows)?))
    }

    async fn score(&self, schema_fingerprint: u64, rows: Rows) -> Result<ModelInferResponse, Refusal> {
        let dense = DenseFeatures { schema_fingerprint, values: rows.values };
        let request = ScoreRequest {
            checkpoint: self.checkpoint.name.clone(),
            request_id: self.id.clone(),
            features: Some(score_request::Features::Dense(dense)),
            entity: self.entity.to_owned(),
        };
        let reply = score::answer(self.shared, self.arrival, request).await?;
        let ScoreResponse { decision_id, score, margin, decision, served } = reply;
        let mut response = begin(served);
        response.parameters.insert("decision_id".to_owned(), text(decision_id));
        for &output in &self.outputs {
            let values = match output {
                Output::Fil => Values::Fp32(vec![score as f32]),
                Output::Margin => Values::Fp64(vec![margin]),
                Output::Decision => Values::Texts(vec![decision.clone()]),
                _ => Values::Fp64(vec![score]),
            };
            add(&mut response, output, values, self.raw);
        }
        Ok(response)
    }

    async fn batch(&self, schema_fingerprint: u64, rows: Rows) -> Result<ModelInferResponse, Refusal> {
        let request = ScoreBatchRequest {
            checkpoint: self.checkpoint.name.clone(),
            request_id: self.id.clone(),
            schema_fingerprint,
            values: rows.values,
            rows: rows.count,
            entity: self.entity.to_owned(),
        };
        let reply = batch::answer(self.shared, self.arrival, request).await?;
        let ScoreBatchResponse { request_id, scores, margins, decisions, labels, served } = reply;
        let mut response = begin(served);
        response.parameters.insert("request_id".to_owned(), text(request_id));
        for &output in &self.outputs {
            let values = match output {
                Output::Fil => Values::Fp32(scores.iter().map(|&score| score as f32).collect()),
                Output::Margin => Values::Fp64(margins.clone()),
                Output::Decision => {
                    let label = |&at: &u32| labels.get(at as usize).cloned().unwrap_or_default();
                    Values::Texts(decisions.iter().map(label).collect())
                }
                _ => Values::Fp64(scores.clone()),
            };
            add(&mut response, output, values, self.raw);
        }
        Ok(response)
    }

    async fn select(&self, schema_fingerprint: u64, rows: Rows) -> Result<ModelInferResponse, Refusal> {
        let dense = DenseFeatures { schema_fingerprint, values: rows.values };
        let request = SelectActionRequest {
            checkpoint: self.checkpoint.name.clone(),
            request_id: self.id.clone(),
            features: Some(select_action_request::Features::Dense(dense)),
            entity: self.entity.to_owned(),
            eligible: self.inputs.eligible()?,
            include_pmf: self.outputs.contains(&Output::Pmf),
        };
        let reply = select::answer(self.shared, self.arrival, request).await?;
        let SelectActionResponse {
            decision_id,
            action,
            propensity,
            expected_reward,
            pmf,
            logged,
            replayed,
            served,
            ..
        } = reply;
        let mut response = begin(served);
        for (key, value) in [
            ("decision_id", text(decision_id)),
            // As text, because clients read no doubles here; it has every digit.
            ("propensity", text(propensity.to_string())),
            ("logged", parameters::flag(logged)),
            ("replayed", parameters::flag(replayed)),
        ] {
            response.parameters.insert(key.to_owned(), value);
        }
        for &output in &self.outputs {
            let values = match output {
                Output::Action => Values::Texts(vec![action.clone()]),
                Output::Propensity => Values::Fp64(vec![propensity]),
                Output::Pmf => Values::Fp32(pmf.clone()),
                _ => Values::Fp64(vec![expected_reward]),
            };
            add(&mut response, output, values, self.raw);
        }
        Ok(response)
    }
}

/// A reply with what every reply says about who answered.
fn begin(served: Option<Served>) -> ModelInferResponse {
    let served = served.unwrap_or_default();
    let mut parameters: Map = [
        ("lane", text(served.lane)),
        ("lane_table", number(served.lane_table)),
        ("data_load_us", number(served.data_load_us.into())),
        ("exec_us", number(served.exec_us.into())),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    if !served.fallback_reason.is_empty() {
        parameters.insert("fallback_source".to_owned(), text(served.fallback_source));
        parameters.insert("fallback_reason".to_owned(), text(served.fallback_reason));
    }
    let model_version = model::version(&served.bundle).to_owned();
    parameters.insert("bundle".to_owned(), text(served.bundle));
    ModelInferResponse { model_version, parameters, ..ModelInferResponse::default() }
}
