//! Leases: what keeps the parts of an image that is pulled from containerd's garbage collector.

use super::{Images, SNAPSHOTTER};
use agent_containerd::{Error, ErrorClass, failed, request};
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::{AddResourceRequest, CreateRequest, Resource};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// A lease that was not ended expires after this time (RFC 3339 in the label).
const LEASE_HOURS: i64 = 12;

/// What a lease keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// A document or layer, by its digest.
    Blob,
    /// An unpacked layer, by its name.
    Snapshot,
}

impl Images {
    /// Begins a lease; returns its id.
    pub(super) async fn lease(&self) -> Result<String, Error> {
        let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(LEASE_HOURS);
        let labels = HashMap::from([(
            "containerd.io/gc.expire".to_owned(),
            expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        )]);
        let number = self.leases.fetch_add(1, Ordering::Relaxed);
        let id = format!(
            "pratique-{}-{number}",
            jiff::Timestamp::now().as_nanosecond()
        );
        let create = CreateRequest {
            id: id.clone(),
            labels,
        };
        let made = LeasesClient::new(self.channel.clone())
            .create(request(create))
            .await;
        made.map_err(failed(ErrorClass::ImagePull, "take a lease at containerd"))?;
        Ok(id)
    }

    /// Adds a blob or snapshot to this pull's lease: it stays if the image that brought it is
    /// removed, or the pull that makes it is given up. It need not exist yet.
    pub(super) async fn hold(&self, kept: Kept, id: &str, lease: &str) -> Result<(), Error> {
        let (kind, what) = match kept {
            Kept::Blob => ("content".to_owned(), "blob"),
            Kept::Snapshot => (format!("snapshots/{SNAPSHOTTER}"), "snapshot"),
        };
        let resource = Resource {
            id: id.to_owned(),
            r#type: kind,
        };
        let add = AddResourceRequest {
            id: lease.to_owned(),
            resource: Some(resource),
        };
        let held = LeasesClient::new(self.channel.clone())
            .add_resource(request(add))
            .await;
        let doing = format!("keep {what} {id}");
        held.map(drop).map_err(failed(ErrorClass::ImagePull, doing))
    }
}

#[cfg(test)]
mod tests {
    use crate::content::{Content, Descriptor};
    use crate::images::{Images, Origin, Pull, Source};
    use crate::progress::Count;
    use crate::registry::{Reader, Registries};
    use agent_containerd::{Error, ErrorClass, Pending, channel};
    use http::HeaderMap;
    use http_body_util::{BodyExt, Full};
    use hyper::body::{Bytes, Incoming};
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use std::collections::HashMap;
    use std::convert::Infallible;
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use tokio::net::UnixListener;

    /// The names of the calls that containerd got.
    type Calls = Arc<Mutex<Vec<String>>>;

    /// A registry that sends nothing.
    struct Silent;

    impl Source for Silent {
        fn bring<'a>(
            &'a self,
            _content: &'a Content,
            _descriptor: &'a Descriptor,
            _pull: Pull<'a>,
        ) -> Pending<'a, ()> {
            let error = Error::new(ErrorClass::ImagePull, "nothing is sent");
            Box::pin(std::future::ready(Err(error)))
        }
    }

    /// A containerd that answers each call by an empty message, in a folder.
    fn answering(dir: &Path) -> (Images, Calls) {
        let listener = UnixListener::bind(dir.join("socket")).unwrap();
        let calls = Calls::default();
        let seen = calls.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let seen = seen.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let call = request.uri().path().rsplit('/').next();
                    seen.lock()
                        .unwrap()
                        .push(call.unwrap_or_default().to_owned());
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    let trailers = std::future::ready(Some(Ok::<_, Infallible>(trailers)));
                    let body = Full::new(Bytes::from_static(&[0; 5])).with_trailers(trailers);
                    let mut answer = Response::new(body);
                    let grpc = "application/grpc".parse().unwrap();
                    answer.headers_mut().insert("content-type", grpc);
                    std::future::ready(Ok::<_, Infallible>(answer))
                });
                let connection = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        let registries = Registries::new(Vec::new(), "registry.example", Vec::new());
        let images = Images::new(channel(dir.join("socket")), registries, dir.to_owned());
        (images, calls)
    }

    #[tokio::test]
    async fn a_part_is_in_the_pulls_lease_before_it_may_be_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let (images, calls) = answering(dir.path());
        let part = Descriptor {
            media_type: String::new(),
            digest: "sha256:aa".to_owned(),
            size: 1,
            platform: None,
            annotations: HashMap::new(),
        };
        let reader = &Reader::Everyone;
        let source = &Silent;
        let count = Count::default();
        let pull = Pull {
            lease: "l",
            count: &count,
        };
        let origin = Origin { source, reader };
        let brought = images.bring_part(&part, origin, pull).await;
        let message = brought.unwrap_err().chain();
        assert_eq!(message, "nothing is sent");
        // `Info` is what it is skipped by.
        assert_eq!(*calls.lock().unwrap(), ["AddResource", "Info"]);
    }
}
