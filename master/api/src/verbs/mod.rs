//! The verbs: what each does, by a kind's descriptor and the store. Here is which file answers
//! which request, and with which parts of the server: a verb reaches no others, and its request,
//! the [`Call`], leads to none.

mod answer;
mod bind;
mod body;
mod call;
mod components;
mod create;
mod delete;
mod evict;
mod frames;
mod gateway;
mod log;
mod managed;
mod managed_scale;
mod metrics;
mod network_only;
mod options;
mod page;
mod patch;
mod pod_proxy;
mod power;
mod proxy;
mod read;
mod review;
mod scale;
mod token;
mod tunnel;
mod update;
mod watch;
mod writer;

pub(crate) use answer::{Answer, value_answer};
pub(crate) use call::Call;
pub(crate) use create::warned;

use crate::state::ApiServer;
use gateway::NodeGateway;
use master_client::{Body, UserInfo};
use master_schema::error::{ApiError, Reason, no_resource};
use master_schema::registry::{Review, Subresource};
use master_wire::path::{Verb, not_allowed};
use writer::ObjectWriter;

/// Answers a request.
pub(crate) async fn run(api: &ApiServer, call: Call, content: Body) -> Answer {
    let subresource = match call.target.subresource.as_str() {
        "" => None,
        name => Some(call.kind.subresource(name).ok_or_else(no_resource)?),
    };
    let placed = !call.target.namespace.is_empty();
    if call.kind.namespaced != placed && needs_namespace(&call) {
        // The collection over all namespaces can be read.
        let elsewhere = call.kind.namespaced && call.target.name.is_empty();
        return Err(if elsewhere {
            not_allowed()
        } else {
            no_resource()
        });
    }
    if let Some(why) = &call.kind.refused
        && !matches!(call.target.verb, Verb::Get | Verb::List | Verb::Watch)
    {
        return Err(ApiError::new(Reason::MethodNotAllowed, why.clone()));
    }
    call.check_write_options()?;
    let creates = call.target.verb == Verb::Create && call.target.name.is_empty();
    let (review, inner, reader) = (call.kind.review, &*api.inner, &*api.inner.reader);
    match (review, subresource) {
        (Some(Review::Binding), _) if creates => {
            bind::bind_named(&call, reader, &*inner.store, content).await
        }
        (Some(Review::Components), _) => components::read(&call, reader).await,
        (Some(Review::Groups), _) => components::groups(&call),
        (Some(Review::Metrics), _) => metrics::read(&call, reader, &inner.usage).await,
        (Some(review), _) => {
            let (authenticator, authorizer) = (&inner.authenticator, &inner.authorizer);
            review::run(&call, authenticator, authorizer, review, content).await
        }
        (None, None) => whole(api, call, content).await,
        (None, Some(subresource)) => part(api, &call, subresource, content).await,
    }
}

/// Answers a request for the objects themselves.
async fn whole(api: &ApiServer, call: Call, content: Body) -> Answer {
    let (inner, reader, writer) = (&*api.inner, &*api.inner.reader, writer(api));
    match call.target.verb {
        Verb::Get => read::get(&call, reader).await,
        Verb::List => read::list(&call, reader).await,
        Verb::Watch => {
            let (slots, metrics) = (&inner.watches, &inner.metrics);
            let (denials, draining) = (&inner.denials, &inner.draining);
            watch::watch(call, reader, slots, metrics, denials, draining).await
        }
        Verb::Create if call.target.name.is_empty() => {
            create::create(&call, &writer, content).await
        }
        Verb::Create => Err(not_allowed()),
        Verb::Update => update::update(&call, &writer, None, content).await,
        Verb::Patch => patch::patch(&call, &writer, None, content).await,
        Verb::Delete => delete::delete(&call, &writer, content).await,
        Verb::DeleteCollection => delete::collection(&call, &writer, content).await,
    }
}

/// Answers a request for a subresource.
async fn part(api: &ApiServer, call: &Call, subresource: Subresource, content: Body) -> Answer {
    let (inner, reader, writer) = (&*api.inner, &*api.inner.reader, writer(api));
    let (nodes, authorizer) = (nodes(api), &inner.authorizer);
    // A part of the object, in the object's form.
    let is_object = matches!(
        subresource,
        Subresource::Status
            | Subresource::Approval
            | Subresource::EphemeralContainers
            | Subresource::Resize
    );
    match (subresource, call.target.verb) {
        (Subresource::Scale, Verb::Get | Verb::Update | Verb::Patch) => {
            scale::run(call, &writer, content).await
        }
        (_, Verb::Get) if is_object => read::get(call, reader).await,
        (_, Verb::Patch) if is_object => {
            patch::patch(call, &writer, Some(subresource), content).await
        }
        (_, Verb::Update) if is_object || subresource == Subresource::Finalize => {
            update::update(call, &writer, Some(subresource), content).await
        }
        (Subresource::Log, Verb::Get) => log::read(call, &nodes).await,
        (Subresource::Binding, Verb::Create) => {
            bind::bind(call, reader, &*inner.store, content).await
        }
        (Subresource::Eviction, Verb::Create) => evict::evict(call, &writer, content).await,
        (Subresource::Token, Verb::Create) => {
            let issuer = inner.authenticator.issuer();
            token::create(call, reader, issuer, authorizer, content).await
        }
        (Subresource::Power, Verb::Create) => power::order(call, &nodes, api.extensions()).await,
        (
            Subresource::Proxy,
            Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete,
        ) => {
            // The server looks for itself: the caller's right is that to the proxy.
            let client = api.client(UserInfo::admin("system:apiserver"));
            proxy::run(call, &nodes, &client, content).await
        }
        (Subresource::Exec, Verb::Get | Verb::Create) => {
            tunnel::exec(call, &nodes, authorizer).await
        }
        (Subresource::PortForward, Verb::Get | Verb::Create) => {
            tunnel::port_forward(call, &nodes, authorizer).await
        }
        (Subresource::Attach, Verb::Get | Verb::Create) => {
            tunnel::attach(call, &nodes, authorizer).await
        }
        _ => Err(not_allowed()),
    }
}

/// The parts of the server that writes use.
fn writer(api: &ApiServer) -> ObjectWriter<'_> {
    let inner = &*api.inner;
    ObjectWriter {
        reader: &*inner.reader,
        store: &*inner.store,
        admission: &inner.admission,
        authorizer: &inner.authorizer,
        identities: &inner.options.identities,
        extensions: api.extensions(),
    }
}

/// The parts of the server that reach nodes.
fn nodes(api: &ApiServer) -> NodeGateway<'_> {
    let inner = &*api.inner;
    NodeGateway {
        reader: &*inner.reader,
        dialer: inner.hooks.node_dialer.get().map(|own| &**own),
        limits: &inner.options.nodes,
        answers: &inner.node_calls,
        tunnels: &inner.tunnels,
        idle_connections: &inner.idle_connections,
        denials: &inner.denials,
        draining: &inner.draining,
    }
}

/// Lists, watches and collections of namespaced kinds may span all namespaces; nothing else may.
fn needs_namespace(call: &Call) -> bool {
    !(call.kind.namespaced && matches!(call.target.verb, Verb::List | Verb::Watch))
}
