//! The runtime of kube-rs: watchers and reflectors, a controller with finalizers, leaders by lease.

use super::{Cluster, cluster, config_map, object, status_code, within_limit};
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use futures_util::{Stream, StreamExt, TryStreamExt};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{Event as Life, finalizer};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{Controller, WatchStreamExt, reflector};
use kube::{Api, Client, ResourceExt};
use master_store::Store;
use serde_json::json;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

async fn next<T: std::fmt::Debug>(
    stream: &mut (impl Stream<Item = watcher::Result<watcher::Event<T>>> + Unpin),
) -> watcher::Event<T> {
    within_limit("an event", stream.try_next())
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn a_watch_returns_existing_objects_and_changes() {
    let cluster = cluster().await;
    let maps = cluster.api::<ConfigMap>();
    let first = maps
        .create(&PostParams::default(), &config_map("a"))
        .await
        .unwrap();
    let version = first.resource_version().unwrap();
    let mut events = pin!(
        maps.watch(&WatchParams::default().fields("metadata.name=b"), &version)
            .await
            .unwrap()
    );
    maps.create(&PostParams::default(), &config_map("b"))
        .await
        .unwrap();
    maps.patch(
        "b",
        &PatchParams::default(),
        &Patch::Merge(json!({"data": {"a": "2"}})),
    )
    .await
    .unwrap();
    maps.delete("b", &DeleteParams::default()).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(
            match within_limit("an event", events.try_next())
                .await
                .unwrap()
                .unwrap()
            {
                WatchEvent::Added(map) => ("added", map.data.unwrap()["a"].clone()),
                WatchEvent::Modified(map) => ("modified", map.data.unwrap()["a"].clone()),
                WatchEvent::Deleted(map) => ("deleted", map.data.unwrap()["a"].clone()),
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(status) => panic!("{status:?}"),
            },
        );
    }
    assert_eq!(
        seen,
        [
            ("added", "1".into()),
            ("modified", "2".into()),
            ("deleted", "2".into())
        ]
    );
    cluster.server.stop().await;
}

/// No watch is open while history advances and is compacted; d exists afterwards.
async fn forget_history(cluster: &Cluster, maps: &Api<ConfigMap>) {
    maps.create(&PostParams::default(), &config_map("c"))
        .await
        .unwrap();
    maps.delete("c", &DeleteParams::default()).await.unwrap();
    let secret: Secret = object(json!({"metadata": {"name": "s"}}));
    cluster
        .api::<Secret>()
        .create(&PostParams::default(), &secret)
        .await
        .unwrap();
    let newest = cluster.store.revision().await.unwrap();
    cluster.store.compact(newest).await.unwrap();
    maps.create(&PostParams::default(), &config_map("d"))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_watcher_lists_by_stream_and_relists_after_lost_history() {
    let cluster = cluster().await;
    let maps = cluster.api::<ConfigMap>();
    maps.create(&PostParams::default(), &config_map("a"))
        .await
        .unwrap();
    // A watch of one second without bookmarks: the next one begins at the list's revision.
    let config = watcher::Config::default().streaming_lists().timeout(1);
    let (reader, writer) = reflector::store();
    let mut stream = pin!(
        watcher(maps.clone(), config)
            .default_backoff()
            .reflect(writer)
    );
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "done") {
        seen.push(match next(&mut stream).await {
            watcher::Event::Init => "init".to_owned(),
            watcher::Event::InitApply(map) => map.name_any(),
            watcher::Event::InitDone => "done".to_owned(),
            watcher::Event::Apply(map) | watcher::Event::Delete(map) => {
                panic!("{}", map.name_any())
            }
        });
    }
    assert_eq!(seen, ["init", "a", "done"]);
    maps.create(&PostParams::default(), &config_map("b"))
        .await
        .unwrap();
    assert!(matches!(next(&mut stream).await, watcher::Event::Apply(map) if map.name_any() == "b"));
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(
        matches!(next(&mut stream).await, watcher::Event::Delete(map) if map.name_any() == "a")
    );
    assert_eq!(
        reader
            .state()
            .iter()
            .map(|map| map.name_any())
            .collect::<Vec<_>>(),
        ["b"]
    );

    forget_history(&cluster, &maps).await;
    let refused = maps.watch(&WatchParams::default(), "1").await.unwrap();
    let refused = within_limit("a refusal", pin!(refused).try_next())
        .await
        .unwrap()
        .unwrap();
    assert!(matches!(refused, WatchEvent::Error(status) if status.code == 410));
    within_limit("the state after all", async {
        while !reader.state().iter().any(|map| map.name_any() == "d") {
            // Lost history is an error after which the watcher continues.
            drop(stream.next().await);
        }
    })
    .await;
    let mut names: Vec<String> = reader.state().iter().map(|map| map.name_any()).collect();
    names.sort();
    assert_eq!(names, ["b", "d"], "nothing that is gone is left");
    cluster.server.stop().await;
}

/// Keeps a secret for each config map, and deletes it before the config map.
async fn reconcile(
    map: Arc<ConfigMap>,
    client: Arc<Client>,
) -> Result<Action, kube::runtime::finalizer::Error<kube::Error>> {
    let (maps, secrets): (Api<ConfigMap>, Api<Secret>) = (
        Api::namespaced(Client::clone(&client), "default"),
        Api::namespaced(Client::clone(&client), "default"),
    );
    finalizer(&maps, "example.com/secret", map, |life| async {
        match life {
            Life::Apply(map) => {
                let wanted = json!({
                    "apiVersion": "v1", "kind": "Secret", "stringData": map.data,
                    "metadata": {"name": map.name_any(), "ownerReferences": [kube::Resource::controller_owner_ref(&*map, &())]},
                });
                secrets.patch(&map.name_any(), &PatchParams::apply("controller").force(), &Patch::Apply(wanted)).await?;
            }
            Life::Cleanup(map) => drop(secrets.delete(&map.name_any(), &DeleteParams::default()).await?),
        }
        Ok(Action::await_change())
    })
    .await
}

#[tokio::test]
async fn a_controller_keeps_what_it_owns_and_finalizes_it() {
    let cluster = cluster().await;
    let (maps, secrets) = (cluster.api::<ConfigMap>(), cluster.api::<Secret>());
    let controller = Controller::new(maps.clone(), watcher::Config::default())
        .owns(secrets.clone(), watcher::Config::default())
        .run(
            reconcile,
            |_, _, _| Action::requeue(Duration::from_millis(100)),
            Arc::new(cluster.client.clone()),
        )
        .for_each(|_| std::future::ready(()));
    let controller = tokio::spawn(controller);
    maps.create(&PostParams::default(), &config_map("m"))
        .await
        .unwrap();
    let has = |value: &'static [u8]| {
        let secrets = secrets.clone();
        async move {
            let holds = move |secret: Option<&Secret>| {
                let data = secret.and_then(|secret| secret.data.as_ref());
                data.and_then(|data| data.get("a"))
                    .is_some_and(|found| found.0 == value)
            };
            let waited = kube::runtime::wait::await_condition(secrets, "m", holds);
            within_limit("the secret", waited).await.unwrap();
        }
    };
    has(b"1").await;
    let finalizers = maps.get("m").await.unwrap().finalizers().to_vec();
    assert_eq!(finalizers, ["example.com/secret"]);
    maps.patch(
        "m",
        &PatchParams::default(),
        &Patch::Merge(json!({"data": {"a": "2"}})),
    )
    .await
    .unwrap();
    has(b"2").await;
    secrets.delete("m", &DeleteParams::default()).await.unwrap();
    has(b"2").await;
    let uid = maps.get("m").await.unwrap().uid().unwrap();
    maps.delete("m", &DeleteParams::default()).await.unwrap();
    let gone = kube::runtime::wait::await_condition(
        maps.clone(),
        "m",
        kube::runtime::conditions::is_deleted(&uid),
    );
    within_limit("the end of the config map", gone)
        .await
        .unwrap();
    assert!(
        secrets.get_opt("m").await.unwrap().is_none(),
        "it was taken away before"
    );
    controller.abort();
    cluster.server.stop().await;
}

/// Tries to take a lease: whether it succeeded, or the error's code if another was faster.
async fn hold(leases: &Api<Lease>, who: &str, now: jiff::Timestamp) -> Result<bool, u16> {
    let spec =
        json!({"holderIdentity": who, "leaseDurationSeconds": 15, "renewTime": now.to_string()});
    let Some(mut found) = leases.get_opt("lead").await.map_err(status_code)? else {
        let lease: Lease = object(json!({"metadata": {"name": "lead"}, "spec": spec}));
        return leases
            .create(&PostParams::default(), &lease)
            .await
            .map(|_| true)
            .map_err(status_code);
    };
    let held = found.spec.take().unwrap();
    let until = held.renew_time.map(|time| time.0 + Duration::from_secs(15));
    if held.holder_identity.as_deref() != Some(who) && until.is_some_and(|until| until > now) {
        return Ok(false);
    }
    found.spec = Some(object(spec));
    leases
        .replace("lead", &PostParams::default(), &found)
        .await
        .map(|_| true)
        .map_err(status_code)
}

#[tokio::test]
async fn of_two_contenders_for_a_lease_one_leads() {
    let cluster = cluster().await;
    let leases = cluster.api::<Lease>();
    let mut now = jiff::Timestamp::now();
    for round in 0..10 {
        // The lease of the previous round has expired: both may take it, and each knows only what
        // it read.
        let (one, other) = tokio::join!(hold(&leases, "one", now), hold(&leases, "other", now));
        let leaders = [&one, &other]
            .into_iter()
            .filter(|outcome| **outcome == Ok(true))
            .count();
        let holder = leases
            .get("lead")
            .await
            .unwrap()
            .spec
            .unwrap()
            .holder_identity
            .unwrap();
        let winner = if holder == "one" { &one } else { &other };
        assert_eq!(
            (leaders, winner),
            (1, &Ok(true)),
            "round {round}: {one:?}, {other:?}"
        );
        assert!(
            [one, other]
                .into_iter()
                .all(|outcome| matches!(outcome, Ok(_) | Err(409)))
        );
        now += Duration::from_secs(60);
    }
    cluster.server.stop().await;
}
