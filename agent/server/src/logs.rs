//! Logs of containers, whole or followed.

use crate::Parts;
use crate::reader::{LogOptions, Reader};
use agent_pods::{MAX_LOGS, is_plain, log_file, log_folder, log_name};
use agent_port::{Body, text};
use agent_runtime::{ContainerState as State, container_id};
use agent_sys::beneath::Beneath;
use bytes::Bytes;
use config_kube::k8s_openapi::api::core::v1::{ContainerState, PodStatus};
use futures_util::{StreamExt, stream};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::time::sleep;

/// Between two looks for more of a log that is followed.
const FOLLOW: Duration = Duration::from_millis(200);
/// Bytes of a log that are sent in one piece.
const PIECE: usize = 32 * 1024;

/// The log of a container of a pod of this node, as the query asks for it.
pub(crate) fn answer(
    parts: &Arc<Parts>,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &str,
) -> Response<Body> {
    let options = match LogOptions::parse(query, Timestamp::now()) {
        Ok(options) => options,
        Err(fault) => return text(StatusCode::BAD_REQUEST, &format!("{fault}\n")),
    };
    let Some(reference) = parts.node.pod(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, &format!("pod {pod:?} not found\n"));
    };
    let status = parts.node.status(&reference).unwrap_or_default();
    let id = match attempt(&status, pod, container, options.previous) {
        Ok(id) => id,
        Err(fault) => return text(StatusCode::BAD_REQUEST, &format!("{fault}\n")),
    };
    let opened = is_plain(container).then(|| {
        let dir = Beneath::root(&parts.logs)?.dir(&log_folder(&reference, container))?;
        let of = |number| container_id(&reference.uid, container, number);
        Ok(log_number(&dir, |number| of(number) == id)?.map(|number| (dir, number)))
    });
    let opened: std::io::Result<Option<_>> = opened.unwrap_or(Ok(None));
    let (dir, number) = match opened {
        Ok(Some(found)) => found,
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return broken(container, &error);
        }
        Ok(None) | Err(_) => {
            let message = format!("the log of container {container:?} in pod {pod:?} is gone\n");
            return text(StatusCode::BAD_REQUEST, &message);
        }
    };
    match Reader::open(dir, &log_name(number), options.clone()) {
        Ok(reader) => {
            let path = log_file(&parts.logs, &reference, container, number);
            let body = StreamBody::new(pieces(
                parts.clone(),
                reader,
                options.follow,
                reference.uid,
                path,
            ));
            let mut response = Response::new(BodyExt::boxed_unsync(body));
            response.headers_mut().insert(
                http::header::CONTENT_TYPE,
                http::HeaderValue::from_static("text/plain"),
            );
            response
        }
        Err(error) => broken(container, &error),
    }
}

/// The id of the attempt whose log is asked for, by the pod's status; or why there is none, in the
/// words of upstream's kubelet (`validateContainerLogStatus`). With `previous` it is the last one
/// that ended before the one which runs or is to run: between two attempts the newest.
fn attempt(
    status: &PodStatus,
    pod: &str,
    container: &str,
    previous: bool,
) -> Result<String, String> {
    let of = format!("container {container:?} in pod {pod:?}");
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flatten().flatten();
    let own = all.find(|own| own.name == container);
    let own = own.ok_or_else(|| format!("{of} is not available"))?;
    let state = own.state.clone().unwrap_or_default();
    let last = own.last_state.as_ref().and_then(ended);
    let id = if previous {
        last.ok_or_else(|| format!("previous terminated {of} not found"))?
    } else if state.running.is_some() {
        let id = own.container_id.as_deref();
        id.ok_or_else(|| format!("{of} is not available"))?
    } else if state.terminated.is_some() {
        let id = ended(&state).or(last);
        id.ok_or_else(|| format!("{of} is terminated"))?
    } else if let Some(last) = last {
        last
    } else {
        let waiting = state.waiting.unwrap_or_default();
        let why = match waiting.reason.as_deref() {
            Some("ErrImagePull") => "image can't be pulled",
            Some("ImagePullBackOff") => "trying and failing to pull image",
            Some(reason) => reason,
            None => return Err(format!("{of} is waiting to start - no logs yet")),
        };
        return Err(format!("{of} is waiting to start: {why}"));
    };
    // Statuses name the engine, too: `containerd://`.
    Ok(id.rsplit('/').next().unwrap_or_default().to_owned())
}

/// The id of the attempt that has ended.
fn ended(state: &ContainerState) -> Option<&str> {
    state.terminated.as_ref()?.container_id.as_deref()
}

/// The number of the attempt that has a log and is meant.
fn log_number(dir: &Beneath, is_meant: impl Fn(u32) -> bool) -> std::io::Result<Option<u32>> {
    let number =
        |name: std::ffi::OsString| name.to_str()?.strip_suffix(".log")?.parse::<u32>().ok();
    let mut all = dir.names(MAX_LOGS)?.into_iter().filter_map(number);
    Ok(all.find(|number| is_meant(*number)))
}

/// The answer where a log can't be read. The error names no path.
fn broken(container: &str, error: &std::io::Error) -> Response<Body> {
    text(
        StatusCode::INTERNAL_SERVER_ERROR,
        &format!("log of {container:?}: {error}\n"),
    )
}

/// The log in pieces; with `follow` until its container has ended and all was sent.
fn pieces(
    parts: Arc<Parts>,
    reader: Reader,
    follow: bool,
    uid: String,
    path: PathBuf,
) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send {
    let state = (parts, reader, uid, path, false);
    stream::try_unfold(
        state,
        move |(parts, mut reader, uid, path, mut ended)| async move {
            loop {
                let piece = next_piece(&mut reader).await?;
                if !piece.is_empty() {
                    return Ok(Some((
                        Frame::data(Bytes::from(piece)),
                        (parts, reader, uid, path, ended),
                    )));
                }
                if !follow || reader.finished() || ended {
                    return Ok(None);
                }
                sleep(FOLLOW).await;
                // One more read follows: what was written before the end is in the file by then.
                ended = !runs(&parts, &uid, &path).await;
            }
        },
    )
    .boxed()
}

/// Lines of the log that make a piece to be sent; empty at the end of what is written.
///
/// Lines that the options exclude make nothing, and may be a million: each takes a part of the
/// task's budget, so that other tasks run meanwhile.
async fn next_piece(reader: &mut Reader) -> std::io::Result<Vec<u8>> {
    let mut piece = Vec::new();
    while piece.len() < PIECE
        && let Some(text) = reader.piece()?
    {
        piece.extend(text);
        consume_budget().await;
    }
    Ok(piece)
}

/// True while the container whose log this is may write.
async fn runs(parts: &Parts, uid: &str, path: &std::path::Path) -> bool {
    let Ok(seen) = parts.runtime.list(Some(uid)).await else {
        return true;
    };
    seen.iter().any(|seen| {
        let key = &seen.key;
        let log = log_file(&parts.logs, &key.pod, &key.container, key.attempt);
        log == path && !matches!(seen.state, State::Exited { .. })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::fs;
    use std::future::poll_fn;
    use std::os::unix::fs::symlink;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::Poll;

    /// The result of `work`, unless it hangs.
    fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(work()));
        let limit = Duration::from_secs(60);
        receiver.recv_timeout(limit).expect("reading a log hangs")
    }

    /// What is read of a container of this status, `current` being its newest attempt.
    fn asked(state: &Value, last: &Value, previous: bool) -> Result<String, String> {
        let own = json!({
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 3,
            "containerID": "containerd://current", "state": state, "lastState": last,
        });
        let status = serde_json::from_value(json!({"initContainerStatuses": [own]}));
        attempt(&status.unwrap(), "p", "c", previous)
    }

    #[test]
    fn the_previous_log_is_that_of_the_last_state() {
        let waits = |reason: &str| json!({"waiting": {"reason": reason}});
        let ended = |id: &str| json!({"terminated": {"exitCode": 1, "containerID": format!("containerd://{id}")}});
        let (runs, none) = (json!({"running": {}}), json!({}));
        for (state, last, previous, wanted) in [
            (waits("CrashLoopBackOff"), ended("current"), true, "current"),
            (
                waits("CrashLoopBackOff"),
                ended("current"),
                false,
                "current",
            ),
            (runs.clone(), ended("before"), true, "before"),
            (runs.clone(), ended("before"), false, "current"),
            (ended("current"), ended("before"), true, "before"),
            (ended("current"), ended("before"), false, "current"),
        ] {
            assert_eq!(
                asked(&state, &last, previous).as_deref(),
                Ok(wanted),
                "{state} {last} {previous}"
            );
        }
        for state in [runs, ended("current"), waits("ContainerCreating")] {
            assert_eq!(
                asked(&state, &none, true).unwrap_err(),
                r#"previous terminated container "c" in pod "p" not found"#
            );
        }
    }

    #[test]
    fn why_a_container_has_no_log_yet_is_reported_in_upstreams_words() {
        for (reason, words) in [
            ("ContainerCreating", "ContainerCreating"),
            ("PodInitializing", "PodInitializing"),
            ("CreateContainerConfigError", "CreateContainerConfigError"),
            ("ErrImagePull", "image can't be pulled"),
            ("ImagePullBackOff", "trying and failing to pull image"),
        ] {
            let state = json!({"waiting": {"reason": reason}});
            assert_eq!(
                asked(&state, &json!({}), false).unwrap_err(),
                format!(r#"container "c" in pod "p" is waiting to start: {words}"#)
            );
        }
        let unknown = attempt(&PodStatus::default(), "p", "other", false).unwrap_err();
        assert_eq!(unknown, r#"container "other" in pod "p" is not available"#);
    }

    #[tokio::test]
    async fn lines_that_nobody_asked_for_leave_the_worker_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let all = "2026-01-01T00:00:00Z stdout F x\n".repeat(1000);
        let last = "2026-01-01T00:00:00Z stderr F last\n";
        fs::write(dir.path().join("0.log"), all + last).unwrap();
        let options = LogOptions::parse("stream=Stderr", Timestamp::now()).unwrap();
        let folder = Beneath::root(dir.path()).unwrap();
        let mut reader = Reader::open(folder, "0.log", options).unwrap();
        let mut piece = pin!(next_piece(&mut reader));
        let first = poll_fn(|context| Poll::Ready(piece.as_mut().poll(context))).await;
        assert!(first.is_pending(), "nothing else ran until it ended");
        assert_eq!(piece.await.unwrap(), b"last\n");
    }

    #[test]
    fn a_link_in_the_place_of_a_log_shows_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("secret"),
            "2026-01-01T00:00:00Z stdout F secret\n",
        )
        .unwrap();
        symlink("secret", dir.path().join("0.log")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("1.log"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for name in ["0.log", "1.log"] {
            let folder = Beneath::root(dir.path()).unwrap();
            assert!(
                within(move || Reader::open(folder, name, LogOptions::default()).is_err()),
                "{name}"
            );
        }
    }
}
