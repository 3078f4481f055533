//! A web page from a program behind the proxy, with its links rewritten to lead through this
//! server.

use crate::answer::NodeBody;
use crate::links::Links;
use crate::reverse_proxy::ReverseProxy;
use bytes::Bytes;
use http_body::{Body, Frame};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The body of a page.
#[derive(Debug)]
pub struct Page {
    source: NodeBody,
    /// `None` once the page has ended.
    links: Option<Links>,
}

impl Page {
    /// The page that a body holds.
    pub fn new(source: NodeBody, proxy: ReverseProxy) -> Self {
        Self {
            source,
            links: Some(Links::new(proxy)),
        }
    }
}

impl Body for Page {
    type Data = Bytes;
    type Error = master_client::BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Self { source, links } = self.get_mut();
        loop {
            let Some(page) = links else {
                return Poll::Ready(None);
            };
            let done = match ready!(Pin::new(&mut *source).poll_frame(context)) {
                Some(Ok(frame)) => page.feed(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    let rest = page.finish();
                    *links = None;
                    return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest.into()))));
                }
            };
            if !done.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(done.into()))));
            }
        }
    }
}
