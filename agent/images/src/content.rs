//! containerd's content store: blobs by digest.

use crate::zstd::Frames;
use agent_containerd::{Error, ErrorClass, failed, leased, request};
use bytes::Bytes;
use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::{
    AbortRequest, Info, InfoRequest, ReadContentRequest, UpdateRequest, WriteAction,
    WriteContentRequest, WriteContentResponse,
};
use containerd_client::tonic::transport::Channel;
use containerd_client::tonic::{Code, Status, Streaming};
use futures_util::{Stream, StreamExt, stream};
use prost_types::FieldMask;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::pin::{Pin, pin};
use tokio::sync::mpsc;

/// Largest document (manifest, index, configuration) that is read into memory.
pub(crate) const MAX_DOCUMENT: i64 = 4 << 20;
/// Largest piece of one message to containerd, whose own limit is 16 MiB.
const PIECE: usize = 256 * 1024;

/// What a blob is, as a manifest names it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: String,
    pub(crate) size: i64,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: HashMap<String, String>,
}

/// For which machines a manifest is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub(crate) struct Platform {
    pub(crate) architecture: String,
    pub(crate) os: String,
    /// Of the processor; empty for all of the architecture.
    #[serde(default)]
    pub(crate) variant: String,
}

impl Descriptor {
    /// As containerd wants it.
    pub(crate) fn wire(&self) -> containerd_client::types::Descriptor {
        containerd_client::types::Descriptor {
            media_type: self.media_type.clone(),
            digest: self.digest.clone(),
            size: self.size,
            annotations: HashMap::new(),
        }
    }
}

/// The content store.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    channel: Channel,
}

impl Content {
    pub(crate) fn new(channel: Channel) -> Self {
        Self { channel }
    }

    fn client(&self) -> ContentClient<Channel> {
        ContentClient::new(self.channel.clone())
    }

    /// A blob's labels; none where it is not there, whole.
    pub(crate) async fn labels(
        &self,
        digest: &str,
    ) -> Result<Option<HashMap<String, String>>, Error> {
        let info = InfoRequest {
            digest: digest.to_owned(),
        };
        match self.client().info(request(info)).await {
            Ok(answer) => {
                let info = answer.into_inner().info;
                Ok(Some(info.map(|info| info.labels).unwrap_or_default()))
            }
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(failed(ErrorClass::ImagePull, format!("look for {digest}"))(
                status,
            )),
        }
    }

    /// Reads a document; larger ones are refused.
    pub(crate) async fn read(&self, digest: &str) -> Result<Vec<u8>, Error> {
        let doing = || format!("read {digest} from containerd");
        let info = self
            .client()
            .info(request(InfoRequest {
                digest: digest.to_owned(),
            }))
            .await;
        let size = info
            .map_err(failed(ErrorClass::ImagePull, doing()))?
            .into_inner()
            .info
            .map_or(0, |info| info.size);
        if size > MAX_DOCUMENT {
            return Err(Error::new(
                ErrorClass::ImagePull,
                format!("{digest} has {size} bytes; 4 MiB are allowed"),
            ));
        }
        let read = ReadContentRequest {
            digest: digest.to_owned(),
            offset: 0,
            size,
        };
        let mut stream = self
            .client()
            .read(request(read))
            .await
            .map_err(failed(ErrorClass::ImagePull, doing()))?
            .into_inner();
        let mut all = Vec::new();
        while let Some(part) = stream
            .message()
            .await
            .map_err(failed(ErrorClass::ImagePull, doing()))?
        {
            all.extend_from_slice(&part.data);
        }
        Ok(all)
    }

    /// Stores a blob under its digest, which containerd checks. If it is there, the source must
    /// send it all the same: knowing the digests of a private image gives no right to its parts. A
    /// blob that takes much memory to unpack is not stored, whatever it is named as: an image may
    /// name any as its layer later.
    pub(crate) async fn write(
        &self,
        descriptor: &Descriptor,
        source: impl Stream<Item = Result<Bytes, Error>>,
        lease: &str,
    ) -> Result<(), Error> {
        let doing = || format!("store {}", descriptor.digest);
        // Each pull has a transfer of its own, so that a slow registry delays no other pull of the
        // same blob.
        let reference = format!("{lease}-{}", descriptor.digest);
        let mut source = pin!(unpackable(&descriptor.digest, source));
        let mut begun = false;
        let result = self
            .transfer(
                descriptor,
                reference.clone(),
                source.as_mut(),
                &mut begun,
                lease,
            )
            .await;
        if result.is_err() {
            // What came in is useless; without this it would stay until its lease ends.
            let abort = AbortRequest { r#ref: reference };
            drop(self.client().abort(request(abort)).await);
        }
        match result {
            Ok(()) => Ok(()),
            // Another transfer was faster. containerd has checked both.
            Err(Failure::Store(status)) if begun && status.code() == Code::AlreadyExists => Ok(()),
            Err(Failure::Store(status)) if status.code() == Code::AlreadyExists => {
                check(descriptor, source).await
            }
            // The transfer of an agent that was killed holds the blob a moment longer: no sign of a
            // sick containerd.
            Err(Failure::Store(status)) if status.message().contains(" locked for ") => {
                Err(Error::new(
                    ErrorClass::ImagePull,
                    format!("{}: {}", doing(), status.message()),
                ))
            }
            Err(Failure::Store(status)) => Err(failed(ErrorClass::ImagePull, doing())(status)),
            Err(Failure::Source(error)) => Err(error),
        }
    }

    /// Sends a blob to containerd. `begun` becomes true once containerd takes it, because it has no
    /// such blob yet.
    async fn transfer(
        &self,
        descriptor: &Descriptor,
        reference: String,
        mut source: Pin<&mut impl Stream<Item = Result<Bytes, Error>>>,
        begun: &mut bool,
        lease: &str,
    ) -> Result<(), Failure> {
        let message = |action: WriteAction, offset: i64, data: Vec<u8>| WriteContentRequest {
            action: action.into(),
            r#ref: reference.clone(),
            total: descriptor.size,
            expected: descriptor.digest.clone(),
            offset,
            data,
            labels: HashMap::new(),
        };
        let (sender, receiver) = mpsc::channel(1);
        let outgoing = stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|item| (item, receiver))
        });
        // The first message must be there before containerd answers the call.
        let closed = |_| Failure::Store(Status::aborted("containerd closed the transfer"));
        sender
            .send(message(WriteAction::Stat, 0, Vec::new()))
            .await
            .map_err(closed)?;
        let mut incoming = self
            .client()
            .write(leased(outgoing, lease))
            .await?
            .into_inner();
        answer(&mut incoming).await?;
        *begun = true;
        let mut offset = 0;
        while let Some(bytes) = source.next().await {
            for piece in bytes.map_err(Failure::Source)?.chunks(PIECE) {
                sender
                    .send(message(WriteAction::Write, offset, piece.to_vec()))
                    .await
                    .map_err(closed)?;
                offset = answer(&mut incoming).await?.offset;
            }
        }
        sender
            .send(message(WriteAction::Commit, offset, Vec::new()))
            .await
            .map_err(closed)?;
        answer(&mut incoming).await.map(drop)
    }

    /// Adds labels to a blob: references that keep others alive.
    pub(crate) async fn label(
        &self,
        digest: &str,
        labels: Vec<(String, String)>,
    ) -> Result<(), Error> {
        let paths = labels
            .iter()
            .map(|(key, _)| format!("labels.{key}"))
            .collect();
        let info = Info {
            digest: digest.to_owned(),
            labels: labels.into_iter().collect(),
            ..Info::default()
        };
        let update = UpdateRequest {
            info: Some(info),
            update_mask: Some(FieldMask { paths }),
        };
        let result = self.client().update(request(update)).await;
        result
            .map(drop)
            .map_err(failed(ErrorClass::ImagePull, format!("label {digest}")))
    }
}

/// The same pieces, up to the first with which the blob takes more memory to unpack than allowed.
fn unpackable(
    digest: &str,
    source: impl Stream<Item = Result<Bytes, Error>>,
) -> impl Stream<Item = Result<Bytes, Error>> {
    let mut frames = Frames::default();
    source.map(move |piece| -> Result<Bytes, Error> {
        let piece = piece?;
        frames.read(&piece).map_err(|fault| {
            Error::caused(ErrorClass::ImagePull, format!("layer {digest}"), fault)
        })?;
        Ok(piece)
    })
}

/// Checks that a source sends a blob of this digest.
async fn check(
    descriptor: &Descriptor,
    mut source: Pin<&mut impl Stream<Item = Result<Bytes, Error>>>,
) -> Result<(), Error> {
    let mut digester = Sha256::new();
    while let Some(bytes) = source.next().await {
        digester.update(&bytes?);
    }
    let found = format!("sha256:{}", hex::encode(digester.finalize()));
    if found == descriptor.digest {
        return Ok(());
    }
    let text = format!("{} is what was sent, not {}", found, descriptor.digest);
    Err(Error::new(ErrorClass::ImagePull, text))
}

/// Which side failed.
enum Failure {
    Store(Status),
    Source(Error),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Store(status)
    }
}

async fn answer(
    incoming: &mut Streaming<WriteContentResponse>,
) -> Result<WriteContentResponse, Failure> {
    incoming
        .message()
        .await?
        .ok_or_else(|| Failure::Store(Status::aborted("containerd ended the transfer")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_blob_with_too_wide_a_window_ends_before_it_is_stored_whole() {
        // The widest window that containerd takes, 512 MiB.
        let frame = [0x28, 0xB5, 0x2F, 0xFD, 0, 0x98, 1, 0, 0];
        let pieces = frame.map(|byte| Ok(Bytes::copy_from_slice(&[byte])));
        let source = unpackable("sha256:aa", stream::iter(pieces));
        let sent: Vec<Result<Bytes, Error>> = source.collect().await;
        let before = sent.iter().take_while(|piece| piece.is_ok()).count();
        assert_eq!(before, 5);
        let message = sent[5].as_ref().unwrap_err().chain();
        let expected = "layer sha256:aa: a zstd frame has a window of 536870912 bytes, and 33554432 are allowed";
        assert_eq!(message, expected);
    }
}
