//! The scoring service: hands each method to its answer path and refusals to their status.

use std::sync::Arc;

use http::HeaderMap;
use scorer_proto::v1::scoring_service_server::ScoringService;
use scorer_proto::v1::{
    DescribeRequest, DescribeResponse, NoopRequest, NoopResponse, ReportOutcomeRequest,
    ReportOutcomeResponse, ScoreBatchRequest, ScoreBatchResponse, ScoreRequest, ScoreResponse,
    SelectActionRequest, SelectActionResponse,
};
use tonic::{Request, Response, Status};

use crate::answer::arrive::Arrival;
use crate::answer::{batch, describe, outcome, score, select};
use crate::metrics::Method;
use crate::state::Shared;

/// The generated service's other half.
pub(crate) struct Scoring {
    shared: Arc<Shared>,
}

type Answer<T> = Result<Response<T>, Status>;

// === impl Scoring ===

impl Scoring {
    pub(crate) fn new(shared: Arc<Shared>) -> Scoring {
        Scoring { shared }
    }
}

/// Takes a request apart; dispatch has stamped every one that comes here.
pub(crate) fn open<T>(request: Request<T>) -> (Arc<Arrival>, T) {
    let (_, mut extensions, message) = request.into_parts();
    let arrival = extensions
        .remove::<Arc<Arrival>>()
        .unwrap_or_else(|| Arc::new(Arrival::stamp(Method::Unknown, &HeaderMap::new()).0));
    (arrival, message)
}

#[tonic::async_trait]
impl ScoringService for Scoring {
    async fn score(&self, request: Request<ScoreRequest>) -> Answer<ScoreResponse> {
        let (arrival, request) = open(request);
        Ok(Response::new(score::answer(&self.shared, &arrival, request).await?))
    }

    async fn score_batch(&self, request: Request<ScoreBatchRequest>) -> Answer<ScoreBatchResponse> {
        let (arrival, request) = open(request);
        Ok(Response::new(batch::answer(&self.shared, &arrival, request).await?))
    }

    async fn select_action(&self, request: Request<SelectActionRequest>) -> Answer<SelectActionResponse> {
        let (arrival, request) = open(request);
        Ok(Response::new(select::answer(&self.shared, &arrival, request).await?))
    }

    async fn report_outcome(&self, request: Request<ReportOutcomeRequest>) -> Answer<ReportOutcomeResponse> {
        let (arrival, request) = open(request);
        Ok(Response::new(outcome::answer(&self.shared, &arrival, request)?))
    }

    async fn describe(&self, request: Request<DescribeRequest>) -> Answer<DescribeResponse> {
        let (arrival, request) = open(request);
        Ok(Response::new(describe::answer(&self.shared, &arrival, &request)?))
    }

    async fn noop(&self, request: Request<NoopRequest>) -> Answer<NoopResponse> {
        Ok(Response::new(NoopResponse { payload: request.into_inner().payload }))
    }
}
