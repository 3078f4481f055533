//! The kubelet's [`Api`] over the enrolled client.

use crate::time::Clock;
use agent_api::{Answer, Api, ApiError, Call, Lines};
use agent_enroll::{IdentityFigures, MasterClient};
use bytes::Bytes;
use futures_util::StreamExt as _;
use std::sync::Arc;
use tokio::sync::Notify;

/// The master's API, reached with the node's identity.
#[derive(Debug)]
pub(crate) struct MasterApi {
    pub(crate) client: MasterClient,
    /// What `client` did, and how long its certificate lasts.
    pub(crate) figures: IdentityFigures,
    /// Notified when the API server is unreachable, so that discovery runs again.
    pub(crate) doubt: Arc<Notify>,
    /// The clock, compared with the Date of each answer of the API.
    pub(crate) clock: Arc<Clock>,
}

impl MasterApi {
    fn failed(&self, error: agent_enroll::Error) -> ApiError {
        if let agent_enroll::Error::TooLarge(limit) = error {
            return ApiError::TooLarge(limit);
        }
        self.doubt.notify_one();
        ApiError::Transport(Box::new(error))
    }
}

impl Api for MasterApi {
    fn call(&self, call: Call) -> Answer<'_, Bytes> {
        Box::pin(async move {
            let Call {
                method,
                path,
                content_type,
                body,
            } = call;
            let answer = self.client.request(method, &path, content_type, body).await;
            let answer = answer.map_err(|error| self.failed(error))?;
            if let Some((theirs, ours)) = answer.times {
                self.clock.master(theirs, ours);
            }
            if answer.status.is_success() {
                return Ok(answer.body);
            }
            Err(ApiError::from_answer(answer.status.as_u16(), &answer.body))
        })
    }

    fn watch(&self, path: String) -> Answer<'_, Lines> {
        Box::pin(async move {
            match self
                .client
                .watch(&path)
                .await
                .map_err(|error| self.failed(error))?
            {
                Ok(lines) => {
                    let broken = |error| ApiError::Transport(Box::new(error));
                    Ok(Box::pin(lines.map(move |line| line.map_err(broken))) as Lines)
                }
                Err(answer) => Err(ApiError::from_answer(answer.status.as_u16(), &answer.body)),
            }
        })
    }

    fn figures(&self) -> String {
        self.figures.text()
    }
}
