//! The way of an agent in this process to a master in this process: its requests, without a socket.

use agent_api::{Answer, Api, ApiError, Call, Lines};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::{Method, Request};
use http_body_util::BodyExt;
use master_api::ApiServer;
use master_client::{Body, UserInfo};
use master_listener::Peer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The master's API, asked as the node, without a socket.
#[derive(Debug)]
pub(crate) struct InProcess {
    pub(crate) server: ApiServer,
    pub(crate) user: UserInfo,
    /// While it is true, no request gets an answer.
    pub(crate) away: Arc<AtomicBool>,
    /// The paths of its calls so far, watches aside.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
}

impl InProcess {
    async fn ask(&self, call: Call) -> Result<http::Response<Body>, ApiError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(ApiError::Transport("the master is away".into()));
        }
        let request = Request::builder()
            .method(call.method)
            .uri(&call.path)
            .header("content-type", call.content_type);
        let request = request
            .header("accept", "application/json")
            .body(master_client::body(call.body))
            .unwrap();
        let answer = self
            .server
            .handle_as(request, self.user.clone(), Peer::default())
            .await;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let code = answer.status().as_u16();
        let body = answer
            .into_body()
            .collect()
            .await
            .map_err(ApiError::Transport)?
            .to_bytes();
        Err(ApiError::from_answer(code, &body))
    }
}

impl Api for InProcess {
    fn call(&self, call: Call) -> Answer<'_, Bytes> {
        self.asked.lock().unwrap().push(call.path.clone());
        Box::pin(async move {
            let answer = self.ask(call).await?;
            Ok(answer
                .into_body()
                .collect()
                .await
                .map_err(ApiError::Transport)?
                .to_bytes())
        })
    }

    fn watch(&self, path: String) -> Answer<'_, Lines> {
        Box::pin(async move {
            let call = Call {
                method: Method::GET,
                path,
                content_type: agent_api::JSON,
                body: Bytes::new(),
            };
            let body = self.ask(call).await?.into_body();
            let lines =
                stream::try_unfold((body, BytesMut::new()), |(mut body, mut rest)| async move {
                    loop {
                        if let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                            let line = rest.split_to(end + 1).freeze();
                            return Ok(Some((line.slice(..end), (body, rest))));
                        }
                        match body.frame().await {
                            Some(frame) => {
                                rest.extend(
                                    frame
                                        .map_err(ApiError::Transport)?
                                        .into_data()
                                        .unwrap_or_default(),
                                );
                            }
                            None => return Ok(None),
                        }
                    }
                });
            Ok(lines.boxed() as Lines)
        })
    }
}
