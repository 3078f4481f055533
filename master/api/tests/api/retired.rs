//! A machine that is retired while its requests are under way, at each place where they can be.
//! The answer to the admin comes when none of them has an effect any more.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use crate::crowded::peer;
use crate::guarded::{List, node};
use futures_util::FutureExt as _;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use master_api::{ApiServer, Options};
use master_auth::Mode;
use master_client::{Body, BoxFuture, UserInfo};
use master_listener::{Extensions, Peer};
use master_store::{
    Committed, EmbeddedStore, Fetched, ListQuery, Listing, Op, Revision, Store, StoreError,
    WatchStream,
};
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Time in which a request that has nothing to wait for is answered.
const WHILE: Duration = Duration::from_millis(500);
const MACHINES: &str = "/apis/pratique.dev/v1alpha1/machines";

/// Lets calls through one after another; one that nobody waits for any more goes on all the same. A
/// test that holds its turn stops them.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    /// A call came.
    pub(crate) came: Notify,
}

/// A store whose reads and commits the test steps into.
#[derive(Debug)]
pub(crate) struct Stepped {
    pub(crate) store: Arc<EmbeddedStore>,
    /// Like the writer's queue.
    pub(crate) commits: Gate,
    reads: Gate,
    /// Denies the node `bad` when a configmap is read.
    at_read: Mutex<Option<Arc<List>>>,
}

impl Stepped {
    fn read(&self, key: &str) {
        if key.contains("configmaps/")
            && let Some(list) = &*self.at_read.lock().unwrap()
        {
            list.deny("system:node:bad");
        }
    }
}

impl Store for Stepped {
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        self.store.revision()
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>> {
        self.read(key);
        self.reads.came.notify_one();
        Box::pin(async {
            drop(self.reads.turn.lock().await);
            self.store.get(key).await
        })
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.read(&query.prefix);
        self.store.list(query)
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        let (store, turn) = (self.store.clone(), self.commits.turn.clone());
        self.commits.came.notify_one();
        let written = tokio::spawn(async move {
            let _turn = turn.lock().await;
            store.commit(ops).await
        });
        Box::pin(async { written.await.unwrap() })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>> {
        self.store.watch(prefix, after)
    }

    fn changes(&self, after: Revision) -> BoxFuture<'_, Result<Box<dyn WatchStream>, StoreError>> {
        self.store.changes(after)
    }

    fn everything(&self) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.store.everything()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.compact(revision)
    }
}

pub(crate) async fn server() -> (Local, Arc<Stepped>, Arc<List>) {
    let folder = tempfile::tempdir().unwrap();
    let stepped = Arc::new(Stepped {
        store: Arc::new(EmbeddedStore::open(folder.path()).unwrap()),
        commits: Gate::default(),
        reads: Gate::default(),
        at_read: Mutex::default(),
    });
    let options = Options {
        authorization: vec![Mode::AlwaysAllow],
        ..Options::default()
    };
    let api = ApiServer::new(stepped.clone(), options);
    api.prepare().await.unwrap();
    let server = Local::of(api, folder);
    let list = List::hung_into(&server);
    (server, stepped, list)
}

pub(crate) fn send<'a>(
    server: &'a Local,
    user: &UserInfo,
    method: Method,
    path: &str,
    content: &Value,
) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'a>> {
    let kind = match method.as_str() {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind)
        .body(master_client::body(content.to_string()))
        .unwrap();
    Box::pin(server.api.handle_as(request, user.clone(), peer()))
}

/// Whether a request is still unanswered after a time much longer than its work takes.
async fn waits(request: &mut (impl Future<Output = Response<Body>> + Unpin)) -> bool {
    tokio::time::timeout(WHILE, request).await.is_err()
}

/// Drives a request until `signal` is notified, which must be before the answer.
pub(crate) async fn until(
    signal: &Notify,
    request: &mut (impl Future<Output = Response<Body>> + Unpin),
) {
    tokio::select! {
        answer = request => panic!("answered: {}", answer.status()),
        () = signal.notified() => {}
    }
}

/// The service that decides by Machines: it tells when it is asked whether a write is in force, and
/// says yes when it may.
#[derive(Debug, Default)]
struct Service {
    asked: Notify,
    may: Notify,
    handled: OnceLock<()>,
}

#[derive(Debug)]
struct Paths(Arc<Service>);

impl Extensions for Paths {
    fn claims(&self, path: &str) -> bool {
        path == "/attest/own"
    }

    fn in_force(&self, _: &str, _: &str) -> BoxFuture<'static, bool> {
        let service = self.0.clone();
        Box::pin(async move {
            service.asked.notify_one();
            service.may.notified().await;
            true
        })
    }

    fn handle(&self, _: Request<Body>, _: Peer, _: UserInfo) -> BoxFuture<'static, Response<Body>> {
        self.0.handled.set(()).unwrap();
        Box::pin(std::future::ready(Response::new(master_client::body(""))))
    }
}

/// The machine is retired while an object, a list or the begin of a watch is read for it.
#[tokio::test]
async fn an_answer_whose_caller_is_shut_out_while_it_is_made_is_not_sent() {
    let map = json!({"metadata": {"name": "m"}, "data": {"k": "secret"}});
    for path in [&format!("{MAPS}/m"), MAPS, &format!("{MAPS}?watch=true")] {
        let (server, stepped, list) = server().await;
        let (status, answer) = server.admin_ask(Method::POST, MAPS, &map).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
        let ask = || send(&server, &node("bad"), Method::GET, path, &Value::Null);
        assert_eq!(ask().await.status(), StatusCode::OK, "the control");
        *stepped.at_read.lock().unwrap() = Some(list);
        let answer = ask().await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
        let content = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(!content.windows(6).any(|part| part == b"secret"), "{path}");
    }
}

/// Of a caller that is denied already, nothing is handed on.
#[tokio::test]
async fn a_request_of_a_retired_machine_reaches_nothing() {
    let (server, _, list) = server().await;
    let service = Arc::new(Service::default());
    assert!(server.api.set_extensions(Arc::new(Paths(service.clone()))));
    list.deny("system:node:bad");
    let ask = |name| {
        send(
            &server,
            &node(name),
            Method::POST,
            "/attest/own",
            &Value::Null,
        )
    };
    assert_eq!(ask("bad").await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(service.handled.get(), None);
    assert_eq!(ask("good").await.status(), StatusCode::OK, "the control");
    assert_eq!(service.handled.get(), Some(&()));
}

/// Where a write is when its machine is retired.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// It reads what it needs.
    Reads,
    /// It is in the store's queue.
    Queued,
    /// It is there, and nobody waits for it any more.
    Gone,
}

/// A write that was let in before its machine was retired: the admin's answer comes after it, also
/// where nobody waits for the write any more. No write comes after the admin's answer.
#[tokio::test]
async fn the_answer_to_retired_comes_after_the_writes_that_were_let_in() {
    for place in [Place::Reads, Place::Queued, Place::Gone] {
        let (server, stepped, list) = server().await;
        let machine = json!({"metadata": {"name": "bad"}, "spec": {"role": "worker"}});
        let (status, answer) = server.admin_ask(Method::POST, MACHINES, &machine).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
        let service = Arc::new(Service::default());
        assert!(server.api.set_extensions(Arc::new(Paths(service.clone()))));
        let retired = json!({"spec": {"retired": true}});
        let path = format!("{MACHINES}/bad");
        let mut retire = send(
            &server,
            &UserInfo::admin("admin"),
            Method::PATCH,
            &path,
            &retired,
        );
        until(&service.asked, &mut retire).await;
        // Retired in the store, and in force nowhere yet: the node is let in.
        let gate = match place {
            Place::Reads => &stepped.reads,
            Place::Queued | Place::Gone => &stepped.commits,
        };
        let stop = gate.turn.clone().lock_owned().await;
        // Those who came before are forgotten.
        let _ = gate.came.notified().now_or_never();
        let map = json!({"metadata": {"name": "late"}});
        let mut write = send(&server, &node("bad"), Method::POST, MAPS, &map);
        until(&gate.came, &mut write).await;
        list.deny("system:node:bad");
        service.may.notify_one();
        assert!(
            waits(&mut retire).await,
            "{place:?}: answered before the write"
        );
        if matches!(place, Place::Gone) {
            drop(write);
            assert!(
                waits(&mut retire).await,
                "answered before the store's queue"
            );
            drop(stop);
        } else {
            drop(stop);
            assert_eq!(write.await.status(), StatusCode::UNAUTHORIZED);
        }
        assert_eq!(retire.await.status(), StatusCode::OK);
        let maps = server.admin_ask(Method::GET, MAPS, &Value::Null).await.1;
        let names = maps["items"].as_array().unwrap().iter();
        let late = names
            .filter(|map| map["metadata"]["name"] == "late")
            .count();
        assert_eq!(late, 1, "it came before the answer");
        // A write after the answer is made by nobody, and holds up no other answer.
        let later = send(&server, &node("bad"), Method::POST, MAPS, &map).await;
        assert_eq!(later.status(), StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn the_answer_to_retired_waits_also_where_an_empty_dry_run_is_asked_for() {
    let (server, _stepped, _list) = server().await;
    let machine = json!({"metadata": {"name": "bad"}, "spec": {"role": "worker"}});
    let (status, answer) = server.admin_ask(Method::POST, MACHINES, &machine).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let service = Arc::new(Service::default());
    assert!(server.api.set_extensions(Arc::new(Paths(service.clone()))));
    let (admin, path) = (UserInfo::admin("admin"), format!("{MACHINES}/bad"));
    let retired = json!({"spec": {"retired": true}});
    let empty = format!("{path}?dryRun=");
    let mut retire = send(&server, &admin, Method::PATCH, &empty, &retired);
    until(&service.asked, &mut retire).await;
    service.may.notify_one();
    assert_eq!(retire.await.status(), StatusCode::OK);
    let (_, stored) = server.admin_ask(Method::GET, &path, &Value::Null).await;
    assert_eq!(stored["spec"]["retired"], true, "it is no dry run");
}
