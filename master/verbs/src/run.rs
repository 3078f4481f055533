//! Dispatches a request to the file of its verb, and hands that the parts of the server that it may
//! use. A verb can reach no others, and its request, the [`Call`], gives access to none.

use crate::answer::Answer;
use crate::call::Call;
use crate::gateway::NodeGateway;
use crate::server_parts::ServerParts;
use crate::writer::ObjectWriter;
use crate::{
    bind, components, create, delete, evict, log, metrics, patch, power, proxy, read, review,
    scale, token, tunnel, update, watch,
};
use master_client::{Body, Client, UserInfo};
use master_schema::error::{ApiError, Reason, no_resource};
use master_schema::registry::{Review, Subresource};
use master_wire::path::{Verb, not_allowed};

/// Answers a request of a caller that may make it.
///
/// # Errors
/// What the client gets in place of an answer: there is no such resource or object, the verb does
/// not apply to it, the body is not valid, an admission plugin refuses it, another writer was
/// faster, or the store, a node or a limit does not allow it now.
pub async fn run(server: &ServerParts<'_>, call: Call, content: Body) -> Answer {
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
    // Before anything is written or ordered. Answers of nodes may have any media type, and a watch
    // checks its own.
    if !call.target.is_stream() {
        call.check_form(call.accept()?)?;
    }
    call.check_write_options()?;
    let creates = call.target.verb == Verb::Create && call.target.name.is_empty();
    let (review, reader) = (call.kind.review, server.reader);
    match (review, subresource) {
        (Some(Review::Binding), _) if creates => {
            bind::bind_named(&call, reader, server.store, content).await
        }
        (Some(Review::Components), _) => components::read(&call, reader).await,
        (Some(Review::Groups), _) => components::groups(&call),
        (Some(Review::Metrics), _) => metrics::read(&call, reader, server.usage).await,
        (Some(review), _) => {
            let (authenticator, authorizer) = (server.authenticator, server.authorizer);
            review::run(&call, authenticator, authorizer, review, content).await
        }
        (None, None) => whole(server, call, content).await,
        (None, Some(subresource)) => part(server, &call, subresource, content).await,
    }
}

/// Answers a request for the objects themselves.
async fn whole(server: &ServerParts<'_>, call: Call, content: Body) -> Answer {
    let (reader, writer) = (server.reader, writer(server));
    match call.target.verb {
        Verb::Get => read::get(&call, reader).await,
        Verb::List => read::list(&call, reader).await,
        Verb::Watch => watch::watch(call, server).await,
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
async fn part(
    server: &ServerParts<'_>,
    call: &Call,
    subresource: Subresource,
    content: Body,
) -> Answer {
    let (reader, writer) = (server.reader, writer(server));
    let (nodes, authorizer) = (nodes(server), server.authorizer);
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
            bind::bind(call, reader, server.store, content).await
        }
        (Subresource::Eviction, Verb::Create) => evict::evict(call, &writer, content).await,
        (Subresource::Token, Verb::Create) => {
            let issuer = server.authenticator.issuer();
            token::create(call, reader, issuer, authorizer, content).await
        }
        (Subresource::Power, Verb::Create) => power::order(call, &nodes, server.extensions).await,
        (
            Subresource::Proxy,
            Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete,
        ) => {
            // The server reads pods and services as itself: the caller only needs the right to
            // `proxy`.
            let user = UserInfo::admin("system:apiserver");
            let client = Client::new(server.own.transport(), user);
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
fn writer<'a>(server: &ServerParts<'a>) -> ObjectWriter<'a> {
    ObjectWriter {
        reader: server.reader,
        store: server.store,
        admission: server.admission,
        authorizer: server.authorizer,
        identities: server.identities,
        extensions: server.extensions,
    }
}

/// The parts of the server that reach nodes.
fn nodes<'a>(server: &ServerParts<'a>) -> NodeGateway<'a> {
    NodeGateway {
        reader: server.reader,
        dialer: server.node_dialer,
        limits: server.node_limits,
        answers: server.node_calls,
        tunnels: server.tunnels,
        idle_connections: server.idle_connections,
        denials: server.denials,
        draining: server.draining,
    }
}

/// Lists, watches and collections of namespaced kinds may span all namespaces; nothing else may.
fn needs_namespace(call: &Call) -> bool {
    !(call.kind.namespaced && matches!(call.target.verb, Verb::List | Verb::Watch))
}
