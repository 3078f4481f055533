//! hyper connector: TLS to the first master endpoint that answers.

use crate::Error;
use crate::endpoint::Endpoints;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

/// Connects to the first endpoint that answers; the host in the request's URI is not used.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    endpoints: Endpoints,
    tls: Arc<ClientConfig>,
}

impl Connector {
    pub(crate) fn new(endpoints: Endpoints, tls: Arc<ClientConfig>) -> Self {
        Self { endpoints, tls }
    }
}

impl Service<Uri> for Connector {
    type Response = Transport;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Transport, Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let stream = connector.endpoints.connect(&connector.tls).await?;
            Ok(Transport {
                io: TokioIo::new(stream),
            })
        })
    }
}

/// A connection to the master.
#[derive(Debug)]
pub(crate) struct Transport {
    io: TokioIo<TlsStream<TcpStream>>,
}

impl Connection for Transport {
    fn connected(&self) -> Connected {
        let (_, tls) = self.io.inner().get_ref();
        if tls.alpn_protocol() == Some(b"h2") {
            Connected::new().negotiated_h2()
        } else {
            Connected::new()
        }
    }
}

impl hyper::rt::Read for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for Transport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }
}
