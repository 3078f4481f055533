//! A proxied request, as the program in the pod gets it.

use crate::backend::Backend;
use crate::reverse_proxy::ReverseProxy;
use crate::target::ProxyTarget;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, LOCATION};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use std::net::{IpAddr, SocketAddr};

/// A request on its way to a program.
#[derive(Debug, Clone, Copy)]
pub struct ProxiedRequest<'a> {
    /// `pods` or `services`.
    pub plural: &'a str,
    /// The path after `/proxy`, as it came.
    pub rest: &'a str,
    /// The client's headers.
    pub headers: &'a HeaderMap,
    /// What the client asked for.
    pub uri: &'a Uri,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// It asks to become another protocol.
    pub upgrade: bool,
}

impl ProxiedRequest<'_> {
    /// The path under which the program appears behind this server, to rewrite its headers and
    /// links.
    pub fn behind(&self, target: &ProxyTarget<'_>, backend: &Backend) -> ReverseProxy {
        // Of names that were found, so that nothing in it can end a header or an attribute.
        let scheme = match target.tls {
            Some(true) => "https:",
            Some(false) => "http:",
            None => "",
        };
        let port = match (target.tls, target.port) {
            (None, "") => String::new(),
            (_, port) => format!(":{port}"),
        };
        let (namespace, plural, name) = (&backend.namespace, self.plural, target.name);
        let prefix = format!("/api/v1/namespaces/{namespace}/{plural}/{scheme}{name}{port}/proxy");
        let place = SocketAddr::new(backend.address, backend.port).to_string();
        let usual = if target.tls == Some(true) { 443 } else { 80 };
        let bare = place
            .rsplit_once(':')
            .filter(|_| backend.port == usual)
            .map(|(host, _)| host.to_owned());
        let hosts = bare.into_iter().chain(self.host()).chain([place]);
        ReverseProxy::new(prefix, hosts.collect())
    }

    /// The request, without its body.
    ///
    /// # Errors
    /// The path can't be one of a request.
    pub fn request(
        &self,
        proxy: &ReverseProxy,
        method: Method,
    ) -> Result<Request<()>, http::Error> {
        let path = if self.rest.is_empty() { "/" } else { self.rest };
        let query = self.uri.query().map(|query| format!("?{query}"));
        let path = format!("{path}{}", query.unwrap_or_default());
        let mut request = Request::builder().method(method).uri(path).body(())?;
        let mut headers = proxy.request(self.headers, self.rest, self.client, self.upgrade);
        if !headers.contains_key(HOST)
            && let Some(host) = self.host()
        {
            headers.insert(HOST, HeaderValue::from_str(&host)?);
        }
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// What the client calls this server.
    fn host(&self) -> Option<String> {
        let named = self.headers.get(HOST).and_then(|host| host.to_str().ok());
        let named = named.or_else(|| self.uri.authority().map(Authority::as_str));
        named.map(str::to_owned)
    }
}

/// Whether links of an answer are rewritten: a page whose bytes can be read.
pub fn is_page(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .and_then(|kind| kind.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/html"))
        && !headers.contains_key(CONTENT_ENCODING)
        && !headers.contains_key(LOCATION)
}
