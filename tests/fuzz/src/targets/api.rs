//! Whole requests, as the API server gets them: path, query, headers (credentials among them) and
//! bodies of every encoding.

use crate::run::{Shape, Target};
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use master_api::{ApiServer, Options};
use master_auth::Mode;
use master_client::UserInfo;
use master_listener::Peer;
use master_store::EmbeddedStore;
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// A server that lets everybody do everything, so that every request gets as deep as it can.
struct Server {
    runtime: Runtime,
    api: ApiServer,
    _folder: TempDir,
}

impl Server {
    fn new() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options {
            authorization: vec![Mode::AlwaysAllow],
            ..Options::default()
        };
        let store = EmbeddedStore::open(folder.path()).expect("a store");
        let api = ApiServer::new(Arc::new(store), options);
        runtime.block_on(api.prepare()).expect("a prepared server");
        Self {
            runtime,
            api,
            _folder: folder,
        }
    }

    /// Callers without credentials get no answer from a server that allows everything: requests
    /// that bring none are somebody's.
    async fn handle(&self, request: Request<master_client::Body>) -> Response<master_client::Body> {
        let peer = Peer::default();
        if request.headers().contains_key(AUTHORIZATION) {
            return self.api.handle(request, peer).await;
        }
        let user = UserInfo::authenticated("somebody", Vec::<String>::new());
        self.api.handle_as(request, user, peer).await
    }

    /// Answers any request; refusals have the API's own form.
    fn answer(&self, request: Request<master_client::Body>) {
        let endless = request
            .uri()
            .query()
            .is_some_and(|query| query.contains("watch"));
        let (status, body) = self.runtime.block_on(async {
            let response = self.handle(request).await;
            let status = response.status();
            // A watch never ends; its first frame is made by the same code as all others.
            if endless && status.is_success() {
                return (status, None);
            }
            (
                status,
                Some(
                    response
                        .into_body()
                        .collect()
                        .await
                        .expect("a whole body")
                        .to_bytes(),
                ),
            )
        });
        let Some(body) = body.filter(|_| status.is_client_error() || status.is_server_error())
        else {
            return;
        };
        let Ok(said) = serde_json::from_slice::<Value>(&body) else {
            return;
        };
        assert_eq!(
            said["kind"], "Status",
            "a refusal in a form of its own: {said}"
        );
        assert_eq!(said["code"], status.as_u16(), "{said}");
        assert!(
            status != StatusCode::INTERNAL_SERVER_ERROR || expected(&said),
            "an error of the server's own: {said}"
        );
    }
}

/// Upstream too answers 500 to an applied field that no schema declares, and to a group that is
/// impersonated without a user.
fn expected(status: &Value) -> bool {
    let known = ["typed patch object", "without impersonating a user"];
    status["message"]
        .as_str()
        .is_some_and(|message| known.iter().any(|part| message.contains(part)))
}

/// `METHOD path`, headers, an empty line, the body.
fn request(input: &[u8]) -> Option<Request<master_client::Body>> {
    let end = input.windows(2).position(|pair| pair == b"\n\n")?;
    let (head, body) = (
        std::str::from_utf8(&input[..end]).ok()?,
        input.get(end + 2..)?,
    );
    let mut lines = head.lines();
    let (method, path) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).ok()?)
        .uri(path);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        request = request.header(name, HeaderValue::from_str(value).ok()?);
    }
    request.body(master_client::body(body.to_vec())).ok()
}

fn seed(head: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    [head.as_bytes(), b"\n\n", body.as_ref()].concat()
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const JSON: &str = "content-type: application/json";

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-", "labels": {"a": "1"}}, "spec": {
        "automountServiceAccountToken": false,
        "containers": [{"name": "a", "image": "b", "ports": [{"containerPort": 80}],
            "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}}],
    }})
}

fn reads() -> Vec<Vec<u8>> {
    let tables = "accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    [
        format!("GET {PODS}?labelSelector=a%3D1,b!%3Dc,d%20in%20(e)&fieldSelector=metadata.name%3Dx&limit=2"),
        format!("GET {PODS}?watch=1&resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
        format!("GET {PODS}?limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhIn0\n{tables}"),
        "GET /apis\naccept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList".to_owned(),
        "GET /openapi/v3/api/v1\naccept-encoding: gzip".to_owned(),
        "GET /readyz?verbose&exclude=ping".to_owned(),
        "GET /api/v1/namespaces/default/configmaps/kube-root-ca.crt\nimpersonate-user: a\nimpersonate-group: b"
            .to_owned(),
        "GET /version\nauthorization: Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJ4Iiwic3ViIjoieSJ9.AAAA"
            .to_owned(),
        "GET /version\nauthorization: Bearer abcdef.0123456789abcdef".to_owned(),
    ]
    .iter()
    .map(|head| seed(head, ""))
    .collect()
}

fn writes() -> Vec<Vec<u8>> {
    let delete = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 0, "preconditions": {"uid": "x", "resourceVersion": "1"}});
    let yaml =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\ndata:\n  a: \"1\"\n  b: |\n    c\n";
    // k8s\0, then runtime.Unknown with its type and a ConfigMap of one name.
    let protobuf =
        b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x07\x0a\x05\x0a\x03abc\x1a\0\x22\0";
    vec![
        seed(
            &format!("POST {PODS}?fieldValidation=Strict&dryRun=All\n{JSON}"),
            pod().to_string(),
        ),
        seed(
            &format!("POST {PODS}?fieldManager=m\n{JSON}"),
            pod().to_string(),
        ),
        seed(
            "POST /api/v1/namespaces/default/configmaps\ncontent-type: application/yaml",
            yaml,
        ),
        seed(
            "POST /api/v1/namespaces/default/configmaps\ncontent-type: application/vnd.kubernetes.protobuf",
            protobuf,
        ),
        seed(
            &format!("DELETE {PODS}/x?propagationPolicy=Orphan\n{JSON}"),
            delete.to_string(),
        ),
        seed(
            &format!("DELETE {PODS}?labelSelector=none\n{JSON}"),
            delete.to_string(),
        ),
    ]
}

fn patches() -> Vec<Vec<u8>> {
    let target = "PATCH /api/v1/namespaces/default";
    let patch = |kind: &str, query: &str, body: Value| {
        seed(
            &format!("{target}?{query}\ncontent-type: application/{kind}"),
            body.to_string(),
        )
    };
    let applied =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"labels": {"a": "1"}}});
    vec![
        patch(
            "json-patch+json",
            "",
            json!([{"op": "test", "path": "/metadata/name", "value": "default"},
            {"op": "add", "path": "/metadata/labels/a~1b", "value": "1"}, {"op": "remove", "path": "/metadata/labels/a~1b"}]),
        ),
        patch(
            "merge-patch+json",
            "dryRun=All",
            json!({"metadata": {"labels": {"a": null, "b": "1"}}}),
        ),
        patch(
            "strategic-merge-patch+json",
            "",
            json!({"metadata": {"$setElementOrder/finalizers": [], "labels": {"$patch": "replace"}}}),
        ),
        patch("apply-patch+yaml", "fieldManager=m&force=true", applied),
    ]
}

pub(super) fn targets() -> Vec<Target> {
    let target = |name, seeds| {
        // Made when it is first fed: a run of other targets needs no server.
        let server = OnceCell::new();
        let decode = move |input: &[u8]| {
            if let Some(request) = request(input) {
                server.get_or_init(Server::new).answer(request);
            }
        };
        Target {
            name,
            shape: Shape::Bytes,
            seeds,
            decode: Box::new(decode),
        }
    };
    vec![
        target("api-reads", reads()),
        target("api-writes", writes()),
        target("api-patches", patches()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_requests_that_are_understood() {
        let server = Server::new();
        for input in [reads(), writes(), patches()].concat() {
            let request = request(&input).expect("a request");
            let what = format!("{} {}", request.method(), request.uri());
            // Credentials that are none, what is not there, a revision that is gone.
            let known = ["/version", "/x", "continue=", "configmaps/"];
            let response = server.runtime.block_on(server.handle(request));
            if response.status().is_success() || known.iter().any(|part| what.contains(part)) {
                continue;
            }
            let said = server
                .runtime
                .block_on(response.into_body().collect())
                .unwrap()
                .to_bytes();
            panic!("{what}: {}", String::from_utf8_lossy(&said));
        }
    }
}
