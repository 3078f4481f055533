//! The kubelet's [`Api`] over the enrolled client.

use agent_enroll::MasterClient;
use agent_kubelet::{Answer, Api, ApiError, Call, Lines};
use bytes::Bytes;
use futures_util::StreamExt as _;

/// The master's API, reached with the node's identity.
#[derive(Debug)]
pub(crate) struct MasterApi(pub(crate) MasterClient);

fn transport(error: agent_enroll::Error) -> ApiError {
    ApiError::Transport(Box::new(error))
}

impl Api for MasterApi {
    fn call(&self, call: Call) -> Answer<'_, Bytes> {
        Box::pin(async move {
            let Call { method, path, content_type, body } = call;
            let answer = self.0.request(method, &path, content_type, body).await.map_err(transport)?;
            if answer.status.is_success() {
                return Ok(answer.body);
            }
            Err(ApiError::from_answer(answer.status.as_u16(), &answer.body))
        })
    }

    fn watch(&self, path: String) -> Answer<'_, Lines> {
        Box::pin(async move {
            match self.0.watch(&path).await.map_err(transport)? {
                Ok(lines) => Ok(Box::pin(lines.map(|line| line.map_err(transport))) as Lines),
                Err(answer) => Err(ApiError::from_answer(answer.status.as_u16(), &answer.body)),
            }
        })
    }
}
