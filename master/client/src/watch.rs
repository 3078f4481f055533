//! An open watch: the lines of its answer as events.

use crate::body::{Body, broken, undecodable};
use crate::key::Key;
use crate::managed_fields::without_managed_fields;
use bytes::{Buf, BytesMut};
use config_kube::FromJson;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use http_body_util::BodyExt;
use master_schema::error::ApiError;
use memchr::memchr;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::marker::PhantomData;

/// One event of a watch.
#[derive(Debug, Clone)]
pub enum WatchEvent<T> {
    /// It was created, or matches now.
    Added(T),
    /// It changed.
    Modified(T),
    /// It was deleted, or no longer matches.
    Deleted(Gone),
    /// Progress: everything up to this resource version has been sent.
    Bookmark(String),
}

/// The identity of an object that was deleted or no longer matches. It can be read even if the rest
/// of the object can't.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gone {
    /// Namespace and name.
    pub key: Key,
    /// Its UID, by which it differs from an earlier or later object of the same name.
    pub uid: String,
    /// The resource version of its deletion.
    pub resource_version: String,
}

impl Gone {
    /// What identifies an object of which the metadata is known.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self {
            key: Key::of(meta),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        }
    }

    /// Whether both name the same object, and not only objects of one name.
    pub fn is(&self, other: &Self) -> bool {
        self.key == other.key && self.uid == other.uid
    }
}

/// An open watch.
#[derive(Debug)]
pub struct Watcher<T> {
    body: Body,
    buffer: BytesMut,
    /// How much of the buffer has no end of a line: a large object comes in many pieces, and is not
    /// searched again from its start at each of them.
    searched: usize,
    kind: PhantomData<fn() -> T>,
}

impl<T: FromJson> Watcher<T> {
    /// The watch whose events come as the lines of an answer.
    pub(crate) fn new(body: Body) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
            searched: 0,
            kind: PhantomData,
        }
    }

    /// The next event; `None` if the server ended the watch (continue from the last resource
    /// version). Cancel-safe.
    ///
    /// # Errors
    /// [`ApiError::is_expired`] if the history no longer reaches back (list again), or the error
    /// that ended the stream.
    pub async fn next(&mut self) -> Result<Option<WatchEvent<T>>, ApiError> {
        loop {
            if let Some(end) = memchr(b'\n', &self.buffer[self.searched..]) {
                let line = self.buffer.split_to(self.searched + end);
                self.buffer.advance(1);
                self.searched = 0;
                return decode(&line).map(Some);
            }
            self.searched = self.buffer.len();
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(broken(&*error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// The type and the object of a line. Most lines have exactly this form and are cut without
/// parsing. Others (bookmarks, errors) are parsed, which costs another pass over the object.
fn parts(line: &str) -> Result<(&str, &str), serde_json::Error> {
    #[derive(Deserialize)]
    struct Raw<'a> {
        r#type: &'a str,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let usual = || {
        let (kind, object) = line
            .strip_prefix(r#"{"type":""#)?
            .split_once(r#"","object":"#)?;
        let is_kind = kind.bytes().all(|byte| byte.is_ascii_uppercase());
        is_kind.then_some((kind, object.strip_suffix('}')?))
    };
    usual().map_or_else(
        || serde_json::from_str(line).map(|raw: Raw<'_>| (raw.r#type, raw.object.get())),
        Ok,
    )
}

/// A line of a watch, with its object undecoded.
enum Line<'a> {
    Added(&'a str),
    Modified(&'a str),
    Deleted(Gone),
    Bookmark(String),
}

impl<'a> Line<'a> {
    /// Reads a line. Not part of [`decode`], as that is generic and compiled for each kind, and
    /// this is the same for all.
    fn read(line: &'a [u8]) -> Result<Self, ApiError> {
        let line = str::from_utf8(line).map_err(|e| broken(&e))?;
        let (kind, object) = parts(line).map_err(|e| undecodable(&e))?;
        match kind {
            "ADDED" => Ok(Self::Added(object)),
            "MODIFIED" => Ok(Self::Modified(object)),
            "DELETED" => Ok(Self::Deleted(gone(object))),
            kind => {
                let value: Value = serde_json::from_str(object).map_err(|e| undecodable(&e))?;
                if kind == "BOOKMARK" {
                    let version = value
                        .pointer("/metadata/resourceVersion")
                        .and_then(Value::as_str);
                    return Ok(Self::Bookmark(version.unwrap_or_default().to_owned()));
                }
                let code = value
                    .get("code")
                    .and_then(Value::as_u64)
                    .and_then(|code| u16::try_from(code).ok());
                Err(ApiError::from_status(code.unwrap_or(500), &value))
            }
        }
    }
}

fn decode<T: FromJson>(line: &[u8]) -> Result<WatchEvent<T>, ApiError> {
    let event = |event: fn(T) -> WatchEvent<T>, object| match readable(object) {
        Some(object) => event(object),
        // The object is left out; the bookmark only moves the watch's revision forward.
        None => WatchEvent::Bookmark(readable_meta(object).resource_version),
    };
    Ok(match Line::read(line)? {
        Line::Added(object) => event(WatchEvent::Added, object),
        Line::Modified(object) => event(WatchEvent::Modified, object),
        Line::Deleted(gone) => WatchEvent::Deleted(gone),
        Line::Bookmark(version) => WatchEvent::Bookmark(version),
    })
}

/// A deletion is known by the object's identity alone: a follower must not keep an object because
/// its last state is unreadable.
fn gone(object: &str) -> Gone {
    let ReadableMeta {
        namespace,
        name,
        uid,
        resource_version,
    } = readable_meta(object);
    Gone {
        key: Key { namespace, name },
        uid,
        resource_version,
    }
}

/// Decodes an object of a list or watch. An unreadable one is left out, so that the others become
/// known.
pub(crate) fn readable<T: FromJson>(object: &str) -> Option<T> {
    let read = T::from_json(without_managed_fields(object).as_bytes());
    read.inspect_err(|error| warn_unreadable(std::any::type_name::<T>(), object, error))
        .ok()
}

fn warn_unreadable(kind: &str, object: &str, error: &serde_json::Error) {
    let ReadableMeta {
        namespace, name, ..
    } = readable_meta(object);
    // The error's own text may quote a secret.
    let column = error.column();
    tracing::error!(
        kind,
        namespace,
        name,
        column,
        "cannot decode a stored object; ignoring it"
    );
}

/// The part of an object's metadata that can be read even if the rest can't.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReadableMeta {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
}

fn readable_meta(object: &str) -> ReadableMeta {
    #[derive(Default, Deserialize)]
    struct Object {
        metadata: ReadableMeta,
    }
    let object: Object = serde_json::from_str(object).unwrap_or_default();
    object.metadata
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::body;
    use config_kube::k8s_openapi::api::core::v1::Pod;

    #[tokio::test]
    async fn events_are_read_wherever_the_answer_is_cut_into_pieces() {
        let line = |name: &str| {
            format!(
                r#"{{"type":"ADDED","object":{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}"}}}}}}"#
            ) + "\n"
        };
        let lines = line("a") + &line("b");
        for cut in 0..=lines.len() {
            let mut watcher = Watcher::<Pod>::new(body(lines[cut..].to_owned()));
            watcher.buffer.extend_from_slice(&lines.as_bytes()[..cut]);
            let mut names = Vec::new();
            while let Some(event) = watcher.next().await.unwrap() {
                if let WatchEvent::Added(pod) = event {
                    names.extend(pod.metadata.name);
                }
            }
            assert_eq!(names, ["a", "b"], "{cut}");
        }
    }
}
