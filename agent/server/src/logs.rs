//! Logs of containers, whole or followed.

use crate::Parts;
use crate::reader::{LogOptions, Reader};
use agent_pods::{MAX_LOGS, is_plain, log_file, log_folder, log_name};
use agent_port::{Body, text};
use agent_runtime::ContainerState;
use agent_sys::beneath::Beneath;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
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
    let opened = is_plain(container).then(|| {
        let dir = Beneath::root(&parts.logs)?.dir(&log_folder(&reference, container))?;
        Ok(log_number(&dir, options.previous)?.map(|number| (dir, number)))
    });
    let opened: std::io::Result<Option<_>> = opened.unwrap_or(Ok(None));
    let (dir, number) = match opened {
        Ok(Some(found)) => found,
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return broken(container, &error);
        }
        Ok(None) | Err(_) => {
            let what = if options.previous {
                "previous terminated container"
            } else {
                "container"
            };
            let message =
                format!("{what} {container:?} in pod {pod:?} not found: it has not started\n");
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

/// The number of the newest attempt that has a log, or of the one before it.
fn log_number(dir: &Beneath, previous: bool) -> std::io::Result<Option<u32>> {
    let number =
        |name: std::ffi::OsString| name.to_str()?.strip_suffix(".log")?.parse::<u32>().ok();
    let mut all: Vec<u32> = dir
        .names(MAX_LOGS)?
        .into_iter()
        .filter_map(number)
        .collect();
    all.sort_unstable();
    let newest = all.pop();
    Ok(if previous { all.pop() } else { newest })
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
                let mut piece = Vec::new();
                while piece.len() < PIECE
                    && let Some(text) = reader.piece()?
                {
                    piece.extend(text);
                }
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

/// True while the container whose log this is may write.
async fn runs(parts: &Parts, uid: &str, path: &std::path::Path) -> bool {
    let Ok(seen) = parts.runtime.list(Some(uid)).await else {
        return true;
    };
    seen.iter().any(|seen| {
        let key = &seen.key;
        let log = log_file(&parts.logs, &key.pod, &key.container, key.attempt);
        log == path && !matches!(seen.state, ContainerState::Exited { .. })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::mpsc;

    /// The result of `work`, unless it hangs.
    fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(work()));
        let limit = Duration::from_secs(60);
        receiver.recv_timeout(limit).expect("reading a log hangs")
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
