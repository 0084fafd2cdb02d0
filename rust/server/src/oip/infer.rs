//! `ModelInfer`: converts a request of the Open Inference Protocol to a query of the engine, and the answer to a reply.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use scorer_engine::{
    ActiveLane, Arrival, BatchQuery, Content, Eligible, Engine, FaultedFunctions, Features, Kind, Query,
    Reason, Rejection, Rows, SelectQuery, Source, Timings, check_dense,
};
use scorer_proto::inference::{ModelInferRequest, ModelInferResponse};

use super::error::InferError;
use super::inputs::Inputs;
use super::outputs::{Output, Values, add};
use super::parameters::{self, number, text};
use super::{Map, model};
use crate::scoring::token;

/// Answers one request.
pub(crate) async fn infer(
    engine: &Arc<Engine>,
    arrival: &Arrival,
    request: ModelInferRequest,
) -> Result<ModelInferResponse, InferError> {
    let checkpoint = engine.checkpoint_of(arrival, &request.model_name)?;
    if let Some(timeout) = parameters::timeout(&request.parameters)? {
        arrival.tighten(timeout);
    }
    arrival.check_deadline()?;
    parameters::check_sequence(&request.parameters)?;
    let call = Call {
        engine,
        arrival,
        model: &request.model_name,
        id: &request.id,
        entity: parameters::entity(&request.parameters)?,
        rows: Tensors {
            inputs: &Inputs::read(&request, checkpoint.kind)?,
            model: &request.model_name,
            version: &request.model_version,
            max: checkpoint.max_batch_rows,
        },
        outputs: Output::asked(&request.outputs, checkpoint)?,
        raw: !request.raw_input_contents.is_empty(),
        include_token: parameters::include_token(&request.parameters)?,
    };
    let mut response = match (checkpoint.kind, call.rows.inputs.count()) {
        (Kind::Score, 1) => call.score().await?,
        (Kind::Score, _) => call.batch().await?,
        (Kind::Action, 1) => call.select().await?,
        (Kind::Action, 0) => return Err(Rejection::NoRows.into()),
        (Kind::Action, rows) => return Err(InferError::ActionRows { rows }),
    };
    response.model_name = request.model_name;
    response.id = request.id;
    Ok(response)
}

/// One parsed request.
struct Call<'a> {
    engine: &'a Arc<Engine>,
    arrival: &'a Arrival,
    model: &'a str,
    id: &'a str,
    entity: &'a str,
    rows: Tensors<'a>,
    outputs: Vec<Output>,
    raw: bool,
    include_token: bool,
}

/// The rows of a request, which are arranged for the schema of the answering lane.
#[derive(Clone, Copy)]
struct Tensors<'a> {
    inputs: &'a Inputs<'a>,
    model: &'a str,
    /// The version that must answer; empty for any version.
    version: &'a str,
    max: u32,
}

// === impl Call ===

impl Call<'_> {
    fn query(&self) -> Query<'_, Tensors<'_>> {
        Query {
            checkpoint: self.model,
            request_id: self.id.to_owned(),
            entity: self.entity,
            features: self.rows,
            reasons: 0,
        }
    }

    async fn score(&self) -> Result<ModelInferResponse, InferError> {
        let answer = self.engine.score(self.arrival, self.query()).await?;
        let token = self.include_token.then(|| token::of_score(self.engine, self.arrival, &answer));
        let scored = answer.value;
        let mut response = begin(&scored.source, scored.fallback, scored.timings, &scored.faulted);
        add_token(&mut response, token);
        response.parameters.insert("decision_id".to_owned(), text(answer.id));
        response.parameters.insert("logged".to_owned(), parameters::flag(scored.logged));
        for &output in &self.outputs {
            let values = match output {
                Output::Fil => Values::Fp32(vec![scored.score as f32]),
                Output::Margin => Values::Fp64(vec![scored.margin]),
                Output::Decision => Values::Texts(vec![scored.label.to_string()]),
                _ => Values::Fp64(vec![scored.score]),
            };
            add(&mut response, output, values, self.raw);
        }
        Ok(response)
    }

    async fn batch(&self) -> Result<ModelInferResponse, InferError> {
        let query = BatchQuery {
            checkpoint: self.model,
            request_id: self.id.to_owned(),
            entity: self.entity,
            rows: self.rows,
        };
        let answer = self.engine.score_batch(self.arrival, query).await?;
        let token = self.include_token.then(|| token::of_batch(self.engine, self.arrival, &answer));
        let batch = answer.value;
        let fallback = batch.rows.iter().find_map(|row| row.fallback);
        let mut response = begin(&batch.source, fallback, batch.timings, &batch.faulted);
        add_token(&mut response, token);
        response.parameters.insert("request_id".to_owned(), text(answer.id));
        response.parameters.insert("logged".to_owned(), parameters::flag(batch.unlogged == 0));
        for &output in &self.outputs {
            let rows = batch.rows.iter();
            let values = match output {
                Output::Fil => Values::Fp32(rows.map(|row| row.score as f32).collect()),
                Output::Margin => Values::Fp64(rows.map(|row| row.margin).collect()),
                Output::Decision => Values::Texts(
                    rows.map(|row| {
                        batch.labels.get(row.label).map_or_else(String::new, |label| label.to_string())
                    })
                    .collect(),
                ),
                _ => Values::Fp64(rows.map(|row| row.score).collect()),
            };
            add(&mut response, output, values, self.raw);
        }
        Ok(response)
    }

    async fn select(&self) -> Result<ModelInferResponse, InferError> {
        let eligible = self.rows.inputs.eligible()?;
        let query = SelectQuery {
            query: self.query(),
            eligible: eligible.as_ref().map(|given| Eligible { ids: &given.ids, mask: &given.mask }),
            include_pmf: self.outputs.contains(&Output::Pmf),
        };
        let answer = self.engine.select(self.arrival, query).await?;
        let token = token::of_selection(self.engine, self.arrival, &answer);
        let selected = answer.value;
        let mut response = begin(&selected.source, selected.fallback, selected.timings, &selected.faulted);
        add_token(&mut response, Some(token));
        for (key, value) in [
            ("decision_id", text(answer.id)),
            // The propensity is sent as text with all digits, because parameters have no doubles in many clients.
            ("propensity", text(selected.propensity.to_string())),
            ("logged", parameters::flag(selected.logged)),
            ("replayed", parameters::flag(answer.replayed)),
        ] {
            response.parameters.insert(key.to_owned(), value);
        }
        let action = selected.source.actions.get(selected.index as usize);
        let action = action.map_or_else(String::new, |action| action.id.clone());
        for &output in &self.outputs {
            let values = match output {
                Output::Action => Values::Texts(vec![action.clone()]),
                Output::Propensity => Values::Fp64(vec![selected.propensity]),
                Output::Pmf => Values::Fp32(selected.pmf.as_deref().unwrap_or_default().to_vec()),
                _ => Values::Fp64(vec![selected.expected_reward]),
            };
            add(&mut response, output, values, self.raw);
        }
        Ok(response)
    }
}

// === impl Tensors ===

impl Tensors<'_> {
    /// Checks that the lane has the requested version, if the caller names one.
    fn check_version(&self, lane: &ActiveLane) -> Result<(), InferError> {
        if self.version.is_empty() || model::names(self.version, &lane.loaded.digest_text) {
            return Ok(());
        }
        Err(model::no_version(self.model, self.version, std::iter::once(lane)))
    }

    fn lay_out(&self, lane: &ActiveLane) -> Result<Vec<f32>, InferError> {
        self.inputs.rows(lane.loaded.bundle.schema(), self.max)
    }
}

impl Features for Tensors<'_> {
    type Error = InferError;

    fn accept(&self, lane: &ActiveLane) -> Result<(), InferError> {
        self.check_version(lane)
    }

    fn encode(&self, lane: &ActiveLane, row: &mut Vec<f32>) -> Result<(), InferError> {
        let fingerprint = lane.loaded.bundle.schema().fingerprint();
        Ok(check_dense(fingerprint, &self.lay_out(lane)?, &lane.loaded, row)?)
    }

    fn hash(&self, content: &mut Content) {
        self.inputs.hash(content);
    }
}

impl Rows for Tensors<'_> {
    type Error = InferError;

    fn accept(&self, lane: &ActiveLane) -> Result<(), InferError> {
        self.check_version(lane)
    }

    fn count(&self) -> u32 {
        self.inputs.count()
    }

    fn values(&mut self, lane: &ActiveLane) -> Result<Vec<f32>, InferError> {
        self.lay_out(lane)
    }
}

/// Adds the decision token in base64, because parameters cannot hold bytes. Without keys there is no token.
fn add_token(response: &mut ModelInferResponse, token: Option<Vec<u8>>) {
    if let Some(token) = token.filter(|token| !token.is_empty()) {
        response.parameters.insert("decision_token".to_owned(), text(BASE64.encode(token)));
    }
}

/// Creates a reply with the parameters of its source, which all replies have.
fn begin(
    source: &Source,
    fallback: Option<Reason>,
    timings: Timings,
    faulted: &FaultedFunctions,
) -> ModelInferResponse {
    let mut parameters: Map = [
        ("lane", text(source.lane.clone())),
        ("lane_table", number(source.lane_table)),
        ("data_load_us", number(timings.data_load_us.into())),
        ("exec_us", number(timings.exec_us.into())),
        ("bundle", text(source.bundle.to_string())),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    if let Some(reason) = fallback {
        parameters.insert("fallback_source".to_owned(), text(reason.source()));
        parameters.insert("fallback_reason".to_owned(), text(reason.as_str()));
    }
    let faulted: Vec<&str> = faulted.names().collect();
    if !faulted.is_empty() {
        parameters.insert("faulted_functions".to_owned(), text(faulted.join(",")));
    }
    let model_version = model::version(&source.bundle).to_owned();
    ModelInferResponse { model_version, parameters, ..ModelInferResponse::default() }
}
