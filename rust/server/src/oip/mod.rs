//! The Open Inference Protocol (`inference.GRPCInferenceService`). Every checkpoint is a model of the same name.
//!
//! This is an adapter like that of `scorer.v1`: a request is converted to a query of the engine and takes the same
//! answer path, including admission, log and counters. The control plane loads and unloads bundles; the methods of the
//! repository report the state and change nothing.

mod codec;
mod error;
mod infer;
mod inputs;
mod model;
mod outputs;
mod parameters;
mod stream;
mod tensor;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use http::HeaderMap;
use scorer_engine::{Checkpoint, Kind, quotable};
use scorer_identity::Role;
use scorer_proto::inference::grpc_inference_service_server::GrpcInferenceService;
use scorer_proto::inference::{
    InferParameter, ModelConfigRequest, ModelConfigResponse, ModelInferRequest, ModelInferResponse,
    ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse,
    ModelStatisticsRequest, ModelStatisticsResponse, RepositoryIndexRequest, RepositoryIndexResponse,
    RepositoryModelLoadRequest, RepositoryModelLoadResponse, RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse, ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest,
    ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
};
use tonic::{Request, Response, Status, Streaming};

use crate::arrive;
use crate::probe::{Caller, Peer};
use crate::services::Services;
pub(crate) use codec::stream_infer;
pub(crate) use error::InferError;
pub(crate) use infer::infer;
use model::Model;

type Map = HashMap<String, InferParameter>;
type Answer<T> = Result<Response<T>, Status>;

/// The extensions of the protocol that the server offers.
const EXTENSIONS: [&str; 4] = ["model_configuration", "model_repository", "parameters", "statistics"];
/// The methods that the server answers; see [`not_offered`].
const METHODS: [&str; 12] = [
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "ModelStreamInfer",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
];

/// The implementation of the generated service.
pub(crate) struct Inference {
    services: Arc<Services>,
}

/// Returns the status of a method that Triton has and this server does not offer.
pub(crate) fn not_offered(method: &str) -> Option<Status> {
    if METHODS.contains(&method) {
        return None;
    }
    Some(Status::unimplemented(format!(
        "{} is not offered here; shared memory, trace and log settings have no meaning for this server",
        quotable(method)
    )))
}

/// Returns the request if its caller has the role that the kind of the checkpoint requires.
pub(crate) fn permitted(
    services: &Services,
    caller: &Caller,
    request: Result<ModelInferRequest, Status>,
) -> Result<ModelInferRequest, Status> {
    let request = request?;
    let role = match services.engine.checkpoints.find(&request.model_name).map(|known| known.kind) {
        Some(Kind::Action) => Role::Select,
        Some(Kind::Score) | None => Role::Score,
    };
    services.security.check(caller.0.as_deref(), role, Some(&request.model_name))?;
    Ok(request)
}

// === impl Inference ===

impl Inference {
    pub(crate) fn new(services: Arc<Services>) -> Inference {
        Inference { services }
    }

    /// Calls `describe` for one model, or for all that have a bundle if `name` is empty.
    fn models<T>(
        &self,
        name: &str,
        version: &str,
        describe: impl Fn(&Model<'_>) -> T,
    ) -> Result<Vec<T>, InferError> {
        let table = self.services.engine.lanes();
        if name.is_empty() {
            let found =
                self.services.engine.checkpoints.iter().map(|known| Model::find(known, &table, version));
            return Ok(found.flatten().map(|model| describe(&model)).collect());
        }
        Ok(vec![describe(&Model::find(self.checkpoint(name)?, &table, version)?)])
    }

    fn model<T>(
        &self,
        name: &str,
        version: &str,
        describe: impl Fn(&Model<'_>) -> T,
    ) -> Result<T, InferError> {
        let table = self.services.engine.lanes();
        Ok(describe(&Model::find(self.checkpoint(name)?, &table, version)?))
    }

    fn checkpoint(&self, name: &str) -> Result<&Checkpoint, InferError> {
        Ok(self.services.engine.checkpoints.get(name)?)
    }

    /// Returns the message if its caller may read the description of the model that it names.
    fn describing<M>(&self, request: Request<M>, name: impl FnOnce(&M) -> String) -> Result<M, Status> {
        let (_, extensions, message) = request.into_parts();
        let caller = extensions.get::<Caller>().and_then(|caller| caller.0.as_deref());
        let name = name(&message);
        let checkpoint = (!name.is_empty()).then_some(name.as_str());
        self.services.security.check(caller, Role::Describe, checkpoint)?;
        Ok(message)
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for Inference {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Answer<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Answer<ServerReadyResponse> {
        Ok(Response::new(ServerReadyResponse { ready: self.services.health.is_ready() }))
    }

    /// Reports whether a model is ready. An unknown model is not ready and not an error, because clients poll before
    /// models are published.
    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Answer<ModelReadyResponse> {
        let ModelReadyRequest { name, version } = self.describing(request, |message| message.name.clone())?;
        let ready = self.services.engine.checkpoints.find(&name).is_some()
            && self.services.health.serves(&name)
            && self.model(&name, &version, |_| ()).is_ok();
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> Answer<ServerMetadataResponse> {
        Ok(Response::new(ServerMetadataResponse {
            name: "scorer".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: EXTENSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Answer<ModelMetadataResponse> {
        let ModelMetadataRequest { name, version } =
            self.describing(request, |message| message.name.clone())?;
        Ok(Response::new(self.model(&name, &version, |model| model.metadata())?))
    }

    /// Never called: the dispatcher admits and counts requests of this method and passes them to [`infer`].
    async fn model_infer(&self, _: Request<ModelInferRequest>) -> Answer<ModelInferResponse> {
        Err(Status::unimplemented("ModelInfer is answered elsewhere"))
    }

    type ModelStreamInferStream = stream::Answers;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Answer<stream::Answers> {
        let mut headers = HeaderMap::new();
        if let Some(timeout) = request.metadata().as_ref().get("grpc-timeout") {
            headers.insert("grpc-timeout", timeout.clone());
        }
        let (arrival, verdict) = arrive::stamp(&headers, Instant::now(), 0);
        verdict?;
        let until = arrival.timeout().and_then(|timeout| arrival.at.checked_add(timeout));
        let (metadata, extensions, requests) = request.into_parts();
        let Some(peer) = extensions.get::<Peer>().cloned() else {
            return Err(Status::internal("the stream's connection is not known"));
        };
        let headers = metadata.into_headers();
        Ok(Response::new(stream::answers(Arc::clone(&self.services), until, peer, headers, requests)))
    }

    async fn model_config(&self, request: Request<ModelConfigRequest>) -> Answer<ModelConfigResponse> {
        let ModelConfigRequest { name, version } =
            self.describing(request, |message| message.name.clone())?;
        let config = self.model(&name, &version, |model| model.config())?;
        Ok(Response::new(ModelConfigResponse { config: Some(config) }))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Answer<ModelStatisticsResponse> {
        let caller = Caller::of(&request);
        let ModelStatisticsRequest { name, version } =
            self.describing(request, |message| message.name.clone())?;
        let mut model_stats = self.models(&name, &version, |model| model.statistics(&self.services))?;
        model_stats.retain(|model| caller.allows(Role::Describe, &model.name));
        Ok(Response::new(ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Answer<RepositoryIndexResponse> {
        let caller = Caller::of(&request);
        let table = self.services.engine.lanes();
        let mut models = model::index(&self.services, &table, request.into_inner().ready);
        models.retain(|model| caller.allows(Role::Describe, &model.name));
        Ok(Response::new(RepositoryIndexResponse { models }))
    }

    /// Reports whether the model is loaded. The control plane loads bundles, according to the registry's aliases.
    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Answer<RepositoryModelLoadResponse> {
        let RepositoryModelLoadRequest { repository_name, model_name, parameters } =
            self.describing(request, |message| message.model_name.clone())?;
        if !parameters.is_empty() {
            let what = "loading with parameters";
            let remedy = "publish a bundle and point the checkpoint's alias at it";
            return Err(InferError::NotOffered { what, remedy }.into());
        }
        let model_name = either(model_name, repository_name);
        self.model(&model_name, "", |_| ())?;
        Ok(Response::new(RepositoryModelLoadResponse { model_name, is_loaded: true }))
    }

    /// Always rejected, because the data plane does not take checkpoints out of service.
    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Answer<RepositoryModelUnloadResponse> {
        let RepositoryModelUnloadRequest { repository_name, model_name, .. } = request.into_inner();
        self.checkpoint(&either(model_name, repository_name))?;
        let what = "unloading a model";
        let remedy = "change the checkpoint's lanes through the control service";
        Err(InferError::NotOffered { what, remedy }.into())
    }
}

/// Returns the model's name. Triton uses field 2 for it; KServe uses field 1, which is Triton's repository.
fn either(second: String, first: String) -> String {
    if second.is_empty() { first } else { second }
}
